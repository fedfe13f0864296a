"""What every registered method that sees features promises. A new detector is born tested."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import flatfold as ff
from flatfold.detectors import METHODS, hyperparameters
from tests.refusals import assert_refused

pytestmark = [
    pytest.mark.filterwarnings("ignore:AutoFold's curve is flat"),
    pytest.mark.filterwarnings("ignore:the reference optimiser reached a temperature"),
    pytest.mark.filterwarnings("ignore:every sample of this bank is classified correctly"),
    pytest.mark.filterwarnings("ignore:this data has no labels"),
]

NAMES = sorted(name for name, method in METHODS.items() if method.sees == "features")
every_method = pytest.mark.parametrize("name", NAMES)
BAD = {
    "alpha": 1.5,
    "batch_size": 0,
    "criterion": "paird",
    "curvature": -1.0,
    "dim": 24,
    "direction": -1.0,
    "folds": 1,
    "gamma": 0.0,
    "grid": [7.0],
    "k": 361,
    "max_classes": 0,
    "length": -1.0,
    "logarithm": "no",
    "margin": -1.0,
    "metric": "cosin",
    "percentile": 100.0,
    "relative_to": "mean",
    "score_norm": "weights",
    "share": 0.0,
    "solver": "newton",
    "times": 0.0,
    "storage": "float8",
    "strength": -1.0,
    "tail": 0,
    "temperature": 0.0,
    "top": 0,
}
ANY = {"masked", "seed"}  # hyper-parameters that any value is good for
FLOAT64 = {"mds", "rmds", "openmax", "klm", "vim", "direction", "fourfold", "pnml"}  # learnt matrices need it
RTOL = {torch.float32: 2e-5, torch.float64: 1e-12}  # float32: a matrix product may sum in another order in a batch


@every_method
def test_gives_one_finite_score_per_row_in_the_type_of_the_features(name, make_world):
    for dtype in RTOL:
        world = make_world(dtype)
        detector = ff.create(name)
        assert detector.fit(world.bank, world.head) is detector
        scores = detector(world.unknown)
        assert scores.shape == (len(world.unknown),)
        assert scores.dtype == dtype
        assert scores.isfinite().all(), dtype
        assert detector(torch.zeros_like(world.unknown[:2])).isfinite().all(), dtype


@every_method
def test_higher_means_more_out_of_distribution(name, make_world):
    for dtype in RTOL:
        world = make_world(dtype)
        detector = ff.create(name).fit(world.bank, world.head)
        separation = ff.auroc(detector(world.bank.features), detector(world.unknown))
        assert separation > 0.8, f"{name} must score OOD features higher than ID features: turn the sign of score."


@every_method
def test_a_sample_scores_the_same_alone_as_in_a_batch(name, make_world):
    for dtype, rtol in RTOL.items():
        world = make_world(dtype)
        detector = ff.create(name).fit(world.bank, world.head)
        h = world.unknown[:30]
        alone = torch.cat([detector(row[None]) for row in h])
        assert_close(alone, detector(h), rtol=rtol, atol=1e-7 if dtype == torch.float32 else 1e-12)


@every_method
def test_many_rows_are_scored_a_part_at_a_time(name, make_world, monkeypatch):
    world = make_world(torch.float64)
    detector = ff.create(name).fit(world.bank, world.head)
    together = detector(world.unknown)
    monkeypatch.setattr("flatfold.detectors.base.ROWS_AT_ONCE", 30)
    sizes, score = [], detector.score
    monkeypatch.setattr(detector, "score", lambda h: sizes.append(len(h)) or score(h))
    assert_close(detector(world.unknown), together, rtol=1e-12, atol=1e-12)
    assert sizes == [30, 30, 30, 10]


@every_method
def test_neither_fit_nor_score_changes_its_input(name, make_world):
    for dtype in RTOL:
        world = make_world(dtype)
        before = copy.deepcopy(world)
        ff.create(name).fit(world.bank, world.head)(world.unknown)
        assert torch.equal(world.bank.features, before.bank.features)
        assert torch.equal(world.bank.labels, before.bank.labels)
        assert torch.equal(world.head.weight, before.head.weight)
        assert torch.equal(world.head.bias, before.head.bias)
        assert torch.equal(world.unknown, before.unknown)


@every_method
def test_works_without_a_bias(name, make_world):
    world = make_world(bias=False)
    detector = ff.create(name).fit(world.bank, world.head)
    zero_bias = ff.create(name).fit(world.bank, ff.Head(world.head.weight, torch.zeros(6)))
    assert_close(detector(world.unknown), zero_bias(world.unknown))


@every_method
def test_a_fitted_state_can_be_written_and_loaded_into_a_fresh_detector(name, make_world, tmp_path):
    """Safetensors refuses tensors that share memory: nothing may be stored twice."""
    for dtype in RTOL:
        world = make_world(dtype)
        detector = ff.create(name).fit(world.bank, world.head)
        expected, state = detector(world.unknown), detector.state_dict()
        save_file(state, tmp_path / "detector.safetensors")
        for loaded in (load_file(tmp_path / "detector.safetensors"), state):
            fresh = ff.create(name)
            fresh.load_state_dict(loaded)
            for value in loaded.values():  # the loaded detector has tensors of its own
                value.zero_()
            assert torch.equal(fresh(world.unknown), expected), dtype


@every_method
def test_can_be_copied_and_converted(name, make_world):
    world = make_world(torch.float32)
    detector = ff.create(name).fit(world.bank, world.head)
    double = copy.deepcopy(detector).double()
    assert_close(double(world.unknown.double()).float(), detector(world.unknown), rtol=1e-4, atol=1e-6)


@every_method
def test_can_be_fitted_again_on_other_data(name, make_world):
    first, second = make_world(seed=0), make_world(seed=1)
    refitted = ff.create(name).fit(first.bank, first.head).fit(second.bank, second.head)
    fresh = ff.create(name).fit(second.bank, second.head)
    assert torch.equal(refitted(second.unknown), fresh(second.unknown))


@every_method
def test_can_be_exported_for_any_batch_size(name, make_world):
    world = make_world()
    detector = ff.create(name).fit(world.bank, world.head).eval()
    shapes = {"h": {0: torch.export.Dim("batch", max=2**31)}}
    exported = torch.export.export(detector, (world.unknown[:4],), dynamic_shapes=shapes, strict=False).module()
    for size in (1, 7, 100):
        assert_close(exported(world.unknown[:size]), detector(world.unknown[:size]), rtol=1e-5, atol=1e-6)


@every_method
def test_the_constructor_only_stores_its_arguments_and_fit_refuses_the_bad_ones(name, make_world):
    """A new hyper-parameter needs no entry in BAD if it refuses what is neither a number nor a choice."""
    world = make_world()
    for key in hyperparameters(name).keys() - ANY:
        value = BAD.get(key, float("nan"))
        try:
            assert_refused(ValueError, f"{key}|alpha", ff.create(name, **{key: value}).fit, world.bank, world.head)
        except (AssertionError, pytest.fail.Exception) as error:
            pytest.fail(
                f"{name} took {key}={value}. Check {key} in learn (see core/validation.py), or add a value for {key} "
                f"that must be rejected to BAD in tests/test_contract.py ({error})."
            )


def test_every_method_has_a_summary():
    for name, method in METHODS.items():
        assert method.summary.endswith("."), f"{name} needs a docstring whose first line is one sentence."


def spoilt(features, value):
    features = features.clone()
    features[1, 2] = value
    return features


@every_method
def test_refuses_features_it_cannot_score(name, make_world):
    world = make_world()
    h = world.unknown
    detector = ff.create(name)
    assert_refused(ff.NotFittedError, "[Ff]it", detector, h)
    detector.fit(world.bank, world.head)
    for bad, error, keyword in (
        (h[:, :5], ValueError, "d=5"),
        (spoilt(h, torch.nan), ValueError, "row 1"),
        (spoilt(h, torch.inf), ValueError, "row 1"),
        (h[0], ValueError, "shape"),
        (h.half(), TypeError, "float16"),
        (h.numpy(), TypeError, "ndarray"),
    ):
        assert_refused(error, keyword, detector, bad)


@every_method
def test_refuses_a_bank_that_does_not_belong_to_the_head_and_stays_unfitted(name, make_world):
    world = make_world()
    h, labels = world.bank.features, world.bank.labels
    for features, targets, error, keyword in (
        (h[:, 1:], labels, ValueError, "d=23"),
        (h, labels + 1, ValueError, "labels"),
        (h.double(), labels, TypeError, "float64"),
    ):
        detector = ff.create(name)
        assert_refused(error, keyword, detector.fit, ff.FeatureBank(features, targets), world.head)
        assert_refused(ff.NotFittedError, "", detector, world.unknown)


@every_method
def test_a_failed_refit_leaves_the_detector_as_it_was(name, make_world, monkeypatch):
    world, other = make_world(), make_world(seed=1)
    detector = ff.create(name).fit(world.bank, world.head)
    before = detector(world.unknown)
    last = detector
    while hasattr(last, "detector") or hasattr(last, "chosen"):
        last = last.chosen if hasattr(last, "chosen") else last.detector
    learn = type(last).learn

    def learn_and_fail(self, bank, head):
        learn(self, bank, head)
        raise RuntimeError("at the last moment")

    monkeypatch.setattr(type(last), "learn", learn_and_fail)
    with pytest.raises(RuntimeError, match="at the last moment"):
        detector.fit(other.bank, other.head)
    assert torch.equal(detector(world.unknown), before)


@every_method
def test_learns_as_if_the_network_had_never_met_a_class(name, make_world):
    world = make_world()
    detector = ff.create(name).fit_without(world.bank, world.head, 2)
    assert detector.fitted_weight.shape == (5, 24)
    missed, kept = world.bank.labels == 2, world.bank.labels == 3
    if name == "length":  # which knows nothing of a class but its usual length, and here all are equally long
        return
    separation = ff.auroc(detector(world.bank.features[kept]), detector(world.bank.features[missed]))
    assert separation > 0.6, (
        f"{name}, fitted without class 2, must score it higher than class 3, or {name}@id cannot be tuned. Learn from "
        "the bank and the head that learn is given, or return above with the reason."
    )


@every_method
def test_keeps_float64_where_a_device_has_it_and_float32_elsewhere(name, make_world):
    def to_a_device_without_float64(tensor):
        if tensor.dtype == torch.float64:
            raise TypeError("no float64 here")
        return tensor.clone()

    world = make_world()
    detector = ff.create(name).fit(world.bank, world.head)
    moved = copy.deepcopy(detector)._apply(to_a_device_without_float64)
    assert torch.float64 not in {buffer.dtype for buffer in moved.buffers()}
    if name not in FLOAT64:
        wide = [key for key, buffer in detector.named_buffers() if buffer.ndim and buffer.dtype == torch.float64]
        assert not wide, f"{name} keeps {wide} in float64. Convert them, or add {name} to FLOAT64 above if it must."
    assert_close(moved(world.unknown), detector(world.unknown), rtol=1e-3, atol=1e-3)


@every_method
def test_takes_an_exponent_for_partial_normalisation(name, make_world):
    """FOLD has one of its own, AutoFold chooses it, everything else gets a plug-in."""
    world = make_world()
    own = name.startswith(("fold", "autofold"))
    for alpha in (0.0, 0.5, 1.0):
        hyper = {"grid": [alpha]} if name.startswith("autofold") else {"alpha": alpha}
        scores = ff.create(name, **hyper).fit(world.bank, world.head)(world.unknown)
        assert scores.isfinite().all(), alpha
        if alpha == 0 and not own:
            assert_close(scores, ff.create(name).fit(world.bank, world.head)(world.unknown))


@every_method
def test_fitting_without_labels_is_refused_exactly_by_methods_that_are_registered_as_needing_them(name, make_world):
    world = make_world()
    detector, unlabelled = ff.create(name), ff.FeatureBank(world.bank.features)
    declared = METHODS[name].needs_labels
    try:
        detector.fit(unlabelled, world.head)
    except ValueError as error:
        refused = str(error)
        if not declared:
            pytest.fail(f"{name} needs labels: add needs_labels=True to its @register ({refused}).")
    else:
        refused = ""
        if declared:
            pytest.fail(f"{name} fits without labels: add needs_labels=False to its @register, or refuse it in learn.")
    assert ("labels" in refused, detector.is_fitted) == (declared, not declared)
