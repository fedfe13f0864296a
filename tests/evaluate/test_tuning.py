"""Hyper-parameters chosen on OOD data as OpenOOD does, and on ID data alone by masking."""

import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold.core.bank import without_class
from flatfold.evaluate.tuning import grid_points, search

pytestmark = pytest.mark.filterwarnings("ignore:tuning .* made little difference")
ALPHAS = [i / 10 for i in range(1, 11)]


@pytest.fixture
def world(make_world):
    """Classes that overlap, so that no criterion is perfect."""
    plain = make_world(torch.float64)
    g = torch.Generator().manual_seed(7)
    noise = torch.randn(plain.bank.features.shape, generator=g, dtype=torch.float64)
    features = (plain.bank.features + 1.2 * noise).relu()
    return ff.FeatureBank(features, plain.bank.labels), plain.head, ff.FeatureBank(plain.unknown * 2)


@pytest.mark.parametrize("criterion", ["paired", "one_vs_rest"])
def test_masking_in_general_is_autofolds_curve_in_particular(criterion, world):
    bank, head, _ = world
    tuning = ff.tune("fold", head, bank, grid={"alpha": ALPHAS}, criterion=criterion)
    autofold = ff.AutoFold(criterion, grid=ALPHAS).fit(bank, head)
    assert_close(torch.tensor([t.value for t in tuning.trials]), autofold.curve_.float(), rtol=0, atol=1e-7)
    assert_close(torch.tensor([t.stderr for t in tuning.trials]), autofold.curve_stderr_.float(), rtol=1e-5, atol=1e-9)
    assert tuning.hyper == {"alpha": pytest.approx(float(autofold.alpha_))}
    assert tuning.tuned_on == "id"


def test_autofold_r_chooses_percentile_and_alpha_together(world):
    """The surface of FOLD-R over both, point by point, has its maximum where AutoFold-R says."""
    bank, head, _ = world
    percentiles = (70, 85, 95)
    tuning = ff.tune("fold-r", head, bank, grid={"percentile": percentiles, "alpha": ALPHAS})
    detector = ff.create("autofold-r", percentile=percentiles, grid=ALPHAS).fit(bank, head)
    chosen = {"percentile": float(detector.percentile_), "alpha": float(detector.chosen.detector.alpha_)}
    assert chosen == pytest.approx(tuning.hyper)
    best = {p: max(t.value for t in tuning.trials if t.hyper["percentile"] == p) for p in percentiles}
    assert_close(detector.maxima_, torch.tensor(list(best.values())).double(), rtol=0, atol=1e-7)
    fold_r = ff.create("fold-r", **tuning.hyper).fit(bank, head)
    assert_close(detector(bank.features), fold_r(bank.features))
    fixed, joint = (ff.create("autofold-a", percentile=given).fit(bank, head) for given in (80, [80]))
    assert_close(fixed(bank.features), joint(bank.features))


def slow_knn_criterion(bank, head, k):
    """Leave each class out of the bank in turn and look at its samples before and after."""
    values = []
    for label in range(6):
        inside = bank.labels == label
        full = ff.detectors.Knn(k).fit(bank, head)(bank.features[inside])
        without = ff.detectors.Knn(k).fit(ff.FeatureBank(bank.features[~inside]), head)(bank.features[inside])
        values.append(ff.auroc(full, without))
    return sum(values) / 6


def test_methods_without_logits_leave_the_class_out_of_their_bank(world):
    bank, head, _ = world
    tuning = ff.tune("knn", head, bank, train=bank, grid={"k": [2, 10, 40]})
    assert [t.value for t in tuning.trials] == pytest.approx([slow_knn_criterion(bank, head, k) for k in (2, 10, 40)])
    train = bank[bank.labels != 2]
    with pytest.warns(UserWarning, match="ignored"):  # a class without training data
        some = ff.tune("knn", head, bank, train=train, grid={"k": [5]}).trials[0]
    assert some.value == ff.tune("knn", head, train, train=train, grid={"k": [5]}).trials[0].value


