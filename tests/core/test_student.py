"""`core.student` against scipy, from one degree of freedom to a million, and far out in the tails."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as scipy_t

from flatfold.core.student import quantile, smallest, two_sided

DEGREES = [1, 2, 3, 4, 5, 9, 10, 39, 100, 1999, 10**4, 10**6]
ROUNDING = 2e-8  # of logarithms of gamma functions around 10^7, the difference of which is wanted


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("t", [1e-3, 0.1, 0.7, 1.5, 1.72, 1.74, 1.96, 3.0, 12.7, 40.0, 1e4])
def test_probabilities_are_those_of_scipy_to_the_last_digits_of_small_ones(t, degrees):
    expected = 2 * scipy_t.sf(t, degrees)
    assert two_sided(t, degrees) == pytest.approx(expected, rel=ROUNDING, abs=1e-290)
    assert two_sided(-t, degrees) == two_sided(t, degrees)


@given(st.floats(0.001, 50), st.integers(1, 500))
def test_probabilities_are_those_of_scipy_anywhere(t, degrees):
    assert two_sided(t, degrees) == pytest.approx(2 * scipy_t.sf(t, degrees), rel=1e-11)


def test_everything_lies_as_far_from_0_as_0():
    assert two_sided(0.0, 3) == 1


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("level", [0.001, 0.5, 0.9, 0.95, 0.9999])
def test_quantiles_are_those_of_scipy(level, degrees):
    assert quantile(level, degrees) == pytest.approx(scipy_t.ppf((1 + level) / 2, degrees), rel=ROUNDING)


@given(st.floats(0, 1e9))
def test_the_smallest_number_is_found_to_the_last_digit(wanted):
    assert smallest(lambda x: x >= wanted) == wanted


@pytest.mark.parametrize("degrees", [0, -1])
def test_nothing_is_known_without_a_degree_of_freedom(degrees):
    with pytest.raises(ValueError, match=f"needs at least 1 degree of freedom, got {degrees}. Two values have 1"):
        two_sided(1.0, degrees)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_level_that_is_no_share_is_refused(level):
    with pytest.raises(ValueError, match=f"level must lie between 0 and 1, got {level}. The customary value is 0.95"):
        quantile(level, 3)
