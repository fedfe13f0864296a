"""The shares of FOLD and FourFold of a forward pass of a network of ResNet-50's size at 224 pixels."""

from time import perf_counter

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
    """Time a forward pass and the scores of its features, in a batch and alone; and a fit of FourFold."""
    model = resnet50().eval()
    head = ff.Head(model[-1].weight, model[-1].bias)
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(1000, (5000,), generator=g)
    bank = ff.FeatureBank((5 * head.weight[labels] + 0.1 * torch.rand(5000, 2048, generator=g)).relu(), labels)
    start = perf_counter()
    fourfold = ff.create("fourfold").fit(bank, head)
    print(f"      a fit of FourFold on 5,000 x 2,048 features of 1,000 classes: {perf_counter() - start:.0f} s")
    fold = ff.Fold(0.5).fit(bank, head)
    shares = {}
    for batch in (1, 16):
        x = torch.randn(batch, 3, 224, 224)
        h = model[:-1](x)
        z = head(h)  # a guard has the logits already
        for name, detector in (("FOLD", fold), ("FourFold", fourfold)):
            ratio = time_ratio(lambda detector=detector, h=h, z=z: detector(h, z), lambda x=x: model(x), rounds=9)
            shares[name, batch] = 100 / ratio
    print(f"      FOLD alone, where reading the head's weights is all the work: {shares['FOLD', 1]:.2g} percent")
    of = "share of a ResNet-50-sized forward pass at 224 px"
    return [
        report(f"FOLD's {of}, batch of 16", shares["FOLD", 16], "percent", 1, at_least=False),
        report(f"FourFold's {of}, batch of 16", shares["FourFold", 16], "percent", 0.7, at_least=False),
        report(f"FourFold's {of}, a single image", shares["FourFold", 1], "percent", 5, at_least=False),
    ]
