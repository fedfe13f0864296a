"""`studies.autofold.families`: what is done to features before FOLD sees them."""

import pytest
import torch
from torch.testing import assert_close

from flatfold.core.bank import FeatureBank
from flatfold.detectors.fold import Fold
from studies.autofold.families import PAPER, Family
from studies.autofold.view import likeliest_temperature, view_of
from tests.studies.made_up import make_case


@pytest.fixture(scope="module")
def val():
    return make_case().val


def test_the_paper_is_fold(val):
    bank = FeatureBank(val.features, val.labels)
    expected = Fold(0.4).fit(bank, val.head.to(torch.float64))(val.features)
    assert_close(PAPER.fit(val, (0.4,)).scores(val.view, 0.4), expected, rtol=1e-9, atol=0)


def test_a_cap_shortens_what_is_longer_than_a_quantile_of_validation_norms(val):
    other = 2 * val.features + 0.1
    norms, longest = other.norm(dim=1, keepdim=True), val.features.norm(dim=1).quantile(0.75)
    shortened = torch.where(norms > longest, other * longest / norms, other)
    assert 0 < int((norms > longest).sum()) < len(norms)
    expected = Fold(0.4).fit(FeatureBank(val.features), val.head.to(torch.float64))(shortened)
    got = Family(cap=0.75).fit(val, (0.4,)).scores(view_of(other, val.head), 0.4)
    assert_close(got, expected, rtol=1e-9, atol=0)


def test_a_temperature_is_a_multiple_of_the_likeliest_at_each_exponent(val):
    fitted = Family(times=3).fit(val, (0.0, 0.5))
    for alpha, temperature in fitted.temperatures.items():
        assert temperature == pytest.approx(3 * likeliest_temperature(val.view, val.labels, val.classes, alpha))


def test_the_temperature_behind_a_cap_is_the_likeliest_of_capped_features(val):
    fitted = Family(times=1, cap=0.25).fit(val, (0.0,))
    capped = fitted.capped(val.view)
    assert fitted.temperatures[0.0] == pytest.approx(likeliest_temperature(capped, val.labels, val.classes, 0.0))
    assert fitted.temperatures[0.0] != pytest.approx(likeliest_temperature(val.view, val.labels, val.classes, 0.0))


def test_the_input_is_not_changed(val):
    before = val.view.projected.clone()
    Family(cap=0.1).fit(val, (0.5,)).scores(val.view, 0.5)
    assert torch.equal(val.view.projected, before)


@pytest.mark.parametrize(
    ("family", "name"),
    [(PAPER, "paper"), (Family(times=2), "T x 2"), (Family(cap=0.5), "cap 50"), (Family(2, 0.5), "T x 2, cap 50")],
)
def test_a_name_says_what_is_changed(family, name):
    assert family.name == name
