"""Guards in other runtimes: one graph, checked on real inputs before it is written."""

import json
import logging
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.models.batches import split_batch
from flatfold.models.identity import weights_hash
from flatfold.scoring.export import FORMATS, Mismatch, Parity, export, graph, onnx, parity
from flatfold.scoring.export.parity import compare
from flatfold.scoring.verdict import Verdict
from tests import architectures as made
from tests.architectures import built
from tests.four_classes import known
from tests.four_classes import make_model as four_classes_model

pytest.importorskip("onnxruntime", reason="flatfold[onnx] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")

METHODS = {"fold": {}, "autofold": {}, "autofold-r": {}, "ash": {}, "msp": {}, "knn": {"k": 5}, "mds": {}}
TRANSFORM = ff.Transform(resize=8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))


def make_model(last=nn.Identity):
    """The model with another module in front of its dropout."""
    layers = four_classes_model()
    return nn.Sequential(*layers[:2], last(), *layers[2:])


def fit(detector="fold", last=nn.Identity, **options):
    return ff.Guard.fit(make_model(last), [known(400)], detector, 0.1, **options)


@pytest.fixture
def guard():
    return fit()


def some(n=70):
    """Known and unknown inputs."""
    return torch.cat([known(n - 20, seed=7)[0], torch.rand(20, 8, generator=torch.Generator().manual_seed(3))])


