"""`evaluate.suites.doctor`: every part of a suite is looked at, and every problem has its sentence and its place."""

import re
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from flatfold import FeatureBank, save_bank
from flatfold.core.errors import UnreadableImage
from flatfold.evaluate.banks import extract_all
from flatfold.evaluate.suites.doctor import Finding, examine
from flatfold.evaluate.suites.library import open_suite_file
from tests.openood_tree import BENCHMARKS, list_path, make_openood
from tests.toy_suite import World, pixels


class Patient(World):
    """A suite whose network is right on every test image, until a test changes it."""

    def __init__(self, folder):
        super().__init__(folder)
        weight = torch.zeros(3, 16)
        weight[range(3), range(3)] = 1
        torch.save({"2.weight": weight, "2.bias": torch.zeros(3)}, folder / "w.pt")
        self.document["network"][0] |= {"weights": "w.pt", "accuracy": 99.5}
        self.answers(np.arange(300) % 3)

    def answers(self, y, right=None):
        """Make test images of classes ``y``; the network gets those right that ``right`` marks."""
        seen = y if right is None else np.where(right, y, (y + 1) % 3)
        x = np.zeros((len(y), 4, 4), np.uint8)
        x[np.arange(len(y)), 0, seen] = 255
        np.savez(self.folder / "test.npz", x=x, y=y)
        self.document["test"] = {"npz": "test.npz"}

    def photos(self, n, broken=()):
        """Make a folder of ``n`` test images of three classes, on which the network is right, some of them broken."""
        shutil.rmtree(self.folder / "photos", ignore_errors=True)
        for number in range(n):
            path = self.folder / "photos" / "abc"[number % 3] / f"{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image = np.zeros((4, 4), np.uint8)
            image[0, number % 3] = 255
            Image.fromarray(image).save(path)
            if number in broken:
                path.write_bytes(b"no image")
        self.document["test"] = {"folder": "photos"}

    def findings(self, **arguments):
        names = ("seed", "seeds", "any_counts", "variables")
        file = self.file(**{name: arguments.pop(name) for name in names if name in arguments})
        return examine(file, **arguments)

    def finding(self, what, **arguments):
        (found,) = [found for found in self.findings(**arguments) if found.what == what]
        return found


@pytest.fixture
def patient(tmp_path):
    return Patient(tmp_path)


def listed(patient, name, numbers, present, label=0):
    """A list of images of which only some are there."""
    (patient.folder / "images").mkdir(exist_ok=True)
    for number in present:
        patient.image(f"images/{number}.png")
    (patient.folder / name).write_text("".join(f"{number}.png {label}\n" for number in numbers))
    return {"list": name, "images": "images"}


# A sound suite


def test_every_part_of_a_sound_suite_is_ok(patient):
    np.savez(patient.folder / "more.npz", x=pixels(12, seed=2))
    patient.document["ood_val"] = {"npz": "more.npz", "first": 5}
    patient.document["train"]["expect"] = 12
    patient.document["ood"].append({"name": "twin", "group": "near", "npz": "other.npz", "x": "twin"})
    here = patient.folder
    assert patient.findings() == [
        Finding("train", "ok", str(here / "train.npz"), "12 images", "12 images"),
        Finding("val", "ok", str(here / "pool.npz"), "", "12 of 30 images"),
        Finding("test", "ok", str(here / "test.npz"), "", "300 images"),
        Finding("ood_val", "ok", str(here / "more.npz"), "", "5 of 12 images"),
        Finding("far strange", "ok", str(here / "other.npz"), "", "7 images"),
        Finding("near twin", "ok", str(here / "other.npz"), "", "7 images"),
        Finding("network tiny", "ok", str(here / "w.pt"), "99.50 %", "100.00 %"),
    ]


def test_only_what_is_missing_or_wrong_needs_attention():
    needy = {state: Finding("x", state, "y").needs_attention for state in ("ok", "note", "missing", "wrong")}
    assert needy == {"ok": False, "note": False, "missing": True, "wrong": True}


