"""What a guard adds to the bare model, at 224 pixels."""

from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

import flatfold as ff

from .networks import resnet50
from .ratio import report, time_ratio


class Clocked(nn.Module):
    """A model that notes how long each of its calls took."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.took = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Return what the model returns."""
        start = perf_counter()
        output: Tensor = self.model(x)
        self.took = perf_counter() - start
        return output


@torch.no_grad()
def run() -> list[bool]:
    """Time guarded and bare calls in turn, and what a guard does outside of the model."""
    model = Clocked(resnet50()).eval()
    known = torch.randn(40, 3, 224, 224)
    added = {}
    for method in ("fold", "fourfold"):
        guard = ff.Guard.fit(model, known.split(8), method=method, fpr=0.1)
        for batch in (1, 16):
            x, around = torch.randn(batch, 3, 224, 224), []

            def guarded(guard: ff.Guard = guard, x: Tensor = x, around: list[float] = around) -> None:
                start = perf_counter()
                guard(x)
                around.append(100 * ((perf_counter() - start) / model.took - 1))

            ratio = time_ratio(lambda x=x: model(x), guarded, rounds=15)
            print(f"      {method}, batch of {batch}, guarded against bare, in turn: {100 * (ratio - 1):+.2g} percent")
            added[method, batch] = median(around)
    print(f"      fourfold adds {added['fourfold', 1]:.2g} percent to a single image")
    what = "what a guard with fold adds to a ResNet-50-sized model at 224 px"
    return [
        report(f"{what}, batch of 16", added["fold", 16], "percent", 2, at_least=False),
        report(f"{what}, a single image", added["fold", 1], "percent", 1, at_least=False),
    ]
