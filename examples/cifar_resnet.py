"""The residual networks for CIFAR-10 of He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.

``cifar10.toml`` names the two functions at the end; a suite of your own names a function of yours.
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut without weights.

    Where the block halves the image and doubles the channels, the shortcut takes every second pixel and adds channels
    of zeros, half of them on either side.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.stride = 1 if inputs == width else 2
        self.zeros = (width - inputs) // 2
        self.conv1 = nn.Conv2d(inputs, width, 3, self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, width, h / stride, w / stride)``."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return torch.relu(y + nn.functional.pad(shortcut, (0, 0, 0, 0, self.zeros, self.zeros)))


class CifarResNet(nn.Module):
    """A convolution, three stages of blocks with 16, 32 and 64 channels, an average over the image, a linear head.

    Args:
        blocks: In each stage; the network has ``6 * blocks + 2`` layers.
        n_classes: Outputs of the head.
    """

    def __init__(self, blocks: int, n_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks)
        self.layer2 = _stage(16, 32, blocks)
        self.layer3 = _stage(32, 64, blocks)
        self.linear = nn.Linear(64, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, n_classes)`` of images ``(n, 3, 32, 32)``."""
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean(dim=(2, 3)))


def _stage(inputs: int, width: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, width), *(Block(width, width) for _ in range(blocks - 1)))


def resnet20() -> CifarResNet:
    """Return the network with 20 layers, without trained weights."""
    return CifarResNet(blocks=3)


def resnet56() -> CifarResNet:
    """Return the network with 56 layers, without trained weights."""
    return CifarResNet(blocks=9)