def test_a_suite_of_saved_features_is_looked_at_too(patient):
    x = torch.eye(3, 6).repeat(40, 1)
    for name, rows in (("train", 30), ("val", 60), ("test", 90)):
        save_bank(FeatureBank(x[:rows] + rows, torch.arange(rows) % 3), patient.folder / name)
        patient.document[name] = {"bank": name}
    save_bank(FeatureBank(-x), patient.folder / "strange")
    patient.document["ood"] = [{"name": "strange", "group": "far", "bank": "strange"}]
    save_file({"weight": torch.eye(3, 6)}, patient.folder / "head.safetensors")
    patient.document["network"] = [{"name": "saved", "linear": "head.safetensors", "accuracy": 99}]
    found = patient.findings(limit=50)
    assert [(each.state, each.found) for each in found] == [
        ("ok", "30 images"),
        ("ok", "60 images"),
        ("ok", "90 images"),
        ("ok", "120 images"),
        ("ok", "100.00 %"),
    ]
    assert found[-1].where == str(patient.folder / "head.safetensors")
    del patient.document["network"][0]["accuracy"]
    assert patient.finding("network saved").sentence.endswith(
        "how many should be (accuracy = ...)."
    )  # features have no mean


# Images that are not there


MISSING = {
    "npz": ({"npz": "none.npz"}, "none.npz"),
    "folder": ({"folder": "none"}, "none"),
    "list": ({"list": "none.txt", "images": "."}, "none.txt"),
    "folder of a list": ({"list": "nets.py", "images": "none"}, "none"),
    "table": ({"table": "none.parquet"}, "none.parquet"),
    "bank": ({"bank": "none"}, "none"),
}


@pytest.mark.parametrize(("source", "where"), MISSING.values(), ids=MISSING)
def test_a_file_or_folder_that_is_not_there_is_missing_where_it_should_lie(patient, source, where):
    patient.document["val"] = source | {"expect": 9}
    sentence = "It is not there. Get it, or correct the path."
    assert patient.finding("val") == Finding("val", "missing", str(patient.folder / where), "9 images", "", sentence)


def test_nothing_keeps_the_other_parts_from_being_looked_at(patient):
    patient.document["train"] = {"npz": "none.npz"}
    patient.document["val"] = {"npz": "w.pt"}
    patient.document["ood"][0] = {"name": "strange", "group": "far", "folder": "none"}
    patient.document["ood"].append({"name": "good", "group": "far", "npz": "other.npz"})
    patient.document["network"] += [
        {"name": "gone", "factory": "nets:tiny", "weights": "none.pt"},
        {"name": "broken", "factory": "nets:wrong"},
        {"name": "whole", "factory": "nets:tiny", "weights": "w.pt", "accuracy": 99.5},
    ]
    assert {found.what: found.state for found in patient.findings()} == {
        "train": "missing",
        "val": "wrong",
        "test": "ok",
        "far strange": "missing",
        "far good": "ok",
        "network tiny": "ok",
        "network gone": "missing",
        "network broken": "wrong",
        "network whole": "ok",
    }


def test_images_that_a_list_names_but_nobody_has_are_counted_and_the_first_are_named(patient):
    patient.document["val"] = listed(patient, "val.txt", range(9), present=[0, 2, 4, 6])
    found = patient.finding("val")
    assert (found.state, found.found, found.where) == ("missing", "4 of 9 images", str(patient.folder / "val.txt"))
    assert found.sentence == (
        "5 of the 9 images that its list names are not there: 1.png, 3.png, 5.png, .... Get them again."
    )
    patient.document["val"] = listed(patient, "val.txt", range(3), present=[])
    patient.document["val"]["expect"] = 4
    assert patient.finding("val").sentence == (
        "There are 3 images, 4 were expected. Get them again. "
        "1 of the 3 images that its list names are not there: 1.png. Get them again."
    )


def nothing(rows, patient):
    place = patient.folder / "images"
    return (
        f"None of the {rows} images that its list names is there: its paths start in {place}; correct images = , or "
        "get them. The first is 0.png."
    )


