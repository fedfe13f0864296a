"""`studies.autofold.view` against FOLD itself and against a search by hand."""

import pytest
import torch
from torch.testing import assert_close

from flatfold.core.bank import FeatureBank
from flatfold.core.head import Head
from flatfold.detectors.fold import Fold
from studies.autofold.view import (
    classes_of,
    likeliest_temperature,
    logits_at,
    paper_temperature,
    scores_at,
    view_of,
)


def make_case(n=40, c=4, d=6, bias=True, seed=0):
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(n, d, generator=g, dtype=torch.float64)
    head = Head(
        torch.randn(c, d, generator=g, dtype=torch.float64),
        torch.randn(c, generator=g, dtype=torch.float64) if bias else None,
    )
    labels = torch.randint(c, (n,), generator=g)
    return FeatureBank(h, labels), head


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.35, 1.0])
def test_the_papers_temperature_gives_the_papers_score(alpha, bias):
    bank, head = make_case(bias=bias)
    classes = classes_of(bank, head)
    got = scores_at(view_of(bank.features, head), classes, alpha, paper_temperature(classes, alpha))
    assert_close(got, Fold(alpha).fit(bank, head)(bank.features), rtol=1e-9, atol=0)


def test_the_exponent_takes_the_norm_away_and_the_temperature_divides_what_is_left():
    bank, head = make_case()
    classes = classes_of(bank, head)
    mean_norm = bank.features.norm(dim=1).mean()
    rescaled = bank.features / 3 * (mean_norm / bank.features.norm(dim=1, keepdim=True)) ** 0.7
    expected = rescaled @ head.weight.T + head.bias
    assert_close(logits_at(view_of(bank.features, head), classes, 0.7, 3.0), expected, rtol=1e-9, atol=1e-12)


def test_the_likeliest_temperature_has_the_smallest_cross_entropy_of_a_fine_grid():
    bank, head = make_case(n=200)
    view, classes = view_of(bank.features, head), classes_of(bank, head)
    labels = torch.distributions.Categorical(logits=logits_at(view, classes, 0.5, 2.0)).sample()
    grid = torch.logspace(-1, 2, 3001).tolist()
    losses = [torch.nn.functional.cross_entropy(logits_at(view, classes, 0.5, t), labels) for t in grid]
    best = grid[int(torch.stack(losses).argmin())]
    assert likeliest_temperature(view, labels, classes, 0.5) == pytest.approx(best, rel=3e-3)


def test_labels_that_are_all_the_largest_end_at_the_coldest_temperature():
    bank, head = make_case(bias=False)
    view, classes = view_of(bank.features, head), classes_of(bank, head)
    labels = view.projected.argmax(dim=1)
    assert likeliest_temperature(view, labels, classes, 0.0) == pytest.approx(1e-3, rel=1e-6)
