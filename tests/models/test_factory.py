"""`models.factory`: weights in every wrapping people have, and functions whose file imports what lies beside it.

What a suite file makes of both is tested in `tests/evaluate/test_suite_file.py`.
"""

import logging
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from flatfold.models.factory import make_model
from flatfold.models.weights import load_weights, read_weights


def network(n_classes=3):
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, n_classes))


STATE = network().state_dict()


def prefixed(state):
    return {f"module.{name}": value for name, value in state.items()}


def written(path, content):
    (save_file if path.suffix == ".safetensors" else torch.save)(content, path)
    return path


def is_state(got):
    return got.keys() == STATE.keys() and all(torch.equal(got[name], STATE[name]) for name in STATE)


WRAPPED = {
    "alone": (STATE, []),
    "state_dict": (
        {"epoch": 3, "best": torch.ones(()), "state_dict": STATE, "optimizer": {"lr": 0.1}},
        ["'state_dict'"],
    ),
    "model": ({"model": STATE}, ["'model'"]),
    "net": ({"net": STATE, "model": "resnet", "state_dict": None}, ["'net'"]),
    "DataParallel": (prefixed(STATE), ["module."]),
    "both": ({"model": prefixed(STATE)}, ["'model'", "module."]),
}


@pytest.mark.parametrize(("content", "told"), WRAPPED.values(), ids=WRAPPED)
def test_wrapped_weights_are_unwrapped_and_the_log_says_so(tmp_path, caplog, content, told):
    path = written(tmp_path / "w.pt", content)
    with caplog.at_level(logging.INFO, logger="flatfold"):
        assert is_state(read_weights(path))
    assert len(caplog.records) == len(told)
    for record, word in zip(caplog.records, told, strict=True):
        assert record.levelno == logging.INFO
        assert word in record.getMessage()
        assert str(path) in record.getMessage()
    model = network()
    load_weights(model, path)
    assert is_state(model.state_dict())


def test_a_safetensors_file_of_data_parallel_is_unwrapped_too(tmp_path):
    assert is_state(read_weights(written(tmp_path / "w.safetensors", prefixed(STATE))))


@pytest.mark.parametrize("content", [STATE, prefixed(STATE), nn.DataParallel(network()).state_dict()], ids=len)
def test_a_network_that_is_wrapped_itself_takes_weights_with_and_without_the_wrapper(tmp_path, content):
    model = nn.DataParallel(network())
    load_weights(model, written(tmp_path / "w.pt", content))
    expected = {name.removeprefix("module."): value for name, value in content.items()}
    assert all(torch.equal(value, expected[name]) for name, value in model.module.state_dict().items())