def test_if_nothing_of_a_list_is_there_it_is_said_where_its_paths_start(patient):
    patient.document["val"] = listed(patient, "val.txt", range(3), present=[])
    assert patient.finding("val").sentence == nothing(3, patient)


def test_a_list_of_which_nothing_is_there_cannot_be_put_together_with_the_others(patient):
    patient.document["ood_val"] = listed(patient, "gone.txt", range(3), present=[])
    patient.document["ood"][0]["name"] = "near"  # which no data set can be called
    found = patient.finding("ood_val")
    assert (found.state, found.found) == ("missing", "0 of 3 images")
    assert "all together" not in {found.what for found in patient.findings()}  # for want of one of them
    listed(patient, "gone.txt", range(3), present=[1])
    assert patient.finding("all together").state == "wrong"


def test_training_images_that_are_optional_may_be_missing(patient):
    left_out = " Without it, methods that learn from it are left out."
    patient.document["train"] = {"npz": "none.npz", "optional": True}
    found = patient.finding("train")
    assert (found.state, found.sentence) == ("note", "It is not there. Get it, or correct the path." + left_out)
    patient.document["train"] = listed(patient, "train.txt", range(4), present=[]) | {"optional": True, "expect": 7}
    found = patient.finding("train")
    assert (found.state, found.sentence) == ("note", nothing(4, patient) + left_out)
    assert (found.expected, found.where) == ("7 images", str(patient.folder / "train.txt"))
    patient.document["train"] = listed(patient, "train.txt", range(4), present=[2]) | {"optional": True}
    assert patient.finding("train").state == "missing"  # half of them is worse than none


def test_a_variable_that_is_not_set_is_said_alike_for_all_that_need_it(patient):
    patient.document["val"] = {"npz": "$TOY/val.npz", "expect": 3}
    patient.document["ood"][0] = {"name": "strange", "group": "far", "list": "a.txt", "images": "${TOY}/images"}
    patient.document["network"][0]["weights"] = "$TOY/s{seed}.pt"
    findings = {found.what: found for found in patient.findings(variables={"TOY": ""}, seed=3)}
    sentence = "The environment variable TOY is not set. Set it to a folder."
    assert findings["val"] == Finding("val", "missing", "$TOY/val.npz", "3 images", "", sentence)
    assert findings["far strange"] == Finding("far strange", "missing", "a.txt and ${TOY}/images", "", "", sentence)
    assert findings["network tiny"] == Finding("network tiny", "missing", "$TOY/s3.pt", "99.50 %", "", sentence)
    assert findings["test"].state == "ok"


# Images that are not as they should be


def test_another_number_of_images_is_wrong_unless_any_will_do(patient):
    patient.document["val"] = {"npz": "pool.npz", "expect": 31}
    expected = ("31 images", "30 images", "There are 30 images, 31 were expected. Get them again.")
    for any_counts, state in ((False, "wrong"), (True, "note")):
        found = patient.finding("val", any_counts=any_counts)
        assert found.state == state
        assert (found.expected, found.found, found.sentence) == expected


def test_images_of_an_older_version_are_called_so_and_only_a_list_is_called_a_list(patient):
    mixed = "of an older version, this one has 6: two versions are mixed."
    patient.document["ood"][0] |= {"expect": 6, "outdated": 7}
    found = patient.finding("far strange")
    assert (found.state, found.expected, found.found) == ("wrong", "6 images", "7 images")
    assert found.sentence == f"7 images are {mixed} Get all data sets again."
    source = listed(patient, "odd.txt", range(7), present=range(7))
    patient.document["ood"][0] = source | {"name": "strange", "group": "far", "expect": 6, "outdated": 7}
    assert patient.finding("far strange").sentence == f"A list of 7 images is {mixed} Get all lists again."


