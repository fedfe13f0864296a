"""A small model and its inputs: four classes, each recognised by its own two of eight numbers."""

import torch
from torch import nn


def make_model(seed=0):
    """A model that knows them; with dropout, so that modes matter."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    with torch.no_grad():
        model[0].weight.copy_(torch.cat([torch.eye(8), 0.1 * torch.randn(8, 8)]))
        model[3].weight.copy_(torch.eye(4).repeat_interleave(2, dim=1).repeat(1, 2) * 2)
    return model


def known(n, seed=0):
    """Inputs of the four classes, and the classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    x = 0.5 * torch.rand(n, 8, generator=g)
    for half in (0, 1):
        x[torch.arange(n), 2 * y + half] += 1 + torch.rand(n, generator=g)
    return x, y
