"""`evaluate.suites.doctor`: every part of a suite is examined, and every problem is found where it lies."""

import shutil
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from flatfold import UnreadableImageError
from flatfold.evaluate.banks import extract_all
from flatfold.evaluate.suites.doctor import Diagnosis, examine, how_to_download
from flatfold.evaluate.suites.library import open_suite_file
from tests.toy_suite import World, pixels


class Patient(World):
    """A suite whose network is right on every test image, until a test changes it."""

    def __init__(self, folder):
        super().__init__(folder)
        torch.save({"2.weight": torch.eye(3, 16), "2.bias": torch.zeros(3)}, folder / "w.pt")
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

    def listed(self, name, numbers, present, label=0):
        """A list of images of which only some are there."""
        (self.folder / "images").mkdir(exist_ok=True)
        for number in present:
            self.image(f"images/{number}.png")
        (self.folder / name).write_text("".join(f"{number}.png {label}\n" for number in numbers))
        return {"list": name, "images": "images"}

    def findings(self, **arguments):
        file = self.file(any_counts=True, variables=arguments.pop("variables", None))
        return {found.what: found for found in examine(file, **arguments)}

    def check(self, what, state, *words, found=None, **arguments):
        """Check the state of one part, what was found, and words of its sentence; return the finding."""
        finding = self.findings(**arguments)[what]
        assert finding.state == state, finding
        assert found is None or finding.found == found, finding
        for word in words:
            assert word in finding.sentence, finding
        return finding


@pytest.fixture
def patient(tmp_path):
    return Patient(tmp_path)


def test_every_part_of_a_valid_suite_is_ok(patient):
    np.savez(patient.folder / "more.npz", x=pixels(12, seed=2))
    patient.document["ood_val"] = {"npz": "more.npz", "first": 5}
    patient.document["train"]["expect"] = 12
    patient.document["ood"].append({"name": "twin", "group": "near", "npz": "other.npz", "x": "twin"})
    here = patient.folder
    assert list(patient.findings().values()) == [
        Diagnosis("train", "ok", str(here / "train.npz"), "12 images", "12 images"),
        Diagnosis("val", "ok", str(here / "pool.npz"), "", "12 of 30 images"),
        Diagnosis("test", "ok", str(here / "test.npz"), "", "300 images"),
        Diagnosis("ood_val", "ok", str(here / "more.npz"), "", "5 of 12 images"),
        Diagnosis("far strange", "ok", str(here / "other.npz"), "", "7 images"),
        Diagnosis("near twin", "ok", str(here / "other.npz"), "", "7 images"),
        Diagnosis("network tiny", "ok", str(here / "w.pt"), "99.50 %", "100.00 %"),
    ]
    needy = {state: Diagnosis("x", state, "y").needs_attention for state in ("ok", "note", "missing", "wrong")}
    assert needy == {"ok": False, "note": False, "missing": True, "wrong": True}


def test_without_code_none_of_the_suite_is_run_and_files_are_looked_for_all_the_same(patient):
    (patient.folder / "nets.py").write_text("raise SystemExit('this was run')")
    assert patient.check("network tiny", "note", "no code", code=False).found == ""
    assert patient.findings(code=False)["test"].state == "ok"
    (patient.folder / "w.pt").unlink()
    patient.check("network tiny", "missing", "w.pt", code=False)


def test_a_file_or_folder_that_is_not_there_is_missing_where_it_should_lie(patient):
    for source, where in (
        ({"npz": "none.npz"}, "none.npz"), ({"folder": "none"}, "none"),
        ({"list": "none.txt", "images": "."}, "none.txt"), ({"list": "nets.py", "images": "none"}, "none"),
        ({"table": "none.parquet"}, "none.parquet"), ({"bank": "none"}, "none"),
    ):  # fmt: skip
        patient.document["val"] = source | {"expect": 9}
        finding = patient.check("val", "missing", "not there", found="", accuracy=False)
        assert (finding.where, finding.expected) == (str(patient.folder / where), "9 images"), source
    patient.document["train"] = {"npz": "none.npz", "optional": True}
    patient.check("train", "note", "left out")
    patient.document["train"] = patient.listed("train.txt", range(4), present=[2]) | {"optional": True}
    patient.check("train", "missing")  # half of them is worse than none
    patient.document["val"] = {"npz": "$TOY/val.npz"}
    assert patient.check("val", "missing", "TOY is not set", variables={"TOY": ""}).where == "$TOY/val.npz"


