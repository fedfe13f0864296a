"""Every public function that takes a path takes it as a string too."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

import flatfold as ff
from flatfold import curvature, data, detectors
from flatfold.evaluate.results import load_results
from flatfold.evaluate.runner import forget, run, run_and_save
from flatfold.evaluate.study_results import load_study
from flatfold.evaluate.suites.library import load_suites
from flatfold.evaluate.summary import load_runs, save_summary, summarise
from flatfold.network.model_loading import load_weights, read_weights
from flatfold.report.page import write_curvature, write_report
from flatfold.report.summary import write_summary
from tests.four_classes import known, make_model
from tests.toy_study import draw_nothing, make_study
from tests.toy_suite import World

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
ROOMS = ("evaluate.results", "evaluate.runner", "evaluate.study", "evaluate.study_results", "evaluate.summary")
MODULES = (*ROOMS, "evaluate.suites.library", "network.model_loading", "report.page", "report.summary")


def public_functions():
    """Yield the name and the function of all that users may call, and the constructors and methods of their classes."""
    pages = "".join(path.read_text(encoding="utf8") for path in REFERENCE.glob("*.md"))
    documented = {name: resolve_name(name) for name in re.findall(r"^::: (\S+)$", pages, re.MULTILINE)}
    for module in (ff, curvature, data, detectors):
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        documented |= {f"{module.__name__}.{name}": getattr(module, name) for name in names}
    for name in MODULES:
        module = import_module(f"flatfold.{name}")
        own = {key: each for key, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__}
        documented |= {f"{name}.{key}": each for key, each in own.items() if not key.startswith("_")}
    for name, each in documented.items():
        if inspect.isclass(each):
            methods = inspect.getmembers(each, callable)
            yield from ((f"{name}.{key}", method) for key, method in methods if not key.startswith("_"))
        if callable(each):
            yield name, each


def test_no_public_function_asks_for_a_path_object():
    found, wrong = 0, []
    for name, function in public_functions():
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:  # of a builtin, such as a method of tuples
            continue
        annotations = {each.name: inspect.formatannotation(each.annotation) for each in parameters}
        paths = {key: text for key, text in annotations.items() if re.search(r"(^|\| )(pathlib\.)?Path\b", text)}
        found += len(paths)
        wrong += [f"{name}({key}: {text})" for key, text in paths.items() if not re.search(r"\bstr\b", text)]
    assert wrong == []
    assert found > 20, "the annotations are looked for in another way than they are written"


@pytest.mark.filterwarnings("ignore:this data has no labels")
def test_guards_banks_and_networks_take_strings(tmp_path):
    model, (x, y) = make_model().eval(), known(200)
    weights, guard_file, cache, bank = (str(tmp_path / name) for name in ("w.pt", "g.safetensors", "c.graph", "bank"))
    torch.save(model.state_dict(), weights)
    load_weights(model, weights, read_weights(weights))
    guard = ff.Guard.fit(model, (x, y), execution=ff.Execution(runtime="torch", onnx_cache=cache))
    guard.use_runtime("torch", onnx_cache=cache)
    guard.network.use_runtime("torch", onnx_cache=cache)
    guard.save(guard_file)
    assert ff.Guard.load(guard_file, model).fpr == ff.CalibratedDetector.load(guard_file).calibration.fpr == 0.05
    monitor = guard.monitor()
    monitor.save(str(tmp_path / "m.json"))
    assert ff.Monitor.load(str(tmp_path / "m.json")).seen == 0
    features, _ = ff.extract(model, x, out=bank, key="x")
    ff.save_bank(features, str(tmp_path / "copy"))
    assert len(ff.load_bank(bank)) == len(ff.load_bank(str(tmp_path / "copy"))) == 200


def test_benchmarks_and_their_files_take_strings(tmp_path, monkeypatch):
    draw_nothing(monkeypatch)
    world = World(tmp_path)
    world.file()
    (suite,) = load_suites(str(world.path), str(tmp_path / "out"))
    one, two, both = (str(tmp_path / "runs" / name) for name in ("one", "two", ""))
    results = run(suite, ["msp"], one)
    results.save(one)
    run_and_save(suite, ["msp"], two)
    forget(two)
    assert load_results(one).rows == ff.load_results(one).rows == load_results(two).rows == results.rows
    ff.load_results(one).save(str(tmp_path / "three"))
    runs = load_runs(both)
    save_summary(summarise(runs.values()), both, ["one", "two"])
    make_study().save(one)
    assert load_study(one).suite["name"] == "toy"
    for write in (write_curvature, write_report):
        assert write(one).exists()
    assert write_summary(both).exists()