def test_the_versions_that_torch_keeps_beside_its_weights_are_kept(tmp_path):
    state = read_weights(written(tmp_path / "w.pt", nn.DataParallel(network()).state_dict()))
    assert state._metadata["1"] == {"version": 2}  # of the batch norm: it says whether a counter may be missing


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.ones(3), r"w\.pt must hold a state dict, not Tensor\. Save model\.state_dict\(\)"),
        (
            {**STATE, "2.bias": [0.0]},
            r"w\.pt must hold named tensors, but '2\.bias' is a list\. Save model\.state_dict",
        ),
        ({1: torch.ones(1)}, r"must hold named tensors, but 1 is a Tensor\."),
        ({"weights": dict(STATE)}, r"must hold named tensors, but 'weights' is a dict\."),
        ({"model": {"state_dict": dict(STATE)}}, r"must hold named tensors, but 'state_dict' is a dict\."),
        (
            {"model": dict(STATE), "net": dict(STATE)},
            r"w\.pt must hold one state dict, but has 'model' and 'net'\. Save the one that is meant",
        ),
    ],
)
def test_nothing_else_is_guessed(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_weights(written(tmp_path / "w.pt", content))


def test_a_prefix_that_only_some_names_have_is_left_alone(tmp_path):
    content = {"module.0.weight": torch.ones(1), "0.bias": torch.ones(1)}
    assert read_weights(written(tmp_path / "w.pt", content)).keys() == content.keys()


def test_an_empty_state_dict_fits_a_network_without_weights(tmp_path):
    model = nn.Flatten()
    load_weights(model, written(tmp_path / "w.pt", {}))
    assert model.state_dict() == {}
    with pytest.raises(ValueError, match="does not fit the network"):
        load_weights(network(), tmp_path / "w.pt")


def test_a_checkpoint_with_objects_in_it_is_refused_and_not_run(tmp_path):
    path = written(tmp_path / "w.pt", {"state_dict": STATE, "model": network()})
    message = (
        r"must hold a state dict \(alone, or in a checkpoint of plain values\), but cannot be read as one \(Unpickl"
    )
    with pytest.raises(ValueError, match=message):
        read_weights(path)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*w\.pt\. Check the path\."):
        load_weights(network(), tmp_path / "w.pt")


# Siblings


def folder_of(path, **files):
    """Write Python files, `__` in a name standing for a sub-folder."""
    for name, text in files.items():
        file = path / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def layer(n):
    return f"from torch import nn\ndef layer():\n    return nn.Linear(1, {n})\n"


AT_THE_TOP = "import blocks\ndef net():\n    return blocks.layer()\n"
IN_THE_FUNCTION = "def net():\n    from blocks import layer\n    return layer()\n"


@pytest.mark.parametrize("nets", [AT_THE_TOP, IN_THE_FUNCTION], ids=["at the top", "in the function"])
def test_a_factory_file_can_import_what_lies_beside_it(tmp_path, nets):
    path, modules = list(sys.path), set(sys.modules)
    folder_of(tmp_path, nets=nets, blocks=layer(2))
    assert make_model("nets:net", tmp_path, seed=0).out_features == 2
    assert sys.path == path
    assert all(name.startswith("flatfold_suite_") for name in set(sys.modules) - modules)


@pytest.mark.parametrize("nets", [AT_THE_TOP, AT_THE_TOP.replace("import blocks", "from zoo import blocks")], ids=str)
def test_a_factory_file_in_a_sub_folder_finds_its_neighbours_by_both_names(tmp_path, nets):
    modules = set(sys.modules)
    folder_of(tmp_path, zoo__nets=nets, zoo__blocks=layer(2))
    assert make_model("zoo.nets:net", tmp_path, seed=0).out_features == 2
    assert all(name.startswith("flatfold_suite_") for name in set(sys.modules) - modules)


def test_namesakes_beside_two_factory_files_are_two_modules(tmp_path):
    for n in (2, 3):
        folder_of(tmp_path / str(n), nets=AT_THE_TOP, blocks="from parts import layer", parts__=layer(n))
        (tmp_path / str(n) / "parts" / ".py").rename(tmp_path / str(n) / "parts" / "__init__.py")
    assert [make_model("nets:net", tmp_path / str(n), seed=0).out_features for n in (2, 3, 2)] == [2, 3, 2]


@pytest.mark.parametrize(
    ("nets", "message"),
    [
        ("import blocks\n1 / 0", "nets could not be imported: ZeroDivisionError"),
        ("def net():\n    import blocks\n    1 / 0", r"net\(\) failed: ZeroDivisionError"),
        ("import blocks", r"nets has no function 'net'\."),
    ],
)
def test_a_factory_that_fails_leaves_nothing_behind(tmp_path, nets, message):
    path = list(sys.path)
    folder_of(tmp_path, nets=nets, blocks=layer(2))
    with pytest.raises(ValueError, match=message):
        make_model("nets:net", tmp_path, seed=0)
    assert sys.path == path
    assert "blocks" not in sys.modules


def test_a_package_that_is_installed_deeper_in_the_folder_is_not_forgotten(tmp_path, monkeypatch):
    folder_of(tmp_path, nets="import flatfold_deep\nfrom torch.nn import Identity as net", site__flatfold_deep="")
    monkeypatch.syspath_prepend(tmp_path / "site")
    make_model("nets:net", tmp_path, seed=0)
    assert "flatfold_deep" in sys.modules
    monkeypatch.delitem(sys.modules, "flatfold_deep")


def test_a_folder_that_is_on_the_path_already_stays_there_with_its_modules(tmp_path, monkeypatch):
    folder_of(tmp_path, nets="import flatfold_near\nfrom torch.nn import Identity as net", flatfold_near="")
    monkeypatch.syspath_prepend(tmp_path)
    path = list(sys.path)
    make_model("nets:net", tmp_path, seed=0)
    assert sys.path == path
    assert "flatfold_near" in sys.modules
    monkeypatch.delitem(sys.modules, "flatfold_near")


def test_an_installed_factory_does_not_see_the_folder(tmp_path, monkeypatch):
    folder_of(tmp_path, flatfold_beside="", site__flatfold_installed="def net():\n    import flatfold_beside")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ValueError, match=r"net\(\) failed: ModuleNotFoundError: No module named 'flatfold_beside'"):
        make_model("flatfold_installed:net", tmp_path, seed=0)
    monkeypatch.delitem(sys.modules, "flatfold_installed")
