"""Guard: from a model to a decision."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from tests.four_classes import known, make_model

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def guard(model):
    return ff.Guard.fit(model, [known(200)], detector="autofold", fpr=0.1)


def test_a_verdict_has_the_models_logits_and_one_decision_per_input(model, guard):
    x, _ = known(30, seed=1)
    verdict = guard(x)
    assert_close(verdict.logits, model.eval()(x))
    assert verdict.score.shape == verdict.p_value.shape == verdict.is_ood.shape == (30,)
    assert torch.equal(verdict.is_ood, verdict.p_value <= 0.1)


def test_unknown_inputs_raise_alarms_and_known_ones_rarely_do(guard):
    assert guard(0.3 * torch.rand(200, 8)).is_ood.double().mean() > 0.9
    assert guard(known(2000, seed=2)[0]).is_ood.double().mean() < 0.2


def test_the_false_alarm_rate_holds_on_average_over_calibration_sets(model):
    rates = []
    for seed in range(40):
        guard = ff.Guard.fit(model, [known(100, seed=10 + seed)], detector="ebo", fpr=0.1)
        rates.append(float(guard(known(500, seed=1000 + seed)[0]).is_ood.double().mean()))
    error = np.std(rates) / len(rates) ** 0.5
    assert np.mean(rates) <= 0.1 + 3 * error
    assert np.mean(rates) >= 0.1 - 1 / 51 - 3 * error


def test_each_predicted_class_may_have_a_threshold_of_its_own(model):
    guard = ff.Guard.fit(model, [known(400)], detector="fold", fpr=0.1, per_class=True)
    assert guard.calibration.threshold.shape == (4,)
    assert repr(guard) == "Guard(fold, fpr=0.1 per class, 200 calibration samples)"
    verdict = guard(known(300, seed=1)[0])
    own = guard.calibration.threshold[verdict.logits.argmax(1)]
    assert torch.equal(verdict.is_ood, verdict.score > own)
    one = ff.Guard.fit(model, [known(400)], detector="fold", fpr=0.1)(known(300, seed=1)[0])
    assert torch.equal(one.score, verdict.score)
    assert not torch.equal(one.p_value, verdict.p_value)
    with pytest.raises(ValueError, match=r"rate of 0.05 for each class takes 19 calibration samples"):
        ff.Guard.fit(model, [known(100)], detector="fold", fpr=0.05, per_class=True)


def test_another_rate_needs_no_second_fit(guard):
    strict = guard.at(0.02)
    x, _ = known(300, seed=1)
    assert torch.equal(strict(x).p_value, guard(x).p_value)
    assert torch.equal(strict(x).is_ood, guard(x).p_value <= 0.02)
    assert guard.fpr == 0.1
    with pytest.raises(ValueError, match=r"rate of 0.005 takes 199 calibration samples, the calibration data has 100"):
        guard.at(0.005)


@pytest.mark.parametrize("per_class", [False, True])
def test_features_are_judged_without_the_model(model, per_class):
    guard = ff.Guard.fit(model, [known(400)], detector="fold", fpr=0.1, per_class=per_class)
    x, _ = known(50, seed=1)
    features = model[:3].eval()(x).detach()
    for got, expected in zip(guard.judge(features), guard(x)[1:], strict=True):
        assert torch.equal(got, expected)


def test_the_transform_of_a_source_is_kept(model, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).integers(0, 255, (60, 2, 4), np.uint8))
    net = nn.Sequential(nn.Flatten(), model)
    transform = ff.Transform(mode="L", mean=(0.5,), std=(0.25,))
    images = ff.NpzImages(tmp_path / "a.npz", transform, y=None)
    assert ff.Guard.fit(net, images, detector="fold").transform == transform
    assert ff.Guard.fit(net, list(images), detector="fold").transform is None
    assert ff.Guard.fit(net, list(images), detector="fold", transform=transform).transform == transform


def test_an_explanation_names_the_classes_between_which_an_input_lies(guard):
    between = torch.zeros(1, 8)
    between[0, [0, 1, 4, 5]] = 1.5  # class 0 and class 2
    (told,) = guard.explain(between, names=["ant", "bee", "cat", "dog"])
    verdict = guard(between)
    assert {told.pairs[0].first, told.pairs[0].second} == {0, 2}
    assert told.pairs[0].share > 0.8
    assert told.score == pytest.approx(float(verdict.score))
    assert "ant" in str(told)
    assert "cat" in str(told)


def test_a_monitor_counts_what_the_guard_says(guard):
    monitor = guard.monitor()
    for seed in range(3):
        monitor.add(guard(known(100, seed=seed)[0]))
    assert monitor.seen == 300
    assert monitor.alarms == sum(int(guard(known(100, seed=seed)[0]).is_ood.sum()) for seed in range(3))


def test_half_of_the_data_calibrates_unless_more_is_given(model):
    assert ff.Guard.fit(model, [known(101)], detector="fold").calibration.samples == 51
    both = ff.Guard.fit(model, [known(60)], detector="fold", calibration=[known(80, seed=1)])
    assert both.calibration.samples == 80
    scores = both(known(80, seed=1)[0]).score.sort().values
    assert_close(both.calibration.scores, scores[None] * (1 + 1e-5))  # what rounding may add


def test_the_split_is_seeded(model):
    guards = [ff.Guard.fit(model, [known(100)], detector="fold", seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(guards[0].calibration.scores, guards[1].calibration.scores)
    assert not torch.equal(guards[0].calibration.scores, guards[2].calibration.scores)


def test_the_model_is_left_as_it_was(model):
    model.train()
    guard = ff.Guard.fit(model, [known(100)], detector="fold")
    x, _ = known(20)
    assert torch.equal(guard(x).logits, guard(x).logits)  # dropout is off while the guard looks
    assert all(module.training for module in model.modules())
    assert not model[3]._forward_hooks


def _train_on(model):
    model[0].weight.data *= 2


def _replace_the_head(model):
    model[3] = nn.Linear(16, 4)


@pytest.mark.parametrize("change", [_train_on, _replace_the_head, nn.Module.double, nn.Module.bfloat16])
@pytest.mark.parametrize("use", ["save", "as_module", "export"])
def test_a_model_that_has_changed_is_refused_before_its_calibration_is_handed_on(use, change, guard, model, tmp_path):
    arguments = {"save": (tmp_path / "a",), "as_module": (), "export": (tmp_path / "a.pt2", [known(20)[0]])}[use]
    for each in (guard, guard.at(0.2)):
        getattr(each, use)(*arguments)
    change(model)
    for each in (guard, guard.at(0.2)):
        with pytest.raises(
            ValueError, match=r"^a guard belongs to the weights that it was fitted on, .* Fit the guard again\.$"
        ):
            getattr(each, use)(*arguments)


def test_an_input_that_comes_again_and_again_does_not_break_the_rate_by_its_last_digits():
    for seed in range(20):  # for some of which the score is higher alone than in a batch
        torch.manual_seed(seed)
        net, frame = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10)), 3 * torch.rand(1, 64)
        guard = ff.Guard.fit(net, [torch.randn(10, 64)], detector="fdbd", calibration=[frame.repeat(64, 1)])
        assert not guard(frame).is_ood
        assert guard(frame).p_value == 1


def test_scores_that_are_no_numbers_cannot_be_calibrated_on(model):
    class Odd(ff.Detector):
        def score(self, h):
            return h[:, 0].log()  # of some features it is the logarithm of a negative number

    odd = nn.Sequential(model[0], model[3])
    with pytest.raises(ValueError, match=r"calibration scores must be numbers, but \d+ are NaN"):
        ff.Guard.fit(odd, [torch.randn(200, 8)], detector=Odd())


def test_a_generator_is_enough(model):
    guard = ff.Guard.fit(model, (known(50, seed=s) for s in range(2)), detector="fold")
    assert guard.calibration.samples == 50


def test_a_detector_that_is_fitted_again_does_not_disturb_a_guard(model):
    detector = ff.create("react")
    first = ff.Guard.fit(model, [known(100)], detector=detector)
    x, _ = known(20, seed=3)
    before = first(x).score
    ff.Guard.fit(model, [(3 * known(100)[0], known(100)[1])], detector=detector)
    assert torch.equal(first(x).score, before)


def test_a_detector_of_ones_own_can_be_used_but_not_saved(model, tmp_path):
    guard = ff.Guard.fit(model, [known(100)], detector=ff.Fold(alpha=0.2))
    assert "Fold" in repr(guard)
    with pytest.raises(ValueError, match=r"this Fold was built by hand. Make it with create"):
        guard.save(tmp_path / "guard.safetensors")


def test_a_method_that_sees_inputs_is_refused(model):
    with pytest.raises(TypeError, match=r"a guard scores features, .* but Odin runs the network"):
        ff.Guard.fit(model, [known(200)], detector="odin")


def test_a_class_instead_of_a_detector_is_refused(model):
    with pytest.raises(TypeError, match=r"or the name of one, got the class Fold. Make one: Fold\(...\)"):
        ff.Guard.fit(model, [known(200)], detector=ff.Fold)


def test_weights_instead_of_a_model_are_refused(model, guard, tmp_path):
    guard.save(tmp_path / "guard.safetensors")
    for use in (
        lambda weights: ff.Guard.fit(weights, [known(200)]),
        lambda weights: ff.Guard.load(tmp_path / "guard.safetensors", weights),
    ):
        with pytest.raises(TypeError, match=r"must be a torch.nn.Module, not OrderedDict. Build the network and load"):
            use(model.state_dict())


def test_a_detector_that_learns_is_not_calibrated_on_what_it_has_seen(model):
    shuffled = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*known(100)), 50, shuffle=True)
    for one, two in (([known(100)], [known(100)]), (shuffled, shuffled)):
        with pytest.raises(ValueError, match=r"has seen what is in the loader, so calibration= must be other data"):
            ff.Guard.fit(model, one, detector="knn", calibration=two)
        assert ff.Guard.fit(model, one, detector="fold", calibration=two).calibration.samples == 100


def test_features_that_are_no_tensor_are_refused(guard):
    with pytest.raises(TypeError, match=r"features must be a torch tensor, not ndarray"):
        guard.judge(np.zeros((2, 16), np.float32))


@pytest.mark.parametrize("inputs", [torch.rand(4, 8), "photos/"], ids=["a tensor", "a path"])
def test_an_export_takes_batches_and_not_a_tensor_or_a_path(inputs, guard, tmp_path):
    with pytest.raises(TypeError, match=r"must be an iterable of batches, not (Tensor|str). Wrap a single batch"):
        guard.export(tmp_path / "model.pt2", inputs)


def test_a_refused_export_prints_nothing(tmp_path, capfd):
    class Sighted(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    guard = ff.Guard.fit(nn.Sequential(Sighted(), *make_model()), [known(200)], detector="fold")
    with pytest.raises(ValueError, match="the model cannot be exported"):
        guard.export(tmp_path / "model.pt2", [known(10)])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("fpr", "needed"), [(0.05, 19), (0.01, 99)])
def test_too_few_calibration_samples_are_refused_with_the_number_needed(fpr, needed, model):
    with pytest.raises(
        ValueError, match=f"rate of {fpr:g} takes {needed} calibration samples, half of the data has 15"
    ):
        ff.Guard.fit(model, [known(30)], fpr=fpr, detector="fold")


@pytest.mark.parametrize("fpr", [0.0, 1.0, -0.1, float("nan")])
def test_an_impossible_rate_is_refused_before_the_model_runs(fpr):
    with pytest.raises(ValueError, match="fpr must lie between 0 and 1"):
        ff.Guard.fit(None, [], fpr=fpr)


def test_a_single_sample_is_refused(model):
    with pytest.raises(ValueError, match="cannot both fit and calibrate"):
        ff.Guard.fit(model, [known(1)], fpr=0.5, detector="fold")


def test_a_model_that_only_guesses_is_noticed(model, caplog):
    x, y = known(200)
    ff.Guard.fit(model, [(x, y)], detector="fold")
    assert not caplog.messages
    ff.Guard.fit(model, [(x, (y + 1 + torch.arange(200) % 3) % 4)], detector="fold")  # anything but the right class
    assert "the model is right about 0.0 % of the labelled inputs, where the most frequent class alone" in caplog.text
    assert "Are its weights loaded" in caplog.text
