"""The networks of the ``digits`` suite, each small enough to be trained on one core, once per seed."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from ...io.artifacts import DamagedFile, read_tensors, write_tensors
from ...io.progress import track
from ...models.sources import ImageSource

EPOCHS = 20
TIMES = {"mlp": 3}  # as many epochs: without convolutions it must learn from examples that a digit may be moved
BATCH = 64
LEARNING_RATE = 2e-3
SHIFT = 2  # pixels of random translation

log = logging.getLogger(__name__)


class DigitNetwork(nn.Module):
    """A body that turns images ``(n, 1, 28, 28)`` into features, and a linear head."""

    def __init__(self, body: nn.Sequential, width: int, n_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, c)``."""
        logits: Tensor = self.head(self.body(x))
        return logits


class ResidualBlock(nn.Module):
    """Two convolutions with batch normalisation at half the size, added to a shortcut, and a ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))
        self.end = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return maps ``(n, outputs, height / 2, width / 2)``."""
        maps: Tensor = self.end(self.change(x) + self.shortcut(x))
        return maps


def _make_cnn(n_classes: int) -> nn.Module:
    """Return two convolutions and a hidden layer of 128."""
    body = nn.Sequential(
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
    return DigitNetwork(body, 128, n_classes)


def _make_mlp(n_classes: int) -> nn.Module:
    """Return two hidden layers of 256 and 128 on the row of all pixels."""
    hidden = (nn.Linear(28 * 28, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.2))
    return DigitNetwork(nn.Sequential(nn.Flatten(), *hidden), 128, n_classes)


def _make_residual(n_classes: int) -> nn.Module:
    """Return a convolution, two residual blocks, and the mean of each of 64 maps."""
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        ResidualBlock(16, 32),
        ResidualBlock(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return DigitNetwork(body, 64, n_classes)


FIRST = "cnn"  # the default
DIGIT_NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    FIRST: _make_cnn,
    "mlp": _make_mlp,
    "residual": _make_residual,
}


def trained_network(train: ImageSource, val: ImageSource, path: Path, seed: int, network: str = FIRST) -> nn.Module:
    """Return the network in evaluation mode, from ``path`` if it was trained on the same data in the same way.

    Otherwise it is trained, and its accuracy on ``val`` is logged; nothing is chosen by it.
    """
    epochs = EPOCHS * TIMES.get(network, 1)
    recipe: dict[str, str | int | float] = {
        "data": train.fingerprint,
        "seed": seed,
        "epochs": epochs,
        "batch": BATCH,
        "lr": LEARNING_RATE,
        "shift": SHIFT,
    }
    if network != FIRST:  # whose weights are older than the others and stay valid
        recipe["network"] = network
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    assert train.labels is not None
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(seed)
        model = DIGIT_NETWORKS[network](int(train.labels.max()) + 1)
        if not _load(model, path, key):
            x, y = _tensors(train)
            log.info("training the network on %d images, %d epochs", len(x), epochs)
            _train(model, x, y, epochs)
            write_tensors(path, key, model.state_dict(), "recipe")
            log.info("validation accuracy %.2f %%", 100 * accuracy(model.eval(), *_tensors(val)))
    return model.eval()


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of rows whose largest logit is their label's."""
    return float((network(x).argmax(dim=-1) == y).double().mean())


def _tensors(images: ImageSource) -> tuple[Tensor, Tensor]:
    x, y = zip(*images, strict=True)
    return torch.cat(x), torch.cat(y)


def _load(network: nn.Module, path: Path, key: str) -> bool:
    """Load the weights if they are those of this recipe, and return whether they were."""
    if not path.exists():
        return False
    try:
        recipe, tensors = read_tensors(path, "recipe")
        if recipe != key:
            return False
        network.load_state_dict(tensors)
    except (DamagedFile, RuntimeError):
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


def _train(network: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    steps = epochs * (len(x) // BATCH)
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
