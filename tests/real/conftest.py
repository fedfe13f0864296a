"""Real images and real networks, where the environment variable FLATFOLD_DATA says they are."""

import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from torch import nn

from flatfold import FeatureBank, Transform, extract
from flatfold.data.images import ArrayImages

TRANSFORM = Transform(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def example(name):
    """A module of the folder ``examples``."""
    spec = spec_from_file_location(name, Path(__file__).parents[2] / "examples" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def data():
    """The folder with real data."""
    folder = os.environ.get("FLATFOLD_DATA")
    if not folder:
        pytest.skip("FLATFOLD_DATA is not set: no real images and networks here")
    return Path(folder)


@pytest.fixture(scope="session")
def golden(data):
    with np.load(data / "golden_cifar10_resnet56.npz") as file:
        return {name: file[name] for name in file}


def images(data, name):
    """An array of 32x32 RGB images and its labels."""
    with np.load(data / f"{name}.npz") as file:
        x, y = file["x"], file["y"]
    if x.shape[1:] == (28, 28):
        grey = nn.functional.interpolate(
            torch.from_numpy(x[:2000])[:, None].float(), 32, mode="bilinear", antialias=True, align_corners=False
        )
        x, y = grey.round().clamp(0, 255).byte().expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy(), y[:2000]
    return ArrayImages(np.ascontiguousarray(x), y.astype(np.int64), TRANSFORM, batch_size=250)


@pytest.fixture(scope="session", params=[20, 56], ids=["resnet20", "resnet56"])
def cifar(request, data, shared_folder):
    """A pretrained network's depth, head, and features of CIFAR-10 (test, some of train), textures and MNIST.

    The first worker that needs them computes them, and all others read its files.
    """
    model = example("cifar_resnet").CifarResNet((request.param - 2) // 6)
    model.load_state_dict(load_file(data / f"cifar10_resnet{request.param}.safetensors"))
    banks = {}
    for name in ("cifar10_test", "cifar10_train_5k", "textures_dtd10_32", "mnist_test"):
        folder = shared_folder / f"resnet{request.param}-{name}"
        with FileLock(f"{folder}.lock"):
            bank, head = extract(model, images(data, name), out=folder)
        banks[name] = bank if name.startswith("cifar10") else FeatureBank(bank.features)
    return request.param, head, banks


def pytest_collection_modifyitems(items):
    """Mark all tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(400))