def run_onnx(path, **inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    return session, dict(zip([entry.name for entry in session.get_outputs()], outputs, strict=True))


def check_outputs(outputs, verdict):
    assert list(outputs) == ["logits", "score", "p_value", "is_ood"]
    for name, ours in verdict._asdict().items():
        assert_close(torch.from_numpy(outputs[name]), ours, rtol=1e-5, atol=1e-6)


# ONNX


@pytest.mark.parametrize(("name", "per_class"), [*((name, False) for name in METHODS), ("fold", True), ("msp", True)])
def test_onnxruntime_gives_the_verdicts_of_the_guard(name, per_class, tmp_path):
    guard = fit(ff.create(name, **METHODS[name]), per_class=per_class)
    x = some()
    result = export(guard, tmp_path / "model.onnx", [x])
    assert (result.inputs, result.batch_sizes) == (70, (1, 7, 64))
    assert max(result.logits, result.score) < 1e-5
    for rows in (1, 2, 33):  # none of which was traced
        _, outputs = run_onnx(tmp_path / "model.onnx", x=x[:rows])
        check_outputs(outputs, guard(x[:rows]))
    assert 0 < guard(x).is_ood.sum() < 70


def test_the_file_is_alone_and_has_names_for_inputs_outputs_and_the_batch(guard, tmp_path):
    export(guard, str(tmp_path / "new" / "model.onnx"), [some()])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.onnx"]
    session, _ = run_onnx(tmp_path / "new" / "model.onnx", x=some())
    assert [(entry.name, entry.shape) for entry in session.get_inputs()] == [("x", ["batch", 8])]
    shapes = {entry.name: entry.shape for entry in session.get_outputs()}
    assert shapes == {"logits": ["batch", 4], "score": ["batch"], "p_value": ["batch"], "is_ood": ["batch"]}


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_keyword_arguments_keep_their_names_and_labels_are_left_out(suffix, tmp_path):
    model, x = built(made.two_inputs)
    guard = ff.Guard.fit(model, [x], "fold", 0.1)
    path = tmp_path / f"model{suffix}"
    export(guard, path, [{**x, "labels": torch.zeros(48, dtype=torch.int64)}])
    part = {name: value[:5] for name, value in x.items()}
    if suffix == ".onnx":
        check_outputs(run_onnx(path, **part)[1], guard(part))
    else:
        for ours, theirs in zip(torch.export.load(path).module()(**part), guard(part), strict=True):
            assert torch.equal(ours, theirs)


def facts_of(path):
    if path.suffix == ".onnx":
        session, _ = run_onnx(path, x=some())
        facts = session.get_modelmeta().custom_metadata_map
        assert all(key.startswith("flatfold.") for key in facts)
        words = ("version", "detector", "weights_sha256", "head")
        facts = {key.removeprefix("flatfold."): value for key, value in facts.items()}
        return {key: value if key in words else json.loads(value) for key, value in facts.items()}
    extra = {"flatfold.json": ""}
    torch.export.load(path, extra_files=extra)
    return json.loads(extra["flatfold.json"])


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_says_where_its_decisions_come_from(suffix, tmp_path):
    guard = fit(ff.create("mls", alpha=0.7), transform=TRANSFORM)
    export(guard, tmp_path / f"model{suffix}", [some()])
    assert facts_of(tmp_path / f"model{suffix}") == {
        "version": ff.__version__,
        "detector": "mls",
        "hyper": guard.detector.made_by[1],
        "fpr": 0.1,
        "threshold": guard.calibration.threshold.tolist(),
        "calibration_samples": 200,
        "weights_sha256": weights_hash(guard.model),
        "head": "4",
        "transform": TRANSFORM.as_dict(),
    }
    assert guard.detector.made_by[1]["alpha"] == 0.7


def test_a_detector_built_by_hand_is_called_by_its_class(tmp_path):
    export(fit(ff.Fold(alpha=0.2)), tmp_path / "model.pt2", [some()])
    facts = facts_of(tmp_path / "model.pt2")
    assert (facts["detector"], facts["hyper"], facts["transform"]) == ("Fold", None, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rowwise", [False, True])
def test_the_search_of_onnx_is_that_of_torch(rowwise, dtype, tmp_path):
    class Search(nn.Module):
        def forward(self, x, row):
            if rowwise:
                return torch.searchsorted(row.expand(x.shape[0], -1).contiguous(), x[:, None]).squeeze(-1)
            return torch.searchsorted(row, x)

    row = torch.tensor([-1.0, 0.0, 0.0, 2.0, torch.inf, torch.inf], dtype=dtype)
    x = torch.tensor([-5.0, -1.0, 0.0, 1.0, 2.0, 3.0, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    with graph.quiet():
        table = {torch.ops.aten.searchsorted.Tensor: onnx._search()}
        program = torch.onnx.export(
            Search(), (x, row), dynamo=True, verbose=False, input_names=["x", "row"], custom_translation_table=table
        )
        program.save(tmp_path / "search.onnx")
    _, outputs = run_onnx(tmp_path / "search.onnx", x=x, row=row)
    assert torch.equal(torch.from_numpy(*outputs.values()), Search()(x, row))


def test_a_search_with_options_is_not_translated_wrongly():
    with pytest.raises(NotImplementedError, match="searchsorted with right"):
        onnx._search()(None, None, right=True, out_int32=False)


# torch.export


@pytest.mark.parametrize("name", ["fold", "autofold-r", "knn"])
def test_a_program_gives_the_verdicts_of_the_guard(name, tmp_path):
    guard = fit(ff.create(name, **METHODS[name]))
    x = some()
    result = export(guard, tmp_path / "model.pt2", [(x[:40], None), x[40:]] if name == "fold" else [x])
    assert (result.inputs, result.batch_sizes) == (70, (1, 7, 64))
    module = torch.export.load(tmp_path / "model.pt2").module()
    for rows in (1, 2, 33):
        outputs = module(x[:rows])
        assert type(outputs) is tuple, "the file would need this library"
        for ours, theirs in zip(outputs, guard(x[:rows]), strict=True):
            assert_close(ours, theirs)


def test_no_real_input_is_kept_in_the_file(guard, tmp_path):
    export(guard, tmp_path / "model.pt2", [some()])
    (x,), _ = torch.export.load(tmp_path / "model.pt2").example_inputs
    assert not x.any()
    assert x.untyped_storage().nbytes() == x.nbytes


@pytest.mark.parametrize("suffix", FORMATS)
def test_nothing_of_the_users_folders_and_sources_is_in_the_file(suffix, guard, tmp_path):
    export(guard, tmp_path / f"model{suffix}", [some()])
    content = (tmp_path / f"model{suffix}").read_bytes()  # parts of a .pt2 file are not compressed
    assert b"searchsorted" in content or b"p_value" in content
    for source in (ff.__file__, torch.__file__, __file__):
        assert str(Path(source).parent).encode() not in content


# What is compared, and what is refused


def as_runtime(guard, change=lambda verdict: verdict):
    """The guard itself, with something changed, in the clothes of another runtime."""
    return lambda batch: [part.numpy() for part in change(guard(batch.args[0]))]


def moved(name, row_of, by):
    """Change one output of the input that has these numbers."""

    def runtime(batch, guard):
        verdict = guard(batch.args[0])
        hit = (batch.args[0] == row_of).all(dim=1)
        values = getattr(verdict, name).clone()
        values[hit] = by(values[hit])
        return verdict._replace(**{name: values})

    return runtime


def check_moved(guard, x, name, row, by):
    runtime = moved(name, x[row], by)
    return compare(guard, lambda batch: runtime(batch, guard), split_batch(x))


def clear(guard, x):
    """An input that is far from the threshold and has a score well above the spread of the calibration."""
    return int(guard(x).score.argmax())


def test_the_guard_agrees_with_itself(guard):
    assert compare(guard, as_runtime(guard), split_batch(some())) == Parity(70, (1, 7, 64), 0.0, 0.0, 0)


def test_every_input_is_compared_in_batches_of_every_size(guard):
    seen = []

    def runtime(batch):
        seen.append(batch.rows)
        return guard(batch.args[0])

    assert compare(guard, runtime, split_batch(some(70))).batch_sizes == (1, 7, 64)
    assert seen == [1] * 70 + [7] * 10 + [64, 6]
    assert compare(guard, as_runtime(guard), split_batch(known(5)[0])).batch_sizes == (1, 5)


def test_the_worst_errors_are_reported_as_they_are(guard):
    x = some()
    row = clear(guard, x)
    assert check_moved(guard, x, "score", row, lambda s: s * (1 + 5e-5)).score == pytest.approx(5e-5, rel=1e-2)
    largest = float(guard(x).logits[row].abs().max())
    result = check_moved(guard, x, "logits", row, lambda z: z + 6e-5 * largest)
    assert result.logits == pytest.approx(6e-5, rel=1e-2)
    assert result.score == 0


@pytest.mark.parametrize(
    ("name", "by", "sentence"),
    [
        (
            "logits",
            lambda z: z * (1 + 2e-4),
            r"the logits of the guard for input {row}: it is off by 2.0e-04 in batches",
        ),
        ("score", lambda s: s * (1 + 2e-4), r"the score of the guard for input {row}: it is off by 2.0e-04 in batches"),
        ("score", lambda s: s * torch.nan, r"the score of the guard for input {row}: it is off by inf"),
        ("p_value", lambda p: p + 0.01, r"the p_value of the guard for input {row}: it is off by 1.0e-02"),
        ("p_value", lambda p: p - 0.002, r"the p_value of the guard for input {row}: it is off by 2.0e-03"),
        (
            "is_ood",
            lambda o: ~o,
            r"the is_ood of the guard for input {row}: the decision is another one in batches of 1,",
        ),
    ],
)
def test_what_differs_by_more_than_rounding_is_named(name, by, sentence, guard):
    x = some()
    row = clear(guard, x)
    with pytest.raises(Mismatch, match=sentence.format(row=row)):
        check_moved(guard, x, name, row, by)


def test_an_error_in_batches_of_one_size_only_is_found(guard):
    def runtime(batch):
        verdict = guard(batch.args[0])
        return verdict._replace(score=verdict.score * (1.1 if batch.rows == 7 else 1))

    with pytest.raises(Mismatch, match=r"in batches of 7, where 0.0001 is allowed. Does the model draw random numbers"):
        compare(guard, runtime, split_batch(some()))


def test_outputs_of_another_shape_are_refused(guard):
    runtime = as_runtime(guard, lambda verdict: verdict._replace(score=verdict.score[:, None]))
    with pytest.raises(Mismatch, match=r"gives score of shape \(70, 1\) in batches of 1, not \(70,\)"):
        compare(guard, runtime, split_batch(some()))


def with_scores(guard, scores):
    """The guard with other calibration scores."""
    guard.judge.calibration = type(guard.calibration).of(scores, guard.fpr)
    return guard


def test_a_score_near_zero_is_measured_by_the_spread_of_the_calibration(guard):
    x = some()
    score = guard(x).score
    row = int(score.abs().argmin())
    wide = with_scores(guard, torch.linspace(-1000, 1000, 200))  # quartiles are 1000 apart
    result = check_moved(wide, x, "score", row, lambda s: s + 0.05)
    assert result.score == pytest.approx(0.05 / 1000, rel=0.02)
    with pytest.raises(Mismatch, match="the score of the guard"):
        check_moved(wide, x, "score", row, lambda s: s + 0.2)


def test_an_input_on_the_threshold_may_be_decided_either_way_and_is_counted(guard):
    x = some()
    row = 3
    own = float(guard(x[row : row + 1]).score)
    scores = torch.cat([torch.full((181,), own), torch.linspace(own + 1, own + 2, 19)])
    exact = with_scores(guard, scores.sort().values)
    exact.judge.calibration.threshold.fill_(own)
    result = check_moved(exact, x, "is_ood", row, lambda o: ~o)
    assert result.undecidable == 1
    with pytest.raises(Mismatch, match="the decision is another one"):
        check_moved(exact, x, "is_ood", clear(exact, x), lambda o: ~o)


def test_a_p_value_may_differ_by_what_the_error_of_the_score_explains(guard):
    x = some()
    row = 3
    own = float(guard(x[row : row + 1]).score)
    near = torch.cat([torch.linspace(own * (1 - 5e-5), own * (1 + 5e-5), 10), torch.linspace(0, 2 * own, 190)])
    crowded = with_scores(guard, near)
    check_moved(crowded, x, "p_value", row, lambda p: p + 4 / 201)
    with pytest.raises(Mismatch, match="the p_value of the guard for input 3"):
        check_moved(crowded, x, "p_value", row, lambda p: p + 15 / 201)


def test_an_input_between_two_classes_may_have_the_threshold_of_either():
    guard = fit(per_class=True)
    x = some()
    verdict = guard(x)
    tied = verdict.logits.clone()
    tied[3] = torch.tensor([5.0, 5.0001, 0.0, 0.0])
    ours, theirs = (verdict._replace(logits=tied, is_ood=verdict.is_ood.clone()) for _ in range(2))
    theirs.is_ood[3] ^= True
    calibration = deepcopy(guard.calibration).double()
    double = [Verdict(*(part.double() for part in each)) for each in (ours, theirs)]
    _, unsure = parity._differences(*double, calibration, "here")
    assert unsure[3]
    theirs.is_ood[clear(guard, x)] ^= True
    double[1] = Verdict(*(part.double() for part in theirs))
    with pytest.raises(Mismatch, match="the decision is another one here"):
        parity._differences(*double, calibration, "here")


def test_a_result_is_told_in_one_line():
    told = Parity(300, (1, 7, 64), 2.13e-7, 3.4e-6, 0)
    assert str(told) == (
        "300 inputs in batches of 1, 7, 64: logits within 2.1e-07, scores within 3.4e-06, same decisions"
    )
    assert str(replace(told, undecidable=2)).endswith("same decisions, 2 too near to the threshold to tell")


# Refusals


class Noise(nn.Module):
    """Different at every call."""

    def forward(self, x):
        return x + torch.rand_like(x)


class Batchwise(nn.Module):
    """What comes out for an input depends on its neighbours, and on how many there are."""

    def forward(self, x):
        return x * torch.tensor(float(x.shape[0]))  # the size becomes a constant of the graph


class Sighted(nn.Module):
    """Takes a way that depends on values."""

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Strange(nn.Module):
    """Uses an operator that ONNX does not have."""

    def forward(self, x):
        return x + 0 * torch.special.bessel_j0(x)


def test_a_model_that_answers_differently_every_time_is_not_written(tmp_path):
    guard = fit(last=Noise)
    for suffix in FORMATS:
        with pytest.raises(Mismatch, match="the exported graph does not give the"):
            export(guard, tmp_path / f"model{suffix}", [some()])
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_leaves_an_earlier_file_as_it_was(tmp_path):
    (tmp_path / "model.pt2").write_text("before")
    with pytest.raises(Mismatch):
        export(fit(last=Noise), tmp_path / "model.pt2", [some()])
    assert (tmp_path / "model.pt2").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1
    export(fit(), tmp_path / "model.pt2", [some()])
    assert (tmp_path / "model.pt2").read_bytes() != b"before"


@pytest.mark.parametrize("last", [Sighted, Batchwise])
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_graph_that_depends_on_the_inputs_is_refused_with_the_reason(last, suffix, tmp_path):
    with pytest.raises(ValueError, match=r"the model cannot be exported: \w+: .+ must be the same for all inputs"):
        export(fit(last=last), tmp_path / f"model{suffix}", [some()])
    assert list(tmp_path.iterdir()) == []


def test_what_onnx_cannot_express_is_refused_with_the_operator_and_a_way_out(tmp_path):
    guard = fit(last=Strange)
    with pytest.raises(ValueError, match=r"the graph cannot be exported: .*bessel_j0.* Export a .pt2 file instead"):
        export(guard, tmp_path / "model.onnx", [some()])
    assert list(tmp_path.iterdir()) == []
    export(guard, tmp_path / "model.pt2", [some()])


def test_a_type_that_onnxruntime_cannot_run_is_refused(tmp_path):
    model, x = built(made.bfloat16_model)
    with pytest.raises(ValueError, match="onnxruntime cannot load what was exported"):
        export(ff.Guard.fit(model, [x], "fold", 0.1), tmp_path / "model.onnx", [x])
    assert list(tmp_path.iterdir()) == []


def test_more_than_one_file_can_hold_is_refused(guard, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx, "LARGEST", 100)
    with pytest.raises(ValueError, match=r"at most 2 GB, but model and detector have 0.0 GB. Export a .pt2 file"):
        export(guard, tmp_path / "model.onnx", [some()])


@pytest.mark.parametrize("name", ["model", "model.pt", "model.ONNX"])
def test_other_suffixes_are_refused(name, guard, tmp_path):
    with pytest.raises(ValueError, match=rf"a file that ends in .onnx or .pt2, got '{name}'. Take .onnx for other"):
        export(guard, tmp_path / name, [some()])


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
def test_a_folder_is_refused_before_the_model_runs(name, guard, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(IsADirectoryError, match=r"exported to one file, but .* is a folder. Choose another name"):
        export(guard, tmp_path / name, iter_that_must_not_be_read())


def iter_that_must_not_be_read():
    raise AssertionError
    yield


@pytest.mark.parametrize(("inputs", "rows"), [([], 0), ([torch.rand(1, 8)], 1)])
def test_too_few_inputs_are_refused(inputs, rows, guard, tmp_path):
    with pytest.raises(ValueError, match=rf"checked on real inputs, at least 2, got {rows}. Give some hundred"):
        export(guard, tmp_path / "model.pt2", inputs)


def test_inputs_of_several_shapes_are_refused(guard, tmp_path):
    with pytest.raises(ValueError, match=r"inputs of one shape, got \(8,\) and \(9,\) for x. Resize or pad them"):
        export(guard, tmp_path / "model.pt2", [torch.rand(2, 8), torch.rand(2, 9)])


def test_no_more_inputs_are_read_than_are_looked_at(guard, monkeypatch):
    monkeypatch.setattr(graph, "MOST", 10)

    def endless():
        while True:
            yield known(4)

    batch = graph.gathered(guard, endless())
    assert (batch.rows, len(batch.args[0]), batch.labels) == (10, 10, None)


def test_a_missing_extra_is_named(guard, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModuleNotFoundError, match=r"onnxruntime, which is not installed. Install flatfold\[onnx\]"):
        export(guard, tmp_path / "model.onnx", [some()])


def test_nothing_is_printed_logged_or_warned(guard, tmp_path, capfd, caplog):
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript")}
    with caplog.at_level(logging.WARNING):
        for suffix in FORMATS:
            export(guard, tmp_path / f"model{suffix}", [some()])
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert {name: logging.getLogger(name).level for name in levels} == levels
