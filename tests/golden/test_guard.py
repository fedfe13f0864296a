"""A guard from its file, the table that `score` writes, and the exported graph."""

import csv
import json

import numpy as np
import pytest
import torch

import flatfold as ff
from tests.command import flatfold
from tests.golden.inputs import MEAN, STD, batches, network, write_images, write_network
from tests.golden.pins import FOLDER, check

MODEL = ("--model", "nets:tiny", "--weights", "tiny.safetensors")
PREPARED = ("--mean", ",".join(map(str, MEAN)), "--std", ",".join(map(str, STD)))
FLOAT32 = {"rtol": 1e-4, "atol": 1e-6}


def answers(guard):
    """Return the verdicts on known images and on noise."""
    found = {}
    for name in ("test", "noise"):
        verdicts = [guard(x) for x, _ in batches(name)]
        for field in ("score", "p_value", "is_ood"):
            found[f"{name} {field}"] = [value for each in verdicts for value in getattr(each, field).tolist()]
    return found


def test_a_guard_file_of_version_2_still_loads():
    guard = ff.Guard.load(FOLDER / "guard.safetensors", network())
    check("guard", answers(guard), **FLOAT32)


def test_a_guard_from_before_doubt_was_a_sign_gives_the_scores_it_gave():
    guard = ff.Guard.load(FOLDER / "guard_fourfold.safetensors", network())
    check("guard_fourfold", answers(guard), **FLOAT32)
    explanation = guard.explain(batches("noise")[0][0][:1])[0]
    assert list(explanation.signs) == ["direction", "length", "margin", "curvature"]


def test_guard_file_refuses_other_weights_and_a_changed_byte(tmp_path):
    other = network()
    with torch.no_grad():
        other[0].weight[0, 0, 0, 0] += 0.01
    with pytest.raises(ValueError, match="model"):
        ff.Guard.load(FOLDER / "guard.safetensors", other)
    damaged = bytearray((FOLDER / "guard.safetensors").read_bytes())
    damaged[-3] ^= 1
    (tmp_path / "damaged.safetensors").write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged"):
        ff.Guard.load(tmp_path / "damaged.safetensors", network())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Labelled validation images, images to score of which one is broken, and the network."""
    folder = tmp_path_factory.mktemp("golden")
    write_network(folder)
    write_images(folder / "val", "val", labelled=True)
    write_images(folder / "photos", "test", labelled=False)
    write_images(folder / "photos" / "noise", "noise", labelled=False)
    (folder / "photos" / "005.png").write_bytes(b"not an image")
    return folder


def test_the_table_that_score_writes(folder):
    done = flatfold(
        "fit", "val", *MODEL, *PREPARED, "--method", "fold", "--fpr", 0.1, "--out", "g.safetensors", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    done = flatfold("score", "photos", "--guard", "g.safetensors", *MODEL, "--out", "scores.csv", cwd=folder)
    assert done.returncode == 3, done.stderr  # some images could not be scored
    with (folder / "scores.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    numbers = {row["path"]: [float(row["score"]), float(row["p_value"])] for row in table}
    check("score_numbers", numbers, **FLOAT32)
    texts = {row["path"]: [row["predicted"], row["is_ood"]] for row in table}
    check("score_table", {"columns": list(table[0]), "paths": [row["path"] for row in table], "rows": texts})
    with (folder / "scores.csv.unreadable.csv").open(newline="") as file:
        assert [row["path"] for row in csv.DictReader(file)] == ["photos/005.png"]
    assert json.loads((folder / "scores.csv.summary.json").read_text())["unreadable"] == 1


def test_features_get_the_scores_of_their_images(folder):
    """Extraction, `score --features` and `create` agree."""
    from safetensors.torch import save_file

    bank, head = ff.extract(network(), batches("test"))
    save_file({"features": bank.features}, folder / "f.safetensors")
    save_file({"weight": head.weight, "bias": head.bias}, folder / "head.safetensors")
    files = ("--features", "f.safetensors", "--head", "head.safetensors")
    done = flatfold("score", *files, "--method", "fold:alpha=0.3", cwd=folder)
    assert done.returncode == 0, done.stderr
    scores = [float(row["score"]) for row in csv.DictReader(done.stdout.splitlines())]
    assert scores == pytest.approx(ff.create("fold", alpha=0.3).fit(bank, head)(bank.features).tolist(), rel=1e-5)
    check("feature_scores", scores, **FLOAT32)


def test_the_onnx_graph_gives_the_answers_of_the_guard(folder):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'flatfold[onnx]'")
    options = ("--images", "val", *MODEL, *PREPARED, "--out", "guard.onnx")
    done = flatfold("export", FOLDER / "guard.safetensors", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    session = runtime.InferenceSession(folder / "guard.onnx", providers=["CPUExecutionProvider"])
    guard = ff.Guard.load(FOLDER / "guard.safetensors", network())
    for x, _ in batches("noise") + batches("test"):
        logits, score, p_value, is_ood = session.run(["logits", "score", "p_value", "is_ood"], {"x": x.numpy()})
        verdict = guard(x)
        np.testing.assert_allclose(logits, verdict.logits.numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(score, verdict.score.numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(is_ood, verdict.is_ood.numpy())
        np.testing.assert_allclose(p_value, verdict.p_value.numpy())