def test_nothing_keeps_the_other_parts_from_being_examined(patient):
    patient.document["train"] = {"npz": "none.npz"}
    patient.document["val"] = {"npz": "w.pt"}
    patient.document["ood"][0] = {"name": "strange", "group": "far", "folder": "none"}
    patient.document["ood"].append({"name": "good", "group": "far", "npz": "other.npz"})
    patient.document["network"] += [
        {"name": "seeded", "factory": "nets:tiny", "weights": "w{seed}.pt", "seeds": [0, 2]},
        {"name": "broken", "factory": "nets:wrong"},
        {"name": "whole", "factory": "nets:tiny", "weights": "w.pt", "accuracy": 99.5},
    ]  # fmt: skip
    torch.save({"2.weight": torch.zeros(3, 15), "2.bias": torch.zeros(3)}, patient.folder / "w2.pt")
    findings = patient.findings()
    states = ["missing", "wrong", "ok", "missing", "ok", "ok", "missing", "wrong", "wrong", "ok"]
    assert [found.state for found in findings.values()] == states
    assert findings["network broken"].where == "nets:wrong"
    assert "wrong()" in findings["network broken"].sentence
    assert findings["network seeded-s0"].where == str(patient.folder / "w0.pt")
    assert "2.weight" in findings["network seeded-s2"].sentence


def test_images_that_a_list_names_but_nobody_has_are_counted_and_the_first_are_named(patient):
    patient.document["val"] = patient.listed("val.txt", range(9), present=[0, 2, 4, 6])
    (patient.folder / "images" / "6.png").write_bytes(b"no image")  # only this one is called broken
    words = ("5 of the 9", "1.png, 3.png, 5.png, ...", "1 of 4 images cannot be read: 6.png")
    finding = patient.check("val", "missing", *words, found="4 of 9 images")
    assert finding.where == str(patient.folder / "val.txt")
    patient.document["val"] = patient.listed("val.txt", range(3), present=[]) | {"expect": 4}
    patient.check("val", "missing", "4 were expected", "1 of the 3", "1.png")
    shutil.rmtree(patient.folder / "images")
    patient.document["val"] = patient.listed("val.txt", range(3), present=[])
    patient.check("val", "missing", "None of the 3", str(patient.folder / "images"), "0.png")


def test_parts_that_do_not_go_together_are_told_if_all_of_them_are_there(patient):
    patient.document["ood"][0]["name"] = "near"  # which no data set can be called
    assert patient.check("all together", "wrong", "'near'").where == str(patient.path)
    patient.document["ood_val"] = patient.listed("gone.txt", range(3), present=[])
    patient.check("ood_val", "missing", found="0 of 3 images")
    assert "all together" not in patient.findings()  # for want of one of them
    patient.listed("gone.txt", range(3), present=[1])
    patient.check("all together", "wrong")


def test_images_that_cannot_be_used_and_unexpected_numbers_of_them_are_wrong(patient):
    patient.document["val"] = {"npz": "pool.npz", "expect": 31}
    finding = patient.check("val", "wrong", "31 were expected", found="30 images")
    assert finding.expected == "31 images"
    patient.document["ood"][0] |= {"expect": 6, "outdated": 7}
    patient.check("far strange", "wrong", "older version", found="7 images")
    patient.document["test"]["expect"] = 301
    patient.check("test", "wrong")
    patient.check("network tiny", "ok", found="100.00 %")  # test images of another number are used nevertheless
    patient.document["test"] = {"npz": "test.npz"}
    for source, keyword in (
        ({"npz": "nets.py"}, "npz: "), ({"npz": "other.npz", "y": "z"}, "'z'"),
        ({"npz": "pool.npz", "folder": "."}, "npz and folder"), ({"npz": "pool.npz", "std": [1, 2]}, "std must"),
        ({"npz": "pool.npz", "per_class": 11}, "per_class = 11"), ({"npz": "pool.npz", "first": 31}, "first = 31"),
    ):  # fmt: skip
        patient.document["val"] = source
        finding = patient.check("val", "wrong", keyword, found="", accuracy=False)
        assert "[val]" not in finding.sentence, source  # the part is named already
    patient.document["val"] = {"npz": "test.npz", "first": 10}
    patient.check("test", "wrong", "10 of its images are in [val]")
    patient.document |= {"val": {"npz": "pool.npz"}, "transform": {"mode": "L", "mean": [1, 2, 3]}}
    patient.check("transform", "wrong", "mean must")
    patient.check("train", "ok", found="12 images")  # images are counted nevertheless
    patient.check("network tiny", "wrong", "mean must")


