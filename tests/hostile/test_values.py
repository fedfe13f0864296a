"""Tensors, arrays, labels, models and hyper-parameters that nobody would give on purpose.

Each is refused by a sentence of a documented type, or its result is right.
"""

import logging
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import flatfold as ff
from flatfold.detectors.registry import METHODS, hyperparameters
from tests.four_classes import known, make_model
from tests.refusals import SENTENCES, assert_refused, outcome, refused

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")]

X, Y = known(240)


@pytest.fixture(scope="module")
def world():
    """A model, its features and its head."""
    model = make_model().eval()
    return model, *ff.extract(model, (X, Y))


# Inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    NOT_VALUES = {
        "sparse": X.to_sparse(),
        "csr": X.to_sparse_csr(),
        "meta": X.to("meta"),
        "mkldnn": X.to_mkldnn(),
        "nested": torch.nested.nested_tensor([X[:3], X[:2]]),
        "quantised": torch.quantize_per_tensor(X, 0.1, 0, torch.quint8),
        "complex": X.to(torch.complex64),
        "masked": np.ma.masked_array(X.numpy(), X.numpy() > 1),
        "objects": np.array([[object()] * 8] * 2),
        "records": np.zeros((5, 8), [("a", "f4")]),
        "dates": np.zeros((5, 8), "M8[s]"),
        "texts": np.array([["a"] * 8] * 2),
    }
