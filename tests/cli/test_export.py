"""``flatfold export``: from a guard's file to a file for another runtime."""

import json

import numpy as np
import pytest
import torch

import flatfold as ff
from tests.cli.images import MODEL, PREPARED, TRANSFORM, network, photos, write_parquet
from tests.cli.running import assert_mistakes, succeed

NAMES = [f"photos/{row:04d}.png" for row in range(50)]


def test_a_guard_becomes_an_onnx_file_beside_it(here):
    onnxruntime = pytest.importorskip("onnxruntime", reason="flatfold[onnx] is not installed")
    np.savez("images.npz", x=photos(90))
    done = succeed("export", "guard.safetensors", *MODEL, "--images", "images.npz", "--limit", 70)
    assert "guard.onnx" in done.stdout
    assert "validated on 70 images of images.npz in batches of 1, 7, 64" in done.stdout
    assert "same decision for every image" in done.stdout
    guard = ff.Guard.load("guard.safetensors", network())
    x = torch.stack([TRANSFORM(image) for image in photos(90)])
    session = onnxruntime.InferenceSession("guard.onnx")
    np.testing.assert_allclose(session.run(["score"], {"x": x.numpy()})[0], guard(x).score.numpy(), rtol=1e-5)


def test_out_decides_the_format_and_images_spread_over_all_places_are_compared(here):
    for row in set(range(50)) - {0, 5, 11, 16, 22, 27, 33, 38, 44}:  # nine of fifty, evenly
        (here / NAMES[row]).write_bytes(b"no image")
    (here / "list.txt").write_text("\n".join(NAMES))
    write_parquet(here / "t.parquet", [here / name for name in NAMES])
    for place in ("photos", "list.txt", "t.parquet"):
        out = here / "new" / f"{place}.pt2"
        done = succeed("export", "guard.safetensors", *MODEL, "--images", place, "--limit", 9, "--out", out)
        assert f"validated on 9 images of {place} in batches of 1, 7, 9" in done.stdout
    assert len(list((here / "new").iterdir())) == 3
    x = torch.stack([TRANSFORM(image) for image in photos()])
    guard = ff.Guard.load("guard.safetensors", network())
    exported = torch.export.load("new/photos.pt2").module()(x)
    assert len(exported) == 4
    torch.testing.assert_close(exported[1], guard(x).score)


def test_a_guard_without_a_transform_takes_it_from_options_and_keeps_it(here):
    prepared = (*PREPARED, "--resize", 4, "--crop", 4, "--interpolation", "bicubic")
    done = succeed(
        "export", "blind.safetensors", *MODEL, "--images", "photos", "--out", "model.pt2", *prepared, "--json"
    )
    assert json.loads(done.stdout)["parity"]["inputs"] == 50
    extra = {"flatfold.json": ""}
    torch.export.load("model.pt2", extra_files=extra)
    content = json.dumps(json.loads(extra["flatfold.json"]))
    for part in ('"mean": [0.4]', '"std": [0.3]', '"resize": 4', '"crop": 4', '"interpolation": "bicubic"'):
        assert part in content


@pytest.mark.slow
def test_a_triton_repository_gets_the_model_and_then_its_next_version(here):
    pytest.importorskip("onnxruntime", reason="flatfold[onnx] is not installed")
    options = ("guard.safetensors", *MODEL, "--images", "photos", "--triton", "models")
    done = succeed("export", *options)
    assert "-> models/guard/1/model.onnx" in done.stdout
    assert "same decision for every image" in done.stdout
    assert 'name: "guard"' in (here / "models" / "guard" / "config.pbtxt").read_text()
    facts = json.loads(succeed("export", *options, "--json").stdout)
    assert facts["file"] == "models/guard/2/model.onnx"
    assert facts["bytes"] == (here / facts["file"]).stat().st_size
    assert json.loads(succeed("export", *options, "--name", "b-1", "--json").stdout)["file"].startswith("models/b-1/1")


def test_mistakes(here):
    guard, images = (*MODEL, "--images", "photos"), ("--images", "photos")
    (here / "my guard.safetensors").write_bytes((here / "guard.safetensors").read_bytes())
    (here / "models").mkdir()
    (here / "models" / "taken").write_text("a file")
    triton = (*guard, "--triton", "models")
    cases = [
        (["guard.safetensors", *triton, "--out", "g.onnx"], 2, "exclude each other"),
        (["guard.safetensors", *triton, "--mlflow", "model"], 2, "exclude each other"),
        (["guard.safetensors", *guard, "--name", "a"], 2, "--name"),
        (["guard.safetensors", *triton, "--name", "a/b"], 1, "name"),
        (["my guard.safetensors", *triton], 1, "my guard"),
        (["guard.safetensors", *triton, "--name", "taken"], 1, "taken"),
        (["guard.safetensors", *guard, "--triton", "tiny.pt"], 1, "tiny.pt"),
        (["guard.safetensors", *guard, "--triton", "tiny.pt/models"], 2, "tiny.pt"),
        (["guard.safetensors", *guard, "--mlflow", "tiny.pt"], 1, "tiny.pt"),
        (["guard.safetensors", *guard, "--mlflow", "photos"], 1, "photos"),
        (["guard.safetensors", *guard, "--crop", "4"], 1, "--crop"),
        (["guard.safetensors", *MODEL, "--images", "none"], 1, "none"),
        (["guard.safetensors", *MODEL, "--images", "tiny.pt"], 1, "tiny.pt"),
        (["guard.safetensors", *guard, "--out", "model.pt"], 1, ".onnx"),
        (["guard.safetensors", "--model", "tiny", *images], 1, "--model"),
        (["guard.safetensors", "--model", "nets.py:tiny", *images], 1, "nets:tiny"),
        (["guard.safetensors", "--model", "a/nets.py:tiny", *images], 1, "nets:tiny"),
        (["guard.safetensors", "--model", "net:tiny", *images], 1, "net"),
        (["guard.safetensors", "--model", "nets:tiny", *images], 1, "other weights"),
        (["guard.safetensors", "--model", "nowhere/net", *images], 1, "nowhere/net"),
        (["guard.safetensors", "--model", "nets:tiny", "--pretrained", "DEFAULT", *images], 1, "--pretrained"),
        (["blind.safetensors", *guard], 1, "--resize"),
        (["blind.safetensors", *guard, "--mode", "L", "--mean", "a,b"], 1, "--mean"),
    ]
    assert_mistakes(("export",), cases, here)