WRONG = {
    "no npz": ({"npz": "nets.py"}, r"npz: .*nets\.py must be a \.npz file"),
    "no labels": ({"npz": "other.npz", "y": "z"}, r"npz: .*other\.npz has no array 'z'"),
    "two sources": ({"npz": "pool.npz", "folder": "."}, r"images come from one of .*, got npz and folder"),
    "own transform": ({"npz": "pool.npz", "std": [1, 2]}, r"std must have one number per channel of L, 1, got 2"),
    "a large draw": ({"npz": "pool.npz", "per_class": 11}, r"per_class = 11 needs as many images of every class"),
    "too many": ({"npz": "pool.npz", "first": 31}, r"first = 31 needs as many images, but there are 30"),
}


@pytest.mark.parametrize(("source", "message"), WRONG.values(), ids=WRONG)
def test_images_that_cannot_be_used_are_wrong_and_the_place_is_not_said_twice(patient, source, message):
    patient.document["val"] = source
    found = patient.finding("val")
    assert (found.state, found.found) == ("wrong", "")
    assert re.match(message, found.sentence)


def test_images_to_judge_on_that_are_learnt_from_are_wrong(patient):
    patient.document["val"] = {"npz": "test.npz", "first": 10}
    assert patient.finding("test").sentence.startswith("10 of its images are in [val] too: methods would be judged")


def test_a_transform_that_cannot_be_is_told_and_the_images_are_counted_nevertheless(patient):
    patient.document["transform"]["mean"] = [1, 2, 3]
    findings = patient.findings()
    assert findings[0].what == "transform"
    assert (findings[0].state, findings[0].where) == ("wrong", str(patient.path))
    assert findings[0].sentence == "[transform]: mean must have one number per channel of L, 1, got 3."
    assert [found.state for found in findings[1:]] == ["ok", "ok", "ok", "ok", "wrong"]
    assert findings[-1].sentence.startswith("It cannot be run on the test images: [transform]: mean must have one")


def test_parts_that_do_not_go_together_are_told(patient):
    patient.document["ood"][0]["name"] = "near"
    found = patient.finding("all together")
    assert (found.state, found.where) == ("wrong", str(patient.path))
    assert found.sentence.startswith("an unknown data set cannot be called 'near'")
    patient.document["ood"][0]["name"] = "strange"
    np.savez(patient.folder / "copy.npz", x=pixels(30), y=np.arange(30) % 3)
    patient.document["val"], patient.document["test"] = {"npz": "pool.npz"}, {"npz": "copy.npz"}
    assert patient.finding("all together").sentence.startswith("test and val hold the same images")


# Images that cannot be read, or are of different sizes


LEFT_OUT = "A benchmark leaves them out."
TOO_MANY = "A benchmark leaves out 1 % at most: replace or remove them, or give it --max-unreadable."


@pytest.mark.parametrize("accuracy", [True, False])
def test_broken_images_up_to_one_in_a_hundred_are_noted(patient, accuracy):
    patient.photos(200, broken=[141, 31])
    found = patient.finding("test", accuracy=accuracy, read=True)
    assert (found.state, found.found) == ("note", "200 images")
    assert found.sentence == f"2 of 200 images cannot be read: a/141.png, b/031.png. {LEFT_OUT}"


@pytest.mark.parametrize("accuracy", [True, False])
def test_more_broken_images_than_a_benchmark_leaves_out_are_wrong(patient, accuracy):
    patient.photos(300, broken=[30, 33, 36, 39])
    found = patient.finding("test", accuracy=accuracy, read=True)
    shown = "a/030.png, a/033.png, a/036.png, ..."
    assert (found.state, found.found) == ("wrong", "300 images")
    assert found.sentence == f"4 of 300 images cannot be read: {shown}. {TOO_MANY}"


def test_what_is_broken_and_what_a_benchmark_leaves_out_are_the_same(patient, tmp_path):
    for n, state in ((200, "note"), (199, "wrong")):
        patient.photos(n, broken=[0, 100])
        assert patient.finding("test", read=True).state == state
        with pytest.raises(UnreadableImage) if state == "wrong" else nullcontext():
            extract_all(patient.suite(), tmp_path / str(n))