USES = {
    "a guard": lambda x, model: ff.Guard.fit(model, (x, Y)),
    "arrays": lambda x, model: ff.extract(model, x),
    "batches": lambda x, model: ff.extract(model, [x]),
    "labelled batches": lambda x, model: ff.extract(model, [(x, Y)]),
    "dicts": lambda x, model: ff.extract(model, [{"input": x, "labels": Y}]),
    "a bank": lambda x, model: ff.FeatureBank(x, Y),
    "a head": lambda x, model: ff.Head(x),
    "scores": lambda x, model: ff.auroc(x, x),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", NOT_VALUES)
def test_what_has_no_plain_values_is_refused(world, name, use):
    with refused((name, use), error=SENTENCES):
        USES[use](NOT_VALUES[name], world[0])


@pytest.mark.parametrize("name", NOT_VALUES)
def test_a_guard_and_its_detector_refuse_it_too_or_take_it_for_what_it_is(world, name):
    guard = ff.Guard.fit(world[0], (X, Y), method="ebo")
    verdict = outcome(lambda: guard(NOT_VALUES[name]), name)
    assert verdict is None or (name in ("sparse", "csr") and torch.allclose(verdict.score, guard(X).score))
    assert outcome(lambda: guard.calibrated(NOT_VALUES[name]), name) is None


def test_vectors_of_scores_are_real_numbers():
    scores = np.array([0.1, 0.5])
    for bad in (scores + 1j, np.ma.masked_array(scores, [True, False]), np.array(["a", "b"]), np.array([None, 1.0])):
        for pair in ((bad, scores), (scores, bad)):
            with refused(pair, error=SENTENCES):
                ff.auroc(*pair)
    assert ff.auroc(np.array([1, 2], ">i8"), np.array([3.0], ">f4")) == 1


@pytest.mark.parametrize("kind", [">f4", ">f8", "f2"])
def test_arrays_of_other_byte_orders_have_the_same_values(world, kind):
    array = X.numpy().astype(kind)
    expected = ff.extract(world[0], X.half().float() if kind == "f2" else X)[0].features
    assert torch.equal(ff.extract(world[0], array)[0].features, expected)
    if kind != "f2":
        assert torch.equal(ff.FeatureBank(array, Y.numpy().astype(">i8")).features.float(), X)
        assert torch.equal(ff.Head(array, array[:, 0].copy()).weight.float(), X)


OTHERS = [None, b"x", bytearray(8), memoryview(np.zeros((2, 8))), 3, np.float32(3), torch.tensor(3.0), {}, {1, 2}]
OTHERS += [[], "", iter([]), X.tolist(), np.ndarray, object(), [None], [[]], (), ((), ()), {"x": None}, [{}], slice(3)]


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_what_is_no_data_is_refused(world, number):
    guard = ff.Guard.fit(world[0], (X, Y), method="ebo")
    for use in (guard, lambda data: ff.Guard.fit(world[0], data), lambda data: ff.extract(world[0], data)):
        assert outcome(lambda use=use: use(OTHERS[number]), OTHERS[number]) is None


# Labels

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    LABELS = {
        "far": Y + 10**12,
        "one far": torch.where(torch.arange(240) == 3, 2**62, Y),
        "sparse": Y.to_sparse(),
        "one-hot and sparse": torch.eye(4)[Y].to_sparse(),
        "meta": Y.to("meta"),
        "quantised": torch.quantize_per_tensor(Y.float(), 1, 0, torch.quint8),
        "beyond int64": [10**40] * 240,
        "unsigned": Y.numpy().astype("u8") + np.uint64(2**63),
        "masked": np.ma.masked_array(Y.numpy(), Y.numpy() == 1),
        "not a number": Y.float() * torch.nan,
        "none": [None] * 240,
        "negative": Y - 1,
        "too few": Y[:-1],
        "complex": Y.to(torch.complex64),
    }


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_are_none_are_refused(world, name):
    model, bank, head = world
    uses = {
        "a guard": lambda y: ff.Guard.fit(model, (X, y)),
        "a guard of batches": lambda y: ff.Guard.fit(model, [(X, y)]),
        "a benchmark": lambda y: ff.benchmark(model, (X, y), {"a": X + 3}, methods=["msp"]),
        **{
            method: lambda y, method=method: ff.create(method).fit(ff.FeatureBank(bank.features, y), head)
            for method in ("mds", "knn", "vim", "fourfold", "openmax", "she", "rmds")
        },
    }
    for use, take in uses.items():
        with refused((name, use), error=SENTENCES):
            take(LABELS[name])


# Models


def test_models_without_weights_are_refused_and_none_loses_its_own(world, tmp_path):
    model = make_model().eval()
    path = tmp_path / "guard"
    guard = ff.Guard.fit(model, (X, Y), method="ebo")
    guard.save(path)
    half = make_model()
    half[3].to("meta")
    for empty in (make_model().to("meta"), half):
        for use in (lambda m: ff.Guard.fit(m, (X, Y)), lambda m: ff.extract(m, X), lambda m: ff.Guard.load(path, m)):
            assert_refused(ValueError, "'meta'", use, empty)
    before = [values.clone() for values in model.parameters()]
    assert_refused(ValueError, "'meta'", ff.extract, model, X, execution=ff.Execution(device="meta"))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    model.to("meta")
    assert_refused(ValueError, "'meta'", guard, X)


class Unsteady(nn.Module):
    """A network whose features change from call to call."""

    def __init__(self, change):
        super().__init__()
        self.inner, self.change, self.calls = make_model().eval(), change, 0

    def forward(self, x):
        self.calls += 1
        return self.inner[3](self.change(self.inner[:3](x), self.calls))


CHANGES = {
    "noise": lambda h, _: h + 0.01 * torch.randn_like(h),
    "dropout": lambda h, _: nn.functional.dropout(h, 0.1),
    "drift": lambda h, n: h * (1 + 0.01 * n),
    "every second call": lambda h, n: h * (1 + 0.01 * (n % 2)),
    "every third call": lambda h, n: h * (1 + 0.01 * (n % 3 == 0)),
    "the others of a batch": lambda h, _: h - 0.02 * h.mean(dim=0),
}


@pytest.mark.parametrize("form", ["arrays", "batches", "one batch", "calibration"])
@pytest.mark.parametrize("name", CHANGES)
def test_models_that_change_are_noticed_with_the_size_of_the_change(name, form, caplog):
    batches = [(X[start : start + 40], Y[start : start + 40]) for start in range(0, 240, 40)]
    data = {"arrays": (X, Y), "batches": batches, "one batch": [(X, Y)], "calibration": (X, Y)}[form]
    more = {"calibration": known(100, seed=3)} if form == "calibration" else {}
    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING):
        ff.Guard.fit(Unsteady(CHANGES[name]), data, method="ebo", **more)
    (warning,) = (text for text in caplog.messages if "run again" in text)
    share = float(warning.split("differ by ")[1].split(" %")[0])
    assert 0.1 < share < 101
    caplog.clear()
    ff.Guard.fit(make_model().eval(), data, method="ebo", **more)
    assert "run again" not in caplog.text


