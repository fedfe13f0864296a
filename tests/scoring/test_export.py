"""Guards in other runtimes: one graph, checked on real inputs before it is written."""

import json
import logging
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.data.batch import split_batch
from flatfold.errors import MismatchError
from flatfold.network import graph
from flatfold.network.fingerprint import weights_hash
from flatfold.scoring.export import FORMATS, Parity, compare, export
from tests import architectures as made
from tests.architectures import built
from tests.four_classes import known
from tests.four_classes import make_model as four_classes_model
from tests.refusals import assert_refused

pytest.importorskip("onnxruntime", reason="flatfold[onnx] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")

HYPER = {"knn": {"k": 5}}
QUICK = (("fold", True, ".onnx"), ("fourfold", False, ".onnx"), ("autofold-r", False, ".onnx"), ("knn", False, ".pt2"))
METHODS = [(name, False, ".onnx") for name in ("fold", "autofold", "ash", "msp", "knn", "mds")]
METHODS += [
    ("fourfold", True, ".onnx"),
    ("fourfold", False, ".pt2"),
    ("msp", True, ".onnx"),
    ("fold", False, ".pt2"),
    ("autofold-r", False, ".pt2"),
]
TRANSFORM = ff.Transform(resize=8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))


def fit(detector="fold", last=nn.Identity, transform=None, **options):
    """Fit a guard of the model with another module in front of its dropout."""
    layers = four_classes_model()
    model = nn.Sequential(*layers[:2], last(), *layers[2:])
    return ff.Guard.fit(
        model, [known(400)], method=detector, fpr=0.1, loading=ff.Loading(transform=transform), **options
    )


@pytest.fixture
def guard():
    return fit()


def some(n=70):
    """ID and OOD inputs."""
    return torch.cat([known(n - 20, seed=7)[0], torch.rand(20, 8, generator=torch.Generator().manual_seed(3))])


def run_onnx(path, **inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    names = [entry.name for entry in session.get_outputs()]
    return session, {name: torch.from_numpy(values) for name, values in zip(names, outputs, strict=True)}


def check_file(path, guard, inputs):
    """Check what a runtime computes from a file against the guard itself."""
    if path.suffix == ".onnx":
        outputs = run_onnx(path, **inputs)[1]
        assert list(outputs) == ["logits", "score", "p_value", "is_ood"]
        outputs = tuple(outputs.values())
    else:
        module = torch.export.load(path).module()
        outputs = module(inputs["x"]) if "x" in inputs else module(**inputs)
        assert type(outputs) is tuple, "the file would need this library"
    for ours, theirs in zip(outputs, guard(inputs.get("x", inputs)), strict=True):
        assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "per_class", "suffix"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in METHODS)]
)
def test_a_file_gives_the_verdicts_of_the_guard(name, per_class, suffix, tmp_path):
    guard = fit(ff.create(name, **HYPER.get(name, {})), per_class=per_class)
    x = some()
    result = export(guard, tmp_path / f"model{suffix}", [(x[:40], None), x[40:]])
    assert (result.inputs, result.batch_sizes) == (70, (1, 7, 64))
    assert max(result.logits, result.score) < 1e-5
    for rows in (1, 2, 33):  # none of which was traced
        check_file(tmp_path / f"model{suffix}", guard, {"x": x[:rows]})
    assert 0 < guard(x).is_ood.sum() < 70
    if suffix == ".onnx" and name == "fold":  # features that are not finite raise an alarm, others are as before
        bad = x.clone()
        bad[3] = torch.nan
        outputs = run_onnx(tmp_path / "model.onnx", x=bad)[1]
        assert outputs["is_ood"][3]
        smallest = 1 / (guard.calibration.counts + 1)  # the p-value of a score above all others, in each class
        assert (outputs["p_value"][3] - smallest).abs().min() < 1e-6
        assert torch.equal(outputs["is_ood"][4:], guard(x).is_ood[4:])


