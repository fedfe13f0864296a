"""Networks from files and libraries: weights in every wrapping, factories of users, and stand-ins for the libraries."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from flatfold.data.transform import Transform
from flatfold.network.model_loading import load_weights, make_model, named_model, published_transform, read_weights
from flatfold.network.openood import openood_network
from tests.refusals import refused


def network(n_classes=3):
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, n_classes))


STATE = network().state_dict()


def prefixed(state):
    return {f"module.{name}": value for name, value in state.items()}


def written(path, content):
    (save_file if path.suffix == ".safetensors" else torch.save)(content, path)
    return path


def same(model, state):
    got = model if isinstance(model, dict) else model.state_dict()
    return got.keys() == state.keys() and all(torch.equal(value, state[key]) for key, value in got.items())


def test_wrapped_weights_are_unwrapped(tmp_path):
    for case, content in {
        "alone": STATE,
        "state_dict": {"epoch": 3, "best": torch.ones(()), "state_dict": STATE, "optimizer": {"lr": 0.1}},
        "model": {"model": STATE}, "net": {"net": STATE, "model": "resnet", "state_dict": None},
        "DataParallel": prefixed(STATE), "both": {"model": prefixed(STATE)},
    }.items():  # fmt: skip
        path, model, parallel = written(tmp_path / "w.pt", content), network(), nn.DataParallel(network())
        load_weights(model, path)
        load_weights(parallel, path)
        assert same(read_weights(path), STATE), case
        assert same(model, STATE), case
        assert same(parallel.module, STATE), case
    assert same(read_weights(written(tmp_path / "w.safetensors", prefixed(STATE))), STATE)
    some = {"module.0.weight": torch.ones(1), "0.bias": torch.ones(1)}
    assert read_weights(written(tmp_path / "w.pt", some)).keys() == some.keys()
    state = read_weights(written(tmp_path / "w.pt", nn.DataParallel(network()).state_dict()))
    assert state._metadata["1"] == {"version": 2}  # of the batch norm: it says whether a counter may be missing
    load_weights(nn.Flatten(), written(tmp_path / "w.pt", {}))
    with pytest.raises(ValueError, match="does not fit"):
        load_weights(network(), tmp_path / "w.pt")


def test_other_contents_are_refused_and_no_pickle_is_run(tmp_path):
    for content, keyword in [
        (torch.ones(3), "Tensor"), ({**STATE, "2.bias": [0.0]}, "'2.bias' is a list"),
        ({1: torch.ones(1)}, "1 is a Tensor"), ({"weights": dict(STATE)}, "'weights' is a dict"),
        ({"model": {"state_dict": dict(STATE)}}, "'state_dict' is a dict"),
        ({"model": dict(STATE), "net": dict(STATE)}, "'model' and 'net'"),
        ({"state_dict": STATE, "model": network()}, "cannot be read"),
    ]:  # fmt: skip
        with refused(keyword, keyword):
            read_weights(written(tmp_path / "w.pt", content))
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        load_weights(network(), tmp_path / "none.pt")


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


def test_a_factory_file_can_import_what_lies_beside_it_and_leaves_nothing_behind(tmp_path):
    path, modules = list(sys.path), set(sys.modules)
    for i, nets in enumerate([AT_THE_TOP, IN_THE_FUNCTION]):
        folder_of(tmp_path / str(i), nets=nets, blocks=layer(2))
        assert make_model("nets:net", tmp_path / str(i), seed=0).out_features == 2
    for i, nets in enumerate([AT_THE_TOP, AT_THE_TOP.replace("import blocks", "from zoo import blocks")]):
        folder_of(tmp_path / f"z{i}", zoo__nets=nets, zoo__blocks=layer(2))
        assert make_model("zoo.nets:net", tmp_path / f"z{i}", seed=0).out_features == 2
    for n in (2, 3):  # two modules of one name
        folder_of(tmp_path / f"n{n}", nets=AT_THE_TOP, blocks="from parts import layer", parts__nothing="")
        (tmp_path / f"n{n}" / "parts" / "__init__.py").write_text(layer(n))
    assert [make_model("nets:net", tmp_path / f"n{n}", seed=0).out_features for n in (2, 3, 2)] == [2, 3, 2]
    for nets, keyword in [
        ("import blocks\n1 / 0", "ZeroDivisionError"),
        ("def net():\n    import blocks\n    1 / 0", "ZeroDivisionError"),
        ("import blocks", "no function 'net'"),
    ]:
        with refused(nets, keyword):
            make_model("nets:net", folder_of(tmp_path / "fails", nets=nets, blocks=layer(2)), seed=0)
    assert sys.path == path
    assert all(name.startswith("flatfold_suite_") for name in set(sys.modules) - modules)


class Net(nn.Module):
    """A network with two parts that know the number of classes, as those with an auxiliary head have."""

    def __init__(self, num_classes=1000, width=6):
        super().__init__()
        self.body = nn.Linear(4, width)
        self.aux = nn.Linear(width, num_classes)
        self.fc = nn.Linear(width, num_classes)


def saved(path, model):
    return written(path, model.state_dict()), model.state_dict()


@pytest.fixture
def asked(monkeypatch):
    """What the stand-ins for the libraries were asked to make, in order."""
    asked, missing = [], set()
    models, timm, hub = ModuleType("torchvision.models"), ModuleType("timm"), ModuleType("transformers")

    def get_model(name, **options):
        asked.append((name, options))
        return Net(**{key: value for key, value in options.items() if key == "num_classes"})

    models.list_models = lambda module: ["resnet18", "resnet34", "resnet50", "vgg11"] if module is models else ["fcos"]
    weights = SimpleNamespace(__members__=dict.fromkeys(["IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"]))
    models.get_model_weights = {"resnet50": weights}.__getitem__
    published = ["resnet50.a1_in1k", "resnet50.tv_in1k"]
    timm.list_models = lambda: ["resnet50", "coatnet"]
    timm.list_pretrained = lambda pattern: [name for name in published if name.startswith(pattern.rstrip("*"))]
    models.get_model = timm.create_model = get_model
    hub.AutoModelForImageClassification = SimpleNamespace(
        from_pretrained=lambda name, **options: (get_model(name, **options).eval(), {"missing_keys": missing}),
        from_config=lambda config, trust_remote_code=True: Net(None if trust_remote_code else config),
    )
    hub.AutoConfig = SimpleNamespace(from_pretrained=lambda name, **options: asked.append((name, options)) or 3)
    hub.missing = missing
    stand_ins = {"torchvision": ModuleType("torchvision"), "torchvision.models": models, "timm": timm}
    for name, module in {**stand_ins, "transformers": hub}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return asked


def test_a_file_of_weights_is_loaded_and_gives_the_classes(asked, tmp_path):
    path, state = saved(tmp_path / "best.ckpt", openood_network("resnet18_32x32", 7))
    model = named_model("openood/resnet18_32x32", path)
    assert same(model, state)
    assert not any(module.training for module in model.modules())
    for library, plain in [("torchvision", {"weights": None}), ("timm", {"pretrained": False})]:
        for n_classes, again in [(3, [("resnet50", {**plain, "num_classes": 3})]), (1000, [])]:
            asked.clear()
            path, state = saved(tmp_path / "w.pt", Net(n_classes))
            random = torch.random.get_rng_state()
            model = named_model(f"{library}/resnet50", path)
            assert torch.equal(torch.random.get_rng_state(), random)
            assert same(model, state), (library, n_classes)
            assert not model.training
            assert asked == [("resnet50", plain), *again]
    asked.clear()
    assert same(named_model("timm/resnet50.a1_in1k", path), state)
    path, state = saved(tmp_path / "w.pt", Net(3))
    assert same(named_model("transformers/someone/vit", path), state)  # only the configuration is read, from this disk
    config = {"local_files_only": True, "trust_remote_code": False}
    assert asked == [("resnet50.a1_in1k", {"pretrained": False}), ("someone/vit", config)]


def test_published_weights_are_asked_for_by_name_tag_or_revision(asked, tmp_path):
    hub = {"local_files_only": False, "output_loading_info": True, "trust_remote_code": False}
    for name, pretrained, wanted in [
        ("torchvision/resnet50", "IMAGENET1K_V1", ("resnet50", {"weights": "IMAGENET1K_V1"})),
        ("torchvision/resnet50", "DEFAULT", ("resnet50", {"weights": "DEFAULT"})),
        ("timm/resnet50", "a1_in1k", ("resnet50.a1_in1k", {"pretrained": True})),
        ("timm/resnet50", "DEFAULT", ("resnet50", {"pretrained": True})),
        ("timm/resnet50.tv_in1k", "DEFAULT", ("resnet50.tv_in1k", {"pretrained": True})),
        ("transformers/someone/vit", "DEFAULT", ("someone/vit", hub)),
        ("transformers/someone/vit", "4f1c", ("someone/vit", {**hub, "revision": "4f1c"})),
        (f"transformers/{tmp_path}", None, (str(tmp_path), {**hub, "local_files_only": True})),
    ]:
        assert not named_model(name, pretrained=pretrained).training
        assert asked.pop() == wanted, (name, pretrained)


def test_published_weights_bring_their_transform(asked, tmp_path, monkeypatch):
    config = {
        "input_size": (3, 8, 8),
        "crop_pct": 0.8,
        "interpolation": "bicubic",
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
    }
    expected = Transform(10, 8, (0.5,) * 3, (0.5,) * 3, interpolation="bicubic")
    data, models = ModuleType("timm.data"), sys.modules["torchvision.models"]
    data.resolve_data_config = lambda args, model: config
    monkeypatch.setitem(sys.modules, "timm.data", data)
    weights = {"IMAGENET1K_V1": SimpleNamespace(transforms=lambda: expected)}
    monkeypatch.setattr(models, "get_model_weights", {"resnet50": weights}.__getitem__)
    sys.modules["transformers"].AutoImageProcessor = SimpleNamespace(
        from_pretrained=lambda name, **options: asked.append((name, options)) or config
    )
    (tmp_path / "preprocessor_config.json").write_text("{}")
    for name, pretrained in [
        ("timm/resnet50", "DEFAULT"), ("torchvision/resnet50", "IMAGENET1K_V1"), ("transformers/someone/vit", "4f1c"),
        (f"transformers/{tmp_path}", None),
    ]:  # fmt: skip
        assert published_transform(name, Net(), pretrained) == expected, name
    files = {"local_files_only": False, "revision": "4f1c"}, {"local_files_only": True}
    assert asked == [("someone/vit", files[0]), (str(tmp_path), files[1])]
    (tmp_path / "preprocessor_config.json").unlink()
    for name in ("timm/resnet50", "openood/resnet18_32x32", f"transformers/{tmp_path}"):  # with weights of one's own
        assert published_transform(name, Net(), None) is None
    config["crop_mode"] = "border"
    with refused("border", "preprocessing of timm/resnet50 .*'border'"):
        published_transform("timm/resnet50", Net(), "DEFAULT")


def test_weights_of_another_network_are_refused(asked, tmp_path):
    uneven = Net(3)
    uneven.aux = nn.Linear(6, 4)
    for name, state, keyword in [
        ("torchvision/resnet50", Net(3, width=5).state_dict(), r"'body\.weight'"),
        ("timm/resnet50", Net(3, width=5).state_dict(), r"'body\.weight'"),
        ("torchvision/resnet50", uneven.state_dict(), r"'aux\.weight'"),
        ("openood/resnet50", {"linear.weight": torch.ones(2, 2)}, r"'fc\.weight'"),
        ("openood/resnet50", {"fc.weight": torch.tensor(1.0)}, r"'fc\.weight'"),
        ("openood/resnet18_32", Net().state_dict(), "resnet18_32x32"),
    ]:
        with refused((name, keyword), keyword):
            named_model(name, written(tmp_path / "w.pt", state))
    for listed, missing in [("head.bias, head.weight", ("head.weight", "head.bias")), ("a, b, c and", "dcba")]:
        sys.modules["transformers"].missing.clear()
        sys.modules["transformers"].missing.update(missing)
        with refused(missing, f"no trained weights for {listed}"):  # the library would fill them with random numbers
            named_model("transformers/someone/vit", pretrained="DEFAULT")


def test_names_that_cannot_be_resolved_are_refused_with_what_is_near(asked, tmp_path):
    for name, pretrained, keyword in [
        ("torchvision/resnet5", "DEFAULT", "resnet50"), ("torchvision/fcos", "DEFAULT", "1 more"),
        ("torchvision/resnet50", "IMAGENET1K_V3", "IMAGENET1K_V2 or IMAGENET1K_V1"),
        ("timm/resnet5", "DEFAULT", "resnet50"), ("timm/resnet50", "a2_in1k", "a1_in1k or tv_in1k"),
        ("timm/resnet50.a2_in1k", "DEFAULT", "a1_in1k"), ("timm/resnet50.a1_in1k", "tv_in1k", "no weights"),
        ("timm/resnet50", "zzz", "a1_in1k, tv_in1k"), ("timm/coatnet", "DEFAULT", "None are published"),
        ("resnet50", "DEFAULT", "openood, torchvision, timm"),
        ("touchvision/resnet50", "DEFAULT", "torchvision/resnet50"), ("timm", "DEFAULT", "timm/NAME"),
        ("timm/", "DEFAULT", "timm/NAME"), ("", "DEFAULT", "Libraries"), ("openood/resnet50", None, "weights="),
        ("openood/resnet50", "DEFAULT", "weights="), ("torchvision/resnet50", None, "needs trained weights"),
        ("timm/resnet50", None, "needs trained weights"), ("transformers/someone/vit", None, "needs trained weights"),
        (f"transformers/{tmp_path}", "main", "one source"),
    ]:  # fmt: skip
        with refused((name, pretrained), keyword):
            named_model(name, pretrained=pretrained)
    for name in ("openood/resnet50", "torchvision/resnet50", "timm/resnet50", "transformers/someone/vit"):
        with refused(name, "one source"):
            named_model(name, tmp_path / "w.pt", "DEFAULT")
    with pytest.raises(FileNotFoundError, match=r"w\.pt"):
        named_model("timm/resnet50", tmp_path / "w.pt")
    assert asked == []
