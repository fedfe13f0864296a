"""Suites to choose rules on: small networks trained on real images, with unknown images of other kinds.

None of them is a benchmark. They are there so that a rule can be chosen without a look at the suites it is judged on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flatfold.data.images import NpzImages, Transform
from flatfold.data.sources import ImageSource, ImageSubset
from flatfold.evaluate.suites.suite import OodSet, Suite

from .networks import NETWORKS, STEPS, trained

MOST = 3000  # images of a data set that is judged
GREY: dict[str, object] = {"mean": (0.5,), "std": (0.25,), "mode": "L"}
COLOUR: dict[str, object] = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
LETTERS = "letters.npz"  # which the built-in suite makes
CIFAR, CIFAR_TRAIN, SVHN, MNIST, TEXTURES = (
    f"{name}.npz" for name in ("cifar10_test", "cifar10_train_5k", "svhn_test_4k", "mnist_test", "textures_dtd10_32")
)

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """What a development suite is made of.

    Attributes:
        known: File of the known images; validation and test images come from it.
        train: File of the training images; empty to take them from ``known`` too.
        classes: How many classes are known, from 0 on; the others are near-OOD.
        shares: Of each known class for training, validation and test.
        size: Side of the images in pixels.
        transform: The other settings of the transform.
        far: Files of unknown images.
    """

    known: str
    train: str
    classes: int
    shares: tuple[float, float, float]
    size: int
    transform: dict[str, object]
    far: dict[str, str]


PLANS = {
    "mnist10": Plan(
        *(MNIST, "", 10, (0.6, 0.1, 0.3), 28, GREY),
        {"svhn": SVHN, "textures": TEXTURES, "cifar": CIFAR, "letters": LETTERS},
    ),
    "mnist6": Plan(
        *(MNIST, "", 6, (0.6, 0.1, 0.3), 28, GREY), {"svhn": SVHN, "textures": TEXTURES, "letters": LETTERS}
    ),
    "cifar6": Plan(
        *(CIFAR, CIFAR_TRAIN, 6, (0.0, 0.1, 0.9), 32, COLOUR), {"svhn": SVHN, "textures": TEXTURES, "mnist": MNIST}
    ),
    "svhn10": Plan(
        *(SVHN, "", 10, (0.6, 0.15, 0.25), 32, COLOUR), {"cifar": CIFAR, "textures": TEXTURES, "mnist": MNIST}
    ),
}


def development_suites(
    data: Path, letters: Path, out: Path, names: Sequence[str] = tuple(PLANS), steps: int = STEPS
) -> Iterator[Suite]:
    """Yield every suite with every network, training what ``out`` does not hold yet.

    Args:
        data: Folder of the image files.
        letters: File of printed letters.
        out: Folder for the networks.
        names: Of the suites.
        steps: Of training.
    """
    for name in names:
        for network in NETWORKS:
            yield _suite(name, PLANS[name], network, {LETTERS: letters}, data, out, steps)


def _suite(name: str, plan: Plan, network: str, elsewhere: dict[str, Path], data: Path, out: Path, steps: int) -> Suite:
    def images(file: str, labels: bool = False) -> NpzImages:
        transform = Transform(resize=plan.size, crop=plan.size, **plan.transform)  # type: ignore[arg-type]
        return NpzImages(elsewhere.get(file, data / file), transform, batch_size=256, y="y" if labels else None)

    known = images(plan.known, labels=True)
    rows, val, test = split(_labels(known), plan.classes, plan.shares)
    train = _first_classes(images(plan.train, labels=True), plan.classes) if plan.train else ImageSubset(known, rows)
    return Suite(
        name=name,
        about=f"The first {plan.classes} classes of {plan.known} are known.",
        model=trained(network, train, out / f"{name}-{network}.safetensors", steps),
        train=_some(train),
        val=ImageSubset(known, val),
        test=_some(known, test),
        ood=tuple(_unknown(plan, known, images)),
        seed=0,
        network=network,
    )


def _unknown(plan: Plan, known: NpzImages, images: Callable[[str], NpzImages]) -> Iterator[OodSet]:
    """Yield the classes that are not known, where there are any, and the images of other files."""
    rows = np.flatnonzero(_labels(known) >= plan.classes)
    if len(rows):
        yield OodSet("other-classes", "near", _some(images(plan.known), rows), "Classes that were never shown.")
    for name, file in plan.far.items():
        yield OodSet(name, "far", _some(images(file)), f"Images of {file}.")


def split(labels: Rows, classes: int, shares: Sequence[float]) -> list[Rows]:
    """Return rows for each share, drawn apart from each other and in the same proportion of every known class.

    Args:
        labels: Of all rows, ``(n,)``.
        classes: How many classes are known, from 0 on.
        shares: Of the rows of a class; they sum to 1.
    """
    rng = np.random.default_rng(0)
    parts: list[list[Rows]] = [[] for _ in shares]
    for label in range(classes):
        own = rng.permutation(np.flatnonzero(labels == label))
        edges = np.round(np.cumsum(shares)[:-1] * len(own)).astype(int)
        for part, rows in zip(parts, np.split(own, edges), strict=True):
            part.append(rows)
    return [np.sort(np.concatenate(part)) for part in parts]


def _first_classes(source: ImageSource, classes: int) -> ImageSource:
    return ImageSubset(source, np.flatnonzero(_labels(source) < classes))


def _some(source: ImageSource, rows: Rows | None = None) -> ImageSource:
    """Return at most ``MOST`` random images of those rows."""
    rows = np.arange(source.rows) if rows is None else rows
    return ImageSubset(source, np.sort(np.random.default_rng(1).permutation(rows)[:MOST]))


def _labels(source: ImageSource) -> Rows:
    assert source.labels is not None
    return source.labels.numpy()