def test_a_network_is_run_on_what_can_be_read_and_the_rest_is_told_of_the_test_images(patient):
    patient.photos(300, broken=[90, 151])
    findings = {found.what: found for found in patient.findings()}
    assert (findings["network tiny"].state, findings["network tiny"].found) == ("ok", "100.00 %")
    assert findings["test"].sentence == f"2 of 300 images cannot be read: a/090.png, b/151.png. {LEFT_OUT}"
    del patient.document["network"][0]["accuracy"]
    assert patient.finding("network tiny").sentence.startswith("100.00 % of 298 test images are right;")
    patient.photos(30, broken=[29])
    findings = {found.what: found for found in patient.findings()}
    assert findings["network tiny"].found == "100.00 %"
    assert (findings["test"].state, findings["test"].sentence) == (
        "wrong",
        f"1 of 30 images cannot be read: c/029.png. {TOO_MANY}",
    )


def test_two_networks_tell_of_a_broken_image_once(patient):
    patient.photos(120, broken=[0])
    patient.document["network"].append({"name": "other", "factory": "nets:tiny", "weights": "w.pt"})
    assert patient.finding("test").sentence == f"1 of 120 images cannot be read: a/000.png. {LEFT_OUT}"


def test_of_images_that_are_not_read_nothing_bad_is_thought(patient):
    patient.photos(300, broken=[0])
    more = " Read all of them with --read."
    for limit in (20, 299):
        found = patient.finding("test", limit=limit)
        assert (found.state, found.sentence) == (
            "note",
            f"At least 1 of 300 images cannot be read: a/000.png. {LEFT_OUT}{more}",
        )
    patient.photos(300, broken=range(240, 300))
    assert patient.finding("test", accuracy=False).state == "ok"
    assert patient.finding("test", accuracy=False, read=True).state == "wrong"


def test_images_none_of_which_can_be_read_are_wrong_however_many_there_are(patient):
    patient.document["val"] = listed(patient, "val.txt", [0] * 20 + [1] * 1981, present=[0, 1])
    (patient.folder / "images" / "0.png").write_bytes(b"no image")
    found = patient.finding("val")  # of which the first 20 are read, less than one in a hundred
    assert found.state == "wrong"
    assert found.sentence.startswith("At least 20 of 2001 images cannot be read: 0.png, 0.png, 0.png, .... A benchmark")
    assert patient.finding("val", read=True).state == "note"
    patient.photos(30, broken=range(30))
    assert patient.finding("test").state == "wrong"
    assert patient.finding("network tiny").sentence.startswith(
        "It cannot be run on the test images: not a single image could be read."
    )


def test_images_of_a_list_that_are_not_there_are_not_called_broken_too(patient):
    patient.document["val"] = listed(patient, "val.txt", range(9), present=range(4, 9))
    (patient.folder / "images" / "8.png").write_bytes(b"no image")
    found = patient.finding("val", read=True)
    assert found.state == "missing"
    assert found.sentence == (
        "4 of the 9 images that its list names are not there: 0.png, 1.png, 2.png, .... Get them again. "
        f"1 of 5 images cannot be read: 8.png. {TOO_MANY}"
    )


def test_rows_of_a_table_that_cannot_be_read_are_told_by_their_number(patient):
    pyarrow = pytest.importorskip("pyarrow", reason="tables need the extra flatfold[parquet]")
    from pyarrow.parquet import write_table

    patient.image("a.png")
    content = [(patient.folder / "a.png").read_bytes()] * 8
    content[5] = b"no image"
    write_table(pyarrow.table({"image": content}), patient.folder / "odd.parquet")
    patient.document["ood"][0] = {"name": "strange", "group": "far", "table": "odd.parquet", "skip": 2}
    assert patient.finding("far strange").sentence.startswith("1 of 6 images cannot be read: row 5. ")


