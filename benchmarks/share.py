"""The shares of FOLD and FourFold of a forward pass of a network of ResNet-50's size at 224 pixels."""

from time import perf_counter

import torch

import flatfold as ff

from .networks import resnet50
from .ratio import report, time_ratio


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
