"""What the errors of a study allow to be said."""

from dataclasses import replace

import numpy as np
import pytest

from flatfold.evaluate.study.certainty import above, typical_error
from tests.toy_study import make_study


@pytest.fixture(scope="module")
def study():
    return make_study(known=4, unknown=4, classes=3, width=2)


@pytest.mark.parametrize(
    ("value", "stderr", "known", "order"),
    [
        (3.0, None, None, 1),
        (1.0, None, None, -1),
        (2.0, None, None, 0),
        (3.0, 0.2, 0.2, 1),
        (3.0, 0.2, 0.4, 0),
        (3.0, 0.6, None, 0),
        (1.0, 0.2, 0.2, -1),
        (1.0, None, 0.6, 0),
        (-5.0, 1.0, 1.0, -1),
    ],
)
def test_two_errors_of_both_must_lie_between_two_figures(value, stderr, known, order, study):
    first = study.statistics[0]
    assert above(replace(first, value=value, stderr=stderr), replace(first, value=2.0, stderr=known)) == order


def test_the_typical_error_is_the_median_share_of_the_size_of_a_trace(study):
    changed = replace(
        study,
        traces={**study.traces, "parameter/id": np.array([1.0, -2.0]), "parameter/far-set": np.array([4.0])},
        trace_stderr={"parameter/id": np.array([0.1, 1.0]), "parameter/far-set": np.array([1.0])},
    )
    assert typical_error(changed, "parameter") == 0.25
    assert typical_error(changed, "feature") is None


def test_a_trace_without_a_size_has_no_share(study):
    traces = {**study.traces, "parameter/id": np.array([0.0, np.nan, 2.0])}
    changed = replace(study, traces=traces, trace_stderr={"parameter/id": np.array([1.0, 1.0, 1.0])})
    assert typical_error(changed, "parameter") == 0.5
    nothing = {**study.traces, "parameter/id": np.zeros(3)}
    assert typical_error(replace(changed, traces=nothing), "parameter") is None