def test_prepared_images_of_different_sizes_are_wrong_in_any_part_and_two_are_named(patient):
    del patient.document["network"][0]["accuracy"]
    for number in range(30):
        patient.image(f"odd/{number:02}.png", size=(4, 4) if number != 7 else (5, 9))
    patient.document["ood"][0] = {"name": "strange", "group": "far", "folder": "odd"}
    found = patient.finding("far strange")
    assert (found.state, found.found) == ("wrong", "30 images")
    assert found.sentence == (
        "Prepared images differ in size: 00.png has 4 x 4 pixels, 07.png has 5 x 9. Give the transform a resize and a "
        "crop."
    )
    patient.document["transform"]["resize"] = 4
    assert "00.png has 4 x 4 pixels, 07.png has 4 x 7." in patient.finding("far strange").sentence
    patient.document["transform"]["crop"] = 4
    assert patient.finding("far strange") == Finding("far strange", "ok", str(patient.folder / "odd"), "", "30 images")


def test_the_first_twenty_images_are_looked_at_and_all_of_them_if_that_is_wanted(patient):
    for number in range(25):
        patient.image(f"odd/{number:02}.png", size=(4, 4) if number < 20 else (5, 5))
    patient.document["ood"][0] = {"name": "strange", "group": "far", "folder": "odd"}
    assert patient.finding("far strange").state == "ok"
    found = patient.finding("far strange", read=True)
    assert found.state == "wrong"
    assert "00.png has 4 x 4 pixels, 20.png has 5 x 5." in found.sentence
    patient.image("odd/19.png", size=(5, 5))
    assert patient.finding("far strange").state == "wrong"


def test_sizes_are_those_that_a_network_would_see(patient):
    for number in range(3):
        patient.image(f"odd/{number}.png", size=(4 + number, 4))
    patient.document["ood"][0] = {"name": "strange", "group": "far", "folder": "odd"}
    assert patient.finding("far strange").state == "wrong"
    patient.document["network"][0]["transform"] = {"crop": 4}
    assert patient.finding("far strange").state == "ok"
    patient.document["network"].append({"name": "other", "factory": "nets:tiny", "weights": "w.pt"})
    assert patient.finding("far strange").state == "wrong"
    patient.document["ood"][0]["crop"] = 4
    assert patient.finding("far strange").state == "ok"


def test_an_image_that_cannot_be_prepared_is_wrong(patient):
    patient.image("odd/0.png", size=(5, 5))
    patient.image("odd/1.png", size=(4, 4))
    patient.document["ood"][0] = {"name": "strange", "group": "far", "folder": "odd", "crop": 5}
    found = patient.finding("far strange")
    assert (found.state, found.found) == ("wrong", "2 images")
    assert found.sentence.startswith("1.png: a crop of 5 needs an image at least that large, got 4 x 4.")


# Networks


def test_weights_that_are_not_there_or_do_not_fit_are_told(patient):
    patient.document["network"][0] |= {"weights": "none.pt", "accuracy": 90}
    found = patient.finding("network tiny")
    assert (found.state, found.where, found.expected) == ("missing", str(patient.folder / "none.pt"), "90.00 %")
    assert found.sentence.startswith("weights: there is no file ")
    patient.document["network"][0]["weights"] = "w.pt"
    torch.save({"2.weight": torch.zeros(3, 15), "2.bias": torch.zeros(3)}, patient.folder / "w.pt")
    found = patient.finding("network tiny")
    assert found.state == "wrong"
    assert re.match(r"weights: .*w\.pt does not fit the network: another shape has '2\.weight'", found.sentence)


def test_every_seed_of_a_network_is_looked_at(patient):
    torch.save(torch.load(patient.folder / "w.pt", weights_only=True), patient.folder / "w1.pt")
    patient.document["network"][0] |= {"weights": "w{seed}.pt", "seeds": [0, 1]}
    states = {found.what: (found.state, found.where) for found in patient.findings()}
    assert states["network tiny-s0"] == ("missing", str(patient.folder / "w0.pt"))
    assert states["network tiny-s1"] == ("ok", str(patient.folder / "w1.pt"))
    assert "network tiny-s0" not in {found.what for found in patient.findings(seeds=[1])}


