"""AutoFold's curve against loops that mask one class at a time, and its behaviour at the edges."""

import inspect

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold.detectors import METHODS
from tests.refusals import assert_refused

GRID = [0.01, 0.2, 0.5, 0.9, 1.0]
CRITERIA = ["paired", "one_vs_rest", "shrunk"]


def naive_scores(logits, h, head, score_norm, threshold=torch.inf):
    """FOLD in float64 from logits, by the definition of a variance; entries from the threshold on do not count."""
    p, w = logits.softmax(-1), head.weight.double()
    mean = p @ w
    trace = (p[:, :, None] * (w[None] - mean[:, None]).square() * (h < threshold)[:, None]).sum((1, 2))
    divisor = {None: 1.0, "weight": mean.square().sum(-1), "feature": h.square().sum(-1)}[score_norm]
    return trace / divisor


def naive_curve(world, criterion, score_norm=None, classes=range(6), threshold=torch.inf):
    """Mask, score, rank: one class and one exponent at a time."""
    labels, curve = world.bank.labels, []
    for alpha in GRID:
        h = world.bank.features.double()
        if criterion == "shrunk":
            curve.append(naive_shrunk(world, h, alpha, score_norm, classes, threshold))
            continue
        h = h / h.norm(dim=-1, keepdim=True) ** alpha
        logits = h @ world.head.weight.double().T + world.head.bias.double()
        aurocs = []
        for k in classes:
            masked_logits = logits.clone()
            masked_logits[:, k] = -torch.inf
            plain = naive_scores(logits, h, world.head, score_norm, threshold)
            masked = naive_scores(masked_logits, h, world.head, score_norm, threshold)
            known = plain[labels == k] if criterion == "paired" else masked[labels != k]
            aurocs.append(ff.auroc(known, masked[labels == k]))
        curve.append(np.mean(aurocs))
    return torch.tensor(curve, dtype=torch.float64)


def naive_shrunk(world, h, alpha, score_norm, classes, threshold):
    """Score everybody as they are, and half as long without their own class; rank all of them together."""
    rows = torch.isin(world.bank.labels, torch.tensor(list(classes)))
    sides = []
    for length in (1.0, 0.5):
        short = length * h[rows]
        short = short / short.norm(dim=-1, keepdim=True) ** alpha
        logits = short @ world.head.weight.double().T + world.head.bias.double()
        if length < 1:
            logits[torch.arange(len(logits)), world.bank.labels[rows]] = -torch.inf
        sides.append(naive_scores(logits, short, world.head, score_norm, threshold))
    return ff.auroc(*sides)


@pytest.fixture
def blurred(make_world):
    """A world with overlapping classes, so that the curves move."""
    world = make_world(per_class=25)
    noise = torch.randn(world.bank.features.shape, generator=torch.Generator().manual_seed(3))
    features = (0.5 * world.bank.features + 1.2 * noise).relu() + 0.01
    return type(world)(world.head, ff.FeatureBank(features, world.bank.labels), world.unknown)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_curve_is_the_naive_one(criterion, blurred):
    for score_norm in (None, "weight", "feature"):
        detector = ff.AutoFold(criterion, GRID, score_norm=score_norm).fit(blurred.bank, blurred.head)
        assert_close(detector.curve_.double(), naive_curve(blurred, criterion, score_norm), rtol=0, atol=1e-6)
        assert detector.curve_.std() > 1e-3, score_norm  # a flat curve would prove nothing


@pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_curve_that_is_computed_in_parts_is_the_same(criterion, blurred, monkeypatch):
    narrow = blurred.bank.features[:, :2]  # six classes of two features: without distances between all pairs
    bank, head = ff.FeatureBank(narrow, blurred.bank.labels), ff.Head(blurred.head.weight[:, :2], blurred.head.bias)
    for score_norm in (None, "weight", "feature"):
        at_once = ff.AutoFold(criterion, GRID, score_norm=score_norm).fit(bank, head)
        expected = naive_curve(type(blurred)(head, bank, blurred.unknown), criterion, score_norm)
        assert_close(at_once.curve_.double(), expected, rtol=0, atol=1e-6)
        with monkeypatch.context() as small:
            small.setattr("flatfold.core.hessian.ENTRIES_AT_ONCE", 2 * len(bank))  # 50 rows, or two classes
            small.setattr("flatfold.detectors.autofold.SCORES", 4 * len(bank))  # four classes, or two exponents
            in_parts = ff.AutoFold(criterion, GRID, score_norm=score_norm).fit(bank, head)
        assert_close(in_parts.curve_, at_once.curve_)
        assert_close(in_parts.curve_stderr_, at_once.curve_stderr_)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_it_scores_like_fold_at_the_chosen_exponent(criterion, blurred):
    detector = ff.AutoFold(criterion, GRID).fit(blurred.bank, blurred.head)
    assert_close(detector.alpha_, detector.grid_[detector.curve_.argmax()])
    fold = ff.Fold(float(detector.alpha_)).fit(blurred.bank, blurred.head)
    assert_close(detector(blurred.unknown), fold(blurred.unknown), rtol=1e-5, atol=0)


