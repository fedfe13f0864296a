"""A network that cannot take its inputs is told in a sentence with their shape; other errors stay what they are."""

import numpy as np
import pytest
import torch
from torch import nn

import flatfold as ff
from flatfold.core.errors import NotFittedError
from flatfold.models.features import FeatureRows
from flatfold.models.heads import find_head
from flatfold.models.images import ArrayImages
from flatfold.models.misfit import explained
from flatfold.models.rows import score_rows

IMAGES = r"\. Give the transform a resize and a crop, or the right mode\.$"
VECTORS = r"\. Check their width and type; features belong to the head of the network that they were taken from\.$"


def convolutional():
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 4 * 4, 2)]
    return nn.Sequential(*layers).eval()


def images(shape=(48, 64, 3), mode="RGB", n=3):
    return ArrayImages(np.zeros((n, *shape), np.uint8), None, ff.Transform(mode=mode), batch_size=2)


WRONG_SIZE = (images(), rf"^the network cannot take inputs of shape \(3, 48, 64\): mat1 and mat2 shapes .*\){IMAGES}")
WRONG_MODE = (images((8, 8), "L"), rf"of shape \(1, 8, 8\): Given groups=1, .* but got 1 channels instead{IMAGES}")


@pytest.mark.parametrize(("source", "message"), [WRONG_SIZE, WRONG_MODE], ids=["size", "mode"])
def test_images_that_do_not_fit_are_told_with_their_shape(source, message, tmp_path):
    model = convolutional()
    with pytest.raises(ValueError, match=message):
        ff.extract(model, source)
    with pytest.raises(ValueError, match=message):
        find_head(model, source.read(range(2)))
    with pytest.raises(ValueError, match=message):
        score_rows(lambda x: model(x).sum(1), model, source, tmp_path / "scores", {})
    with pytest.raises(ValueError, match=message):
        ff.logits_function(model)(source.read(range(2)))


def test_layers_of_images_that_do_not_fit_are_told_with_their_shape():
    model, grey = convolutional(), images((8, 8), "L").read(range(2))
    for use in (lambda: ff.layers_of(model, grey, "stem"), lambda: ff.layers_of(model, grey, ["0"])(grey)):
        with pytest.raises(ValueError, match=WRONG_MODE[1]):
            use()


class TakesADict(nn.Module):
    def forward(self, batch):
        return batch["pixels"]


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (TakesADict(), {"pixels": torch.zeros(2, 3), "mask": torch.zeros(2)}, "a dict go to the model by name; wrap a"),
        (
            nn.BatchNorm2d(3),
            torch.zeros(3, 8, 8),
            r"expected 4D.*Is this a single image\? A batch of one is x\[None",
        ),
        (convolutional(), torch.zeros(2, 8, 8, 3), r"Put the channels first: x\.permute\(0, 3, 1, 2\)\."),
        (convolutional(), torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "They are torch.uint8: prepare them as in train"),
        (convolutional(), torch.zeros(2, 3, 8, 8).double(), "They are torch.float64: prepare them as in training, and"),
    ],
    ids=["dict", "single image", "channels last", "uint8", "float64"],
)
def test_the_advice_suits_the_mistake(model, inputs, message):
    with pytest.raises(ValueError, match=rf"^the network cannot take inputs of shape .*{message}"):
        find_head(model.eval(), inputs)


def test_a_later_batch_that_does_not_fit_is_told_too():
    with pytest.raises(ValueError, match=rf"of shape \(9,\): mat1 and mat2 shapes cannot be multiplied .*{VECTORS}"):
        ff.extract(nn.Linear(4, 3), [torch.zeros(2, 4), torch.zeros(2, 9)])


@pytest.mark.parametrize(
    ("features", "reason"),
    [(torch.eye(5), "mat1 and mat2 shapes"), (torch.eye(4, dtype=torch.float64), "must have the same dtype")],
    ids=["width", "dtype"],
)
def test_a_bank_that_does_not_fit_the_head_is_told(features, reason, tmp_path):
    ff.save_bank(ff.FeatureBank(features), tmp_path / "bank")
    with pytest.raises(ValueError, match=rf"inputs of shape \({len(features)},\): .*{reason}.*{VECTORS}"):
        ff.extract(nn.Linear(4, 3), FeatureRows(tmp_path / "bank", labels=False))


def test_inputs_given_by_name_are_told_as_well():
    class Named(nn.Linear):
        def forward(self, pixel_values):
            return super().forward(pixel_values)

    with pytest.raises(ValueError, match=r"inputs of shape \(5,\): mat1"):
        find_head(Named(4, 3), {"pixel_values": torch.zeros(2, 5)})


def test_a_network_that_asserts_is_understood_and_only_its_first_line_told():
    with (
        pytest.raises(ValueError, match=r"shape \(3, 8, 8\): Input height doesn't match\. Give"),
        explained(torch.zeros(1, 3, 8, 8)),
    ):
        raise AssertionError("Input height doesn't match.\nat line 7")
    with (
        pytest.raises(ValueError, match=r"shape \(3, 8, 8\): AssertionError\. Give"),
        explained(torch.zeros(1, 3, 8, 8)),
    ):
        raise AssertionError


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: invalid argument"),
        RuntimeError("Expected all tensors to be on the same device, but found at least two devices"),
        NotFittedError("fit first"),
        KeyboardInterrupt(),
        KeyError("a"),
    ],
    ids=lambda error: f"{type(error).__name__} {str(error)[:20]}",
)
def test_errors_that_are_not_about_the_inputs_stay_what_they_are(error, tmp_path):
    def fail(*args):
        raise error

    model = nn.Linear(12, 2)
    with pytest.raises(type(error)) as caught:
        score_rows(fail, model, images((2, 2, 3)), tmp_path / "scores", {})
    assert caught.value is error
    model.register_forward_pre_hook(fail)
    with pytest.raises(type(error)) as caught:
        ff.extract(model, [torch.zeros(1, 12)])
    assert caught.value is error