def test_what_makes_a_network_says_where_if_it_has_no_file(patient):
    patient.document["network"][0] = {"name": "tiny", "factory": "nets:wrong"}
    found = patient.finding("network tiny")
    assert (found.state, found.where) == ("wrong", "nets:wrong")
    assert found.sentence == "factory: wrong() must return a torch.nn.Module, not str."


CAUSES = "Typical causes: another transform, another order of classes, another checkpoint."
PLAIN = "No mean and std are set: is the network used to values from 0 to 1?"


@pytest.mark.parametrize(("right", "state"), [(252, "ok"), (270, "ok"), (288, "ok"), (251, "wrong"), (289, "wrong")])
def test_an_accuracy_is_right_within_three_standard_errors_and_one_point(patient, right, state):
    # 90 % of 300 images: 3 * sqrt(0.9 * 0.1 / 300) + 0.01 = 0.0620, so 251.4 to 288.6 images
    patient.document["network"][0]["accuracy"] = 90
    patient.answers(np.arange(300) % 3, right=np.arange(300) < right)
    found = patient.finding("network tiny")
    assert (found.state, found.expected, found.found) == (state, "90.00 %", f"{right / 3:.2f} %")
    assert found.sentence == (
        "" if state == "ok" else f"{right / 3:.2f} % of 300 test images are right, 90.00 % should be. {CAUSES} {PLAIN}"
    )


def test_an_accuracy_of_which_nothing_is_said_is_noted(patient):
    del patient.document["network"][0]["accuracy"]
    unknown = "test images are right; the suite does not say how many should be (accuracy = ...)."
    for right, guessed in ((150, ""), (120, f" Guessing would be as good. {CAUSES}")):
        patient.answers(np.arange(300) % 3, right=np.arange(300) < right)
        sentence = f"{right / 3:.2f} % of 300 {unknown}{guessed} {PLAIN}"
        where, share = str(patient.folder / "w.pt"), f"{right / 3:.2f} %"
        assert patient.finding("network tiny") == Finding("network tiny", "note", where, "", share, sentence)


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("place", ["transform", "network", "test"])
def test_values_that_are_normalised_anywhere_are_not_asked_for(patient, name, place):
    network = patient.document["network"][0]
    del network["accuracy"]
    assert patient.finding("network tiny").sentence.endswith(PLAIN)
    table = {"transform": patient.document["transform"], "test": patient.document["test"], "network": {}}[place]
    table[name] = [0.5]
    if place == "network":
        network["transform"] = table
    assert patient.finding("network tiny").sentence.endswith("(accuracy = ...).")


def test_a_network_is_run_on_as_many_images_of_each_class_as_can_be(patient):
    y = np.repeat([0, 1, 2], [200, 60, 40])
    patient.answers(y, right=y == 0)  # 67 % of all images, but one class of three
    assert patient.finding("network tiny").found == "66.67 %"
    assert patient.finding("network tiny", limit=60).found == "33.33 %"
    del patient.document["network"][0]["accuracy"]
    sentence = patient.finding("network tiny", limit=60).sentence
    assert sentence.startswith("33.33 % of 60 test images are right;")
    assert "Guessing would be as good." in sentence


def test_more_classes_than_the_network_has_are_told(patient):
    patient.answers(np.arange(300) % 3)
    with np.load(patient.folder / "test.npz") as arrays:
        np.savez(patient.folder / "test.npz", x=arrays["x"], y=np.where(np.arange(300) == 7, 3, arrays["y"]))
    found = patient.finding("network tiny")
    assert (found.state, found.found) == ("wrong", "99.67 %")
    assert found.sentence == "The test images have labels up to 3, but the network has 3 classes."


def test_a_network_without_usable_test_images_is_said_to_be_unchecked(patient):
    for test in (
        {"npz": "none.npz"},
        {"npz": "w.pt"},
        listed(patient, "test.txt", range(4), present=[1, 2]),
    ):
        patient.document["test"] = test
        found = patient.finding("network tiny")
        assert (found.state, found.found) == ("note", "")
        assert found.sentence == "Its accuracy is unchecked, because there are no test images that could be used."


