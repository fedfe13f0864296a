"""What every registered method that sees features promises. A new detector is born tested."""

import copy
import inspect

import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold.detectors import METHODS

pytestmark = [
    pytest.mark.filterwarnings("ignore:AutoFold's curve is flat"),
    pytest.mark.filterwarnings("ignore:the reference optimiser went to a temperature"),
    pytest.mark.filterwarnings("ignore:every sample of this bank is classified correctly"),
]

every_method = pytest.mark.parametrize("name", sorted(n for n, method in METHODS.items() if method.sees == "features"))
BAD = {
    "alpha": 1.5,
    "criterion": "paird",
    "dim": 24,
    "gamma": 0.0,
    "grid": [7.0],
    "k": 361,
    "max_classes": 0,
    "logarithm": "no",
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
RTOL = {torch.float32: 2e-5, torch.float64: 1e-12}  # float32: a matrix product may sum in another order in a batch


@every_method
def test_gives_one_finite_score_per_row_in_the_type_of_the_features(name, world):
    scores = ff.create(name).fit(world.bank, world.head)(world.unknown)
    assert scores.shape == (len(world.unknown),)
    assert scores.dtype == world.unknown.dtype
    assert scores.isfinite().all()


@every_method
def test_fit_returns_the_detector_itself(name, world):
    detector = ff.create(name)
    assert detector.fit(world.bank, world.head) is detector


@every_method
def test_higher_means_more_out_of_distribution(name, world):
    detector = ff.create(name).fit(world.bank, world.head)
    assert ff.auroc(detector(world.bank.features), detector(world.unknown)) > 0.8


@every_method
def test_a_sample_scores_the_same_alone_as_in_a_batch(name, world):
    detector = ff.create(name).fit(world.bank, world.head)
    together = detector(world.unknown)
    alone = torch.cat([detector(row[None]) for row in world.unknown])
    assert_close(alone, together, rtol=RTOL[together.dtype], atol=1e-7 if together.dtype == torch.float32 else 1e-12)


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
def test_neither_fit_nor_score_changes_its_input(name, world):
    before = copy.deepcopy(world)
    ff.create(name).fit(world.bank, world.head)(world.unknown)
    assert torch.equal(world.bank.features, before.bank.features)
    assert torch.equal(world.bank.labels, before.bank.labels)
    assert torch.equal(world.head.weight, before.head.weight)
    assert torch.equal(world.unknown, before.unknown)


@every_method
def test_zero_features_get_a_finite_score(name, world):
    detector = ff.create(name).fit(world.bank, world.head)
    assert detector(torch.zeros_like(world.unknown[:2])).isfinite().all()


@every_method
def test_works_without_a_bias(name, make_world):
    world = make_world(bias=False)
    detector = ff.create(name).fit(world.bank, world.head)
    zero_bias = ff.create(name).fit(world.bank, ff.Head(world.head.weight, torch.zeros(6)))
    assert_close(detector(world.unknown), zero_bias(world.unknown))


@every_method
def test_a_fitted_state_can_be_loaded_into_a_fresh_detector(name, world):
    detector = ff.create(name).fit(world.bank, world.head)
    fresh = ff.create(name)
    fresh.load_state_dict(detector.state_dict())
    assert torch.equal(fresh(world.unknown), detector(world.unknown))


@every_method
def test_a_loaded_detector_has_tensors_of_its_own(name, world):
    state = ff.create(name).fit(world.bank, world.head).state_dict()
    fresh = ff.create(name)
    fresh.load_state_dict(state)
    before = fresh(world.unknown)
    for value in state.values():
        value.zero_()
    assert torch.equal(fresh(world.unknown), before)


@every_method
def test_its_state_can_be_written_to_safetensors(name, world, tmp_path):
    """Which refuses tensors that share memory: nothing may be stored twice."""
    from safetensors.torch import load_file, save_file

    detector = ff.create(name).fit(world.bank, world.head)
    save_file(detector.state_dict(), tmp_path / "detector.safetensors")
    fresh = ff.create(name)
    fresh.load_state_dict(load_file(tmp_path / "detector.safetensors"))
    assert torch.equal(fresh(world.unknown), detector(world.unknown))


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
    shapes = {"h": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(detector, (world.unknown[:4],), dynamic_shapes=shapes).module()
    for size in (1, 7, 100):
        assert_close(exported(world.unknown[:size]), detector(world.unknown[:size]), rtol=1e-5, atol=1e-6)


@every_method
def test_the_constructor_only_stores_its_arguments_and_fit_refuses_the_bad_ones(name, make_world):
    world = make_world()
    for key in set(BAD) & set(inspect.signature(METHODS[name].factory).parameters):
        detector = ff.create(name, **{key: BAD[key]})
        with pytest.raises(ValueError, match=f"{key}|alpha"):
            detector.fit(world.bank, world.head)


def test_every_hyper_parameter_has_a_bad_value_here():
    """Except those that any value is good for."""
    known = {key for method in METHODS.values() for key in inspect.signature(method.factory).parameters}
    assert known - set(BAD) == {"masked", "seed", "std", "layers", "weights", "epsilon", "args", "kwargs"}


@every_method
def test_says_that_it_is_not_fitted(name, world):
    with pytest.raises(ff.NotFittedError, match=r"Call .fit\(bank, head\) first|Fit the detector"):
        ff.create(name)(world.unknown)


@every_method
def test_has_a_summary_for_the_list_of_methods(name):
    assert METHODS[name].summary.endswith(".")


def spoilt(features, value):
    features = features.clone()
    features[1, 2] = value
    return features


@every_method
@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda h: h[:, :5], ValueError, "features have d=5 columns but the head expects d=24"),
        (lambda h: spoilt(h, torch.nan), ValueError, "features must be finite, but row 1"),
        (lambda h: spoilt(h, torch.inf), ValueError, "features must be finite, but row 1"),
        (lambda h: h[0], ValueError, r"shape \(n, d\), got \(24,\). A single row needs h\[None\]"),
        (lambda h: h.half(), TypeError, "features are torch.float16 but the detector was fitted in torch.float32"),
        (lambda h: h.numpy(), TypeError, "must be a torch tensor, not ndarray"),
    ],
)
def test_refuses_features_it_cannot_score(name, spoil, error, message, make_world):
    world = make_world()
    detector = ff.create(name).fit(world.bank, world.head)
    with pytest.raises(error, match=message):
        detector(spoil(world.unknown))


