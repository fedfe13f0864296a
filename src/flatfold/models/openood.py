"""The residual networks of OpenOOD, with its name for every weight, so that its checkpoints load as they are.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. A block returns ``relu(f(x) + shortcut(x))`` where
``f`` is two or three convolutions. The networks for 224x224 are torchvision's; the one for 32x32 begins with a smaller
convolution, keeps the size of the image there, and calls the shortcut by another name.
"""

from difflib import get_close_matches
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

WIDTHS = (64, 128, 256, 512)  # channels in the four stages, before a bottleneck widens them


class Basic(nn.Module):
    """Two 3x3 convolutions and a shortcut, whose weights are called ``shortcut``; the first one has the stride."""

    widening = 1

    def __init__(self, inputs: int, width: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut_name = shortcut
        self.add_module(shortcut, _shortcut(inputs, width, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, width, h / stride, w / stride)``."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.get_submodule(self.shortcut_name)(x))


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution and a shortcut; the 3x3 one has the stride, as in torchvision."""

    widening = 4

    def __init__(self, inputs: int, width: int, stride: int, shortcut: str) -> None:
        super().__init__()
        outputs = width * self.widening
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut_name = shortcut
        self.add_module(shortcut, _shortcut(inputs, outputs, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, 4 * width, h / stride, w / stride)``."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.get_submodule(self.shortcut_name)(x))


class Plan(NamedTuple):
    """The architecture of a residual network: its blocks, their number in each stage, and the images it is for."""

    block: type[Basic] | type[Bottleneck]
    blocks: tuple[int, int, int, int]
    small_images: bool


NETWORKS = {
    "resnet18_32x32": Plan(Basic, (2, 2, 2, 2), small_images=True),
    "resnet18_224x224": Plan(Basic, (2, 2, 2, 2), small_images=False),
    "resnet50": Plan(Bottleneck, (3, 4, 6, 3), small_images=False),
}


class ResNet(nn.Module):
    """A convolution, four stages of blocks, an average over the image, a linear head called ``fc``."""

    def __init__(self, plan: Plan, n_classes: int) -> None:
        super().__init__()
        self.small_images = plan.small_images
        self.conv1 = _convolution(3, WIDTHS[0], 3) if plan.small_images else _convolution(3, WIDTHS[0], 7, stride=2)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        shortcut = "shortcut" if plan.small_images else "downsample"
        inputs = WIDTHS[0]
        for number, (width, blocks) in enumerate(zip(WIDTHS, plan.blocks, strict=True), start=1):
            stage = nn.Sequential()
            for index in range(blocks):
                stride = 2 if number > 1 and index == 0 else 1
                stage.append(plan.block(inputs, width, stride, shortcut))
                inputs = width * plan.block.widening
            self.add_module(f"layer{number}", stage)
        self.fc = nn.Linear(inputs, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, n_classes)`` of images ``(n, 3, h, w)``."""
        x = torch.relu(self.bn1(self.conv1(x)))
        if not self.small_images:
            x = max_pool2d(x, 3, stride=2, padding=1)
        for number in range(1, len(WIDTHS) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def openood_network(name: str, n_classes: int) -> nn.Module:
    """Return a network of OpenOOD (``resnet18_32x32``, ``resnet18_224x224`` or ``resnet50``), without trained weights.

    Example:
        >>> openood_network("resnet18_32x32", 10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if name not in NETWORKS:
        near = get_close_matches(name, NETWORKS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(NETWORKS)}."
        raise ValueError(f"OpenOOD has no network {name!r} here. {hint}")
    if isinstance(n_classes, bool) or not isinstance(n_classes, int) or n_classes < 1:
        raise ValueError(f"n_classes must be a positive whole number, got {n_classes!r}.")
    return ResNet(NETWORKS[name], n_classes)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that keeps the size of the image, apart from its stride; the norm after it has the bias."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return the identity, or a 1x1 convolution where the block changes the shape of what goes through it."""
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
