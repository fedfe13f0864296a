"""Guard: from a model to a decision, to a file, and back."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

import flatfold as ff

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")


def make_model(seed=0):
    """Four classes, each recognised by its own quarter of eight inputs; with dropout, so that modes matter."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    with torch.no_grad():
        model[0].weight.copy_(torch.cat([torch.eye(8), 0.1 * torch.randn(8, 8)]))
        model[3].weight.copy_(torch.eye(4).repeat_interleave(2, dim=1).repeat(1, 2) * 2)
    return model


def known(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    x = 0.5 * torch.rand(n, 8, generator=g)
    for half in (0, 1):
        x[torch.arange(n), 2 * y + half] += 1 + torch.rand(n, generator=g)
    return x, y


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


def test_half_of_the_data_calibrates_unless_more_is_given(model):
    assert len(ff.Guard.fit(model, [known(101)], detector="fold").calibration) == 51
    both = ff.Guard.fit(model, [known(60)], detector="fold", calibration=[known(80, seed=1)])
    assert len(both.calibration) == 80
    scores = both(known(80, seed=1)[0]).score.sort().values
    assert_close(both.calibration, scores)


def test_the_split_is_seeded(model):
    guards = [ff.Guard.fit(model, [known(100)], detector="fold", seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(guards[0].calibration, guards[1].calibration)
    assert not torch.equal(guards[0].calibration, guards[2].calibration)


def test_the_model_is_left_as_it_was(model):
    model.train()
    guard = ff.Guard.fit(model, [known(100)], detector="fold")
    x, _ = known(20)
    assert torch.equal(guard(x).logits, guard(x).logits)  # dropout is off while the guard looks
    assert all(module.training for module in model.modules())
    assert not model[3]._forward_hooks


def test_a_generator_is_enough(model):
    guard = ff.Guard.fit(model, (known(50, seed=s) for s in range(2)), detector="fold")
    assert len(guard.calibration) == 50


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


@pytest.mark.parametrize("name", ["autofold", "fold-r", "react", "ash", "msp"])
def test_a_saved_guard_says_the_same(name, model, tmp_path):
    guard = ff.Guard.fit(model, [known(200)], detector=name, fpr=0.1)
    guard.save(tmp_path / "guard.safetensors")
    loaded = ff.Guard.load(tmp_path / "guard.safetensors", make_model())
    x = torch.cat([known(20, seed=5)[0], torch.rand(20, 8)])
    for before, after in zip(guard(x), loaded(x), strict=True):
        assert torch.equal(before, after)
    assert repr(loaded) == repr(guard) == f"Guard({name}, fpr=0.1, 100 calibration samples)"


def test_hyper_parameters_travel_with_the_file(model, tmp_path):
    guard = ff.Guard.fit(model, [known(200)], detector=ff.create("mls", alpha=0.7))
    guard.save(tmp_path / "guard.safetensors")
    assert ff.Guard.load(tmp_path / "guard.safetensors", model).detector.made_by == ("mls", {"alpha": 0.7})


@pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
@pytest.mark.parametrize("name", ["autofold-r", "autofold-a", "knn", "mds", "openmax", "vim"])
def test_what_a_method_learnt_travels_with_the_file(name, model, tmp_path):
    detector = ff.create("knn", k=5) if name == "knn" else ff.create(name)
    guard = ff.Guard.fit(model, [known(400)], detector=detector)
    guard.save(tmp_path / "guard.safetensors")
    loaded = ff.Guard.load(tmp_path / "guard.safetensors", model)
    x = known(20)[0]
    assert torch.equal(loaded(x).score, guard(x).score)
    assert torch.equal(loaded(x).is_ood, guard(x).is_ood)


def test_a_method_that_sees_inputs_is_refused(model):
    with pytest.raises(TypeError, match=r"a guard scores features, .* but Odin runs the network"):
        ff.Guard.fit(model, [known(200)], detector="odin")


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


class TestFiles:
    """A file from elsewhere gives a sentence, never a wrong answer."""

    @pytest.fixture
    def path(self, guard, tmp_path):
        guard.save(tmp_path / "guard.safetensors")
        return tmp_path / "guard.safetensors"

    def rewrite(self, path, settings=None, **tensors):
        with safe_open(path, framework="pt") as file:
            old = json.loads(file.metadata()["guard"])
        save_file({**load_file(path), **tensors}, path, {"guard": json.dumps({**old, **(settings or {})})})

    def check_refused(self, path, model, message):
        with pytest.raises(ValueError, match=message):
            ff.Guard.load(path, model)

    def test_there_is_none(self, tmp_path, model):
        with pytest.raises(FileNotFoundError, match="there is no guard at"):
            ff.Guard.load(tmp_path / "nothing", model)

    @pytest.mark.parametrize("layer", [0, 3])
    def test_other_weights(self, path, layer):
        other = make_model()
        with torch.no_grad():
            other[layer].bias += 1
        self.check_refused(path, other, "was made for a model with other weights")

    def test_another_architecture(self, path):
        self.check_refused(path, nn.Linear(8, 4), "a last layer '3', this one has none")

    @pytest.mark.parametrize("size", [0, 7, 100, 1000])
    def test_cut_short(self, path, model, size):
        path.write_bytes(path.read_bytes()[:size])
        self.check_refused(path, model, "cannot be read as a guard")

    def test_another_safetensors_file(self, path, model):
        save_file({"x": torch.zeros(1)}, path)
        self.check_refused(path, model, "holds no guard")

    def test_another_version(self, path, model):
        self.rewrite(path, {"version": 2})
        self.check_refused(path, model, "has version 2, this flatfold reads version 1")

    @pytest.mark.parametrize(
        "settings",
        [{"detector": 3}, {"hyper": {"depth": 2}}, {"hyper": None}, {"fpr": "much"}, {"fpr": 7}, {"head": []}],
        ids=str,
    )
    def test_nonsense_in_the_settings(self, path, model, settings):
        self.rewrite(path, settings)
        self.check_refused(path, model, r"damaged|no method is called|fpr must lie|could not convert")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("calibration", torch.tensor([3.0, 1.0])),
            ("calibration", torch.full((100,), torch.nan)),
            ("calibration", torch.zeros(100, 2)),
            ("detector.fold.weight", torch.ones(4, 16)),
            ("detector.fold.distances", torch.full((4, 4), torch.inf)),
        ],
    )
    def test_tensors_that_save_would_not_write(self, path, model, name, value):
        self.rewrite(path, **{name: value})
        self.check_refused(path, model, "is damaged")