@every_method
def test_refuses_a_bank_that_does_not_belong_to_the_head(name, make_world):
    world = make_world()
    with pytest.raises(ValueError, match="features have d=23 columns but the head expects d=24"):
        ff.create(name).fit(ff.FeatureBank(world.bank.features[:, 1:], world.bank.labels), world.head)
    with pytest.raises(ValueError, match=r"labels go up to 6 but the head has 6 classes \(0 to 5\)"):
        ff.create(name).fit(ff.FeatureBank(world.bank.features, world.bank.labels + 1), world.head)
    with pytest.raises(TypeError, match=r"the bank is torch.float64 but the head is torch.float32"):
        ff.create(name).fit(ff.FeatureBank(world.bank.features.double(), world.bank.labels), world.head)


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
    assert ff.auroc(detector(world.bank.features[kept]), detector(world.bank.features[missed])) > 0.6


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
    if name not in ("mds", "rmds", "openmax", "klm", "vim"):  # whose learnt matrices are in float64 for a reason
        assert torch.float64 not in {buffer.dtype for buffer in detector.buffers() if buffer.ndim}
    assert_close(moved(world.unknown), detector(world.unknown), rtol=1e-3, atol=1e-3)


@every_method
def test_a_failed_fit_leaves_no_detector_that_looks_fitted(name, make_world):
    world = make_world()
    detector = ff.create(name)
    with pytest.raises(ValueError, match="labels go up to 6"):
        detector.fit(ff.FeatureBank(world.bank.features, world.bank.labels + 1), world.head)
    with pytest.raises(ff.NotFittedError):
        detector(world.unknown)


@every_method
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_takes_an_exponent_for_partial_normalisation(name, alpha, make_world):
    """FOLD has one of its own, AutoFold chooses it, everything else gets a plug-in."""
    world = make_world()
    hyper = {"grid": [alpha]} if name.startswith("autofold") else {"alpha": alpha}
    detector = ff.create(name, **hyper)
    scores = detector.fit(world.bank, world.head)(world.unknown)
    assert scores.isfinite().all()
    if alpha == 0 and not name.startswith(("fold", "autofold")):
        assert_close(scores, ff.create(name).fit(world.bank, world.head)(world.unknown))
