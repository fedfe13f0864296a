"""Guards on disk: what is written comes back bit for bit, and anything else is refused."""

import json
import os
import re
from copy import deepcopy
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import flatfold as ff
from flatfold.core.conformal import allowed_ranks
from flatfold.detectors.registry import METHODS
from flatfold.io.artifacts import checksum
from flatfold.network.fingerprint import weights_hash
from flatfold.scoring import guard_file as artefact
from flatfold.scoring.calibrated import CalibratedDetector, Calibration
from flatfold.scoring.guard_file import canonical, fitted_head, head_hash
from tests.four_classes import known, make_model
from tests.refusals import assert_refused

pytestmark = [
    pytest.mark.filterwarnings("ignore:AutoFold's curve is flat"),
    pytest.mark.filterwarnings("ignore:every sample of this bank is classified correctly"),
    pytest.mark.filterwarnings("ignore:.*correctly classified"),
]

SEE_FEATURES = sorted(name for name, method in METHODS.items() if method.sees == "features")
SMALL = {"knn": {"k": 5}, "nnguide": {"k": 5, "share": 0.3}}


def fitted(name, model, n=400, **how):
    return ff.Guard.fit(model, [known(n)], method=ff.create(name, **SMALL.get(name, {})), fpr=0.1, **how)


def check_same(guard, loaded, case=""):
    x = torch.cat([known(30, seed=5)[0], torch.rand(30, 8), torch.zeros(1, 8), 50 * torch.rand(3, 8)])
    for before, after in zip(guard(x), loaded(x), strict=True):
        assert before.dtype == after.dtype, case
        assert torch.equal(before, after), case


def settings_in(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["guard"])


def forge(path, settings=None, drop=(), **tensors):
    """Change a file and everything that proves it unchanged, but not its self-test."""
    said = {key: value for key, value in {**settings_in(path), **(settings or {})}.items() if key != "sha256"}
    parts = {key: value for key, value in {**load_file(path), **tensors}.items() if key not in drop}
    said = {key: value for key, value in said.items() if key not in drop}
    said["sha256"] = checksum(canonical(said), parts)
    save_file(parts, path, {"guard": canonical(said)})


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def guard(model):
    return fitted("autofold", model, 200)


@pytest.fixture
def path(guard, tmp_path):
    guard.save(tmp_path / "guard.safetensors")
    return tmp_path / "guard.safetensors"


@pytest.fixture
def refused(path, model):
    """Check that the file is refused by an error that names it; then put the good file back."""
    good = path.read_bytes()

    def check(keyword, case=None, other=model):
        both = f"(?s)(?=.*{re.escape(str(path))}).*({keyword})"
        assert_refused(ValueError, both, ff.Guard.load, path, other, case=case)
        path.write_bytes(good)

    return check