def test_a_row_of_features_that_are_all_zero_has_the_same_score(tmp_path):
    """As of an input for which no ReLU fires: the smallest number of float64 would be 0 in an ONNX graph."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4)), 3 * torch.randn(200, 4)
    with torch.no_grad():
        model[0].bias.fill_(-1)
    x[:5] = 0
    guard = ff.Guard.fit(model, (x, model(x).argmax(dim=1)), fpr=0.1)
    assert not model[:2](x[:5]).any()
    export(guard, tmp_path / "model.onnx", [x[:64]])
    check_file(tmp_path / "model.onnx", guard, {"x": x[:9]})


@pytest.mark.parametrize("suffix", FORMATS)
def test_keyword_arguments_keep_their_names_and_labels_are_left_out(suffix, tmp_path):
    model, x = built(made.two_inputs)
    guard = ff.Guard.fit(model, [x], method="fold", fpr=0.1)
    path = tmp_path / f"model{suffix}"
    export(guard, path, [{**x, "labels": torch.zeros(48, dtype=torch.int64)}])
    check_file(path, guard, {name: value[:5] for name, value in x.items()})


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_says_where_its_decisions_come_from_and_tells_nothing_private(suffix, tmp_path, capfd, caplog):
    guard, path = fit(ff.create("mls", alpha=0.7), transform=TRANSFORM), tmp_path / "new" / f"model{suffix}"
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript")}
    with caplog.at_level(logging.WARNING):
        export(guard, str(path), [some()])
    assert (*capfd.readouterr(), *caplog.records) == ("", "")
    assert {name: logging.getLogger(name).level for name in levels} == levels
    assert list(path.parent.iterdir()) == [path]
    if suffix == ".onnx":
        session, _ = run_onnx(path, x=some())
        assert [(entry.name, entry.shape) for entry in session.get_inputs()] == [("x", ["batch", 8])]
        assert [entry.shape for entry in session.get_outputs()] == [["batch", 4], ["batch"], ["batch"], ["batch"]]
        words = ("version", "detector", "weights_sha256", "head")
        facts = session.get_modelmeta().custom_metadata_map
        facts = {key.removeprefix("flatfold."): value for key, value in facts.items() if key.startswith("flatfold.")}
        facts = {key: value if key in words else json.loads(value) for key, value in facts.items()}
    else:
        extra = {"flatfold.json": ""}
        (x,), _ = torch.export.load(path, extra_files=extra).example_inputs
        assert not x.any(), "a real input is in the file"
        assert x.untyped_storage().nbytes() == x.nbytes
        facts = json.loads(extra["flatfold.json"])
    assert facts == {
        "version": ff.__version__,
        "detector": "mls",
        "hyper": guard.detector.made_by[1],
        "fpr": 0.1,
        "confidence": None,
        "threshold": guard.calibration.threshold.tolist(),
        "calibration_samples": 200,
        "weights_sha256": weights_hash(guard.model),
        "head": "4",
        "transform": TRANSFORM.as_dict(),
    }
    assert guard.detector.made_by[1]["alpha"] == 0.7
    content = path.read_bytes()  # parts of a .pt2 file are not compressed
    assert b"searchsorted" in content or b"p_value" in content
    for source in (ff.__file__, torch.__file__, __file__):
        assert str(Path(source).parent).encode() not in content


def check_moved(guard, x, name, row, by):
    """Compare the guard with itself where one output of one input is changed."""

    def runtime(batch):
        verdict = guard(batch.args[0])
        hit = (batch.args[0] == x[row]).all(dim=1)
        values = getattr(verdict, name).clone()
        values[hit] = by(values[hit])
        return verdict._replace(**{name: values})

    return compare(guard, runtime, split_batch(x))


def clear(guard, x):
    """An input that is far from the threshold and has a score well above the spread of the calibration."""
    return int(guard(x).score.argmax())


def test_every_input_is_compared_in_batches_of_every_size(guard):
    seen = []

    def runtime(batch):
        seen.append(batch.rows)
        return [part.numpy() for part in guard(batch.args[0])]

    assert compare(guard, runtime, split_batch(some())) == Parity(70, (1, 7, 64), 0.0, 0.0, 0)
    assert seen == [1] * 70 + [7] * 10 + [64, 6]
    assert compare(guard, runtime, split_batch(known(5)[0])).batch_sizes == (1, 5)


def test_the_worst_errors_are_reported_as_they_are(guard):
    x = some()
    row = clear(guard, x)
    assert check_moved(guard, x, "score", row, lambda s: s * (1 + 5e-5)).score == pytest.approx(5e-5, rel=1e-2)
    largest = float(guard(x).logits[row].abs().max())
    result = check_moved(guard, x, "logits", row, lambda z: z + 6e-5 * largest)
    assert result.logits == pytest.approx(6e-5, rel=1e-2)
    assert result.score == 0
    for part in ("70 inputs", "1, 7, 64", "6.0e-05"):
        assert part in str(result)


def test_what_differs_by_more_than_rounding_is_named(guard):
    x = some()
    row = clear(guard, x)
    for name, by, keyword in (
        ("logits", lambda z: z * (1 + 2e-4), "2.0e-04"),
        ("score", lambda s: s * (1 + 2e-4), "2.0e-04"),
        ("score", lambda s: s * torch.nan, "inf"),
        ("p_value", lambda p: p + 0.01, "1.0e-02"),
        ("p_value", lambda p: p - 0.002, "2.0e-03"),
        ("is_ood", lambda o: ~o, "decision"),
    ):
        assert_refused(
            MismatchError, f"{name} .*input {row}: .*{keyword}", partial(check_moved, guard, x, name, row, by)
        )

    def wrong_in_sevens(batch):
        verdict = guard(batch.args[0])
        return verdict._replace(score=verdict.score * (1.1 if batch.rows == 7 else 1))

    assert_refused(MismatchError, "batches of 7", lambda: compare(guard, wrong_in_sevens, split_batch(x)))

    def another_shape(batch):
        verdict = guard(batch.args[0])
        return verdict._replace(score=verdict.score[:, None])

    assert_refused(MismatchError, r"score of shape \(70, 1\)", lambda: compare(guard, another_shape, split_batch(x)))


def with_scores(guard, scores):
    """The guard with other calibration scores."""
    guard.calibrated.calibration = type(guard.calibration).of(scores, guard.fpr)
    return guard


def test_a_score_near_zero_is_measured_by_the_spread_of_the_calibration(guard):
    x = some()
    row = int(guard(x).score.abs().argmin())
    wide = with_scores(guard, torch.linspace(-1000, 1000, 200))  # quartiles are 1000 apart
    result = check_moved(wide, x, "score", row, lambda s: s + 0.05)
    assert result.score == pytest.approx(0.05 / 1000, rel=0.02)
    with pytest.raises(MismatchError, match="score"):
        check_moved(wide, x, "score", row, lambda s: s + 0.2)


def test_an_input_on_the_threshold_may_be_decided_either_way_and_is_counted(guard):
    x = some()
    row = 3
    own = float(guard(x[row : row + 1]).score)
    scores = torch.cat([torch.full((181,), own), torch.linspace(own + 1, own + 2, 19)])
    exact = with_scores(guard, scores.sort().values)
    exact.calibrated.calibration.threshold.fill_(own)
    result = check_moved(exact, x, "is_ood", row, lambda o: ~o)
    assert result.undecidable == 1
    assert "1 too close" in str(result)
    with pytest.raises(MismatchError, match="decision"):
        check_moved(exact, x, "is_ood", clear(exact, x), lambda o: ~o)


def test_a_p_value_may_differ_by_what_the_error_of_the_score_explains(guard):
    x = some()
    own = float(guard(x[3:4]).score)
    near = torch.cat([torch.linspace(own * (1 - 5e-5), own * (1 + 5e-5), 10), torch.linspace(0, 2 * own, 190)])
    crowded = with_scores(guard, near)
    check_moved(crowded, x, "p_value", 3, lambda p: p + 4 / 201)
    with pytest.raises(MismatchError, match="p_value"):
        check_moved(crowded, x, "p_value", 3, lambda p: p + 15 / 201)


class Noise(nn.Module):
    """Different at every call."""

    def forward(self, x):
        return x + torch.rand_like(x)


class DataDependent(nn.Module):
    """Takes a way that depends on values."""

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("last", "suffixes", "kind", "keyword"),
    [
        (Noise, FORMATS, MismatchError, "does not reproduce"),
        (DataDependent, FORMATS, ValueError, "cannot be exported"),
    ],
)
def test_a_model_that_is_no_fixed_graph_is_refused_and_the_old_file_stays(
    last, suffixes, kind, keyword, tmp_path, capfd
):
    guard = fit(last=last)
    for suffix in suffixes:
        path = tmp_path / f"model{suffix}"
        path.write_text("before")
        assert_refused(kind, keyword, partial(export, guard, path, [some()]), case=suffix)
        assert path.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == len(suffixes)
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_exported_is_refused_before_anything_is_written(guard, tmp_path, monkeypatch):
    def never():
        raise AssertionError
        yield

    for suffix in FORMATS:
        (tmp_path / f"folder{suffix}").mkdir()
    before = sorted(tmp_path.iterdir())
    model, x = built(made.bfloat16_model)
    half, two_shapes = ff.Guard.fit(model, [x], method="fold", fpr=0.1), [torch.rand(2, 8), torch.rand(2, 9)]
    for each, name, inputs, kind, keyword in (
        (half, "model.onnx", [x], ValueError, "onnxruntime"),
        *((guard, name, [some()], ValueError, name) for name in ("model", "model.pt", "model.ONNX")),
        *((guard, f"folder{suffix}", never(), IsADirectoryError, "folder") for suffix in FORMATS),
        (guard, "model.pt2", [], ValueError, "at least 2 .*, got 0"),
        (guard, "model.pt2", [torch.rand(1, 8)], ValueError, "at least 2 .*, got 1"),
        (guard, "model.pt2", two_shapes, ValueError, r"\(8,\) and \(9,\)"),
    ):
        assert_refused(kind, keyword, partial(export, each, tmp_path / name, inputs))
    with monkeypatch.context() as patch:
        patch.setattr(graph, "LARGEST", 100)
        assert_refused(ValueError, "GB", partial(export, guard, tmp_path / "a.onnx", [some()]))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert_refused(ModuleNotFoundError, r"flatfold\[onnx\]", partial(export, guard, tmp_path / "a.onnx", [some()]))
    assert sorted(tmp_path.iterdir()) == before
