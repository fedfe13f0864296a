"""What torch lacks, or has wrong, becomes a sentence; everything else stays what it is."""

import pytest

from flatfold.curvature.second_derivatives import check_symmetric, is_about_derivatives, told_if_missing


@pytest.mark.parametrize(
    ("one", "other", "usual", "most"),
    [
        (1.0, 1.0, 0.0, 0.0),
        (1.0, 1.01, 1.0, 10.0),  # a per cent of the entries
        (0.0, 0.005, 1.0, 10.0),  # or of what they usually are
        (1e-6, -1e-6, 0.0, 1.0),  # or rounding, next to a large matrix
        (0.0, 0.0, 0.0, 0.0),
    ],
)
def test_entries_that_rounding_explains_are_symmetric(one, other, usual, most):
    check_symmetric(one, other, usual, most)


@pytest.mark.parametrize(
    ("one", "other", "usual", "most"), [(1.0, 1.1, 1.0, 10.0), (1e-30, -1e-30, 1e-30, 1e-29), (0.0, 0.1, 1.0, 1.0)]
)
def test_others_are_not(one, other, usual, most):
    with pytest.raises(ValueError, match="a curvature matrix must be symmetric, but this one has"):
        check_symmetric(one, other, usual, most)


def test_a_missing_derivative_becomes_a_sentence():
    with (
        pytest.raises(ValueError, match=r"second derivative: 'x_backward' has no derivative\. For"),
        told_if_missing(),
    ):
        raise NotImplementedError("'x_backward' has no derivative.")


def test_other_errors_are_passed_on():
    with pytest.raises(RuntimeError, match="out of memory"), told_if_missing():
        raise RuntimeError("out of memory")
    assert is_about_derivatives(RuntimeError("trying to differentiate twice a function that was marked"))
    assert not is_about_derivatives(RuntimeError("out of memory"))
