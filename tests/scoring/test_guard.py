"""Guard: from a model to a decision."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.data.transform import InputSizes
from flatfold.scoring.fitting import fit_detector
from tests.four_classes import known, make_model
from tests.refusals import assert_refused

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def guard(model):
    return ff.Guard.fit(model, [known(200)], method="autofold", fpr=0.1)


def test_a_verdict_has_the_models_logits_and_one_decision_per_input(model, guard):
    x, _ = known(30, seed=1)
    verdict = guard(x)
    assert_close(verdict.logits, model.eval()(x))
    assert verdict.score.shape == verdict.p_value.shape == verdict.is_ood.shape == (30,)
    assert torch.equal(verdict.is_ood, verdict.p_value <= 0.1)


def test_a_monitor_counts_what_the_guard_says(guard):
    monitor, verdict = guard.monitor(), guard(known(300)[0])
    monitor.add(verdict)
    assert (monitor.seen, monitor.alarms) == (300, int(verdict.is_ood.sum()))
    assert monitor.histogram().edges[[0, -1]].tolist() == list(guard.detector.score_range())


def test_ood_inputs_raise_alarms_and_id_inputs_rarely_do(guard):
    assert guard(0.3 * torch.rand(200, 8)).is_ood.double().mean() > 0.9
    assert guard(known(2000, seed=2)[0]).is_ood.double().mean() < 0.2


@pytest.mark.parametrize("per_class", [False, True])
def test_the_false_alarm_rate_holds_on_average_over_calibration_sets(model, per_class):
    rates = []
    for seed in range(40):
        guard = ff.Guard.fit(model, [known(200, seed=10 + seed)], method="ebo", fpr=0.1, per_class=per_class)
        rates.append(float(guard(known(500, seed=1000 + seed)[0]).is_ood.double().mean()))
    error = np.std(rates) / len(rates) ** 0.5
    assert np.mean(rates) <= 0.1 + 3 * error
    assert np.mean(rates) >= 0.1 - 1 / (25 if per_class else 101) - 3 * error


def test_another_rate_needs_no_second_fit(guard):
    strict = guard.at(0.02)
    x, _ = known(300, seed=1)
    assert torch.equal(strict(x).p_value, guard(x).p_value)
    assert torch.equal(strict(x).is_ood, guard(x).p_value <= 0.02)
    assert guard.fpr == 0.1
    with pytest.raises(ValueError, match=r"takes 199 .* has 100"):
        guard.at(0.005)


@pytest.mark.parametrize("per_class", [False, True])
def test_features_are_judged_without_the_model(model, per_class):
    guard = ff.Guard.fit(model, [known(400)], method="fold", fpr=0.1, per_class=per_class)
    x, _ = known(300, seed=1)
    features = model[:3].eval()(x).detach()
    verdict, threshold = guard(x), guard.calibration.threshold
    for got, expected in zip(guard.calibrated(features), verdict[1:], strict=True):
        assert torch.equal(got, expected)
    assert len(threshold) == (4 if per_class else 1)
    own = threshold[verdict.logits.argmax(1)] if per_class else threshold
    assert torch.equal(verdict.is_ood, verdict.score > own)
    with pytest.raises(TypeError, match="ndarray"):
        guard.calibrated(features.numpy())


def test_an_explanation_names_the_classes_between_which_an_input_lies(guard):
    between = torch.zeros(1, 8)
    between[0, [0, 1, 4, 5]] = 1.5  # class 0 and class 2
    (told,) = guard.explain(between, names=["ant", "bee", "cat", "dog"])
    assert {told.pairs[0].first, told.pairs[0].second} == {0, 2}
    assert told.pairs[0].share > 0.8
    assert told.score == pytest.approx(float(guard(between).score))
    assert "ant" in str(told)
    assert "cat" in str(told)


def test_half_of_the_data_calibrates_unless_more_is_given(model):
    assert ff.Guard.fit(model, [known(101)], method="fold").calibration.samples == 51
    both = ff.Guard.fit(model, [known(60)], method="fold", calibration=[known(80, seed=1)])
    assert both.calibration.samples == 80
    scores = both(known(80, seed=1)[0]).score.sort().values
    assert_close(both.calibration.scores, scores[None], rtol=0, atol=2e-4 * float(scores.abs().max()))
    assert (both.calibration.scores > scores).all()  # by what rounding may add
    guards = [ff.Guard.fit(model, [known(100)], method="fold", seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(guards[0].calibration.scores, guards[1].calibration.scores)
    assert not torch.equal(guards[0].calibration.scores, guards[2].calibration.scores)
    generator = ff.Guard.fit(model, (known(50, seed=s) for s in range(2)), method="fold")
    assert generator.calibration.samples == 50


def plain(n, seed):
    return torch.randn(n, 16, generator=torch.Generator().manual_seed(seed))


def with_frames(n, seed):
    """A stream in which every fifth input is the same, and an odd one."""
    x = plain(n, seed)
    x[torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.2] = 5.0
    return x


@pytest.mark.parametrize(
    ("detector", "draw", "copies"),
    [("knn:k=1", plain, 5), ("klm", plain, 5), ("knn:k=1", with_frames, 1), ("ebo", with_frames, 1)],
)
def test_copies_do_not_break_the_rate_whether_they_come_again_or_not(detector, draw, copies):
    torch.manual_seed(0)
    model, rates = nn.Linear(16, 4), []
    for seed in range(25):
        guard = ff.Guard.fit(model, [draw(200, seed).repeat(copies, 1)], method=detector, fpr=0.1, seed=seed)
        assert guard.fit_result.copies > 10
        rates.append(float(guard(draw(500, 1000 + seed)).is_ood.double().mean()))
    error = np.std(rates) / len(rates) ** 0.5
    assert 0.04 < np.mean(rates) <= 0.1 + 3 * error


def test_what_makes_up_much_of_the_data_is_calibrated_on_and_not_learnt():
    bank, head = ff.FeatureBank(torch.cat([plain(60, 0), torch.ones(20, 16)])), ff.Head(plain(4, 1))
    for seed in range(10):
        detector = fit_detector(ff.create("knn:k=1"), bank, head, 0.1, seed=seed).detector
        assert len(detector.bank) == 30
        assert not (detector.bank == 1).all(dim=1).any()


def test_copies_of_what_was_learnt_are_not_calibrated_on(caplog):
    model, x = nn.Linear(16, 4), plain(300, 0)
    guard = ff.Guard.fit(model, [x[:200]], method="knn:k=1", fpr=0.1, calibration=[x[100:]])
    assert (guard.calibration.samples, guard.fit_result.copies) == (100, 100)
    assert "100 of the inputs are copies" in caplog.text
    with pytest.raises(ValueError, match=r"takes 9 .*copies not counted, has 5"):
        ff.Guard.fit(model, [x[:200]], method="knn:k=1", fpr=0.1, calibration=[x[100:205]])
    with pytest.raises(ValueError, match=r"takes 19 .*copies not counted, has 10"):
        ff.Guard.fit(model, [x[:20].repeat(10, 1)], method="ebo", fpr=0.05)


def test_a_model_in_half_precision_is_calibrated_on_its_own_predictions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
    x = plain(4000, 1)
    for network, inputs, dtype in ((model, x, torch.bfloat16), (deepcopy(model).bfloat16(), x.bfloat16(), None)):
        guard = ff.Guard.fit(
            network,
            [inputs[:50]],
            method="ebo",
            fpr=0.1,
            calibration=[inputs],
            per_class=True,
            execution=ff.Execution(dtype=dtype),
        )
        verdict = guard(inputs)
        assert verdict.logits.dtype == torch.bfloat16
        assert not torch.equal(
            verdict.predicted, guard.network.found.head(guard.network(inputs).features).argmax(1)
        )  # in float32
        assert torch.equal(guard.calibration.counts, verdict.predicted.bincount(minlength=3))


def test_a_confidence_is_kept_by_guards_and_not_only_on_average(model):
    kept = []
    for seed in range(60):
        guard = ff.Guard.fit(model, [known(400, seed=10 + seed)], method="ebo", fpr=0.1, confidence=0.9)
        kept.append(float(guard(known(2000, seed=1000 + seed)[0]).is_ood.double().mean()) <= 0.1)
    assert np.mean(kept) > 0.9 - 3 * (0.09 / 60) ** 0.5
    assert "confidence=0.9" in repr(guard)
    verdict = guard(known(300)[0])
    assert (verdict.is_ood.sum(), guard.at(0.1).calibration.confidence) == (
        (verdict.score > guard.calibration.threshold).sum(),
        0.9,
    )


@pytest.mark.filterwarnings("ignore:every sample of this bank", "ignore:.*correctly classified")
def test_enormous_features_raise_an_alarm_whatever_the_method(model):
    direction = model[:3].eval()(known(1, seed=3)[0]).detach()
    for name, method in ff.detectors.registry.METHODS.items():
        if method.sees == "features":
            hyper = {"knn": {"k": 5}, "nnguide": {"k": 5, "share": 0.3}}.get(name, {})
            guard = ff.Guard.fit(model, [known(400)], method=ff.create(name, **hyper), fpr=0.1)
            _, p, alarm = guard.calibrated(direction * torch.tensor([[1e19], [1e25], [3e37]]))
            assert alarm.all(), name
            assert (p == 1 / (guard.calibration.samples + 1)).all(), name


@pytest.mark.parametrize("use", ["save", "as_module", "export"])
def test_a_model_that_has_changed_is_refused_before_its_calibration_is_handed_on(use, tmp_path):
    arguments = {"save": (tmp_path / "a",), "as_module": (), "export": (tmp_path / "a.pt2", [known(20)[0]])}[use]

    def train_on(model):
        model[0].weight.data *= 2

    def replace_the_head(model):
        model[3] = nn.Linear(16, 4)

    for number, change in enumerate((train_on, replace_the_head, nn.Module.double, nn.Module.bfloat16)):
        model = make_model()
        guard = ff.Guard.fit(model, [known(200)], method="fold", fpr=0.1)
        if number == 0:
            getattr(guard, use)(*arguments)
        change(model)
        for each in (guard, guard.at(0.2)):
            assert_refused(ValueError, "Fit the guard again", partial(getattr(each, use), *arguments), case=change)


@pytest.mark.parametrize(("detector", "spread"), [("klm", 1e-4), ("klm", 1e-3), ("fdbd", 1e-4), ("knn:k=5", 1e-2)])
def test_an_input_that_comes_again_and_again_gets_one_decision_alone_and_in_any_batch(detector, spread):
    for seed in range(20):  # for some of which the score is higher alone than in a batch
        torch.manual_seed(seed)
        net, centre = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10)), 3 * torch.rand(1, 64)
        learnt, others = (centre + spread * torch.randn(n, 64) for n in (100, 60))  # with scores of klm near 0
        frame = others[ff.Guard.fit(net, [learnt], method=detector, calibration=[others])(others).score.argmax()][None]
        stream = torch.cat([others, frame.repeat(64, 1)])  # whose threshold is the score of the frame
        guard = ff.Guard.fit(net, [learnt], method=detector, calibration=[stream])
        assert not guard(frame).is_ood
        assert not guard(frame.repeat(64, 1)).is_ood.any()
        assert not guard(stream).is_ood[60:].any()


def test_fits_that_cannot_be_are_refused(model, guard, tmp_path):
    class Odd(ff.Detector):
        def score(self, h):
            return h[:, 0].log()  # of some features it is the logarithm of a negative number

    guard.save(tmp_path / "guard")
    fit, odd = ff.Guard.fit, nn.Sequential(model[0], model[3])
    cases = [
        (partial(fit, odd, [torch.randn(200, 8)], method=Odd()), ValueError, "NaN"),
        (partial(fit, model, [known(200)], method="odin"), TypeError, "Odin"),
        (partial(fit, model, [known(200)], method=ff.Fold), TypeError, "class Fold"),
        (partial(fit, model.state_dict(), [known(200)]), TypeError, "OrderedDict"),
        (partial(ff.Guard.load, tmp_path / "guard", model.state_dict()), TypeError, "OrderedDict"),
        (partial(fit, model, [known(30)], method="fold", fpr=0.05), ValueError, "takes 19 .*has 15"),
        (partial(fit, model, [known(30)], method="fold", fpr=0.01), ValueError, "takes 99 .*has 15"),
        (partial(fit, model, [known(100)], method="fold", fpr=0.05, per_class=True), ValueError, "each class takes 19"),
        (partial(fit, model, [known(1)], method="fold", fpr=0.5), ValueError, "cannot both"),
        *((partial(fit, None, [], fpr=fpr), ValueError, "between 0 and 1") for fpr in (0.0, 1.0, -0.1, float("nan"))),
        (partial(guard.export, tmp_path / "a.pt2", "a"), ValueError, "transform="),
    ]
    for use, kind, keyword in cases:
        assert_refused(kind, keyword, use)


def test_a_detector_that_learns_is_not_calibrated_on_what_it_has_seen(model):
    shuffled = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*known(100)), 50, shuffle=True)
    for one, two in (([known(100)], [known(100)]), (shuffled, shuffled)):
        with pytest.raises(ValueError, match="calibration="):
            ff.Guard.fit(model, one, method="knn", calibration=two)
        assert ff.Guard.fit(model, one, method="fold", calibration=two).calibration.samples == 100


# Labels that the model does not know, or knows under other numbers

CLASSES = 12
TRUE = torch.arange(1200) % CLASSES


def notes(labels, caplog, signal=0.5, classes=TRUE):
    """Fit on inputs of twelve classes, of which the head knows most, under some labels; return what is logged."""
    caplog.clear()
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(1200, CLASSES, generator=generator) + signal * torch.eye(CLASSES)[classes]
    fit_detector(ff.create("fold"), ff.FeatureBank(features, labels), ff.Head(torch.eye(CLASSES)), 0.05)
    return caplog.messages


def test_labels_in_another_order_are_noticed_though_some_are_right(caplog):
    folders = torch.tensor(sorted(range(CLASSES), key=str)).argsort()  # 0, 1, 10, 11, 2, ...
    for signal in (0.5, 2.0):
        (note,) = notes(folders[TRUE], caplog, signal)
        assert "labelled 2 is mostly predicted as 10" in note
    assert "16.7 %" in note
    for labels, classes, share in ((TRUE // 4 + 8, TRUE, "33.3 %"), (TRUE % 4, torch.full((1200,), 5), "0.0 %")):
        (note,) = notes(labels, caplog, 2.0, classes)  # a model that only guesses
        assert share in note
    drawn = torch.randint(CLASSES, (1200,), generator=torch.Generator().manual_seed(3))
    assert all("another order" not in note for note in notes(drawn, caplog))


def test_labels_that_may_be_right_are_not_remarked_on(caplog):
    for signal in (0.05, 0.5, 2.0):  # a weak model, too
        assert notes(TRUE, caplog, signal) == []
    swapped = torch.tensor([1, 0, *range(2, CLASSES)])
    assert notes(swapped[TRUE], caplog) == []  # two classes may just be alike
    assert notes(torch.zeros_like(TRUE), caplog, signal=2.0, classes=torch.full((1200,), 5)) == []


class Squeezed(nn.Sequential):
    """A model with one logit per input, (n,)."""

    def forward(self, x):
        return super().forward(x).squeeze(-1)


@pytest.mark.parametrize("kind", [nn.Sequential, Squeezed])
def test_a_single_logit_is_guarded_as_the_two_class_model_with_the_same_probabilities(kind, tmp_path):
    torch.manual_seed(0)
    single = kind(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    pair = nn.Sequential(*single[:2], nn.Linear(16, 2))
    with torch.no_grad():
        pair[2].weight.copy_(torch.cat([-single[2].weight, single[2].weight]) / 2)
        pair[2].bias.copy_(torch.cat([-single[2].bias, single[2].bias]) / 2)
    x = torch.randn(200, 6)
    z = single(x).flatten()
    y = (z > 0).long()
    for method in ("fourfold", "energy", "fold:alpha=0.3", "msp", "maxlogit", "mahalanobis", "knn:k=5"):
        got, expected = ff.Guard.fit(single, (x, y), method=method), ff.Guard.fit(pair, (x, y), method=method)
        verdict = got(x)
        assert_close(verdict.score, expected(x).score)
        assert_close(verdict.logits.softmax(1)[:, 1], z.sigmoid())
        assert got.fit_result.accuracy == 1
        swapped = kind(*single[:2], nn.Linear(16, 1))  # the other class is called 1
        with torch.no_grad():
            swapped[2].weight.copy_(-single[2].weight)
            swapped[2].bias.copy_(-single[2].bias)
        assert_close(ff.Guard.fit(swapped, (x, 1 - y), method=method)(x).score, verdict.score)
    guard = ff.Guard.fit(single, (x, y))
    guard.save(tmp_path / "guard")
    loaded = ff.Guard.load(tmp_path / "guard", single)
    assert torch.equal(loaded(x).score, guard(x).score)
    assert torch.equal(loaded.as_module()(x).logits, guard(x).logits)
    assert loaded.explain(x[:1], ["no", "yes"])
    assert_close(ff.logits_function(single.eval())(x), guard(x).logits)


def test_two_classes_get_a_guard_by_default():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)), torch.randn(400, 6)
    guard = ff.Guard.fit(model, (x, model(x).argmax(1)))
    assert repr(guard).startswith("Guard(fourfold")
    assert guard(20 * torch.randn(50, 6)).is_ood.float().mean() > 0.5


def test_a_guard_keeps_the_sizes_that_it_was_calibrated_on(tmp_path):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            return self.head(x.mean((2, 3)))

    model = Pooled().eval()
    batches = {side: [(torch.rand(60, 3, *side), torch.arange(60) % 2)] for side in ((8, 6), (4, 9), (5, 12))}
    one, *others = batches.values()
    for loader, calibration, least, most, text in [
        (one, None, (3, 8, 6), (3, 8, 6), "8 x 6"),
        (one, others[1], (3, 5, 6), (3, 8, 12), "5 x 6 to 8 x 12"),
        (one + others[0], None, (3, 4, 6), (3, 8, 9), "4 x 6 to 8 x 9"),
    ]:
        guard = ff.Guard.fit(model, loader, method="fold", calibration=calibration)
        guard.save(tmp_path / "guard")
        loaded = ff.Guard.load(tmp_path / "guard", model)
        assert loaded.network.sizes == loaded.at(0.5).network.sizes == guard.network.sizes == InputSizes(least, most)
        assert str(loaded.network.sizes) == text


def in_groups(groups, views, seed, noise=0.02):
    """Return views of images, their labels and the image of each."""
    (x, y), g = known(groups, seed=seed), torch.Generator().manual_seed(seed)
    places = torch.arange(groups).repeat(views)
    return x[places] + noise * torch.randn(groups * views, x.shape[1], generator=g), y[places], places


def test_views_of_the_same_images_are_reported_unless_their_groups_are_given(model, caplog):
    x, y, image = in_groups(150, 4, seed=0)
    guard = ff.Guard.fit(model, (x, y), method="knn:k=1", fpr=0.1)
    assert guard.fit_result.near_copies > 0.5
    assert "of the inputs are much closer to others of their class" in caplog.text
    assert "groups=" in caplog.text
    caplog.clear()
    names = [f"image {number}" for number in image.tolist()]
    guard = ff.Guard.fit(model, (x, y), method="knn:k=1", fpr=0.1, groups=names)
    assert guard.fit_result.near_copies is None
    assert not caplog.text
    assert guard.calibration.samples == 75, "half of the images"
    x[1:150:2] = x[:150:2]  # a view of each image is also one of the next
    assert ff.Guard.fit(model, (x, y), method="knn:k=1", fpr=0.1, groups=names).calibration.samples in (37, 38)
    assert ff.Guard.fit(model, known(600), method="msp", fpr=0.1).fit_result.near_copies < 0.02


def test_with_groups_the_rate_holds_for_new_groups(model):
    rates = {True: [], False: []}
    for seed in range(20):
        x, y, image = in_groups(60, 6, seed=seed)
        new = in_groups(200, 3, seed=1000 + seed)[0]
        for given in rates:
            guard = ff.Guard.fit(model, (x, y), method="knn:k=1", fpr=0.1, groups=image if given else None)
            rates[given].append(float(guard(new).is_ood.double().mean()))
    error = np.std(rates[True]) / len(rates[True]) ** 0.5
    assert 0.03 < np.mean(rates[True]) <= 0.1 + 3 * error
    assert np.mean(rates[False]) > 0.3


def test_a_guard_of_groups_is_saved_moved_and_monitored_as_any_other(model, tmp_path):
    x, y, image = in_groups(80, 5, seed=0)
    guard = ff.Guard.fit(model, (x, y), method="ebo", fpr=0.1, groups=image)
    guard.save(tmp_path / "guard.safetensors")
    loaded = ff.Guard.load(tmp_path / "guard.safetensors", model)
    new = in_groups(100, 2, seed=7)[0]
    for one in (guard, loaded):
        verdict = one(new)
        assert torch.equal(verdict.is_ood, verdict.p_value <= 0.1)
        assert torch.equal(verdict.p_value, guard(new).p_value)
    assert torch.equal(loaded.at(0.3)(new).is_ood, guard(new).p_value <= 0.3)
    monitor = loaded.monitor()
    monitor.add(loaded(new))
    assert monitor.seen == 200
    assert sum(monitor._calibrated) == guard.calibration.samples == 40
    assert monitor.histogram().edges[-2] == guard.calibration.scores.max()


def test_groups_that_cannot_be_used_are_refused(model):
    x, y, image = in_groups(60, 3, seed=0)
    fit = partial(ff.Guard.fit, model, (x, y), fpr=0.1)
    assert_refused(ValueError, "180 inputs of the data, got 179", fit, groups=image[:-1])
    assert_refused(ValueError, r"of shape \(180, 1\)", fit, groups=image[:, None])
    assert_refused(ValueError, "float64", fit, groups=image.double())
    assert_refused(ValueError, "calibration=", fit, groups=image, calibration=known(100))
    assert_refused(ValueError, "confidence", fit, groups=image, confidence=0.9)
    assert_refused(ValueError, "9 calibration samples, half of the groups has 7|8", fit, groups=image % 15)
