"""Write a suite file for one's own network and images from the commented template ``template.toml``."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ...core.autofold import MIN_PER_CLASS
from ...core.validation import UnreadableImage
from ...io.files import write_atomically
from ...models.images import ListImages, Transform, image_kind, open_images
from ...models.sources import ImageSource
from .schema import SPLITS, VARIABLE, NetworkTable, check_table, error_context
from .suite import NAME, check_names

TEMPLATE = Path(__file__).with_name("template.toml")
NEEDED = ("network", "val", "test", "ood")  # sections that every suite has
INSPECTED = 20  # images that are opened for their size
LOOKED_FOR = 10  # images of a list
FEWEST, MOST = 5, 100  # images of a class that are drawn for val


@dataclass(frozen=True)
class Parts:
    """The parts of a suite that are known, as the options of ``flatfold suite init``; all may be left out."""

    train: Path | None = None
    val: Path | None = None
    test: Path | None = None
    ood_val: Path | None = None
    near: Sequence[tuple[str, Path]] = ()
    far: Sequence[tuple[str, Path]] = ()
    images: Path | None = None
    model: str | None = None
    weights: Path | None = None
    accuracy: float | None = None
    resize: int | None = None
    crop: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    @property
    def transform(self) -> Transform:
        """The preparation of images, as far as it is given."""
        mean, std = (None if values is None else tuple(values) for values in (self.mean, self.std))
        return Transform(self.resize, self.crop, mean, std, "L" if len(mean or std or ()) == 1 else "RGB")


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about the images at a path: their number, classes, size of the smallest class, and sizes of some.

    ``kind`` is the key of a suite file that names such a source, ``images`` the folder of a list's paths.
    """

    kind: str
    path: Path
    images: Path | None
    rows: int
    classes: int
    smallest: int
    sizes: tuple[tuple[int, int], ...]
    grey: bool

    @property
    def summary(self) -> str:
        """The facts in a few words, for a comment."""
        words = f"{self.rows} images" + (f" of {self.classes} classes" if self.classes else "")
        if not self.sizes:
            return words
        width, height = self.sizes[len(self.sizes) // 2]
        different = "of different sizes such as " if len(set(self.sizes)) > 1 else ""
        return f"{words}, {different}{width} x {height} pixels"


def write_suite(path: Path, parts: Parts, force: bool = False) -> tuple[list[str], list[str]]:
    """Write a suite file, and return the sections that must still be filled in and notes for its author."""
    if path.suffix != ".toml":
        raise ValueError(f"a suite file ends in .toml, got {path}.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists. Pass --force to replace it, or choose another name.")
    data = {name: _inspect(name, parts) for name in (*SPLITS, "ood_val") if getattr(parts, name) is not None}
    sets = [("near", *pair) for pair in parts.near] + [("far", *pair) for pair in parts.far]
    check_names([name for _, name, _ in sets])
    ood = [(group, name, _inspect(name, parts, place)) for group, name, place in sets]
    per_class = 0
    if "test" in data and "val" not in data:
        per_class = _images_per_class(data["test"].smallest)
        data["val"] = data["test"]
    id_facts = [facts for name, facts in data.items() if name in SPLITS]
    every = [*data.values(), *(facts for _, _, facts in ood)]
    write_atomically(
        path,
        _render(
            path.parent.resolve(),
            **asdict(parts) | {"mode": parts.transform.mode},
            **_network(parts),
            name=path.stem if NAME.fullmatch(path.stem) else "mine",
            data=data,
            ood=ood,
            per_class=per_class,
            sizes_differ=len({size for facts in every for size in facts.sizes}) > 1,
            all_grey=bool(id_facts) and all(facts.grey for facts in id_facts),
        ),
    )
    there = {*data, *(["network"] if parts.model else []), *(["ood"] if ood else [])}
    return [name for name in NEEDED if name not in there], _notes(path, parts, id_facts, per_class)


def _inspect(name: str, parts: Parts, place: Path | None = None) -> DatasetFacts:
    """Return facts about the images of a part; its kind follows from its suffix, or from the content of a folder."""
    path: Path = getattr(parts, name) if place is None else place
    labelled = place is None and name in SPLITS
    with error_context(name):
        kind = image_kind(path)
        root = (parts.images or path.parent) if kind == "list" else None
        source = open_images(path, Transform(), labels=labelled, kind=kind, root=root)
        if labelled and source.labels is None:
            raise ValueError(f"ID images need labels, but {path} has none. Give each class a sub-folder.")
        if isinstance(source, ListImages) and not any((source.root / p).exists() for p in source.paths[:LOOKED_FOR]):
            raise ValueError(
                f"{path} names {source.paths[0]}, which is not in {source.root}. Give the folder in which the paths of "
                "all lists start as --images."
            )
        counts = np.zeros(0, np.int64) if source.labels is None else np.unique(source.labels, return_counts=True)[1]
        sizes, grey = _sizes(source)
    return DatasetFacts(kind, path, root, source.rows, len(counts), int(counts.min(initial=source.rows)), sizes, grey)


def _sizes(source: ImageSource) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Return sizes of some images, in ascending order, and whether all of these are grey."""
    sizes, grey = [], []
    for row in np.unique(np.linspace(0, source.rows - 1, INSPECTED).astype(int)):
        try:
            _, picture = source.picture(int(row))
        except UnreadableImage:  # `flatfold doctor` reports it
            continue
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
        sizes.append(image.size)
        grey.append(image.mode in ("1", "L"))
    return tuple(sorted(sizes, key=lambda size: (size[0] * size[1], size))), bool(grey) and all(grey)


def _images_per_class(smallest: int) -> int:
    """Return how many images of each class val draws: a fifth of the smallest, 5 to 100, and at most half of it."""
    if smallest < 2:
        raise ValueError("test: a class has one image only, so none can be drawn for val. Give images for val too.")
    return min(MOST, max(smallest // 5, min(FEWEST, smallest // 2)))


def _network(parts: Parts) -> dict[str, str]:
    """Return the name of the network and the key that makes it, after checking all that is given about it."""
    if parts.model is None:
        for name in ("weights", "accuracy"):
            if getattr(parts, name) is not None:
                raise ValueError(f"{name}: it belongs to a network. Give the model too.")
        return {}
    key = "factory" if ":" in parts.model else "model"
    name = re.sub(r"[^\w+-]+", "-", re.split("[:/]", parts.model)[-1]).strip("-") or "mine"
    table = {"name": name, key: parts.model} | ({} if parts.accuracy is None else {"accuracy": parts.accuracy})
    check_table(table, NetworkTable)
    if parts.weights is not None and not parts.weights.is_file():
        raise FileNotFoundError(f"weights: there is no file {parts.weights}. Check the path.")
    return {"network_name": name, "model_key": key}


def _render(folder: Path, **values: object) -> str:
    from jinja2 import Environment, StrictUndefined

    def quote_path(path: Path) -> str:
        """Return a path in quotes, relative to the suite file unless the two have nothing in common."""
        whole = path.resolve()
        if VARIABLE.search(str(whole)):
            raise ValueError(f"{whole} has a $ in it, which marks a variable in a suite file. Rename it.")
        common = Path(os.path.commonpath([whole, folder])) if whole.anchor == folder.anchor else Path(whole.anchor)
        near = whole if common == Path(whole.anchor) else Path(os.path.relpath(whole, folder))
        return json.dumps(near.as_posix(), ensure_ascii=False)

    template = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template.filters |= {"path": quote_path, "quote": json.dumps}
    return template.from_string(TEMPLATE.read_text(encoding="utf-8")).render(values)


def _notes(path: Path, parts: Parts, id_facts: Sequence[DatasetFacts], per_class: int) -> list[str]:
    """Return what the author of a suite file should know before using it."""
    transform, notes = parts.transform, []
    if transform.mean is None and transform.std is None:
        notes.append(
            "images are not normalised, the network gets values from 0 to 1: if it was trained with others, write mean "
            f"and std into [transform] of {path}"
        )
    if transform.mode == "L" and not all(facts.grey for facts in id_facts):
        notes.append('one number for mean or std makes all images grey (mode = "L"): give three for colours')
    if 0 < per_class < FEWEST:
        notes.append(
            f"the smallest class of test is small, so val draws {per_class} images of each class: methods that are "
            f"tuned on it need {MIN_PER_CLASS}, and {FEWEST} or more are better. Give images for val, or more for test"
        )
    return notes