def test_the_grid_is_the_papers(blurred):
    detector = ff.AutoFold().fit(blurred.bank, blurred.head)
    assert_close(detector.grid_, torch.arange(1, 101) / 100)
    assert detector.curve_.shape == detector.curve_stderr_.shape == (100,)
    assert (detector.curve_stderr_ > 0).all()


@pytest.mark.parametrize("name", ["autofold-r", "autofold-a"])
def test_the_variants_choose_a_percentile_by_the_shrunk_criterion_too(name, blurred):
    detector = ff.create(name, percentile=[65, 70, 90], criterion="shrunk", grid=GRID).fit(blurred.bank, blurred.head)
    curves = []
    for percentile in (65, 70, 90):
        shaping = ff.create(name, percentile=percentile, grid=GRID).fit(blurred.bank, blurred.head).shaping
        bank = ff.FeatureBank(shaping(blurred.bank.features), blurred.bank.labels)
        curves.append(naive_curve(type(blurred)(blurred.head, bank, blurred.unknown), "shrunk"))
    maxima = torch.stack(curves).amax(dim=1)
    assert_close(detector.maxima_.double(), maxima, rtol=0, atol=1e-6)
    assert maxima.std() > 1e-4
    assert_close(float(detector.chosen.detector.alpha_), GRID[int(curves[int(maxima.argmax())].argmax())])


@pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
@pytest.mark.parametrize("criterion", CRITERIA)
def test_autofold_r_can_leave_out_what_react_clips_as_the_authors_do(criterion, blurred):
    short = ff.FeatureBank(0.05 * blurred.bank.features, blurred.bank.labels)  # normalised ones exceed the threshold
    threshold = float(torch.quantile(short.features.double(), 0.9))
    world = type(blurred)(blurred.head, ff.FeatureBank(short.features.clamp(max=threshold), short.labels), None)
    for score_norm in (None, "weight", "feature"):
        hyper = {"criterion": criterion, "grid": GRID, "percentile": 90, "score_norm": score_norm}
        plain, masked = (ff.create("autofold-r", **hyper, masked=m).fit(short, blurred.head) for m in (False, True))
        expected = naive_curve(world, criterion, score_norm, threshold=threshold)
        assert_close(masked.detector.curve_.double(), expected, rtol=0, atol=1e-6)
        assert (plain.detector.curve_.double() - expected).abs().max() > 1e-2, score_norm
        fold = ff.create("fold-r", alpha=float(masked.detector.alpha_), score_norm=score_norm, masked=True)
        h = 0.05 * blurred.unknown
        assert_close(masked(h), fold.fit(short, blurred.head)(h), rtol=1e-5, atol=0)
    authors = ff.create("autofold-r", preset="authors", grid=GRID).fit(short, blurred.head)
    assert float(authors.detector.alpha_) == pytest.approx(
        GRID[int(naive_curve(world, "one_vs_rest", threshold=threshold).argmax())]
    )


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_choice_does_not_depend_on_the_type_of_the_features(criterion, blurred):
    features, labels = blurred.bank.features, blurred.bank.labels
    head = ff.Head(blurred.head.weight.double(), blurred.head.bias.double())
    wide = ff.AutoFold(criterion, GRID).fit(ff.FeatureBank(features.double(), labels), head)
    narrow = ff.AutoFold(criterion, GRID).fit(blurred.bank, blurred.head)
    assert (wide.curve_.dtype, narrow.curve_.dtype) == (torch.float64, torch.float32)
    assert torch.equal(wide.curve_.float(), narrow.curve_)


@pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
def test_max_classes_draws_the_classes_of_the_authors_generator(blurred):
    for criterion, seed in (("one_vs_rest", 42), ("one_vs_rest", 1), ("shrunk", 42)):
        drawn = np.random.RandomState(seed).choice(np.arange(6), 3, replace=False)
        detector = ff.AutoFold(criterion, GRID, max_classes=3, seed=seed).fit(blurred.bank, blurred.head)
        assert_close(detector.curve_.double(), naive_curve(blurred, criterion, classes=drawn), rtol=0, atol=1e-6)
        assert (detector.curve_.double() - naive_curve(blurred, criterion)).abs().max() > 1e-3, (criterion, seed)
    everything = ff.AutoFold("one_vs_rest", GRID, max_classes=6).fit(blurred.bank, blurred.head)
    assert_close(everything.curve_.double(), naive_curve(blurred, "one_vs_rest"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_classes_with_too_few_samples_do_not_count(criterion, blurred):
    keep = (blurred.bank.labels != 2) | (torch.arange(len(blurred.bank)) < 12)  # two of class 2 are left
    world = type(blurred)(blurred.head, blurred.bank[keep], blurred.unknown)
    assert int((world.bank.labels == 2).sum()) == 2
    detector = ff.AutoFold(criterion, GRID).fit(world.bank, world.head)
    assert_close(detector.curve_.double(), naive_curve(world, criterion, classes=[0, 1, 3, 4, 5]), rtol=0, atol=1e-6)


def test_a_perfect_separation_takes_the_middle_and_warns():
    head = ff.Head(torch.eye(3) * 4)
    labels = torch.arange(3).repeat(5)
    bank = ff.FeatureBank(5 * torch.eye(3)[labels] + 0.01 * torch.rand(15, 3), labels)
    with pytest.warns(UserWarning, match="flat"):
        detector = ff.AutoFold(grid=[0.1, 0.2, 0.3, 0.4, 0.5]).fit(bank, head)
    assert_close(detector.curve_, torch.ones(5))
    assert_close(float(detector.alpha_), 0.3)
    with pytest.warns(UserWarning, match="flat"):
        joint = ff.create("autofold-r", percentile=[85, 90, 95], grid=[0.1, 0.2, 0.3]).fit(bank, head)
    assert joint.maxima_.tolist() == [1, 1, 1]
    assert joint.percentile_ == 90


def test_a_curve_within_its_standard_error_is_flat(blurred):
    with pytest.warns(UserWarning, match="AutoFold's curve is flat"):
        detector = ff.AutoFold(grid=[0.50, 0.51, 0.52]).fit(blurred.bank, blurred.head)
    assert 0 < detector.curve_.max() - detector.curve_.min() < detector.curve_stderr_.min()


def test_the_variants_hand_every_hyper_parameter_on():
    hyper = {"criterion": "one_vs_rest", "grid": [0.5], "max_classes": 3, "seed": 5}
    for name in ("autofold-r", "autofold-a"):
        inner = ff.create(name, **hyper, score_norm="weight", percentile=70).detector
        assert {key: getattr(inner, key) for key in hyper} == hyper
        assert inner.fold.score_norm == "weight"


def test_it_cannot_be_given_ood_data():
    for name in ("autofold", "autofold-r", "autofold-a"):
        assert METHODS[name].tuned_on == "id"
        assert not any("ood" in parameter for parameter in inspect.signature(METHODS[name].factory).parameters)
    assert list(inspect.signature(ff.AutoFold.fit).parameters) == ["self", "bank", "head"]


@pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
def test_three_samples_per_class_and_one_exponent_are_enough(blurred):
    assert ff.AutoFold(grid=GRID).fit(blurred.bank[:18], blurred.head).curve_.isfinite().all()
    assert_refused(ValueError, "at least 3", ff.AutoFold().fit, blurred.bank[:12], blurred.head)
    assert_close(float(ff.AutoFold(grid=[0.4]).fit(blurred.bank, blurred.head).alpha_), 0.4)


def test_banks_that_cannot_be_calibrated_on_and_bad_hyperparameters_are_refused(blurred):
    head, one_class = blurred.head, blurred.bank[blurred.bank.labels == 4]
    assert_refused(ValueError, "labels", ff.AutoFold().fit, ff.FeatureBank(blurred.bank.features), head)
    assert_refused(ValueError, "two classes", ff.AutoFold("one_vs_rest").fit, one_class, head)
    assert ff.AutoFold("paired", GRID).fit(one_class, head).curve_.shape == (5,)
    two_classes = ff.FeatureBank(torch.rand(12, 3), torch.arange(12) % 2)
    assert_refused(ValueError, "two classes", ff.AutoFold().fit, two_classes, ff.Head(torch.randn(2, 3)))
    for keyword, bad in (
        ("criterion", {"criterion": "best"}),
        ("grid", {"grid": []}),
        ("grid", {"grid": 0.5}),
        ("max_classes", {"max_classes": 0}),
        ("alpha", {"grid": [0.5, 2.0]}),
        ("score_norm", {"score_norm": "l1"}),
    ):
        assert_refused(ValueError, keyword, ff.AutoFold(**bad).fit, blurred.bank, head)
