"""A real network and its guard in other runtimes, on real images."""

import pytest
import torch
from safetensors.torch import load_file

import flatfold as ff
from flatfold.data.batch import split_batch
from flatfold.data.images import ArrayImages
from flatfold.scoring import export as onnx
from flatfold.scoring import export as program
from flatfold.scoring.export import compare, export
from tests.real.conftest import TRANSFORM, example, images

RUNTIMES = {".onnx": onnx.open_onnx, ".pt2": program.open_program}


@pytest.fixture(scope="module")
def guard(data):
    """ResNet-20 with a guard that was fitted on every image of the test set but the first thousand."""
    model = example("cifar_resnet").resnet20()
    model.load_state_dict(load_file(data / "cifar10_resnet20.safetensors"))
    test = images(data, "cifar10_test")
    fitted = ArrayImages(test.x[1000:], test.labels[1000:].numpy(), TRANSFORM, batch_size=250)
    return ff.Guard.fit(model, fitted, method="fourfold", fpr=0.05)


@pytest.fixture(scope="module")
def pictures(data):
    """300 images that the network knows and the guard has not met, and 100 house numbers."""
    known, unknown = images(data, "cifar10_test"), images(data, "svhn_test_4k")
    return torch.cat([known.read(range(300))[0], unknown.read(range(100))[0]])


@pytest.mark.parametrize("suffix", RUNTIMES)
def test_another_runtime_gives_the_verdicts_of_the_guard(suffix, guard, pictures, tmp_path):
    if suffix == ".onnx":
        pytest.importorskip("onnxruntime", reason="flatfold[onnx] is not installed")
    path = tmp_path / f"model{suffix}"
    export(guard, path, [pictures[:64]])
    run = RUNTIMES[suffix](path)
    parity = compare(guard, run, split_batch(pictures))
    assert (parity.inputs, parity.batch_sizes) == (400, (1, 7, 64))
    assert max(parity.logits, parity.score) < 1e-4
    for size in (1, 7, 64):
        for start in range(0, 400, size):
            part = pictures[start : start + size]
            ours, theirs = guard(part), [torch.as_tensor(output) for output in run(split_batch(part))]
            # With a lower floor than the library's own check: the score of FourFold, a sum of signs, may be 0.
            errors = (theirs[1] - ours.score).abs() / ours.score.abs().clamp_min(0.1)
            assert errors.max() < 1e-4
            assert torch.equal(theirs[3], ours.is_ood)
    assert 0 < guard(pictures).is_ood.sum() < 400, "with one decision for all, that they are the same says nothing"
