"""`flatfold score` on real features and images: the scores of the reference, and alarms at the rate asked for."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.command import flatfold
from tests.real.conftest import images


@pytest.fixture
def here(golden, tmp_path, monkeypatch):
    """The golden features as files of their own."""
    monkeypatch.chdir(tmp_path)
    tensors = {name: torch.from_numpy(golden[name]) for name in ("W", "b")}
    save_file({"weight": tensors["W"], "bias": tensors["b"]}, "head.safetensors")
    for split in ("train", "val", "test_id"):
        labels = torch.from_numpy(golden[f"{split}_label"].astype(np.int64))
        save_file({"features": torch.from_numpy(golden[f"{split}_feat"]), "labels": labels}, f"{split}.safetensors")
    np.save("test_ood.npy", golden["test_ood_feat"])
    return tmp_path


def scored(features, *arguments):
    done = flatfold("score-features", features, "--head", "head.safetensors", *arguments)
    assert done.returncode == 0, done.stderr
    lines = list(csv.DictReader(done.stdout.splitlines()))
    return {name: np.array([line[name] for line in lines]) for name in lines[0]}


@pytest.mark.parametrize(
    ("case", "arguments", "tolerance"),
    [
        ("fold_a0.7_norm0", ["--method", "fold:alpha=0.7"], 1e-5),
        ("ebo", ["--method", "ebo"], 1e-6),
        ("react_p90", ["--method", "react:percentile=90", "--fit", "val.safetensors"], 1e-6),
        ("knn_k50", ["--method", "knn:k=50", "--fit", "train.safetensors"], 3e-7),
    ],
)
def test_scores_are_those_of_the_reference(here, golden, case, arguments, tolerance):
    for file, side in (("test_id.safetensors", "id"), ("test_ood.npy", "ood")):
        got = scored(file, *arguments)["score"].astype(np.float32)
        np.testing.assert_allclose(got, -golden[f"score_{case}_{side}"], rtol=0, atol=tolerance)


def test_alarms_come_at_the_rate_asked_for_and_more_often_on_unknown_images(here, golden):
    arguments = ["--method", "autofold", "--fit", "train.safetensors", "--calibration", "val.safetensors"]
    known, unknown = (scored(file, *arguments, "--fpr", "0.1") for file in ("test_id.safetensors", "test_ood.npy"))
    rate = (known["is_ood"] == "true").mean()
    assert rate < 0.1 + 3 * (0.09 / 400 + 0.09 / 500) ** 0.5  # both samples are draws
    assert (unknown["is_ood"] == "true").mean() > 2 * rate
    assert (known["label"] == known["predicted"]).mean() > 0.9
    assert np.array_equal(known["label"].astype(int), golden["test_id_label"])


MODEL = ("--model", "cifar_resnet:resnet20", "--weights", "cifar10_resnet20.safetensors")
PREPARED = ("--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225")


@pytest.fixture
def photos(data, tmp_path, monkeypatch):
    """A pretrained ResNet-20, and PNG files: known ones by class to fit on, known and unknown ones to score."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[2] / "examples" / "cifar_resnet.py", tmp_path)
    shutil.copy(data / "cifar10_resnet20.safetensors", tmp_path)
    known, unknown = images(data, "cifar10_test"), images(data, "textures_dtd10_32")
    for row in range(1300):
        label = int(known.labels[row])
        folder = tmp_path / "val" / str(label) if row < 1000 else tmp_path / "known"
        write_png(folder / f"{row:05d}.png", known, row)
        if row < 300:
            write_png(tmp_path / "unknown" / f"{row:05d}.png", unknown, row)
    (tmp_path / "known" / "01007.png").write_bytes((tmp_path / "known" / "01007.png").read_bytes()[:900])
    return tmp_path


def write_png(path, source, row):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(source.picture(row)[1]).save(path)


def test_images_raise_alarms_at_the_rate_asked_for_and_more_often_when_they_are_unknown(photos):
    done = flatfold("fit", "val", *MODEL, *PREPARED, "--fpr", "0.1", "--out", "guard.safetensors")
    assert done.returncode == 0, done.stderr
    alarms = {}
    for place, expected, count in (("known", 3, 299), ("unknown", 0, 300)):
        done = flatfold("score", place, "--guard", "guard.safetensors", *MODEL, "--out", f"{place}.csv")
        assert done.returncode == expected, done.stderr
        with (photos / f"{place}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == count
        alarms[place] = np.mean([row["is_ood"] == "true" for row in rows])
    assert alarms["known"] < 0.1 + 3 * (0.09 / 500 + 0.09 / 299) ** 0.5  # both samples are draws
    assert alarms["unknown"] > 2 * alarms["known"]
