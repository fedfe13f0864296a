"""Guards where models are served: Triton model repositories and MLflow models, complete or not there at all."""

import sys
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.errors import MismatchError
from flatfold.scoring import export as module
from tests.four_classes import known, make_model
from tests.refusals import assert_refused

onnxruntime = pytest.importorskip("onnxruntime", reason="flatfold[onnx] is not installed")

NAMES = ["logits", "score", "p_value", "is_ood"]
ONNX = {"TYPE_FP32": "tensor(float)", "TYPE_BOOL": "tensor(bool)", "TYPE_INT64": "tensor(int64)"}


class Embedded(nn.Module):
    """Takes words (int64), one number per input, and weights that all inputs of a batch share."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, words, number, weights=None):
        h = self.embed(words).mean(dim=1) * number[:, None]
        return self.head(h if weights is None else h * weights)


@pytest.fixture
def guard():
    return ff.Guard.fit(make_model(), [known(400)], method="fold", fpr=0.1)


def inputs(n=20):
    return known(n, seed=7)[0]


def embedded(**shared):
    """A guard with several inputs, and some of them."""
    torch.manual_seed(0)
    x = {"words": torch.randint(9, (80, 5)), "number": torch.rand(80) + 0.5, **shared}
    return ff.Guard.fit(Embedded(), [x], method="fold", fpr=0.1), x


def tree(folder):
    """All files below a folder, with their content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def parse(config):
    """A config.pbtxt in the schema of Triton, which its client has; without gRPC only the file can be imported."""
    client = find_spec("tritonclient")
    if client is None:
        pytest.skip("Triton's schema is not installed: pip install 'flatfold[dev]'")
    from google.protobuf import text_format

    path = Path(client.submodule_search_locations[0], "grpc", "model_config_pb2.py")
    spec = spec_from_file_location("model_config_pb2", path)
    schema = module_from_spec(spec)
    spec.loader.exec_module(schema)
    found = text_format.Parse(config.read_text(), schema.ModelConfig())
    return found, lambda tensor: schema.DataType.Name(tensor.data_type)


def check_model(folder, version, guard, feeds):
    """Compare a configuration with its graph as Triton does, and the answers of the graph with those of the guard."""
    config, type_of = parse(folder / "config.pbtxt")
    assert (config.name, config.backend, config.platform) == (folder.name, "onnxruntime", "")
    session = onnxruntime.InferenceSession(folder / version / "model.onnx", providers=["CPUExecutionProvider"])
    batched = [-1] * (config.max_batch_size > 0)
    assert config.HasField("dynamic_batching") == bool(batched)
    for told, seen in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [tensor.name for tensor in told] == [tensor.name for tensor in seen]
        assert [ONNX[type_of(tensor)] for tensor in told] == [tensor.type for tensor in seen]
        for tensor, entry in zip(told, seen, strict=True):
            assert len(tensor.dims) > 0, "Triton refuses an empty shape"
            inner = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
            assert batched + inner == [-1 if size == "batch" else size for size in entry.shape], tensor.name
    for rows in (1, 3):
        part = {name: value[:rows] if len(value) == 80 else value for name, value in feeds.items()}
        expected = guard(part.get("x", part))
        answers = session.run(NAMES, {name: value.numpy() for name, value in part.items()})
        for name, given in zip(NAMES, answers, strict=True):
            assert_close(torch.from_numpy(given), getattr(expected, name), rtol=1e-5, atol=1e-6)
    return config


def test_a_triton_repository_describes_the_graph_that_gives_the_answers_of_the_guard(guard, tmp_path):
    parity = guard.export(tmp_path / "new" / "models", [inputs()], layout="triton", name="four")
    assert parity.inputs == 20
    folder = tmp_path / "new" / "models" / "four"
    assert sorted(tree(tmp_path)) == ["new/models/four/1/model.onnx", "new/models/four/config.pbtxt"]
    config = check_model(folder, "1", guard, {"x": known(80, seed=1)[0]})
    assert config.max_batch_size == 64
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == [[8], [4], [1], [1], [1]]
    assert (folder / "1" / "model.onnx").stat().st_mode & 0o777 == (folder / "config.pbtxt").stat().st_mode & 0o777
    assert folder.stat().st_mode & 0o077 == tmp_path.joinpath("new").stat().st_mode & 0o077, "Triton may not read it"


def test_inputs_of_other_types_and_one_number_per_input_are_described(tmp_path):
    guard, x = embedded()
    guard.export(tmp_path, [x], layout="triton")
    config = check_model(tmp_path / "guard", "1", guard, x)
    assert {tensor.name: (list(tensor.dims), tensor.HasField("reshape")) for tensor in config.input} == {
        "words": ([5], False),
        "number": ([1], True),
    }


def test_a_model_with_an_input_for_the_whole_batch_is_not_batched_by_triton(tmp_path):
    guard, x = embedded(weights=torch.rand(8))
    guard.export(tmp_path, [x], layout="triton")
    config = check_model(tmp_path / "guard", "1", guard, x)
    assert config.max_batch_size == 0
    assert [list(tensor.dims) for tensor in config.input] == [[-1, 5], [-1], [8]]
    assert [list(tensor.dims) for tensor in config.output] == [[-1, 3], [-1], [-1], [-1]]


