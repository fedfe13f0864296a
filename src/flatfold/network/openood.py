"""The residual networks of OpenOOD, with its parameter names, so that its checkpoints load unchanged.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. A block returns ``relu(f(x) + shortcut(x))`` where
``f`` is two or three convolutions. The networks for 224x224 are torchvision's; the one for 32x32 starts with a smaller
convolution without downsampling, and its shortcut has another name.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

WIDTHS = (64, 128, 256, 512)  # channels in the four stages, before a bottleneck widens them
BASIC, BOTTLENECK = (3, 3), (1, 3, 1)  # sizes of the convolutions in a block
WIDENING: dict[tuple[int, ...], int] = {BASIC: 1, BOTTLENECK: 4}


class Block(nn.Module):
    """Convolutions of the given sizes and a shortcut named ``shortcut``; the first 3x3 convolution has the stride."""

    def __init__(self, inputs: int, width: int, stride: int, sizes: tuple[int, ...], shortcut: str) -> None:
        super().__init__()
        self.depth, self.shortcut_name = len(sizes), shortcut
        outputs = width * WIDENING[sizes]
        widths = [inputs, *[width] * (self.depth - 1), outputs]
        for number, size in enumerate(sizes, start=1):
            step = stride if number == sizes.index(3) + 1 else 1
            self.add_module(f"conv{number}", _convolution(widths[number - 1], widths[number], size, step))
            self.add_module(f"bn{number}", nn.BatchNorm2d(widths[number]))
        changes_shape = stride != 1 or inputs != outputs
        projection = [_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)] if changes_shape else []
        self.add_module(shortcut, nn.Sequential(*projection))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, outputs, h / stride, w / stride)``."""
        y = x
        for number in range(1, self.depth + 1):
            y = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(y))
            y = torch.relu(y) if number < self.depth else y + self.get_submodule(self.shortcut_name)(x)
        return torch.relu(y)


class ResNet(nn.Module):
    """A convolution, four stages of blocks, global average pooling, and a linear head named ``fc``."""

    def __init__(self, sizes: tuple[int, ...], blocks: tuple[int, ...], small_images: bool, n_classes: int) -> None:
        super().__init__()
        self.small_images = small_images
        self.conv1 = _convolution(3, WIDTHS[0], 3) if small_images else _convolution(3, WIDTHS[0], 7, stride=2)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        shortcut = "shortcut" if small_images else "downsample"
        inputs = WIDTHS[0]
        for number, (width, depth) in enumerate(zip(WIDTHS, blocks, strict=True), start=1):
            stage = nn.Sequential()
            for index in range(depth):
                stride = 2 if number > 1 and index == 0 else 1
                stage.append(Block(inputs, width, stride, sizes, shortcut))
                inputs = width * WIDENING[sizes]
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


# Convolutions per block, blocks per stage, and whether the images are small.
NETWORKS = {
    "resnet18_32x32": (BASIC, (2, 2, 2, 2), True),
    "resnet18_224x224": (BASIC, (2, 2, 2, 2), False),
    "resnet50": (BOTTLENECK, (3, 4, 6, 3), False),
}


def openood_network(name: str, n_classes: int) -> nn.Module:
    """Build OpenOOD's ``resnet18_32x32``, ``resnet18_224x224`` or ``resnet50``, without trained weights."""
    return ResNet(*NETWORKS[name], n_classes)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Build a convolution with "same" padding and without bias, which the norm after it has."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
