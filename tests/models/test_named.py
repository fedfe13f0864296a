"""`models.named` with small stand-ins for the libraries: what is asked of them, and a sentence for what goes wrong."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from flatfold.models.named import named_model
from flatfold.models.openood import openood_network


class Net(nn.Module):
    """A network with two parts that know the number of classes, as those with an auxiliary head have."""

    def __init__(self, num_classes=1000, width=6):
        super().__init__()
        self.body = nn.Linear(4, width)
        self.aux = nn.Linear(width, num_classes)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.fc(self.body(x).relu())


def saved(path, model):
    """Write the weights of a model and return the file and the weights."""
    state = model.state_dict()
    torch.save(state, path)
    return path, state


def same(model, state):
    return model.state_dict().keys() == state.keys() and all(
        torch.equal(value, state[key]) for key, value in model.state_dict().items()
    )


@pytest.fixture
def asked(monkeypatch):
    """What the stand-ins for torchvision and timm were asked to make, in order."""
    asked = []
    models = ModuleType("torchvision.models")

    def get_model(name, **options):
        asked.append((name, options))
        return Net(**{key: value for key, value in options.items() if key == "num_classes"})

    models.list_models = lambda module: ["resnet18", "resnet34", "resnet50", "vgg11"] if module is models else ["fcos"]
    weights = SimpleNamespace(__members__=dict.fromkeys(["IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"]))
    models.get_model_weights = {"resnet50": weights}.__getitem__
    models.get_model = get_model
    timm = ModuleType("timm")
    published = ["resnet50.a1_in1k", "resnet50.tv_in1k"]
    timm.list_models = lambda: ["resnet50", "coatnet"]
    timm.list_pretrained = lambda pattern: [name for name in published if name.startswith(pattern.rstrip("*"))]
    timm.create_model = get_model
    for name, module in {"torchvision": ModuleType("torchvision"), "torchvision.models": models, "timm": timm}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return asked


# OpenOOD


def test_a_network_of_openood_has_the_classes_of_its_weights(tmp_path):
    path, state = saved(tmp_path / "best.ckpt", openood_network("resnet18_32x32", 7))
    model = named_model("openood/resnet18_32x32", path)
    assert same(model, state)
    assert model.fc.out_features == 7
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("state", [{"linear.weight": torch.ones(2, 2)}, {"fc.weight": torch.tensor(1.0)}])
def test_weights_without_fc_are_not_of_openood(tmp_path, state):
    torch.save(state, tmp_path / "w.pt")
    message = (
        r"openood/resnet50 needs weights with a matrix 'fc\.weight', whose rows are the classes.* Are they of a net"
    )
    with pytest.raises(ValueError, match=message):
        named_model("openood/resnet50", tmp_path / "w.pt")


def test_openood_has_no_network_of_another_name(tmp_path):
    path, _ = saved(tmp_path / "w.pt", Net())
    with pytest.raises(ValueError, match=r"no network 'resnet18_32' here\. Did you mean resnet18_32x32\?"):
        named_model("openood/resnet18_32", path)


@pytest.mark.parametrize("options", [{}, {"pretrained": "DEFAULT"}])
def test_openood_needs_a_file_of_weights(options):
    message = r"openood/resnet50 needs weights=, a checkpoint of OpenOOD, .* publishes files, not weights that could be"
    with pytest.raises(ValueError, match=message):
        named_model("openood/resnet50", **options)


# torchvision and timm


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize("n_classes", [3, 1000])
def test_a_file_of_weights_is_loaded_and_gives_the_classes(asked, tmp_path, library, n_classes):
    path, state = saved(tmp_path / "w.pt", Net(n_classes))
    model = named_model(f"{library}/resnet50", path)
    assert same(model, state)
    assert not model.training
    plain = {"weights": None} if library == "torchvision" else {"pretrained": False}
    again = [("resnet50", {**plain, "num_classes": 3})] if n_classes == 3 else []
    assert asked == [("resnet50", plain), *again]


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_weights_that_differ_in_more_than_the_classes_do_not_fit(asked, tmp_path, library):
    path, _ = saved(tmp_path / "w.pt", Net(3, width=5))
    with pytest.raises(ValueError, match=r"w\.pt does not fit the network: another shape has 'body\.weight'"):
        named_model(f"{library}/resnet50", path)


def test_two_numbers_of_classes_are_none(asked, tmp_path):
    other = Net(3)
    other.aux = nn.Linear(6, 4)
    path, _ = saved(tmp_path / "w.pt", other)
    with pytest.raises(ValueError, match=r"does not fit the network: another shape has 'aux\.weight'"):
        named_model("torchvision/resnet50", path)
    assert len(asked) == 1


def test_published_weights_of_torchvision_are_asked_for_by_name(asked):
    for pretrained in ("IMAGENET1K_V1", "DEFAULT"):
        assert not named_model("torchvision/resnet50", pretrained=pretrained).training
        assert asked.pop() == ("resnet50", {"weights": pretrained})


@pytest.mark.parametrize(
    ("name", "pretrained", "full"),
    [
        ("resnet50", "a1_in1k", "resnet50.a1_in1k"),
        ("resnet50", "DEFAULT", "resnet50"),
        ("resnet50.tv_in1k", "DEFAULT", "resnet50.tv_in1k"),
    ],
)
def test_published_weights_of_timm_are_asked_for_by_tag(asked, name, pretrained, full):
    named_model(f"timm/{name}", pretrained=pretrained)
    assert asked == [(full, {"pretrained": True})]


def test_a_tag_of_timm_may_stand_in_the_name_beside_a_file(asked, tmp_path):
    path, state = saved(tmp_path / "w.pt", Net())
    assert same(named_model("timm/resnet50.a1_in1k", path), state)
    assert asked == [("resnet50.a1_in1k", {"pretrained": False})]


@pytest.mark.parametrize(
    ("name", "pretrained", "message"),
    [
        (
            "torchvision/resnet5",
            "DEFAULT",
            r"torchvision has no classifier 'resnet5'\. Did you mean resnet50 or",
        ),
        ("torchvision/fcos", "DEFAULT", r"no classifier 'fcos'\. There are resnet18, resnet34, resnet50 and 1 more\."),
        (
            "torchvision/resnet50",
            "IMAGENET1K_V3",
            r"torchvision/resnet50 has no weights 'IMAGENET1K_V3'\. Did you mean IMAGENET1K_V2 or IMAGENET1K_V1\?",
        ),
        ("timm/resnet5", "DEFAULT", r"timm has no model 'resnet5'\. Did you mean resnet50\?"),
        ("timm/resnet50", "a2_in1k", r"timm/resnet50 has no weights 'a2_in1k'\. Did you mean a1_in1k or tv_in1k\?"),
        ("timm/resnet50.a2_in1k", "DEFAULT", r"timm/resnet50 has no weights 'a2_in1k'\. Did you mean a1_in1k"),
        ("timm/resnet50.a1_in1k", "tv_in1k", r"timm/resnet50 has no weights 'a1_in1k\.tv_in1k'\. Did you mean"),
        ("timm/resnet50", "zzz", r"timm/resnet50 has no weights 'zzz'\. There are a1_in1k, tv_in1k\."),
        (
            "timm/coatnet",
            "DEFAULT",
            r"timm/coatnet has no weights 'DEFAULT'\. None are published: give weights=, a file",
        ),
    ],
)
def test_what_a_library_does_not_know_is_told_with_what_is_near(asked, name, pretrained, message):
    with pytest.raises(ValueError, match=message):
        named_model(name, pretrained=pretrained)
    assert asked == []


def test_a_download_that_fails_is_told(asked, monkeypatch):
    def fail(*_, **__):
        raise OSError("no route to host.")

    monkeypatch.setattr(sys.modules["timm"], "create_model", fail)
    message = r"^timm could not make the network: OSError: no route to host\. If it had to be downloaded, check the con"
    with pytest.raises(ValueError, match=message):
        named_model("timm/resnet50", pretrained="DEFAULT")


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (
            "torchvision",
            r"Install the build of torchvision that matches torch \d.*: another one does not import, or repl",
        ),
        ("timm", r"Install timm, and the build of torchvision that matches torch \d.*, which timm imports"),
        ("transformers", r"Install flatfold\[hf\]\. If torchvision is installed, it must be the build .* torch \d"),
    ],
)
def test_a_library_that_is_not_there_is_told_with_what_to_install(monkeypatch, library, message):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        ValueError, match=rf"^{library} is needed but cannot be imported: ModuleNotFoundError: .*{message}"
    ):
        named_model(f"{library}/resnet50", pretrained="DEFAULT")


def test_a_library_that_is_built_for_another_torch_is_told(tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(
        ValueError, match=r"cannot be imported: RuntimeError: operator torchvision::nms .* matches torch"
    ):
        named_model("timm/resnet50", pretrained="DEFAULT")


# transformers


class Hub:
    """A stand-in for the two classes of transformers that are used; it notes what it is asked for."""

    def __init__(self, missing=()):
        self.asked, self.missing, self.model = [], set(missing), Net(5).eval()
        module = SimpleNamespace(from_pretrained=self.trained, from_config=lambda config: Net(config))
        self.AutoModelForImageClassification = module
        self.AutoConfig = SimpleNamespace(from_pretrained=self.config)

    def trained(self, name, **options):
        self.asked.append((name, options))
        return self.model, {"missing_keys": self.missing}

    def config(self, name, **options):
        self.asked.append((name, options))
        return 3


def with_hub(monkeypatch, hub):
    monkeypatch.setitem(sys.modules, "transformers", hub)
    return hub


@pytest.mark.parametrize(
    ("pretrained", "options"), [("DEFAULT", {}), ("main", {"revision": "main"}), ("4f1c", {"revision": "4f1c"})]
)
def test_published_weights_of_the_hub_are_asked_for_by_revision(monkeypatch, pretrained, options):
    hub = with_hub(monkeypatch, Hub())
    assert named_model("transformers/someone/vit", pretrained=pretrained) is hub.model
    assert hub.asked == [("someone/vit", {"local_files_only": False, "output_loading_info": True, **options})]


def test_a_folder_is_read_without_a_download(monkeypatch, tmp_path):
    hub = with_hub(monkeypatch, Hub())
    assert named_model(f"transformers/{tmp_path}") is hub.model
    assert hub.asked == [(str(tmp_path), {"local_files_only": True, "output_loading_info": True})]


def test_with_a_file_only_the_configuration_is_read_and_nothing_is_downloaded(monkeypatch, tmp_path):
    hub = with_hub(monkeypatch, Hub())
    path, state = saved(tmp_path / "w.pt", Net(3))
    assert same(named_model("transformers/someone/vit", path), state)
    assert hub.asked == [("someone/vit", {"local_files_only": True})]


@pytest.mark.parametrize(
    ("missing", "listed"), [(("head.weight", "head.bias"), "head.bias, head.weight"), ("dcba", "a, b, c and 1 more")]
)
def test_a_head_that_the_library_would_fill_with_random_numbers_is_refused(monkeypatch, missing, listed):
    with_hub(monkeypatch, Hub(missing))
    message = (
        rf"^transformers/someone/vit has no trained weights for {listed}\. Take a model that was trained to classify"
    )
    with pytest.raises(ValueError, match=message):
        named_model("transformers/someone/vit", pretrained="DEFAULT")


def test_a_library_that_fails_to_import_late_is_told_with_what_to_install(monkeypatch):
    hub = with_hub(monkeypatch, Hub())

    def fail(*_, **__):
        raise ModuleNotFoundError("Could not import module 'ViTForImageClassification'.")

    hub.AutoModelForImageClassification.from_pretrained = fail
    with pytest.raises(ValueError, match=r"could not make the network: ModuleNotFoundError: .* Install flatfold\[hf\]"):
        named_model("transformers/someone/vit", pretrained="DEFAULT")


def test_a_folder_that_transformers_wrote_gives_the_network_that_was_saved(tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, num_labels=3
    )
    network = transformers.ViTForImageClassification(config)
    network.save_pretrained(tmp_path / "whole")
    assert same(named_model(f"transformers/{tmp_path / 'whole'}"), network.state_dict())
    transformers.ViTModel(config).save_pretrained(tmp_path / "headless")
    with pytest.raises(ValueError, match=r"no trained weights for classifier\.bias, classifier\.weight"):
        named_model(f"transformers/{tmp_path / 'headless'}")


# All libraries


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("torchvision/resnet50", "weights of torchvision such as 'IMAGENET1K_V1', or 'DEFAULT'"),
        ("timm/resnet50", "a tag of timm such as 'a1_in1k', or 'DEFAULT'"),
        (
            "transformers/someone/vit",
            "a revision on the hub such as 'main', or 'DEFAULT'; or name a folder of save_pre",
        ),
    ],
)
def test_a_random_network_is_refused(name, published):
    message = rf"^{name} would have random weights, .* Give weights=, a file, or pretrained=, {published}"
    with pytest.raises(ValueError, match=message):
        named_model(name)


def test_weights_come_from_one_place(tmp_path):
    message = r"trained weights come from one place, got pretrained= and {}\. Leave one of them out"
    for name in ("openood/resnet50", "torchvision/resnet50", "timm/resnet50", "transformers/someone/vit"):
        with pytest.raises(ValueError, match=message.format("weights=")):
            named_model(name, tmp_path / "w.pt", "DEFAULT")
    with pytest.raises(ValueError, match=message.format(f"the folder {tmp_path}")):
        named_model(f"transformers/{tmp_path}", pretrained="main")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "resnet50",
            r"a network is named library/name, got 'resnet50'\. Libraries are openood, torchvision, timm, trans",
        ),
        ("touchvision/resnet50", r"got 'touchvision/resnet50'\. Did you mean torchvision/resnet50\?"),
        ("timm", r"got 'timm'\. Did you mean timm/NAME\?"),
        ("timm/", r"got 'timm/'\. Did you mean timm/NAME\?"),
        ("", r"got ''\. Libraries are"),
    ],
)
def test_a_name_of_another_form_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        named_model(name, pretrained="DEFAULT")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*w\.pt\. Check the path"):
        named_model("timm/resnet50", tmp_path / "w.pt")


def test_random_numbers_are_left_as_they_were(asked, tmp_path):
    path, _ = saved(tmp_path / "w.pt", Net(3))
    before = torch.random.get_rng_state()
    named_model("torchvision/resnet50", path)
    assert torch.equal(torch.random.get_rng_state(), before)
