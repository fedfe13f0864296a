"""`evaluate.reproduce.sensitivity`: curves of the public detectors, and AutoFold's choice on them."""

from dataclasses import replace

import numpy as np
import pytest

import flatfold as ff
from flatfold.core.bank import FeatureBank
from flatfold.evaluate.judge import learnt_numbers
from flatfold.evaluate.reproduce import sensitivity
from flatfold.evaluate.reproduce.sensitivity import GRID, METHODS, sensitivities
from flatfold.evaluate.rows import MethodRun
from tests.evaluate.reproduce.toys import make_banks

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
SETS = ("near-set", "far-set")


@pytest.fixture(scope="module")
def found(banks):
    found, refused = sensitivities(banks)
    assert refused == {}
    return {each.method: each for each in found}


@pytest.fixture(scope="module")
def fitted(banks):
    """The AutoFold of every method."""
    return {method: ff.create(f"auto{method}").fit(banks.val, banks.head) for method in METHODS}


@pytest.fixture(scope="module")
def runs(fitted):
    """What a benchmark says of them."""
    return [run_of(f"auto{method}", **learnt_numbers(detector)) for method, detector in fitted.items()]


def figures(detector, banks):
    """AUROC and FPR95 of a fitted detector by column."""
    known = detector(banks.test.features)
    aurocs = {name: ff.auroc(known, detector(banks.ood[name].features)) for name in SETS}
    rates = {name: ff.fpr_at_tpr(known, detector(banks.ood[name].features)) for name in SETS}
    return tuple({**each, "all": np.mean(list(each.values()))} for each in (aurocs, rates))


def run_of(method, **learnt):
    return MethodRun(method, method, {}, "val", "id", 0.0, 0.0, learnt=learnt)


def test_the_grid_goes_from_none_to_full_normalisation_in_tenths(found):
    assert GRID == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert list(found) == list(METHODS)
    assert all(each.grid == list(GRID) for each in found.values())


def test_the_curve_of_fold_is_that_of_the_public_detector(found, banks):
    for place, alpha in enumerate(GRID):
        aurocs, rates = figures(ff.Fold(alpha).fit(banks.val, banks.head), banks)
        assert {column: values[place] for column, values in found["fold"].auroc.items()} == pytest.approx(aurocs)
        assert {column: values[place] for column, values in found["fold"].fpr95.items()} == pytest.approx(rates)


@pytest.mark.parametrize("method", METHODS)
def test_the_choice_gives_what_autofold_itself_gives(method, found, fitted, banks):
    aurocs, rates = figures(fitted[method], banks)
    assert found[method].chosen_auroc == pytest.approx(aurocs)
    assert found[method].chosen_fpr95 == pytest.approx(rates)


@pytest.mark.parametrize("method", METHODS)
def test_the_choice_lies_on_the_curve(method, found, runs, banks):
    chosen = found[method].chosen
    (again,) = [each for each in sensitivities(banks, runs, grid=[chosen])[0] if each.method == method]
    assert {column: values[0] for column, values in again.auroc.items()} == again.chosen_auroc
    assert (again.regret, again.regret_low, again.regret_high) == (0.0, 0.0, 0.0)


def test_the_regret_is_what_the_best_exponent_has_more_with_an_interval_around_it(found):
    for each in found.values():
        assert each.regret == pytest.approx(max(each.auroc["all"]) - each.chosen_auroc["all"])
        assert each.regret_low <= each.regret <= each.regret_high
        assert each.regret_high - each.regret_low < 0.2  # the two AUROCs by themselves are less certain


def test_a_choice_that_beats_the_grid_has_a_negative_regret(banks, found, runs):
    worst = GRID[int(np.argmin(found["fold"].auroc["all"]))]
    each = sensitivities(banks, runs, grid=[worst])[0][0]
    assert each.regret == pytest.approx(min(found["fold"].auroc["all"]) - found["fold"].chosen_auroc["all"])
    assert each.regret < 0


def test_what_a_benchmark_chose_is_not_looked_for_again(banks, monkeypatch):
    runs = [
        run_of("autofold", alpha_=0.37),
        run_of("autofold-r", alpha_=0.11, percentile_=85.0),
        run_of("autofold-a", alpha_=0.2, percentile_=65.0),
    ]
    monkeypatch.setattr(sensitivity, "learnt_numbers", None)  # which only a new choice needs
    found, refused = sensitivities(banks, runs)
    assert refused == {}
    assert [each.chosen for each in found] == [0.37, 0.11, 0.2]
    clipped = ff.create("fold-r", alpha=1.0, percentile=85).fit(banks.val, banks.head)
    assert found[1].auroc["all"][-1] == pytest.approx(figures(clipped, banks)[0]["all"])


def test_methods_that_refuse_are_left_out_with_their_reason(banks, runs):
    negative = replace(banks, test=FeatureBank(banks.test.features - 5, banks.test.labels))
    found, refused = sensitivities(negative, runs)
    assert [each.method for each in found] == ["fold", "fold-r"]
    assert "negative" in refused["fold-a"]
    two = make_banks(classes=2)
    found, refused = sensitivities(two)
    assert found == []
    assert all("which two classes do not have" in refused[method] for method in METHODS)
