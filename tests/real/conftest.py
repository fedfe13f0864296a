"""Real images and real networks, where the environment variable FLATFOLD_DATA says they are."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from flatfold import FeatureBank, Transform, extract
from flatfold.models.images import ArrayImages

TRANSFORM = Transform(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class Block(nn.Module):
    """Two 3x3 convolutions; the shortcut subsamples and pads with zero channels, it has no weights."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.extra = stride, width - inputs

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return (y + nn.functional.pad(shortcut, (0, 0, 0, 0, self.extra // 2, self.extra // 2))).relu()


class CifarResNet(nn.Module):
    """The CIFAR network of He et al. with 6 n + 2 layers."""

    def __init__(self, n):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(*(Block(a if i == 0 else b, b, stride if i == 0 else 1) for i in range(n)))
            for a, b, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        return self.linear(x.mean(dim=(2, 3)))


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
def cifar(request, data):
    """A pretrained network's depth, head, and features of CIFAR-10's test set, textures and MNIST."""
    model = CifarResNet((request.param - 2) // 6)
    model.load_state_dict(load_file(data / f"cifar10_resnet{request.param}.safetensors"))
    banks = {}
    for name in ("cifar10_test", "textures_dtd10_32", "mnist_test"):
        bank, head = extract(model, images(data, name))
        banks[name] = bank if name == "cifar10_test" else FeatureBank(bank.features)
    return request.param, head, banks