ANY = {
    "knn": {"k": [5, 20]}, "vim": {"dim": [4, 12]}, "ebo": {"temperature": [1.0, 5.0]},
    "react": {"percentile": [80, 95]}, "ash": {"percentile": [50, 90]}, "gen": {"gamma": [0.1, 1.0], "top": [3, 6]},
    "msp": {"alpha": [0.0, 0.5, 1.0]}, "mds": {"alpha": [0.0, 1.0]},
    "scale": {"percentile": [70, 85], "alpha": [0.0, 0.5]},
}  # fmt: skip


def test_any_hyper_parameter_of_any_method_can_be_tuned_on_id_data_alone(world):
    bank, head, _ = world
    for name, grid in ANY.items():
        tuning = ff.tune(name, head, bank, train=bank, grid=grid)
        assert [trial.hyper for trial in tuning.trials] == grid_points(grid), name
        assert all(0.5 < trial.value <= 1 and 0 <= trial.stderr < 0.1 for trial in tuning.trials), name
        best = max(trial.value for trial in tuning.trials)
        chosen = next(trial.value for trial in tuning.trials if trial.hyper == tuning.hyper)
        assert chosen == pytest.approx(best), name
        ff.create(name, **tuning.hyper).fit(bank, head)
    points = [{"t": t, "e": e} for e in ("a", "b", "c") for t in (1, 10)]
    assert grid_points({"t": [1, 10], "e": ["a", "b", "c"]}) == points  # the first varies fastest


def test_on_ood_data_the_auroc_against_validation_data_decides(world):
    bank, head, ood = world
    tuning = ff.tune("ash", head, bank, ood=ood)
    values = []
    for percentile in (65, 70, 75, 80, 85, 90, 95):
        detector = ff.create("ash", percentile=percentile).fit(bank, head)
        values.append(ff.auroc(detector(bank.features), detector(ood.features)))
    assert [trial.value for trial in tuning.trials] == values
    assert tuning.hyper == {"percentile": (65, 70, 75, 80, 85, 90, 95)[values.index(max(values))]}
    assert tuning.tuned_on == "ood"
    train = ff.FeatureBank(bank.features[::2] * 1.1, bank.labels[::2])
    trial = ff.tune("knn", head, bank, train=train, ood=ood, grid={"k": [5]}).trials[0]
    detector = ff.detectors.Knn(5).fit(train, head)
    assert trial.value == ff.auroc(detector(bank.features), detector(ood.features))
    other = ff.FeatureBank(bank.features * 3, bank.labels)  # react fits on validation data whatever is given
    with_train, without = (ff.tune("react", head, bank, train=t, ood=ood).trials for t in (other, None))
    assert with_train == without


def test_what_is_given_stays_as_given_and_leaves_the_default_grid(world):
    bank, head, ood = world
    tuning = ff.tune("fold-r", head, bank, ood=ood, grid={"percentile": [80, 90]}, alpha=0.3)
    assert tuning.hyper["alpha"] == 0.3
    expected = ff.create("fold-r", alpha=0.3, percentile=80).fit(bank, head)
    assert tuning.trials[0].value == ff.auroc(expected(bank.features), expected(ood.features))
    tuning = ff.tune("gen", head, bank, ood=ood, top=3)
    assert tuning.hyper["top"] == 3
    assert [trial.hyper for trial in tuning.trials] == [{"gamma": g} for g in (0.01, 0.1, 0.5, 1, 2, 5, 10)]


def test_ties_go_to_the_first_on_ood_data_and_to_the_middle_on_id_data_and_refused_points_are_kept(world):
    values = {0: 0.1, 1: 0.9, 2: 0.9, 3: 0.9}
    for tuned_on, winner in (("ood", 1), ("id", 2)):
        result = search("m", {}, [{"i": i} for i in values], lambda point: (values[point["i"]], 0.0), tuned_on)
        assert result.hyper == {"i": winner}
    with pytest.warns(UserWarning, match="criterion is flat"):  # a difference within the error
        search("m", {}, [{"i": 0}, {"i": 1}], lambda point: (0.8 + point["i"] / 100, 0.05), "id")
    assert search("m", {}, [{"i": 0}, {"i": 1}], lambda p: (0.90001 + p["i"] * 1e-5, None), "ood").hyper == {"i": 1}
    bank, head, ood = world
    tuning = ff.tune("vim", head, bank, train=bank, ood=ood, grid={"dim": [6, 24]})
    assert tuning.hyper == {"dim": 6}
    assert tuning.trials[1].value is None
    assert "dim" in tuning.trials[1].refused
    with pytest.raises(ValueError, match="no point"):
        ff.tune("vim", head, bank, train=bank, ood=ood)