@pytest.mark.parametrize("accuracy", [True, False])
def test_broken_images_up_to_one_in_a_hundred_are_noted_as_a_benchmark_leaves_them_out(patient, tmp_path, accuracy):
    for n, state in ((200, "note"), (199, "wrong")):
        patient.photos(n, broken=[141, 31])
        patient.check("test", state, f"2 of {n}", "a/141.png, b/031.png.", accuracy=accuracy, read=True)
        with pytest.raises(UnreadableImageError) if state == "wrong" else nullcontext():
            extract_all(patient.suite(), tmp_path / str(n))


def test_a_network_is_run_on_what_can_be_read_and_broken_images_are_told_once(patient):
    patient.photos(300, broken=[90, 151])
    patient.document["network"].append({"name": "other", "factory": "nets:tiny", "weights": "w.pt"})
    patient.check("network tiny", "ok", found="100.00 %")
    patient.check("network other", "note", "100.00 % of 298")
    patient.check("test", "note", "2 of 300 images cannot be read: a/090.png, b/151.png.")
    patient.photos(300, broken=range(240, 300))
    patient.check("test", "ok", accuracy=False)  # images that are not read are not taken for broken
    patient.check("test", "wrong", "a/240.png, a/243.png, a/246.png, ...", accuracy=False, read=True)
    patient.photos(30, broken=range(30))
    patient.check("test", "wrong", "20 of 30")
    patient.check("network tiny", "wrong", "not a single image")


def test_prepared_images_of_different_sizes_are_wrong_and_two_are_named(patient):
    for number in range(25):
        patient.image(f"odd/{number:02}.png", size=(5, 9) if number == 7 else (4, 4))
    patient.document["ood"][0] = {"name": "strange", "group": "far", "folder": "odd"}
    patient.check("far strange", "wrong", "00.png has 4 x 4 pixels, 07.png has 5 x 9", found="25 images")
    patient.image("odd/07.png")
    patient.image("odd/20.png", size=(5, 9))
    patient.check("far strange", "ok")  # the first twenty are looked at
    patient.check("far strange", "wrong", "20.png has 5 x 9", read=True)
    patient.image("odd/19.png", size=(5, 9))
    patient.document["transform"]["resize"] = 4
    patient.check("far strange", "wrong", "19.png has 4 x 7")
    patient.document["network"][0]["transform"] = {"crop": 4}  # sizes are those that a network would see
    patient.check("far strange", "ok", found="25 images")
    patient.document["ood"][0]["crop"] = 5
    patient.check("far strange", "wrong", "00.png", "crop of 5")


@pytest.mark.parametrize(("right", "state"), [(252, "ok"), (288, "ok"), (251, "wrong"), (289, "wrong")])
def test_an_accuracy_is_right_within_three_standard_errors_and_one_point(patient, right, state):
    # 90 % of 300 images: 3 * sqrt(0.9 * 0.1 / 300) + 0.01 = 0.0620, so 251.4 to 288.6 images
    patient.document["network"][0]["accuracy"] = 90
    patient.answers(np.arange(300) % 3, right=np.arange(300) < right)
    finding = patient.check("network tiny", state, found=f"{right / 3:.2f} %")
    assert finding.expected == "90.00 %"
    assert ("90.00 %" in finding.sentence) == (state == "wrong")