class Clipped(nn.Linear):
    """A layer that clips the norm of its input."""

    most = torch.inf

    def forward(self, h):
        return super().forward(h * (self.most / h.norm(dim=1, keepdim=True)).clamp_max(1))


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_head_that_clips_one_row_of_64_is_always_noticed(share):
    g = torch.Generator().manual_seed(0)
    for trial in range(40):
        h = torch.rand(64, 16, generator=g)
        row = int(torch.randint(64, (1,), generator=g))
        h[row] *= 2.05 * h.norm(dim=1).max() / h[row].norm()
        model = nn.Sequential(nn.Identity(), Clipped(16, 4))
        model[1].most = share * float(h[row].norm())
        with refused((share, trial), r"z = W h \+ b"):
            ff.extract(model, [torch.rand(64, 16, generator=g), h])


# Methods and their hyper-parameters

VALUES = [-1, 0, 1, 3, 10**400, 1e308, 5e-324, float("nan"), float("inf"), True, None, "a", "", [], [[1]], {}, 1j]
VALUES += [0.5, 99.9, 101, 2**31, 2**64, b"x", object(), torch.tensor([1.0, 2.0]), np.array(1.0), [float("nan")]]
MANY = (
    "openmax",
    "knn",
    "fourfold",
    "gen",
    "vim",
    "react",
    "ash",
    "fold-r",
    "ebo",
    "nnguide",
    "optfs",
    "she",
    "relation",
)


@pytest.mark.parametrize("name", MANY)
def test_hyper_parameters_are_refused_or_give_scores(world, name):
    _, bank, head = world
    for key in (*hyperparameters(name), "alpha", "preset"):
        for value in VALUES:
            detector = outcome(lambda key=key, value=value: ff.create(name, **{key: value}), (name, key, value))
            if detector is not None:
                fit = outcome(lambda detector=detector: detector.fit(bank, head), (name, key, value))
                if fit is not None:
                    assert fit(bank.features[:5]).shape == (5,)


def test_arrays_of_a_grid_are_lists():
    grid = [0.25, 0.5, 0.75]
    for values in (np.array(grid), torch.tensor(grid)):
        assert repr(ff.create("autofold", grid=values)) == repr(ff.create("autofold", grid=grid))
    assert hyperparameters("knn", k=np.int64(3)) == hyperparameters("knn", k=3)


WRITTEN = [
    "knn:k=10",
    "knn:k=10@id",
    "mds:alpha=1",
    "fold-r:alpha=0.3:percentile=90",
    "autofold:grid=[0.1,0.5]",
    "odin",
]
WRITTEN += [
    "gen:gamma=0.1:top=10",
    "openmax:tail=20",
    "energy",
    "fourfold:seed=3",
    "vim:dim=64",
    "fold-r:preset=authors",
]
PIECES = ["9" * 5000, "1e999", "nan", "None", "[]", "{}", "__import__('os')", "1j", "b'x'", "(" * 300, "-" * 5000 + "1"]
PIECES += [
    "[1,[2]]",
    ":",
    "=",
    "@",
    ",",
    "\0",
    "\u00bd",
    "\ud800",
    "'",
    "alpha=",
    "k=",
    "grid=",
    "seed=",
    "preset=",
    "self=",
]


@given(
    text=st.sampled_from(WRITTEN),
    changes=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["", *PIECES]), st.integers(0, 4)), max_size=3),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_methods_as_texts_are_refused_or_made(text, changes):
    for place, piece, dropped in changes:
        start = int(place * len(text))
        text = text[:start] + piece + text[start + dropped :]
    detector = outcome(lambda: ff.create(text), text, longest=2500)
    assert detector is None or detector.made_by[0] in METHODS


def test_a_benchmark_needs_names_that_can_be_files(world):
    for name in ("a" * 300, "", "a/b", "..", "a\0", "\u00e4\u202e", 3, None):
        with refused(name, error=SENTENCES):
            ff.benchmark(world[0], (X, Y), {name: X + 3}, methods=["msp"])
