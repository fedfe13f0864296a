"""`evaluate.suites.new`: what is written is a suite, says what was seen, and shows what else could be said."""

import io
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flatfold.evaluate.suites.file import SuiteFile
from flatfold.evaluate.suites.new import Parts, look_at, suite_sections, write_suite
from flatfold.evaluate.suites.seen import look
from flatfold.models.images import Transform

NETS = """
from torch import nn

def make():
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 2))
"""


def folder(root, names, size=(6, 8), mode="RGB"):
    """Write an image for each name."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size).save(path)
    return root


@pytest.fixture
def here(tmp_path):
    """A folder with images of two classes, unknown ones, a network and its weights."""
    for split, n in (("train", 5), ("val", 2), ("test", 24)):
        folder(tmp_path / "photos" / split, [f"{name}/{i}.png" for name in ("ant", "bee") for i in range(n)])
    folder(tmp_path / "photos" / "birds", ["a.png", "sub/b.png", "c.png"])
    folder(tmp_path / "photos" / "noise", ["a.png"])
    folder(tmp_path / "photos" / "more", ["a.png", "b.png"])
    (tmp_path / "nets.py").write_text(NETS)
    torch.save({"2.weight": torch.eye(2, 12), "2.bias": torch.zeros(2)}, tmp_path / "w.pt")
    return tmp_path


def complete(here, **changes):
    photos = here / "photos"
    parts = {
        "train": photos / "train",
        "val": photos / "val",
        "test": photos / "test",
        "ood_val": photos / "more",
        "near": [("birds", photos / "birds")],
        "far": [("noise", photos / "noise")],
        "model": "nets:make",
        "weights": here / "w.pt",
        "resize": 6,
        "crop": 5,
    }
    return Parts(**parts | changes)


def written(path, parts, **arguments):
    missing = write_suite(path, parts, **arguments).missing
    return tomllib.loads(path.read_text()), missing


# What is written


def test_a_file_with_every_part_is_a_suite_that_can_be_judged(here):
    assert write_suite(here / "mine.toml", complete(here)).missing == []
    (suite,) = SuiteFile(here / "mine.toml").suites()
    assert (suite.name, suite.network, suite.seed, suite.architecture) == ("mine", "make", 0, "nets:make")
    assert {name: source.rows for name, source in suite.sources.items()} == {
        "train": 10,
        "val": 4,
        "test": 48,
        "ood_val": 2,
        "birds": 3,
        "noise": 1,
    }
    assert [(ood.name, ood.group) for ood in suite.ood] == [("birds", "near"), ("noise", "far")]
    assert suite.test.transform == Transform(resize=6, crop=5)
    assert torch.equal(suite.model[2].weight, torch.eye(2, 12))
    assert suite.model(next(iter(suite.test))[0]).shape == (48, 2)


def test_paths_are_those_from_the_folder_of_the_file(here):
    (here / "suites").mkdir()
    document, _ = written(here / "suites" / "mine.toml", complete(here))
    assert document["train"] == {"folder": "../photos/train"}
    assert document["network"][0]["weights"] == "../w.pt"
    document, _ = written(here / "mine.toml", complete(here))
    assert document["train"] == {"folder": "photos/train"}
    assert document["ood"][0] == {"name": "birds", "group": "near", "folder": "photos/birds"}


def test_paths_are_whole_if_they_have_nothing_in_common_with_the_file(here, monkeypatch):
    monkeypatch.chdir(here / "photos")
    elsewhere = Path(here.anchor) / "elsewhere" / "mine.toml"
    parts = Parts(val=Path("val"))
    text = suite_sections(elsewhere, parts, look_at(parts))["val"]
    assert tomllib.loads(text)["val"]["folder"] == (here / "photos" / "val").as_posix()


def test_the_folder_of_a_new_file_is_made(here):
    assert write_suite(here / "new" / "mine.toml", Parts()).missing == ["network", "val", "test", "ood"]
    assert (here / "new" / "mine.toml").is_file()


def test_a_name_with_quotes_and_letters_of_any_language_is_written_as_it_is(here):
    folder(here / 'a "näm" \\ b', ["x/0.png", "y/0.png"])
    document, _ = written(here / "mine.toml", Parts(val=here / 'a "näm" \\ b'))
    assert document["val"] == {"folder": 'a "näm" \\ b'}


def test_a_path_that_would_be_taken_for_a_variable_is_refused(here):
    folder(here / "$HOME", ["x/0.png", "y/0.png"])
    with pytest.raises(ValueError, match=r"/\$HOME has a \$ in it, which stands for a variable in a suite file"):
        write_suite(here / "mine.toml", Parts(val=here / "$HOME"))


def test_the_name_of_a_suite_is_that_of_its_file_if_it_can_be_one(here):
    assert written(here / "birds-2.toml", Parts())[0]["name"] == "birds-2"
    assert written(here / "my birds.toml", Parts())[0]["name"] == "mine"


# What is drawn


def test_without_val_some_test_images_are_drawn_for_it_and_the_rest_is_judged(here):
    write_suite(here / "mine.toml", complete(here, val=None))
    document = tomllib.loads((here / "mine.toml").read_text())
    assert document["val"] == {"folder": "photos/test", "per_class": 5}  # a fifth of 24 would be 4
    assert document["test"] == {"folder": "photos/test", "rest_of": "val"}
    (suite,) = SuiteFile(here / "mine.toml").suites()
    assert (suite.val.rows, suite.test.rows) == (10, 38)


def test_the_smallest_class_says_how_many_are_drawn(here):
    for n, per_class in ((2, 1), (9, 4), (10, 5), (29, 5), (30, 6)):
        few = folder(here / f"few{n}", [f"ant/{i}.png" for i in range(40)] + [f"bee/{i}.png" for i in range(n)])
        document, _ = written(here / "mine.toml", Parts(test=few), force=True)
        assert document["val"]["per_class"] == per_class


def test_no_more_than_a_hundred_of_a_class_are_drawn(here):
    for n, per_class in ((499, 99), (500, 100), (5000, 100)):
        np.savez(here / "many.npz", x=np.zeros((2 * n, 1, 1), np.uint8), y=np.arange(2 * n) % 2)
        document, _ = written(here / "mine.toml", Parts(test=here / "many.npz"), force=True)
        assert document["val"]["per_class"] == per_class


def test_a_class_that_is_too_small_to_draw_five_of_is_told(here):
    for n, told in ((9, True), (10, False)):
        few = folder(here / f"few{n}", [f"{name}/{i}.png" for name in ("ant", "bee") for i in range(n)])
        notes = write_suite(here / "mine.toml", Parts(test=few, mean=[0, 0, 0]), force=True).notes
        assert notes == told * [
            "a class of test has 9 images only, so val draws 4 of each: methods that are tuned on it need 3, and 5 or "
            "more are better. Give images for val, or more for test"
        ]
    parts = Parts(test=here / "few9", val=here / "photos" / "val", mean=[0, 0, 0])
    assert write_suite(here / "mine.toml", parts, force=True).notes == []


def test_a_class_of_one_image_cannot_be_divided(here):
    one = folder(here / "one", ["ant/0.png", "ant/1.png", "bee/0.png"])
    with pytest.raises(ValueError, match=r"^test: a class has one image only, so none can be drawn for val\. Give"):
        write_suite(here / "mine.toml", Parts(test=one))
    assert write_suite(here / "mine.toml", Parts(test=one, val=here / "photos" / "val")).missing == ["network", "ood"]


# What is not given


def test_a_file_of_nothing_shows_every_section_as_an_example_that_can_be_used(here):
    document, missing = written(here / "mine.toml", Parts())
    assert document == {"name": "mine", "seed": 0, "transform": {}}
    assert missing == ["network", "val", "test", "ood"]
    text = (here / "mine.toml").read_text()
    keys = re.findall(r"^# ((?:\[.*|\w+ = (?:\"|\d|\[).*))$", text, flags=re.MULTILINE)
    keys = [line for line in keys if not line.startswith("model = ")]  # which stands in the place of factory
    assert {line for line in keys if line.startswith("[")} == {
        "[[network]]",
        "[train]",
        "[val]",
        "[test]",
        "[ood_val]",
        "[[ood]]",
    }
    lines = [line.removeprefix("# ") if line.removeprefix("# ") in keys else line for line in text.splitlines()]
    (here / "example.toml").write_text("\n".join(line for line in lines if not line.startswith("mode = ")))
    assert {network.name for network in SuiteFile(here / "example.toml").networks} == {"mine"}


def test_what_is_given_is_no_example_and_what_is_not_is_one(here):
    _, missing = written(here / "mine.toml", complete(here, test=None, near=[], far=[], model=None, weights=None))
    assert missing == ["network", "test", "ood"]
    text = (here / "mine.toml").read_text()
    sections = {"[train]": True, "[val]": True, "[test]": False, "[[ood]]": False, "[ood_val]": True}
    for section, given in sections.items():
        assert (f"\n{section}\n" in text) == given
        assert (f"\n# {section}\n" in text) == (not given)


def test_sizes_that_are_not_given_are_examples_and_different_ones_are_pointed_out(here):
    def text(**changes):
        write_suite(here / "mine.toml", complete(here, **changes), force=True)
        return (here / "mine.toml").read_text()

    assert "\nresize = 6\ncrop = 5\n" in text()
    assert "\n# resize" not in text()
    assert "\nresize = 6\n" in text(crop=None)
    same = text(resize=None, crop=None)
    assert "\n# resize = 256" in same
    assert "Images of different sizes need a resize and a crop" not in same
    folder(here / "photos" / "noise", ["large.png"], size=(9, 9))
    assert "\n# Images of different sizes need a resize and a crop" in text(resize=None, crop=None)


def test_grey_images_are_pointed_out(here):
    grey = folder(here / "grey", [f"{name}/{i}.png" for name in "ab" for i in range(3)], mode="L")
    parts = {"train": None, "val": grey, "test": grey, "ood_val": None}
    write_suite(here / "mine.toml", complete(here, **parts))
    assert "# All known images are grey." in (here / "mine.toml").read_text()
    write_suite(here / "mine.toml", complete(here, **parts | {"train": here / "photos" / "train"}), force=True)
    assert "are grey." not in (here / "mine.toml").read_text()
    write_suite(here / "mine.toml", complete(here, **parts | {"ood_val": here / "photos" / "more"}), force=True)
    assert "# All known images are grey." in (here / "mine.toml").read_text()


def test_a_network_without_weights_shows_where_they_would_go(here):
    document, missing = written(here / "mine.toml", complete(here, weights=None))
    assert document["network"] == [{"name": "make", "factory": "nets:make"}]
    assert missing == []
    assert '\n# weights = "mine.safetensors"  # a state dict, unless the function' in (here / "mine.toml").read_text()
    document, _ = written(here / "mine.toml", complete(here, model="torchvision/resnet50", weights=None), force=True)
    assert document["network"] == [{"name": "resnet50", "model": "torchvision/resnet50"}]
    assert '\n# pretrained = "DEFAULT"' in (here / "mine.toml").read_text()


@pytest.mark.parametrize(
    ("model", "key", "name"),
    [
        ("a.b:f", "factory", "f"),
        ("timm/resnet50.a1_in1k", "model", "resnet50-a1_in1k"),
        ("transformers/google/vit", "model", "vit"),
        ("transformers/./", "model", "mine"),
    ],
)
def test_a_network_is_named_after_what_makes_it(here, model, key, name):
    document, _ = written(here / "mine.toml", Parts(model=model))
    assert document["network"] == [{"name": name, key: model}]


# What is normalised, and how good the network should be


def test_mean_and_std_are_those_of_the_transform(here):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 1e-5)
    assert write_suite(here / "mine.toml", complete(here, mean=mean, std=std)).notes == []
    (suite,) = SuiteFile(here / "mine.toml").suites()
    assert suite.test.transform == Transform(resize=6, crop=5, mean=mean, std=std)
    assert "# mean" not in (here / "mine.toml").read_text()


def test_one_of_mean_and_std_will_do(here):
    for name in ("mean", "std"):
        assert write_suite(here / "mine.toml", Parts(**{name: [1, 2, 3]}), force=True).notes == []
        document = tomllib.loads((here / "mine.toml").read_text())
        assert document["transform"] == {name: [1, 2, 3]}


def test_one_number_is_for_a_network_that_takes_grey_images(here):
    grey = folder(here / "grey", [f"{name}/{i}.png" for name in "ab" for i in range(3)], mode="L")
    written = write_suite(here / "mine.toml", Parts(val=grey, ood_val=here / "photos" / "more", std=[0.5]))
    assert written.notes == []
    document = tomllib.loads((here / "mine.toml").read_text())
    assert document["transform"] == {"std": [0.5], "mode": "L"}
    notes = write_suite(here / "mine.toml", complete(here, mean=[0.5]), force=True).notes
    assert notes == ['one number for mean or std makes all images grey (mode = "L"): give three for colours']
    assert "are grey." not in (here / "mine.toml").read_text()


def test_that_nothing_is_normalised_is_told_with_the_place_for_it(here):
    path = here / "mine.toml"
    (note,) = write_suite(path, complete(here)).notes
    assert note == (
        "nothing is normalised, the network sees values from 0 to 1: if it is used to others, write mean and std into "
        f"[transform] of {path}"
    )


def test_an_accuracy_is_written_and_shown_as_an_example_if_it_is_not_known(here):
    comment = "  # what it should reach on [test], in per cent; flatfold doctor compares\n"
    for parts in (Parts(), complete(here), complete(here, weights=None)):
        write_suite(here / "mine.toml", parts, force=True)
        assert f"\n# accuracy = 91.7{comment}" in (here / "mine.toml").read_text()
    document, _ = written(here / "mine.toml", complete(here, accuracy=88.25), force=True)
    assert document["network"][0]["accuracy"] == 88.25
    text = (here / "mine.toml").read_text()
    assert f"\naccuracy = 88.25{comment}" in text
    assert "# accuracy" not in text


# What was seen


def test_what_was_seen_is_written_beside_each_source(here):
    folder(here / "photos" / "train", ["ant/large.png"], size=(60, 80))
    write_suite(here / "mine.toml", complete(here))
    text = (here / "mine.toml").read_text()
    assert 'folder = "photos/train"  # 11 images of 2 classes, of different sizes such as 6 x 8 pixels' in text
    assert 'folder = "photos/test"  # 48 images of 2 classes, 6 x 8 pixels' in text
    assert 'folder = "photos/birds"  # 3 images, 6 x 8 pixels' in text


def test_a_typical_size_is_the_one_in_the_middle(here):
    for n, size in ((3, (2, 3)), (4, (9, 2)), (3, (5, 90))):
        folder(here / "sizes", [f"{size[0]}-{i}.png" for i in range(n)], size=size)
    assert str(look(here / "sizes", labelled=False)) == "10 images, of different sizes such as 9 x 2 pixels"


def test_an_image_that_cannot_be_read_does_no_harm(here):
    (here / "photos" / "noise" / "b.png").write_bytes(b"no image")
    assert str(look(here / "photos" / "noise", labelled=False)) == "2 images, 6 x 8 pixels"
    (here / "photos" / "noise" / "a.png").write_bytes(b"no image")
    seen = look(here / "photos" / "noise", labelled=False)
    assert (str(seen), seen.grey) == ("2 images", False)


def test_npz_files_are_recognised(here):
    np.savez(here / "known.npz", x=np.zeros((6, 4, 5), np.uint8), y=np.arange(6) % 3)
    np.savez(here / "unknown.npz", x=np.zeros((2, 7, 7, 3), np.uint8))
    document, _ = written(here / "mine.toml", Parts(val=here / "known.npz", far=[("odd", here / "unknown.npz")]))
    assert document["val"] == {"npz": "known.npz"}
    assert document["ood"][0] == {"name": "odd", "group": "far", "npz": "unknown.npz"}
    seen = look(here / "known.npz", labelled=True)
    assert (str(seen), seen.smallest, seen.grey) == ("6 images of 3 classes, 5 x 4 pixels", 2, True)
    assert str(look(here / "unknown.npz", labelled=False)) == "2 images, 7 x 7 pixels"


def test_lists_are_recognised_and_say_where_their_images_are(here):
    (here / "photos" / "val.txt").write_text("val/ant/0.png 0\nval/bee/0.png 1\nval/bee/1.png 1\n")
    document, _ = written(here / "mine.toml", Parts(val=here / "photos" / "val.txt"))
    assert document["val"] == {"list": "photos/val.txt", "images": "photos"}
    (here / "lists").mkdir()
    (here / "photos" / "val.txt").rename(here / "lists" / "val.txt")
    document, _ = written(here / "mine.toml", Parts(val=here / "lists" / "val.txt", images=here / "photos"), force=True)
    assert document["val"] == {"list": "lists/val.txt", "images": "photos"}
    assert str(look(here / "lists" / "val.txt", True, here / "photos")) == "3 images of 2 classes, 6 x 8 pixels"
    with pytest.raises(
        ValueError,
        match=r"^val: .*val\.txt names val/ant/0\.png, which is not there\. Say with --images in",
    ):
        write_suite(here / "mine.toml", Parts(val=here / "lists" / "val.txt"), force=True)


def test_every_list_is_looked_for_in_the_one_folder_of_images(here):
    (here / "val.txt").write_text("val/ant/0.png 0\nval/bee/0.png 1\n")
    (here / "odd.txt").write_text("".join(f"elsewhere/{i}.png -1\n" for i in range(10)) + "birds/a.png -1\n")
    parts = Parts(val=here / "val.txt", far=[("odd", here / "odd.txt")], images=here / "photos")
    with pytest.raises(
        ValueError,
        match=r"^odd: .*odd\.txt names elsewhere/0\.png, which is not in .*photos\. --images is for all lists: leave "
        r"out one that starts elsewhere, and write it into the file with its own images = \.$",
    ):
        write_suite(here / "mine.toml", parts)
    (here / "odd.txt").write_text("elsewhere/0.png -1\nbirds/a.png -1\n")  # a gap, which doctor tells
    assert written(here / "mine.toml", parts)[0]["ood"][0]["images"] == "photos"
    with pytest.raises(NotADirectoryError, match=r"^val: the paths of a list start in a folder, but .*nowhere does"):
        write_suite(here / "mine.toml", Parts(val=here / "val.txt", images=here / "nowhere"), force=True)


def test_tables_are_recognised(here):
    pyarrow = pytest.importorskip("pyarrow", reason="tables need the extra flatfold[parquet]")
    from pyarrow.parquet import write_table

    buffer = io.BytesIO()
    Image.new("RGB", (3, 2)).save(buffer, "png")
    (here / "tables").mkdir()
    for path in (here / "one.parquet", here / "tables" / "0.parquet"):
        write_table(pyarrow.table({"image": [buffer.getvalue()] * 4, "label": [0, 1, 0, 1]}), path)
    document, _ = written(here / "mine.toml", Parts(val=here / "one.parquet", near=[("more", here / "tables")]))
    assert document["val"] == {"table": "one.parquet"}
    assert document["ood"][0]["table"] == "tables"
    assert str(look(here / "one.parquet", labelled=True)) == "4 images of 2 classes, 3 x 2 pixels"


def test_a_data_set_on_disk_of_hugging_face_is_a_table(here):
    (here / "saved").mkdir()
    (here / "saved" / "state.json").write_text(json.dumps({"_data_files": []}))
    with pytest.raises(ValueError, match=r"^val: .*state\.json must list files"):
        write_suite(here / "mine.toml", Parts(val=here / "saved"))


# Refusals


def test_a_file_that_is_there_is_only_replaced_if_that_is_said(here):
    path = here / "mine.toml"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match=r"mine\.toml is there already\. Pass --force to replace it, or choose"):
        write_suite(path, Parts())
    assert path.read_text() == "precious"
    write_suite(path, Parts(), force=True)
    assert path.read_text().startswith("# A suite for flatfold")


def test_nothing_is_written_if_something_is_wrong(here):
    with pytest.raises(FileNotFoundError):
        write_suite(here / "mine.toml", Parts(val=here / "none"))
    assert not (here / "mine.toml").exists()


REFUSALS = {
    "no folder": ({"val": "none"}, FileNotFoundError, r"^val: there is nothing at .*none\. Check the path\.$"),
    "no unknown folder": ({"near": [("odd", "none")]}, FileNotFoundError, r"^odd: there is nothing at .*none\."),
    "no images": ({"ood_val": "empty"}, ValueError, r"^ood_val: .*empty holds no image"),
    "no labels": (
        {"test": "photos/noise"},
        ValueError,
        r"^test: known images need labels, but .*noise has none\. Give each class a sub-folder\.$",
    ),
    "another file": (
        {"train": "nets.py"},
        ValueError,
        r"^train: images come from a folder or a file that ends in \.npz, \.txt, \.parquet, got .*nets\.py\.$",
    ),
    "no weights": (
        {"model": "a:b", "weights": "none"},
        FileNotFoundError,
        r"^weights: there is no file .*none\.",
    ),
    "weights of nothing": (
        {"weights": "w.pt"},
        ValueError,
        r"^weights: it takes a network to load them into\. Give the model too\.$",
    ),
    "another model": (
        {"model": "resnet50"},
        ValueError,
        r"^model: it must be written package\.module:function or library/name, got 'resnet50'\.$",
    ),
    "accuracy of nothing": (
        {"accuracy": 90.0},
        ValueError,
        r"^accuracy: it takes a network that should reach it\. Give the model too\.$",
    ),
    "more than all": (
        {"model": "a:b", "accuracy": 100.5},
        ValueError,
        r"^accuracy: it must be a number of per cent, above 0 and up to 100, got 100\.5\.$",
    ),
    "two channels": ({"mean": (0.5, 0.5)}, ValueError, r"^mean must have one number per channel of RGB, 3, got 2\.$"),
    "one and three": (
        {"mean": (0.5,), "std": (1.0, 1.0, 1.0)},
        ValueError,
        r"^std must have one number per channel of L, 1, got 3\.$",
    ),
    "no spread": ({"std": (1.0, 0.0, 1.0)}, ValueError, r"^std must be finite, and std above 0, got \(1\.0, 0\.0, 1"),
    "reserved name": ({"near": [("near", "photos/noise")]}, ValueError, r"cannot be called 'near'\. .* none of train,"),
    "hidden name": ({"far": [(".x", "photos/noise")]}, ValueError, r"an unknown data set cannot be called '\.x'"),
    "two names": (
        {"near": [("x", "photos/noise")], "far": [("x", "photos/birds")]},
        ValueError,
        r"an unknown data set cannot be called 'x'\. Names are unique",
    ),
}


@pytest.mark.parametrize(("changes", "kind", "message"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_is_told_with_its_part(here, changes, kind, message, monkeypatch):
    monkeypatch.chdir(here)
    (here / "empty").mkdir()
    paths = {
        name: [(each, Path(place)) for each, place in value]
        if isinstance(value, list)
        else value
        if name in ("model", "accuracy", "mean", "std")
        else Path(value)
        for name, value in changes.items()
    }
    with pytest.raises(kind, match=message):
        write_suite(Path("mine.toml"), Parts(**paths))


def test_a_suite_file_ends_in_toml(here):
    with pytest.raises(ValueError, match=r"a suite file ends in \.toml, got .*mine\.yaml\."):
        write_suite(here / "mine.yaml", Parts())