def test_test_images_of_another_number_are_used_nevertheless(patient):
    patient.document["test"]["expect"] = 301
    assert patient.finding("test").state == "wrong"
    assert patient.finding("network tiny").found == "100.00 %"


def test_a_network_is_not_run_if_that_is_not_wanted(patient, monkeypatch):
    monkeypatch.setattr("flatfold.evaluate.suites.doctor_networks.one_pass", None)
    patient.document["network"][0]["accuracy"] = 50
    found = patient.finding("network tiny", accuracy=False)
    assert found == Finding("network tiny", "ok", str(patient.folder / "w.pt"), "50.00 %")


def test_a_network_that_cannot_be_run_is_wrong(patient):
    patient.document["transform"]["resize"] = 5
    found = patient.finding("network tiny")
    assert (found.state, found.found) == ("wrong", "")
    assert found.sentence.startswith("It cannot be run on the test images: ")
    del patient.document["transform"]["resize"]
    patient.document["network"][0]["head"] = "nothing"
    assert "nothing" in patient.finding("network tiny").sentence


def test_a_network_is_run_with_its_own_transform(patient):
    patient.document["network"].append({"name": "other", "factory": "nets:tiny", "weights": "w.pt"})
    patient.document["network"][1]["transform"] = {"resize": 5}
    states = {found.what: found.state for found in patient.findings()}
    assert (states["network tiny"], states["network other"]) == ("ok", "wrong")
    patient.document["network"][1]["transform"] = {"mean": [1, 2]}
    found = patient.finding("network other")
    assert found.sentence.startswith("It cannot be run on the test images: [transform], as a network changes it: mean")


# The suites of OpenOOD


def test_a_suite_of_openood_without_its_folder_shows_what_it_needs(monkeypatch):
    monkeypatch.delenv("OPENOOD", raising=False)
    findings = examine(open_suite_file("cifar10"))
    benchmark = BENCHMARKS["cifar10"]
    sentence = (
        "The environment variable OPENOOD is not set. Set it to the folder that holds OpenOOD's data and results, "
        "or give --data."
    )
    assert {(found.state, found.sentence) for found in findings} == {("missing", sentence)}
    expected = [f"{listed.count} images" for listed in benchmark.every.values()]
    assert [found.expected for found in findings] == expected + 3 * ["95.06 %"]
    assert findings[-1].where == f"$OPENOOD/{benchmark.checkpoints[-1]}"


def test_the_gaps_of_a_tree_of_openood_are_found(tmp_path):
    root, benchmark = make_openood(tmp_path, "cifar10"), BENCHMARKS["cifar10"]
    (root / benchmark.checkpoints[1]).unlink()
    torch.save({"fc.weight": torch.zeros(10, 512)}, root / benchmark.checkpoints[2])
    list_path(root, benchmark, benchmark.far["svhn"]).unlink()
    (root / "data" / "images_classic" / benchmark.far["mnist"].path.format(0)).unlink()
    tin = list_path(root, benchmark, benchmark.near["tin"])
    tin.write_text("".join((tin.read_text() * 1000).splitlines(keepends=True)[:8793]))
    findings = {found.what: found for found in examine(open_suite_file("cifar10", data=root), limit=20)}
    assert findings["far svhn"].state == "missing"
    assert findings["far svhn"].where == str(list_path(root, benchmark, benchmark.far["svhn"]))
    assert findings["far mnist"].sentence == (
        "There are 9 images, 70000 were expected. Get them again. "
        "1 of the 9 images that its list names are not there: mnist/test/0.jpg. Get them again."
    )
    assert findings["near tin"].sentence.startswith("A list of 8793 images is of an older version, this one has 7793:")
    assert findings["test"].found == "30 images"
    networks = [findings[f"network resnet18-s{seed}"] for seed in range(3)]
    assert [found.state for found in networks] == ["wrong", "missing", "wrong"]
    assert "of 20 test images are right, 95.06 % should be." in networks[0].sentence
    assert "does not fit the network: it lacks" in networks[2].sentence