def test_an_accuracy_that_the_suite_does_not_expect_is_noted_with_a_hint_if_it_is_low(patient):
    network = patient.document["network"][0]
    del network["accuracy"]
    for right, guessed in ((150, False), (120, True)):
        patient.answers(np.arange(300) % 3, right=np.arange(300) < right)
        finding = patient.check("network tiny", "note", "accuracy = ", "No mean", found=f"{right / 3:.2f} %")
        assert ("Guessing" in finding.sentence) == guessed, right
    y = np.repeat([0, 1, 2], [200, 60, 40])
    patient.answers(y, right=y == 0)  # 67 % of all images, but one class of three
    patient.check("network tiny", "note", found="66.67 %")
    patient.check("network tiny", "note", "of 60", "Guessing", found="33.33 %", limit=60)  # as many of each class
    network["transform"] = {"std": [0.5]}
    assert "No mean" not in patient.check("network tiny", "note").sentence


def test_a_network_without_usable_test_images_is_unchecked_and_one_that_cannot_be_run_is_wrong(patient):
    for test in ({"npz": "none.npz"}, {"npz": "w.pt"}, patient.listed("test.txt", range(4), present=[1, 2])):
        patient.document["test"] = test
        patient.check("network tiny", "note", "unchecked", found="")
    patient.document["test"] = {"npz": "test.npz"}
    patient.document["network"][0]["accuracy"] = 50
    finding = patient.check("network tiny", "ok", found="", accuracy=False)  # though it would be wrong
    assert (finding.expected, finding.sentence) == ("50.00 %", "")
    patient.document["network"][0]["accuracy"] = 99.5
    patient.document["network"] += [
        {"name": "large", "factory": "nets:tiny", "weights": "w.pt", "transform": {"resize": 5}},
        {"name": "colour", "factory": "nets:tiny", "weights": "w.pt", "transform": {"mean": [1, 2]}},
        {"name": "headless", "factory": "nets:tiny", "weights": "w.pt", "head": "nothing"},
    ]
    findings = patient.findings()
    assert findings["network tiny"].state == "ok"
    labels = np.where(np.arange(300) == 7, 3, np.arange(300) % 3)
    np.savez(patient.folder / "test.npz", x=np.load(patient.folder / "test.npz")["x"], y=labels)
    patient.check("network tiny", "wrong", "labels up to 3", found="99.67 %")
    for name, keyword in (("large", "cannot be run"), ("colour", "mean"), ("headless", "nothing")):
        found = findings[f"network {name}"]
        assert (found.state, found.found) == ("wrong", ""), name
        assert keyword in found.sentence


@pytest.mark.parametrize(
    ("suite", "images", "weights"),
    [
        ("cifar10", "cifar10 tin cifar100 mnist svhn texture places365", "cifar10_res18_v1.5"),
        ("cifar100", "cifar100 tin cifar10 mnist svhn texture places365", "cifar100_res18_v1.5"),
        ("imagenet200", "imagenet_1k openimage_o ssb_hard ninco inaturalist texture", "imagenet200_res18_v1.5"),
        ("imagenet1k", "imagenet_1k openimage_o ssb_hard ninco inaturalist texture", "resnet50-0676ba61.pth"),
    ],
)
def test_the_archives_of_openood_are_named_where_their_files_are_missing(suite, images, weights, tmp_path):
    file = open_suite_file(suite, data=tmp_path, any_counts=True)
    text = "\n".join(how_to_download(examine(file), "HERE"))
    assert f"--datasets {images} --save_dir HERE/data HERE/results" in text
    assert weights in text
    large = {"imagenet_1k", "ssb_hard", "ninco", "inaturalist", "openimage_o"}
    for archive in images.split():
        folder = "images_largescale" if archive in large else "images_classic"
        assert f": {archive}.zip, unpacked in HERE/data/{folder}/{archive}\n" in text
    for network in file.networks:  # a file that the suite asks for
        assert network.table.weights.replace("$OPENOOD/", "").replace("{seed}", "0") in text
    assert how_to_download([replace(d, absent=False) for d in examine(file)], "HERE") == []
