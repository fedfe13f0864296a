"""`flatfold score` on real features of a ResNet-56: the reference's scores, and alarms at the rate asked for."""

import csv
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file


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
    code = [sys.executable, "-m", "flatfold", "score", "--features", features, "--head", "head.safetensors", *arguments]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
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
