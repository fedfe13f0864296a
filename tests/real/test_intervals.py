"""DeLong's intervals of real scores against a plain bootstrap of the AUROC."""

import numpy as np
import pytest

from flatfold.core.intervals import auroc_influence, interval, paired_difference
from flatfold.core.metrics import auroc

CASES = ("msp", "ebo", "mds", "knn_k50", "klm", "gen", "fold_a0.7_norm0", "fold_react_p90_a0.3_norm0")
REPLICATES = 2000


def scores(golden, case):
    """Known and unknown scores with our sign, which is the opposite of the reference's."""
    return -golden[f"score_{case}_id"], -golden[f"score_{case}_ood"]


def redrawn(*pairs):
    """AUROCs of images drawn again, the same ones for every pair of score vectors, ``(replicates, pairs)``."""
    rng = np.random.default_rng(0)
    (n, m) = map(len, pairs[0])
    rows = [(rng.integers(n, size=n), rng.integers(m, size=m)) for _ in range(REPLICATES)]
    return np.array([[auroc(known[i], unknown[j]) for known, unknown in pairs] for i, j in rows])


@pytest.mark.parametrize("case", CASES)
def test_delongs_interval_is_the_bootstraps_within_a_tenth_of_its_width(case, golden):
    known, unknown = scores(golden, case)
    influence = auroc_influence(known, unknown)
    ends = np.array(interval(influence.auroc, influence.stderr, len(known), len(unknown)))
    bootstrap = np.quantile(redrawn((known, unknown))[:, 0], [0.025, 0.975])
    assert np.abs(ends - bootstrap).max() < 0.1 * (ends[1] - ends[0])


def test_the_paired_interval_is_the_bootstraps_within_a_tenth_of_its_width(golden):
    pairs = scores(golden, "msp"), scores(golden, "fold_a0.7_norm0")
    got = paired_difference(*(auroc_influence(*pair) for pair in pairs))
    first, second = redrawn(*pairs).T
    bootstrap = np.quantile(first - second, [0.025, 0.975])
    assert np.abs(np.array([got.low, got.high]) - bootstrap).max() < 0.1 * (got.high - got.low)
    apart = np.hypot(*(auroc_influence(*pair).stderr for pair in pairs))
    assert got.stderr < 0.8 * apart
