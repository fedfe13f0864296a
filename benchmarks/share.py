"""FOLD's share of a forward pass of a network of ResNet-50's size at 224 pixels."""

import torch
from torch import Tensor, nn

import flatfold as ff

from .ratio import report, time_ratio


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        shapes = ((inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        layers: list[nn.Module] = []
        for a, b, size, step in shapes:
            layers += [nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both paths, rectified."""
        return (self.body(x) + self.shortcut(x)).relu()


def resnet50() -> nn.Sequential:
    """Return a network with ResNet-50's layers, untrained: only its cost matters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if block == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


@torch.no_grad()
def run() -> list[bool]:
    """Time a forward pass and the score of its features, in a batch and alone."""
    model = resnet50().eval()
    head = ff.Head(model[-1].weight, model[-1].bias)
    shares = {}
    for batch in (1, 16):
        x = torch.randn(batch, 3, 224, 224)
        h = model[:-1](x)
        fold = ff.Fold(0.5).fit(ff.FeatureBank(h), head)
        shares[batch] = 100 / time_ratio(lambda fold=fold, h=h: fold(h), lambda x=x: model(x), rounds=5)
    print(
        f"      a single image, where reading the head's weights from memory is all the work: {shares[1]:.2g} percent"
    )
    what = "FOLD's share of a ResNet-50-sized forward pass at 224 px, batch of 16"
    return [report(what, shares[16], "percent", 1, at_least=False)]