def test_each_seed_draws_its_own_classes_and_twenty_at_most():
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(25).repeat(4)
    head = ff.Head(torch.randn(25, 30, generator=g))
    bank = ff.FeatureBank(torch.randn(100, 30, generator=g) + head.weight[labels], labels)

    def value(**arguments):
        return ff.tune("msp", head, bank, grid={"alpha": [0.5]}, **arguments).trials[0].value

    assert value(max_classes=2) == value(max_classes=2) != value(max_classes=2, seed=1)
    assert value(max_classes=2) != value(max_classes=None)
    assert value() == value(max_classes=20) != value(max_classes=19)


def test_leaving_out_a_class_renumbers_the_others():
    bank = ff.FeatureBank(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 2, 1]))
    head = ff.Head(torch.arange(6.0).reshape(3, 2), torch.arange(3.0))
    smaller_bank, smaller_head = without_class(bank, head, 1)
    assert smaller_bank.labels.tolist() == [0, 1]
    assert smaller_bank.features.tolist() == [[0, 1], [4, 5]]
    assert smaller_head.weight.tolist() == [[0, 1], [4, 5]]
    assert smaller_head.bias.tolist() == [0, 2]
    with pytest.raises(ValueError, match="three"):
        without_class(smaller_bank, smaller_head, 0)


def test_what_cannot_be_tuned_is_refused(world):
    bank, head, ood = world
    for arguments, error, keyword in (
        ({"method": "knn"}, ValueError, "train="), ({"method": "odin"}, ValueError, "inputs"),
        ({"method": "msp"}, ValueError, "grid="),
        ({"method": "ebo", "grid": {"temperature": []}}, ValueError, "no values"),
        ({"method": "fold", "criterion": "both"}, ValueError, "paired"),
        ({"method": "fold", "max_classes": 0}, ValueError, "max_classes"),
        ({"method": "fold", "val": ff.FeatureBank(bank.features)}, ValueError, "labels"),
        ({"method": "fold", "grid": {"beta": [1]}}, TypeError, "beta"),
        ({"method": "fold", "val": bank[bank.labels == 1]}, ValueError, "two classes"),
        ({"method": "knn", "val": ff.FeatureBank(bank.features, bank.labels + 3), "train": bank}, ValueError, "8"),
        ({"method": "gen", "ood": ood, "grid": {"top": [3]}, "top": 3}, TypeError, "top"),
        ({"method": "gen", "ood": ood, "grid": {"top": 3}}, ValueError, "no values"),
    ):  # fmt: skip
        with pytest.raises(error, match=keyword):
            pytest.fail(f"{arguments}: {ff.tune(**{'head': head, 'val': bank, **arguments})}")


@pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
def test_percentiles_that_leave_no_feature_are_passed_over_and_among_equal_ones_the_middle_one_wins():
    labels = torch.arange(3).repeat(8)
    h = 9 * torch.eye(3)[labels]  # every threshold is 9 and every exponent tells all samples apart
    detector = ff.create("autofold-r", percentile=(97, 98, 99), grid=[0.1, 0.2])
    with pytest.warns(UserWarning, match="AutoFold's curve is flat") as caught:
        detector.fit(ff.FeatureBank(h, labels), ff.Head(torch.eye(3)))
    assert len(caught) == 1
    assert float(detector.percentile_) == 98
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat(10)
    weight = torch.eye(4).repeat(1, 2)
    bank = ff.FeatureBank(3 * weight[labels] + torch.rand(40, 8, generator=g), labels)
    detector = ff.create("autofold-a").fit(bank, ff.Head(weight))
    assert detector.percentiles_.tolist() == [65, 70, 75, 80, 85, 90]
    with pytest.raises(ValueError, match="none of"):
        ff.create("autofold-a", percentile=[95, 96]).fit(bank, ff.Head(weight))
    for bad in ([], "90"):
        with pytest.raises(ValueError, match="percentile"):
            pytest.fail(f"{bad!r}: {ff.create('autofold-a', percentile=bad)}")