@pytest.mark.slow
def test_a_model_that_is_there_gets_the_next_version_and_keeps_its_configuration(guard, tmp_path):
    for _ in range(2):
        guard.export(tmp_path, [inputs()], layout="triton")
    folder, config = tmp_path / "guard", tmp_path / "guard" / "config.pbtxt"
    config.write_text(config.read_text().replace("64", "8").replace("\n", "\n  ") + "version_policy { all { } }\n")
    (folder / "2").rename(folder / "10")
    (folder / "notes").mkdir()
    (folder / "011").mkdir()  # Triton ignores both
    before = tree(tmp_path)
    guard.export(tmp_path, [inputs()], layout="triton")
    assert tree(tmp_path).keys() - before.keys() == {"guard/11/model.onnx"}
    assert before.items() <= tree(tmp_path).items()
    assert check_model(folder, "11", guard, {"x": known(80, seed=1)[0]}).max_batch_size == 8

    other, x = embedded()
    before = tree(tmp_path)
    assert_refused(ValueError, "inputs or outputs", partial(other.export, tmp_path, [x], layout="triton"))
    config.unlink()
    assert_refused(ValueError, "config.pbtxt", partial(guard.export, tmp_path, [inputs()], layout="triton"))
    config.write_bytes(before["guard/config.pbtxt"])
    assert tree(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["guard"]


@pytest.mark.slow
def test_nothing_is_in_the_repository_until_the_graph_was_compared(guard, tmp_path, monkeypatch):
    """So whoever is killed before leaves nothing that a server would load: not even a hidden folder."""
    models, seen = tmp_path / "models", []

    def look(*arguments):
        seen.append(sorted(map(str, models.rglob("*"))) if models.exists() else None)
        return compare(*arguments)

    compare = module.compare
    monkeypatch.setattr(module, "compare", look)
    guard.export(models, [inputs()], layout="triton")
    first = sorted(map(str, models.rglob("*")))
    guard.export(models, [inputs()], layout="triton")
    assert seen == [None, first]
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


class Noise(nn.Module):
    """Different at every call."""

    def forward(self, x):
        return x + torch.rand_like(x)


@pytest.mark.parametrize("layout", ["triton", "mlflow"])
@pytest.mark.filterwarnings("default")  # those of MLflow and what it imports
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(layout, guard, tmp_path):
    layers = make_model()
    noisy = ff.Guard.fit(nn.Sequential(*layers[:2], Noise(), *layers[2:]), [known(400)], method="fold", fpr=0.1)
    (tmp_path / "file").write_text("before")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "guard").write_text("before")
    before = sorted(tmp_path.rglob("*"))

    def never():
        raise AssertionError
        yield

    cases = [
        (guard, "file", {}, NotADirectoryError, "file"),
        (guard, "full", {}, OSError, "full"),
        (guard, "a", {"layout": "tritton"}, ValueError, "tritton"),
    ]
    if layout == "triton":
        cases += [(guard, "a", {"name": name}, ValueError, "name") for name in ("a/b", "a b", "", "..", "../a", "é")]
    for each, path, options, kind, keyword in cases:
        assert_refused(kind, keyword, partial(each.export, tmp_path / path, never(), **{"layout": layout, **options}))
    if layout == "triton" or find_spec("mlflow"):
        export = partial(noisy.export, tmp_path / "new", [inputs()], layout=layout)
        assert_refused(MismatchError, "does not reproduce", export)
    assert sorted(tmp_path.rglob("*")) == before


def test_mlflow_that_is_not_installed_is_named(guard, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "mlflow.onnx", raising=False)
    export = partial(guard.export, tmp_path / "model", [inputs()], layout="mlflow")
    assert_refused(ModuleNotFoundError, r"flatfold\[mlflow\]", export)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # which is where MLflow is installed
@pytest.mark.filterwarnings("default")  # those of MLflow and what it imports
def test_an_mlflow_model_is_logged_and_loaded_by_its_run(guard, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="flatfold[mlflow] is not installed")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    x = known(80, seed=1)[0]
    guard.export(tmp_path / "model", [x], layout="mlflow")
    with mlflow.start_run() as run:
        mlflow.log_artifacts(str(tmp_path / "model"), "guard")
    answer = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/guard").predict(x[:3].numpy())
    assert_close(torch.from_numpy(answer["score"]), guard(x[:3]).score, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_mlflow_model_is_asked_through_pyfunc_and_has_no_pickle(guard, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow", reason="flatfold[mlflow] is not installed")
    cases = {"one": (guard, {"x": known(80, seed=1)[0]}), "several": embedded()}
    for name, (each, x) in cases.items():
        folder = tmp_path / "new" / name
        each.export(folder, [x if name == "several" else x["x"]], layout="mlflow")
        model = mlflow.pyfunc.load_model(str(folder))
        for rows in (1, 3):
            part = {key: value[:rows] for key, value in x.items()}
            feeds = {key: value.numpy() for key, value in part.items()}
            for asked in (feeds, feeds["x"]) if name == "one" else (feeds,):
                answer = model.predict(asked)
                assert list(answer) == NAMES
                for key, expected in zip(NAMES, each(part.get("x", part)), strict=True):
                    assert_close(torch.from_numpy(answer[key]), expected, rtol=1e-5, atol=1e-6)
        files = tree(folder)
        assert set(files) == {"MLmodel", "model.onnx", "requirements.txt", "conda.yaml", "python_env.yaml"}
        assert not any(str(tmp_path).encode() in content for content in files.values())
    signature = mlflow.models.get_model_info(str(tmp_path / "new" / "one")).signature
    specs = [(spec.name, spec.type.name, spec.shape) for spec in (*signature.inputs, *signature.outputs)]
    assert specs == [
        ("x", "float32", (-1, 8)), ("logits", "float32", (-1, 4)), ("score", "float32", (-1,)),
        ("p_value", "float32", (-1,)), ("is_ood", "bool", (-1,)),
    ]  # fmt: skip
    with pytest.raises(Exception, match="schema"):
        mlflow.pyfunc.load_model(str(tmp_path / "new" / "one")).predict(np.zeros((2, 7), np.float32))
    assert_refused(FileExistsError, "not empty", partial(guard.export, folder, [inputs()], layout="mlflow"))
