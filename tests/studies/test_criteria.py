"""`studies.autofold.criteria` against loops over samples, pairs and Hessians that are built."""

import numpy as np
import pytest
import torch

from flatfold.core.bank import FeatureBank
from flatfold.detectors.autofold import AutoFold
from studies.autofold import criteria
from studies.autofold.families import PAPER, Family
from tests.studies.made_up import CLASSES, make_case

ALPHA = 0.35


@pytest.fixture(scope="module")
def val():
    return make_case().val


@pytest.fixture(scope="module")
def counts(val):
    return np.random.default_rng(0).integers(1, 4, (3, len(val.labels)))


def trace(val, h, alpha, masked=None):
    """Slow and obvious: build the Hessian of the energy of one sample, without one class if asked to."""
    weight, bias = val.head.weight.double(), val.head.bias.double()
    kept = [k for k in range(CLASSES) if k != masked]
    p = (weight[kept] @ (h / h.norm() ** alpha) + bias[kept]).softmax(dim=0)
    return float((weight[kept].T @ (p.diag() - p.outer(p)) @ weight[kept]).trace())


def auroc(known, unknown):
    """Compare every pair."""
    return np.mean([(u > k) + (u == k) / 2 for k in known for u in unknown])


def repeated(values, rows, counts):
    return [values[i] for i in rows for _ in range(counts[i])]


def of_each_replicate(counts, value):
    return [value(row) for row in counts]


def test_paired_compares_each_class_with_its_masked_copies(val, counts):
    labels = val.labels.tolist()
    known = [trace(val, h, ALPHA) for h in val.features]
    masked = [trace(val, h, ALPHA, label) for h, label in zip(val.features, labels, strict=True)]

    def value(row):
        rows = [[i for i, label in enumerate(labels) if label == k] for k in range(CLASSES)]
        return np.mean([auroc(repeated(known, r, row), repeated(masked, r, row)) for r in rows])

    got = criteria.paired(val, PAPER.fit(val, (ALPHA,)), ALPHA, counts)
    np.testing.assert_allclose(got, of_each_replicate(counts, value), rtol=1e-9)


def test_one_vs_rest_masks_a_class_for_everybody(val, counts):
    labels = val.labels.tolist()
    scores = [[trace(val, h, ALPHA, k) for h in val.features] for k in range(CLASSES)]

    def value(row):
        own = [[i for i, label in enumerate(labels) if label == k] for k in range(CLASSES)]
        others = [[i for i, label in enumerate(labels) if label != k] for k in range(CLASSES)]
        return np.mean(
            [auroc(repeated(scores[k], others[k], row), repeated(scores[k], own[k], row)) for k in range(CLASSES)]
        )

    got = criteria.one_vs_rest(val, PAPER.fit(val, (ALPHA,)), ALPHA, counts)
    np.testing.assert_allclose(got, of_each_replicate(counts, value), rtol=1e-9)


@pytest.mark.parametrize(("criterion", "length"), [(criteria.pooled, 1.0), (criteria.shrunk, 0.5)])
def test_pooled_and_shrunk_compare_all_samples_with_all_masked_copies(val, counts, criterion, length):
    everybody = range(len(val.labels))
    known = [trace(val, h, ALPHA) for h in val.features]
    masked = [trace(val, length * h, ALPHA, k) for h, k in zip(val.features, val.labels.tolist(), strict=True)]
    expected = of_each_replicate(
        counts, lambda row: auroc(repeated(known, everybody, row), repeated(masked, everybody, row))
    )
    np.testing.assert_allclose(criterion(val, PAPER.fit(val, (ALPHA,)), ALPHA, counts), expected, rtol=1e-9)


def test_mixed_compares_samples_with_means_of_two_classes(val, counts):
    order = torch.randperm(len(val.labels), generator=torch.Generator().manual_seed(0)).tolist()
    pairs = [(i, j) for i, j in enumerate(order) if val.labels[i] != val.labels[j]]
    known = [trace(val, h, ALPHA) for h in val.features]
    mixed = {i: trace(val, (val.features[i] + val.features[j]) / 2, ALPHA) for i, j in pairs}
    assert 0 < len(pairs) < len(order)
    expected = of_each_replicate(
        counts, lambda row: auroc(repeated(known, range(len(order)), row), repeated(mixed, list(mixed), row))
    )
    np.testing.assert_allclose(criteria.mixed(val, PAPER.fit(val, (ALPHA,)), ALPHA, counts), expected, rtol=1e-9)


def test_shuffled_keeps_every_column_and_breaks_every_row(val, counts):
    g = torch.Generator().manual_seed(0)
    n = len(val.labels)
    other = torch.stack([c[torch.randperm(n, generator=g)] for c in val.features.T], dim=1)
    assert torch.equal(other.sort(dim=0).values, val.features.sort(dim=0).values)
    known, unknown = ([trace(val, h, ALPHA) for h in each] for each in (val.features, other))
    expected = of_each_replicate(
        counts, lambda row: auroc(repeated(known, range(n), row), repeated(unknown, range(n), row))
    )
    np.testing.assert_allclose(criteria.shuffled(val, PAPER.fit(val, (ALPHA,)), ALPHA, counts), expected, rtol=1e-9)


def test_likelihood_is_the_mean_log_probability_of_the_labels(val, counts):
    fitted = Family(times=1).fit(val, (ALPHA,))
    logits = fitted.logits(val.view, ALPHA)
    expected = []
    for row in counts:
        rows = torch.arange(len(row)).repeat_interleave(torch.from_numpy(row))
        expected.append(-float(torch.nn.functional.cross_entropy(logits[rows], val.labels[rows])))
    np.testing.assert_allclose(criteria.likelihood(val, fitted, ALPHA, counts), expected, rtol=1e-9)


def test_a_class_with_too_few_samples_is_left_out(val):
    few = make_case(n=17).val  # four samples of each class and a fifth of class 0
    kept = (few.labels != 3) | (torch.arange(17) < 8)  # which leaves two of class 3
    bank = FeatureBank(few.features[kept], few.labels[kept])
    rare = type(few).of(bank, few.head)
    rows = rare.labels != 3
    common = type(few).of(FeatureBank(bank.features[rows], bank.labels[rows]), few.head)
    values = [
        criteria.paired(each, PAPER.fit(each, (0.5,)), 0.5, np.ones((1, len(each.labels)), int))
        for each in (rare, common)
    ]
    np.testing.assert_allclose(*values, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
@pytest.mark.parametrize("name", ["paired", "one_vs_rest"])
def test_the_first_two_are_those_of_the_library(val, name):
    grid = (0.0, 0.4, 1.0)
    detector = AutoFold(criterion=name, grid=grid).fit(FeatureBank(val.features.float(), val.labels), val.head)
    once = np.ones((1, len(val.labels)), int)
    fitted = PAPER.fit(val, grid)
    got = [getattr(criteria, name)(val, fitted, alpha, once)[0] for alpha in grid]
    np.testing.assert_allclose(got, detector.curve_.numpy(), atol=1e-6)
