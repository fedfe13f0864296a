"""``flatfold export``: from a guard's file to a file for another runtime."""

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import flatfold as ff
from flatfold.cli.export import export
from flatfold.cli.model import open_model
from flatfold.models.factory import make_model
from flatfold.models.images import ArrayImages

app = typer.Typer(rich_markup_mode=None)
app.command()(export)
TRANSFORM = ff.Transform(mode="L", mean=(0.4,), std=(0.3,))
NETS = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
"""


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def pixels(n, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 100, (n, 4, 4), dtype=np.uint8), np.arange(n) % 3
    x[np.arange(n), 0, y] = 255
    return x, y


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder: a network, its weights, two guards (one knows its transform), images."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    model = make_model("nets:tiny", tmp_path, seed=5)
    torch.save(model.state_dict(), "tiny.pt")
    images = ArrayImages(*pixels(200), TRANSFORM)
    ff.Guard.fit(model, images, "fold", 0.1).save("guard.safetensors")
    ff.Guard.fit(model, list(images), "fold", 0.1).save("blind.safetensors")
    x, y = pixels(90, seed=1)
    np.savez("images.npz", x=x, y=y)
    for i in range(9):
        (tmp_path / "photos" / f"class{i % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[i]).save(tmp_path / "photos" / f"class{i % 3}" / f"{i}.png")
    return tmp_path


MODEL = ("--model", "nets:tiny", "--weights", "tiny.pt")


def test_a_guard_becomes_an_onnx_file_beside_it(folder):
    onnxruntime = pytest.importorskip("onnxruntime", reason="flatfold[onnx] is not installed")
    done = run("guard.safetensors", *MODEL, "--images", "images.npz", "--limit", 70)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "Guard(fold, fpr=0.1, 100 calibration samples) -> guard.onnx, 0.0 MB"
    assert lines[1] == "compared on 70 images of images.npz in batches of 1, 7, 64"
    assert lines[2].startswith("largest relative error: logits ")
    assert lines[3].startswith("same decision for every image")
    assert len(lines) == 4
    guard = ff.Guard.load("guard.safetensors", open_model("nets:tiny", folder / "tiny.pt"))
    x = torch.stack([TRANSFORM(image) for image in pixels(90, seed=1)[0]])
    session = onnxruntime.InferenceSession("guard.onnx")
    np.testing.assert_allclose(session.run(["score"], {"x": x.numpy()})[0], guard(x).score.numpy(), rtol=1e-5)


def test_out_decides_the_format_and_a_folder_gives_images(folder):
    done = run("guard.safetensors", *MODEL, "--images", "photos", "--out", "new/model.pt2")
    assert done.exit_code == 0, done.output
    assert "compared on 9 images of photos in batches of 1, 7, 9" in done.stdout
    assert len(torch.export.load("new/model.pt2").module()(torch.zeros(2, 1, 4, 4))) == 4
    assert [path.name for path in (folder / "new").iterdir()] == ["model.pt2"]


def test_images_are_spread_over_all_of_them(folder):
    from flatfold.cli.export import _images

    picked = _images(folder / "images.npz", TRANSFORM, 4)
    assert picked.picked.tolist() == [0, 22, 45, 67]
    assert _images(folder / "photos", TRANSFORM, 100).rows == 9


def test_images_of_lists_and_tables_are_read_without_their_labels(folder):
    pyarrow = pytest.importorskip("pyarrow", reason="flatfold[parquet] is not installed")
    from pyarrow.parquet import write_table

    from flatfold.cli.export import _images

    names = [f"photos/class{i % 3}/{i}.png" for i in range(9)]
    (folder / "list.txt").write_text("\n".join(names))
    write_table(pyarrow.table({"image": [(folder / name).read_bytes() for name in names]}), folder / "t.parquet")
    expected = torch.stack([TRANSFORM(image) for image in pixels(90, seed=1)[0][:9]])
    for place in ("list.txt", "t.parquet"):
        (x,) = _images(folder / place, TRANSFORM, 100)
        assert torch.equal(x, expected)
    done = run("guard.safetensors", *MODEL, "--images", "list.txt", "--out", "model.pt2")
    assert "compared on 9 images of list.txt in batches of 1, 7, 9" in done.stdout


def test_a_guard_without_a_transform_takes_it_from_options_and_keeps_it(folder):
    arguments = ("blind.safetensors", *MODEL, "--images", "images.npz", "--out", "model.pt2")
    done = run(
        *arguments,
        "--mode",
        "L",
        "--mean",
        "0.4",
        "--std",
        "0.3",
        "--resize",
        4,
        "--crop",
        4,
        "--interpolation",
        "bicubic",
    )
    assert done.exit_code == 0, done.output
    extra = {"flatfold.json": ""}
    torch.export.load("model.pt2", extra_files=extra)
    assert '"mean": [0.4]' in extra["flatfold.json"]
    assert '"interpolation": "bicubic"' in extra["flatfold.json"]
    done = run(*arguments)
    assert isinstance(done.exception, ValueError)
    assert "blind.safetensors does not say how images are prepared. Say it with --resize" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*MODEL, "--images", "images.npz", "--crop", "4"), r"says how images are prepared, .* Leave out --crop"),
        ((*MODEL, "--images", "none"), r"there are no images at none: it does not exist. Check the path"),
        (
            (*MODEL, "--images", "tiny.pt"),
            r"images are read from a folder, or from a file that ends in .*, got tiny.pt",
        ),
        ((*MODEL, "--images", "images.npz", "--out", "model.pt"), r"a file that ends in .onnx or .pt2, got 'model.pt'"),
        (("--model", "tiny", "--images", "photos"), r"--model is written package.module:function or library/name, got"),
        (("--model", "nets.py:tiny", "--images", "photos"), r"a module and not a file, got .* Write nets:tiny, in the"),
        (("--model", "a/nets.py:tiny", "--images", "photos"), r"a module and not a file, got .* Write nets:tiny, in"),
        (("--model", "net:tiny", "--images", "photos"), r"must be installed, or be a file in /.*\w\.$"),
        (("--model", "nets:tiny", "--images", "photos"), r"other weights: .* fitted on, with its weights, or fit"),
        (("--model", "nowhere/net", "--images", "photos"), r"a network is named library/name, got 'nowhere/net'"),
        (
            ("--model", "nets:tiny", "--pretrained", "DEFAULT", "--images", "photos"),
            r"--pretrained belongs to a network of a library, but nets:tiny is a function. Give --weights",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence_and_nothing_is_written(arguments, sentence, folder):
    before = sorted(folder.iterdir())
    done = run("guard.safetensors", *arguments)
    assert done.exit_code == 1
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        raise done.exception
    assert {path for path in folder.iterdir() if path.name != "__pycache__"} == set(before) - {folder / "__pycache__"}


def test_numbers_that_are_none_are_refused(folder):
    done = run("blind.safetensors", *MODEL, "--images", "images.npz", "--mode", "L", "--mean", "a,b")
    assert "--mean takes numbers with commas between them, such as 0.5,0.5,0.5, got 'a,b'." in str(done.exception)


def test_help_teaches_with_an_example():
    done = run("--help")
    assert "Example: flatfold export guard.safetensors --model nets:resnet20" in " ".join(done.stdout.split())


def test_a_network_of_a_library_is_opened_by_its_name(tmp_path):
    from flatfold.models.openood import openood_network

    torch.manual_seed(1)
    network = openood_network("resnet18_32x32", 10)
    torch.save(network.state_dict(), tmp_path / "net.pt")
    opened = open_model("openood/resnet18_32x32", tmp_path / "net.pt")
    assert torch.equal(opened.fc.weight, network.fc.weight)
    assert not opened.training