@pytest.mark.parametrize("start", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_method_gives_the_same_bit_for_bit(start, model, tmp_path):
    path = tmp_path / "guard.safetensors"
    for number, name in enumerate(SEE_FEATURES, start):
        guard = fitted(name, model, per_class=number % 2 == 1)
        guard.save(path)
        loaded = ff.Guard.load(path, make_model())
        check_same(guard, loaded, name)
        assert repr(loaded) == repr(guard)
        assert torch.equal(loaded.calibration.threshold, guard.calibration.threshold), name


def test_hyper_parameters_rate_and_transform_travel_with_the_file(model, tmp_path):
    path = tmp_path / "new" / "guard.safetensors"
    transform = ff.Transform(resize=9, crop=8, mean=(0.1, 0.2, 0.3), std=(1, 2, 3), interpolation="bicubic")
    for name, hyper in {
        "mls": {"alpha": 0.7},
        "knn": {"k": 3, "storage": "float16"},
        "fold-r": {"masked": True, "percentile": 85},
        "autofold-a": {"percentile": (70, 80), "grid": (0.1, 0.5)},
        "autofold-r": {"masked": True, "grid": (0.1, 0.5)},
    }.items():
        guard = ff.Guard.fit(
            model, [known(200)], method=ff.create(name, **hyper), fpr=0.1, loading=ff.Loading(transform=transform)
        )
        guard.at(0.3).save(path)
        loaded = ff.Guard.load(path, model)
        check_same(guard.at(0.3), loaded, name)
        check_same(guard, loaded.at(0.1), name)
        assert canonical(loaded.detector.made_by) == canonical(guard.detector.made_by)
        assert hyper.items() <= guard.detector.made_by[1].items()
        assert (loaded.fpr, loaded.transform) == (0.3, transform)


def test_the_same_guard_gives_the_same_bytes(model, tmp_path):
    for name in ("a", "b"):
        fitted("autofold-r", model).save(tmp_path / name)
    ff.Guard.load(tmp_path / "a", model).save(tmp_path / "c")
    assert len({(tmp_path / name).read_bytes() for name in "abc"}) == 1


def test_features_are_judged_without_the_model(guard, path):
    file = artefact.read_guard(path)
    assert file.transform is None
    said = settings_in(path)
    assert (said.pop("format"), said.pop("version")) == ("flatfold-guard", 2)
    assert msgspec.to_builtins(file.settings) == said
    features = torch.rand(20, 16)
    for read in (file.calibrated, ff.CalibratedDetector.load(str(path))):
        for one, other in zip(read(features), guard.calibrated(features), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("per_class", [False, True])
def test_settings_tell_people_what_the_tensors_hold(per_class, model, tmp_path):
    guard = fitted("fold", model, per_class=per_class)
    guard.save(tmp_path / "guard.safetensors")
    said = settings_in(tmp_path / "guard.safetensors")
    rows = [row[row.isfinite()].double() for row in guard.calibration.scores]
    every, summary = torch.cat(rows).sort().values, said["calibration"]
    assert said["thresholds"] == [float(row[len(row) - allowed_ranks(0.1, len(row))]) for row in rows]
    assert (summary["samples"], summary["least"], summary["most"]) == (200, min(map(len, rows)), max(map(len, rows)))
    for percent in (0, 5, 25, 50, 75, 95, 100):
        assert summary["quantiles"][str(percent)] == float(torch.quantile(every, percent / 100, interpolation="lower"))
    assert (said["detector"], said["hyper"]) == ("fold", {"alpha": 0.5, "score_norm": None})
    assert (said["format"], said["version"], said["flatfold"]) == ("flatfold-guard", 2, ff.__version__)
    assert (said["fpr"], said["per_class"], said["head"], said["gives_logits"]) == (0.1, per_class, "3", True)
    assert (said["classes"], said["features"], said["dtype"], said["transform"]) == (4, 16, "float32", None)
    assert said["weights_sha256"] == weights_hash(model)
    tensors = load_file(tmp_path / "guard.safetensors")
    learnt = {f"detector.{name}": value for name, value in guard.detector.state_dict().items()}
    others = {"calibration.scores", "calibration.counts", "probe.features", "probe.scores", "evidence.features"}
    assert set(tensors) == {*learnt, *others}
    assert all(torch.equal(tensors[name], value) for name, value in learnt.items())
    assert torch.equal(tensors["probe.scores"], guard.detector(tensors["probe.features"]))
    forge(tmp_path / "guard.safetensors")
    (tmp_path / "link").symlink_to(tmp_path / "guard.safetensors")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loaded = ff.Guard.load(tmp_path / "link", model)
    check_same(guard, loaded)
    assert said["head_sha256"] == head_hash(ff.Head(model[3].weight, model[3].bias))


# The self-test: rows of features whose scores depend on every tensor of the detector

UNSEEN = ("grid_", "curve_", "curve_stderr_", "percentiles_", "maxima_", "dim_")  # they tell, and score nothing


def calibrated_of(name, world):
    detector = ff.create(name, **SMALL.get(name, {})).fit(world.bank, world.head)
    return CalibratedDetector(detector, Calibration.of(detector(world.bank.features), 0.1))


def test_a_change_of_any_tensor_is_seen_and_rounding_is_not(make_world):
    world = make_world()
    for name in SEE_FEATURES:
        calibrated = calibrated_of(name, world)
        features, scores = artefact.make_probes(calibrated, fitted_head(calibrated))
        assert len(features.unique(dim=0)) == 8
        artefact.check_probes(calibrated, features, scores)
        exact = deepcopy(calibrated).double()(features.double())[0]
        scale = torch.maximum(scores.abs(), scores.abs().max() / 10)
        assert ((exact - scores).abs() / scale).max() < artefact.TOLERANCE / 4, name
        for key, value in calibrated.detector.state_dict().items():
            last = key.rpartition(".")[2]
            if last in UNSEEN:
                continue
            other = deepcopy(calibrated)
            moved = value * 0.95 + 0.01 * value.abs().max().clamp_min(0.1)
            other.detector.load_state_dict({**other.detector.state_dict(), key: moved})
            if last in ("weight", "bias"):
                assert head_hash(fitted_head(other)) != head_hash(fitted_head(calibrated)), (name, key)
            elif key != "percentile_" or name == "autofold-a":  # of ReAct's percentile only the threshold counts
                hint = "score does not use it: store it as no buffer, or add it to UNSEEN with the reason"
                check = partial(artefact.check_probes, other, features, scores)
                assert_refused(ValueError, "returns a score of", check, case=(name, key, hint))


def test_scores_that_jump_or_are_no_numbers_are_no_probes(make_world):
    head = make_world(torch.float64).head
    assert artefact.probe_candidates(ff.Head(torch.zeros(3, 5))).isfinite().all()
    for score in (lambda h: ((h.sum(dim=-1) * 1e9) % 2,), lambda h: (h.sum(dim=-1) * torch.nan,)):
        with pytest.raises(ValueError, match=r"8 rows .*has [0-7] "):
            artefact.make_probes(score, head)
    calibrated = calibrated_of("ebo", make_world())
    features, scores = artefact.make_probes(calibrated, fitted_head(calibrated))
    calibrated.detector.bias[0] = torch.nan
    with pytest.raises(ValueError, match="nan"):
        artefact.check_probes(calibrated, features, scores)


def test_guards_that_cannot_be_saved_are_refused_and_nothing_is_written(model, tmp_path):
    def odd_tensor(guard):
        guard.detector.register_buffer("odd", torch.zeros(3, dtype=torch.int16))

    def infinite_score(guard):
        guard.calibration.scores[0, -1] = torch.inf

    def odd_hyper(value, guard):
        guard.detector.made_by = ("fold", {"alpha": value})

    def train_on(guard):
        with torch.no_grad():
            guard.model[3].bias += 0.1

    values = (object(), torch.ones(2), float("nan"), {1: {2}})
    cases = [*((partial(odd_hyper, value), "hyper-parameters") for value in values)]
    cases += [(odd_tensor, "int16"), (infinite_score, "finite"), (train_on, "weights")]
    path = tmp_path / "guard.safetensors"
    for change, keyword in cases:
        guard = fitted("fold", make_model())
        change(guard)
        assert_refused(ValueError, keyword, partial(guard.save, path), case=change)
    by_hand = ff.Guard.fit(model, [known(100)], method=ff.Fold(alpha=0.2))
    assert_refused(ValueError, "made by name", partial(by_hand.save, path))
    assert_refused(IsADirectoryError, "folder", partial(fitted("fold", model).save, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_weight_that_changes_when_it_is_looked_at_is_not_looked_at_in_training(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.utils.parametrizations.spectral_norm(nn.Linear(16, 4)))
    guard = fitted("fold", model.train())
    before = deepcopy(model.state_dict())
    guard.save(tmp_path / "guard.safetensors")
    check_same(guard, ff.Guard.load(tmp_path / "guard.safetensors", model))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_rate_in_numpys_float32_is_the_same_rate_when_it_is_read(model, tmp_path):
    rate = np.float32(0.29)  # times 100 it is 29 in float32, and a little less than that in float64
    guard = ff.Guard.fit(model, [known(10)], method="fold", fpr=rate, calibration=[known(99)])
    guard.save(tmp_path / "guard.safetensors")
    loaded = ff.Guard.load(tmp_path / "guard.safetensors", model)
    check_same(guard, loaded)
    assert type(guard.fpr) is float
    assert loaded.fpr == guard.fpr == float(rate)


def test_a_guard_of_another_model_is_refused(refused):
    first, last, more_classes = make_model(), make_model(), make_model()
    with torch.no_grad():
        first[0].bias += 1
        last[3].bias += 1
    more_classes[3] = nn.Linear(16, 7)
    relus = nn.Sequential(*[nn.ReLU() for _ in range(4)])
    others = {first: "other weights", last: "other weights", nn.Linear(8, 4): "'3'", relus: "'3'", more_classes: "7"}
    for other, keyword in {**others, make_model().half(): "float16", make_model().double(): "float64"}.items():
        refused(keyword, other, other)


class Scaled(nn.Module):
    """A network whose state dict does not tell all that it computes."""

    def __init__(self, eps=1e-5, act=nn.ReLU, gain=1.0, buffer=1.0, crash=False):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, eps=eps), act(), nn.Flatten(), nn.Linear(288, 6)
        )
        self.head, self.gain, self.crash = nn.Linear(6, 4), gain, crash
        self.register_buffer("scale", torch.tensor(buffer), persistent=False)

    def forward(self, x):
        assert not self.crash, "something is missing"
        return self.head(self.body(x * self.gain) * self.scale)


def test_a_model_that_computes_something_else_with_the_same_weights_is_refused(tmp_path, caplog):
    path, x = tmp_path / "guard.safetensors", torch.rand(60, 3, 8, 8)
    guard = ff.Guard.fit(Scaled(), [x], method="ebo", fpr=0.1)
    guard.save(path)
    changes = {"eps": 10.0, "act": partial(nn.LeakyReLU, 0.05), "gain": 1.02, "buffer": 0.98, "crash": True}
    for name, value in changes.items():
        other = Scaled(**{name: value})
        assert weights_hash(other) == weights_hash(guard.model)
        assert_refused(ValueError, "same weights|something is missing", ff.Guard.load, path, other, case=name)
    other = ff.Guard.load(path, Scaled())
    other.model.body[1].eps = 10.0
    assert_refused(ValueError, "Fit the guard again", other.save, path)
    for model in (Scaled(gain=1 + 1e-6), Scaled().to(memory_format=torch.channels_last)):
        check = ff.Guard.load(path, model)
        assert torch.equal(check.network.evidence.features, guard.network.evidence.features)
    assert caplog.text == ""
    forge(path, drop=("evidence", "evidence.features"))
    assert ff.Guard.load(path, Scaled(eps=10.0)).network.evidence is None  # a file of an earlier version
    assert "no evidence" in caplog.text


def test_forged_evidence_is_refused(path, refused):
    kept = settings_in(path)["evidence"]
    inputs = kept["inputs"]["args"][0]
    for case in (
        {"rows": []}, {"rows": [0, 0, 1, 2]}, {"rows": [0, 1, 2, 9]}, {"rows": [0]}, {"device": 3},
        *({"inputs": {"args": [{**inputs, **change}], "kwargs": {}}} for change in (
            {"shape": [10**9]}, {"shape": [-1]}, {"dtype": "object"}, {"low": 2.0, "high": 1.0}, {"more": 1})),
        {"inputs": {"args": [1], "kwargs": {}}},
    ):  # fmt: skip
        forge(path, {"evidence": {**kept, **case}})
        refused("evidence|inputs|Expected|unknown", case)
    forge(path, **{"evidence.features": torch.zeros(4, 16)})
    refused("same weights")


def test_what_is_not_a_regular_file_is_refused_without_waiting_for_it(tmp_path, model):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for load in (ff.Guard.load, lambda path, model: artefact.read_guard(path)):
        for path in (*(tmp_path / name for name in ("folder", "pipe", "link")), Path("/dev/zero")):
            assert_refused(ValueError, "regular file", partial(load, path, model), case=path)
        assert_refused(ValueError, "[Ss]ymbolic links", partial(load, tmp_path / "circle", model))
        assert_refused(FileNotFoundError, "nothing", partial(load, tmp_path / "nothing", model))


def test_a_file_that_is_cut_or_changed_anywhere_is_refused(path, model, refused):
    content = bytearray(path.read_bytes())
    for size in (0, 7, 100, 1000, len(content) - 1):
        path.write_bytes(content[:size])
        refused("truncated, damaged", size)
    start = 8 + int.from_bytes(content[:8], "little")
    for place in range(start, len(content), 37):
        content[place] ^= 1
        path.write_bytes(content)
        refused("checksum", place)
        content[place] ^= 1


def test_other_safetensors_files_and_other_versions_are_refused(path, refused):
    save_file({"x": torch.zeros(1)}, path)
    refused("'guard' alone")
    for version in (1, 3, "2"):
        forge(path, {"version": version})
        refused(f"version {version}, .*version 2|int.*version")
    said = {"format": "flatfold-guard", "version": 1, "detector": "fold", "hyper": {}, "fpr": 0.1, "head": "3"}
    save_file({"calibration": torch.arange(9.0)}, path, {"guard": json.dumps(said)})
    refused("version 1")
    save_file(load_file(path), path, {"guard": json.dumps(settings_in(path), indent=1)})
    refused("canonical")


def test_settings_that_save_would_not_write_are_refused(path, refused):
    hyper = {"depth": 2}, {}, {"preset": "authors"}, {"name": "fold"}, None
    transform = ff.Transform(crop=2**16 + 1).as_dict(), {"resize": 2}, {"evil": 2}
    for name, values, keyword in (
        ("detector", (3, "nonsense", "odin", "x" * 10**6, "ebo"), "detector|method|hyper-parameter"),
        ("hyper", hyper, "hyper"),
        ("fpr", ("much", 7.0, 0.005, 5e-324, 0.2), "fpr|calibration samples|thresholds|cannot be used"),
        ("transform", transform, "transform|evil"),
        ("head", ([],), "str.*head"),
        ("gives_logits", (1,), "bool.*gives_logits"),
        (
            "relation",
            ({}, {"kind": "selected", "layers": ["2"], "output": 0}, {"kind": "linear"}, "pooled"),
            "relation",
        ),
        ("thresholds", ([0.0],), "thresholds"),
        ("per_class", (True,), "per_class"),
        ("calibration", ({},), "calibration"),
        ("head_sha256", ("0",), "head_sha256"),
        ("extra", (1,), "extra"),
    ):
        for value in values:
            forge(path, {name: value})
            refused(keyword, f"{name}={str(value)[:60]}")
    for name in ("fpr", "hyper", "transform", "weights_sha256", "calibration.counts", "probe.features"):
        forge(path, drop=[name])
        refused(f"'{name}' is missing|missing .*`{name}`")


def test_tensors_that_save_would_not_write_are_refused(path, refused):
    scores, counts, zeros, ones = "calibration.scores", "calibration.counts", torch.zeros, torch.ones
    integers, infinite = zeros(1, 100, dtype=torch.int64), torch.full((1, 100), torch.inf)
    for name, values, keyword in (
        (scores, (torch.arange(100.0)[None].flip(1),), "not sorted"),
        (scores, (infinite, infinite * torch.nan), "finite"),
        (scores, (zeros(1, 0), zeros(1, 101)), "counts must"),
        (scores, (zeros(100), integers), "per group|float32 or float64"),
        (scores, (zeros(1, 100),), "does not match"),
        (counts, (torch.tensor([10**12]), torch.tensor([0])), "counts must"),
        (counts, (torch.tensor([100.0]),), "per group"),
        ("detector.fold.weight", (ones(4, 16), ones(4, 17)), "head_sha256|cannot be used"),
        ("detector.fold.distances", (infinite[0, :16].reshape(4, 4), ones(4, 4)), "returns a score of"),
        ("detector.alpha_", (torch.tensor(0.123),), "returns a score of"),
        ("detector.fold.distances", (ones(5),), "cannot be used"),
        ("detector.fold.score", (ones(4),), "cannot be used"),
        ("detector.alpha_", (zeros((), dtype=torch.uint8),), "must be one of"),
        ("detector.", (ones(4),), "cannot be used"),
        ("probe.scores", (zeros(8),), "returns a score of"),
        ("probe.scores", (zeros(7),), "self-test"),
        ("probe.features", (zeros(8, 15),), "self-test"),
        ("other.values", (zeros(8, 15),), "other.values"),
    ):
        for value in values:
            forge(path, **{name: value})
            refused(keyword, f"{name} {tuple(value.shape)} {keyword}")
    forge(path, **{scores: torch.zeros(2, 100), counts: torch.tensor([100, 100])})
    refused("2 groups")
    forge(path, drop=[name for name in load_file(path) if name.startswith("detector.")])
    refused("fitted")


def test_a_method_that_computes_otherwise_is_found_out(path, refused, monkeypatch):
    before = ff.Fold.score_at
    monkeypatch.setattr(ff.Fold, "score_at", lambda *given: before(*given) * 1.0001)
    refused("returns a score of")


def test_headers_are_refused_before_memory_is_set_aside(path, refused):
    def put(header, data=b""):
        front = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(len(front).to_bytes(8, "little") + front + data)

    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    changes = [{"shape": shape} for shape in ([10**9, 10**9], [1], [-2], [2.0])]
    changes += [{"data_offsets": places} for places in ([0, 10**15], [4, 12], [0])]
    for bad in (*(entry | change for change in changes), entry | {"dtype": []}, {"dtype": "F32", "shape": [2]}, []):
        put({"__metadata__": {"guard": "{}"}, "x": bad}, bytes(8))
        refused("not a safetensors file", bad)
    for header in (b"[" * 5000, b"9" * 10**6, b"[1e999]", b"\xff\xfe", b"[1]", b"__import__('os')", b""):
        put(header)
        refused("not a safetensors file", header[:20])
    put(b" " * (10**7 + 1))
    refused("10000001 bytes")
    for metadata in (None, {}, {"guard": "null"}, {"guard": "{}", "more": ""}, {"guide": "{}"}):
        put({"__metadata__": metadata})
        refused("'guard' alone|format|not a document", metadata)
