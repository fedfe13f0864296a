"""From a model to a decision, in one file that needs no data: ``python examples/guard.py``."""

import torch
from torch import nn

import flatfold as ff

CLASSES, CHANNELS, SIDE = 4, 3, 8


def images(n: int, known: bool, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noise, which in known images has a bright corner: which of the four it is, is the class."""
    g = torch.Generator().manual_seed(seed)
    x, y = torch.rand(n, CHANNELS, SIDE, SIDE, generator=g), torch.arange(n) % CLASSES
    for k in range(CLASSES if known else 0):
        rows, columns = slice(4 * (k // 2), 4 * (k // 2) + 4), slice(4 * (k % 2), 4 * (k % 2) + 4)
        x[y == k, :, rows, columns] += 1
    return x, y


def trained() -> nn.Module:
    """Return a small network that has learnt the four classes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * SIDE**2, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    x, y = images(800, known=True, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval()


def main() -> None:
    """Fit a guard on held-out known images, and judge known and unknown ones."""
    model = trained()
    guard = ff.Guard.fit(model, [images(1000, known=True, seed=1)], method="fold", fpr=0.05)
    print(guard)
    for name, known in (("known", True), ("unknown", False)):
        verdict = guard(images(500, known, seed=2)[0])
        print(f"{name}: {100 * verdict.is_ood.float().mean():.1f} % of 500 raise an alarm")
    unknown, _ = images(1, known=False, seed=3)
    print(guard.explain(unknown, names=["upper left", "upper right", "lower left", "lower right"])[0])


if __name__ == "__main__":
    main()
