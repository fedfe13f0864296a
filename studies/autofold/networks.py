"""Two small networks that are trained in less than a minute, for suites to choose rules on."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from flatfold.data.sources import ImageSource
from flatfold.io.files import write_atomically
from flatfold.io.progress import track

STEPS, BATCH, LEARNING_RATE = 600, 64, 2e-3
SHIFT = 2  # pixels of random translation


class Residual(nn.Module):
    """Two 3x3 convolutions with batch normalisation beside a shortcut; halves the image where ``stride`` is 2."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, width, h / stride, w / stride)``."""
        return torch.relu(self.path(x) + self.shortcut(x))


def plain(channels: int, n_classes: int) -> nn.Module:
    """Return three strided convolutions, a hidden layer of 128 and a linear head, for images of 28 or 32 pixels."""
    widths = (channels, 32, 64, 128)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
    hidden = [nn.Flatten(), nn.Linear(128 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, *hidden, nn.Linear(128, n_classes))


def residual(channels: int, n_classes: int) -> nn.Module:
    """Return a small residual network with batch normalisation, an average over the image and a linear head."""
    stem = (nn.Conv2d(channels, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, n_classes))


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {"plain": plain, "residual": residual}


def trained(architecture: str, train: ImageSource, path: Path, steps: int = STEPS, seed: int = 0) -> nn.Module:
    """Return a network in evaluation mode, read from ``path`` if it was trained on the same images in the same way.

    Args:
        architecture: One of ``NETWORKS``.
        train: Images and labels to learn from.
        path: Where the weights are kept.
        steps: Of the optimiser.
        seed: Of the initial weights, the order and the augmentation.
    """
    recipe = [architecture, train.fingerprint, steps, BATCH, LEARNING_RATE, SHIFT, seed]
    key = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()
    x, y = (torch.cat(parts) for parts in zip(*train, strict=True))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = NETWORKS[architecture](x.shape[1], int(y.max()) + 1)
        if not _load(network, path, key):
            _train(network, x, y, steps)
            write_atomically(path, save(network.state_dict(), metadata={"recipe": key}))
    return network.eval()


def _load(network: nn.Module, path: Path, key: str) -> bool:
    """Load the weights if they are those of this recipe, and tell whether they were."""
    with suppress(FileNotFoundError, SafetensorError), safe_open(path, framework="pt") as file:
        if (file.metadata() or {}).get("recipe") == key:
            network.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
            return True
    return False


def _train(network: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=steps)
    network.train()
    for _ in track(range(steps), "training a network", steps):
        rows = torch.randint(len(x), (BATCH,))
        down, right = torch.randint(-SHIFT, SHIFT + 1, (2,)).tolist()
        loss = nn.functional.cross_entropy(network(x[rows].roll((down, right), dims=(2, 3))), y[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
