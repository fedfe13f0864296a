"""Train the small network of the ``digits`` suite, once per seed."""

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ...files import write_atomically
from ...models.sources import ImageSource
from ...progress import track

log = logging.getLogger(__name__)

EPOCHS = 20
BATCH = 64
LEARNING_RATE = 2e-3
SHIFT = 2  # pixels of random translation


class DigitNet(nn.Module):
    """The customary small network for handwritten digits: two convolutions, a hidden layer of 128, a linear head."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(64 * 7 * 7, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
        )
        self.head = nn.Linear(128, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, c)`` of images ``(n, 1, 28, 28)``."""
        logits: Tensor = self.head(self.body(x))
        return logits


def trained_network(train: ImageSource, val: ImageSource, path: Path, seed: int) -> nn.Module:
    """Return the network in evaluation mode, read from ``path`` if it was trained on the same data in the same way.

    Args:
        train: Images and labels to learn from.
        val: Only its accuracy is logged; nothing is chosen by it.
        path: Where the weights are kept.
        seed: Of the initial weights, the order and the augmentation.
    """
    recipe = {
        "data": train.fingerprint,
        "seed": seed,
        "epochs": EPOCHS,
        "batch": BATCH,
        "lr": LEARNING_RATE,
        "shift": SHIFT,
    }
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    x, y = _tensors(train)
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(seed)
        network = DigitNet(int(y.max()) + 1)
        if not _load(network, path, key):
            log.info("training the network on %d images, %d epochs", len(x), EPOCHS)
            _train(network, x, y)
            write_atomically(path, save(network.state_dict(), metadata={"recipe": key}))
    log.info("validation accuracy %.2f %%", 100 * accuracy(network.eval(), *_tensors(val)))
    return network.eval()


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of rows whose largest logit is their label's."""
    return float((network(x).argmax(dim=-1) == y).double().mean())


def _tensors(images: ImageSource) -> tuple[Tensor, Tensor]:
    x, y = zip(*images, strict=True)
    return torch.cat(x), torch.cat(y)


def _load(network: nn.Module, path: Path, key: str) -> bool:
    """Load the weights if they are those of this recipe, and tell whether they were."""
    if not path.exists():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("recipe") != key:
                return False
            network.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, RuntimeError):
        log.warning("%s is damaged; the network is trained again", path)
        return False
    return True


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: sums then have one order, and a seed gives the same network on any number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train(network: nn.Module, x: Tensor, y: Tensor) -> None:
    steps = EPOCHS * (len(x) // BATCH)
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=steps)
    network.train()
    for step in track(range(steps), "training the network"):
        if step % (len(x) // BATCH) == 0:
            batches = torch.split(torch.randperm(len(x)), BATCH)
        rows = batches[step % (len(x) // BATCH)]
        loss = nn.functional.cross_entropy(network(_shifted(x[rows])), y[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()


def _shifted(x: Tensor) -> Tensor:
    """Return the batch moved by a few pixels in a random direction."""
    down, right = torch.randint(-SHIFT, SHIFT + 1, (2,)).tolist()
    return x.roll((down, right), dims=(2, 3))
