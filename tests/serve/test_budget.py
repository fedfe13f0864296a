"""`serve.budget`: memory is taken and given back to the byte."""

import pytest

from flatfold.serve.budget import Budget
from flatfold.serve.refusal import Refusal


def test_shares_are_given_back_even_after_an_error():
    budget = Budget(100)
    with budget.share() as one, budget.share() as other:
        one.take(40)
        other.take(60)
        assert budget.used == 100
    with pytest.raises(Refusal), budget.share() as one:
        _ = [one.take(size) for size in (7, 94)]
    assert budget.used == 0


def test_a_request_that_is_too_large_is_refused_for_good_and_one_that_comes_too_late_for_now():
    budget = Budget(3_000_000)
    with budget.share() as one, budget.share() as other:
        one.take(2_000_000)
        with pytest.raises(Refusal, match=r"may take 3 MB of memory .* Send fewer at once") as refused:
            one.take(1_000_001)
        assert refused.value.status == 413
        with pytest.raises(Refusal, match=r"taken by others. Send it again in a moment") as refused:
            other.take(1_000_001)
        assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
        other.take(1_000_000)
