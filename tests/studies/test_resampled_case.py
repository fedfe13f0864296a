"""`studies.autofold.surface` and `measure`: a case under every rule, against detectors that are fitted one by one."""

import numpy as np
import pytest
import torch

from flatfold.core.bank import FeatureBank
from flatfold.core.ranking import auroc
from flatfold.detectors.ebo import Ebo
from flatfold.detectors.fold import Fold
from studies.autofold.families import ALPHAS, PAPER, Family
from studies.autofold.measure import measure
from studies.autofold.rules import RULES, chosen, curve
from studies.autofold.surface import draw, surface
from tests.studies.made_up import make_banks, make_case

REPLICATES = 7


@pytest.fixture(scope="module")
def measured():
    return measure(make_case(), REPLICATES)


def row(measured, name):
    return measured.methods.index(name)


def expected_auroc(detector, banks, cap=None):
    def features(bank):
        h = bank.features.double()
        if cap is None:
            return h
        longest = banks.val.features.double().norm(dim=1).quantile(cap)
        return h * (longest / h.norm(dim=1, keepdim=True)).clamp(max=1)

    fitted = detector.fit(FeatureBank(features(banks.val)), banks.head.to(torch.float64))
    each = [auroc(fitted(features(banks.test)), fitted(features(ood))) for ood in banks.ood.values()]
    return [*each, np.mean(each)]


@pytest.mark.parametrize(
    ("name", "detector", "cap"),
    [
        ("fixed-0.5", Fold(0.5), None),
        ("fixed-0.25-cap50", Fold(0.25), 0.5),
        ("ebo", Ebo(), None),
        ("ebo-cap50", Ebo(), 0.5),
    ],
)
def test_replicate_0_is_what_the_detector_reaches(measured, name, detector, cap):
    np.testing.assert_allclose(measured.auroc[row(measured, name), 0], expected_auroc(detector, make_banks(), cap))


def test_a_replicate_is_the_auroc_of_the_images_that_were_drawn():
    case = make_case()
    drawn = draw(case, REPLICATES)
    got = surface(case, PAPER.fit(case.val), drawn)
    assert got.shape == (REPLICATES + 1, len(ALPHAS), 3)
    fitted = PAPER.fit(case.val)
    known = np.repeat(fitted.scores(case.test, ALPHAS[4]).numpy(), drawn.test[5])
    unknown = np.repeat(fitted.scores(case.ood["long"], ALPHAS[4]).numpy(), drawn.ood["long"][5])
    assert got[5, 4, 1] == pytest.approx(auroc(known, unknown))
    np.testing.assert_allclose(got[..., 2], got[..., :2].mean(axis=-1))


def test_the_first_draw_is_the_images_as_they_are_and_the_others_are_as_many():
    case = make_case()
    drawn = draw(case, REPLICATES)
    for counts in (drawn.val, drawn.test, *drawn.ood.values()):
        assert (counts[0] == 1).all()
        assert (counts.sum(axis=1) == counts.shape[1]).all()
        assert (counts[1:] != 1).any()


def test_validation_images_are_drawn_within_their_class():
    case = make_case()
    counts = draw(case, REPLICATES).val
    for label in range(4):
        rows = case.val.labels.numpy() == label
        assert (counts[:, rows].sum(axis=1) == rows.sum()).all()


def test_networks_of_one_suite_get_the_same_draws_and_other_suites_others():
    first, second, other = (draw(make_case(seed, suite=suite), 3) for seed, suite in ((0, "a"), (1, "a"), (0, "b")))
    np.testing.assert_array_equal(first.test, second.test)
    assert (first.test != other.test).any()


def test_a_rule_keeps_its_choice_in_one_column_and_chooses_again_in_the_other(measured):
    case = make_case()
    drawn = draw(case, REPLICATES)
    fitted = PAPER.fit(case.val)
    index = chosen(curve(case.val, fitted, RULES["paired"].criterion, drawn.val))
    reached = surface(case, fitted, drawn)
    number = row(measured, "paired")
    assert len(set(index.tolist())) > 1
    np.testing.assert_allclose(measured.auroc[number], reached[:, index[0]])
    np.testing.assert_allclose(measured.redrawn[number], [reached[b, index[b]] for b in range(REPLICATES + 1)])
    np.testing.assert_allclose(measured.alphas[number, :, 0], np.asarray(ALPHAS)[index])


def test_the_oracle_is_the_best_exponent_of_each_set_and_keeps_it(measured):
    case = make_case()
    reached = surface(case, PAPER.fit(case.val), draw(case, REPLICATES))
    number = row(measured, "oracle")
    for dataset in range(3):
        best = reached[0, :, dataset].argmax()
        np.testing.assert_allclose(measured.redrawn[number, :, dataset], reached[:, best, dataset])
        assert measured.alphas[number, 0, dataset] == ALPHAS[best]


def test_the_oracle_with_a_temperature_knows_all_families_without_a_cap(measured):
    case = make_case()
    drawn = draw(case, 1)
    families = {rule.family for rule in RULES.values() if rule.family.cap is None}
    best = max(surface(case, family.fit(case.val), drawn)[0, :, -1].max() for family in families)
    assert measured.auroc[row(measured, "oracle-T"), 0, -1] == pytest.approx(best)
    assert Family(times=1) in families


def test_a_reference_has_no_exponent(measured):
    assert np.isnan(measured.alphas[row(measured, "msp")]).all()
    assert not np.isnan(measured.alphas[row(measured, "oracle")]).any()


def test_truth_and_criterion_are_curves_of_the_papers_score(measured):
    assert measured.truth.shape == (len(ALPHAS), 3)
    assert measured.truth[:, -1].max() == measured.auroc[row(measured, "oracle"), 0, -1]
    best = int(np.flatnonzero(np.asarray(ALPHAS) == measured.alphas[row(measured, "paired"), 0, -1])[0])
    assert measured.criterion[0, best] == pytest.approx(measured.criterion[0].max())
    assert (measured.criterion[1] >= 0).all()
