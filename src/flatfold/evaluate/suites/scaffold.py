"""Write a commented suite file for a user's network and images from ``template.toml``."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ...core.autofold import MIN_PER_CLASS
from ...data.images import ListImages, Transform, image_kind, open_images
from ...errors import UnreadableImageError
from ...io.files import write_atomically
from .schema import SPLITS, VARIABLE, NetworkTable, convert_table, error_context
from .suite import NAME, check_names
from .toml_file import lacks_images

TEMPLATE = Path(__file__).with_name("template.toml")
NEEDED = ("network", "val", "test", "ood")  # sections that every suite has
INSPECTED = 20  # images of a data set whose size is inspected
FEWEST, MOST = 5, 100  # images per class that are drawn for val


class DatasetFacts(NamedTuple):
    """Facts about the images at a path; ``kind`` is the key that names such a source in a suite file."""

    kind: str
    path: Path
    images: Path | None  # root folder of the paths in a list
    class_sizes: list[int]  # images per class, empty without labels
    sizes: list[tuple[int, int]]  # in pixels, of the inspected images, in ascending order
    grey: bool  # whether all inspected images are grey
    rows: int

    @property
    def summary(self) -> str:
        """The facts in a few words, for a comment."""
        words = f"{self.rows} images" + (f" of {len(self.class_sizes)} classes" if self.class_sizes else "")
        if not self.sizes:
            return words
        width, height = self.sizes[len(self.sizes) // 2]
        different = "of different sizes such as " if len(set(self.sizes)) > 1 else ""
        return f"{words}, {different}{width} x {height} pixels"


def write_suite(
    path: Path,
    places: Mapping[str, Path | None],
    ood: Sequence[tuple[str, str, Path]],
    transform: Transform,
    images: Path | None = None,
    model: str | None = None,
    weights: Path | None = None,
    accuracy: float | None = None,
    force: bool = False,
) -> tuple[list[str], list[str]]:
    """Write a suite file; return the sections that must still be filled in, and notes for its author.

    ``places`` has the images of each known section, ``ood`` the group, name and place of every OOD data set, and
    ``images`` is the root folder of the paths in all lists.
    """
    if path.suffix != ".toml":
        raise ValueError(f"the name of a suite file ends in .toml, got {path}. Rename it.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists. Replace it with force=True, or choose another name.")
    network = _network(model, weights, accuracy)
    data = {name: _inspect(name, place, images, name in SPLITS) for name, place in places.items() if place is not None}
    check_names([name for _, name, _ in ood])
    sets = [(group, name, _inspect(name, place, images, labelled=False)) for group, name, place in ood]
    per_class = 0
    if "test" in data and "val" not in data:
        smallest = min(data["test"].class_sizes)
        if smallest < 2:
            raise ValueError("test: a class has only one image, so none can be drawn for val. Give images for val too.")
        per_class = min(MOST, max(smallest // 5, min(FEWEST, smallest // 2)))
        data["val"] = data["test"]
    all_sizes = {size for facts in (*data.values(), *(facts for _, _, facts in sets)) for size in facts.sizes}
    id_grey = [facts.grey for name, facts in data.items() if name in SPLITS]
    text = _render(
        path.parent.resolve(),
        name=path.stem if NAME.fullmatch(path.stem) else "mine",
        transform=transform,
        network=network,
        weights=weights,
        data=data,
        ood=sets,
        per_class=per_class,
        sizes_differ=len(all_sizes) > 1,
        all_grey=bool(id_grey) and all(id_grey),
    )
    write_atomically(path, text)
    notes = []
    if transform.mean is None and transform.std is None:
        notes.append(
            "images are not normalised, the network gets values from 0 to 1: if it was trained with others, write mean "
            f"and std into [transform] of {path}"
        )
    if transform.mode == "L" and not all(id_grey):
        notes.append('one number for mean or std makes all images grey (mode = "L"): give three for colours')
    if 0 < per_class < FEWEST:
        notes.append(
            f"the smallest class of test is small, so val draws {per_class} images per class: methods that are tuned "
            f"on it need {MIN_PER_CLASS}, and {FEWEST} or more are better. Give images for val, or more for test"
        )
    there = data | {"network": network, "ood": sets}
    return [name for name in NEEDED if not there.get(name)], notes


def _inspect(name: str, path: Path, images: Path | None, labelled: bool) -> DatasetFacts:
    """Return facts about some images, whose kind follows from the suffix of the path or the content of a folder."""
    with error_context(name):
        kind = image_kind(path)
        if kind == "image":
            raise ValueError(f"a data set must have several images, but {path} is one. Give its folder.")
        root = (images or path.parent) if kind == "list" else None
        source = open_images(path, Transform(), labels=labelled, kind=kind, root=root)
        if labelled and source.labels is None:
            raise ValueError(f"ID images need labels, but {path} has none. Give each class a sub-folder.")
        if isinstance(source, ListImages) and lacks_images(source):
            raise ValueError(
                f"{path} names {source.paths[0]}, which is not in {source.root}. Give the root folder of the paths in "
                "all lists as images=."
            )
        class_sizes = [] if source.labels is None else np.unique(source.labels, return_counts=True)[1].tolist()
        opened = []
        for row in np.unique(np.linspace(0, source.rows - 1, INSPECTED).astype(int)):
            with suppress(UnreadableImageError):  # `flatfold doctor` reports it
                _, picture = source.picture(int(row))
                image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
                opened.append((image.size, image.mode in ("1", "L")))
        sizes = sorted((size for size, _ in opened), key=lambda size: (size[0] * size[1], size))
        grey = bool(opened) and all(grey for _, grey in opened)
        return DatasetFacts(kind, path, root, class_sizes, sizes, grey, source.rows)


def _network(model: str | None, weights: Path | None, accuracy: float | None) -> NetworkTable | None:
    """Return the section of a network without its weights, after checking everything that is given about it."""
    if model is None:
        for option, value in (("weights", weights), ("accuracy", accuracy)):
            if value is not None:
                raise ValueError(f"{option}: it belongs to a network. Give the model too.")
        return None
    name = re.sub(r"[^\w+-]+", "-", re.split("[:/]", model)[-1]).strip("-") or "mine"
    table = {"name": name, "factory" if ":" in model else "model": model}
    if weights is not None and not weights.is_file():
        raise FileNotFoundError(f"weights: there is no file {weights}. Check the path.")
    return convert_table(table if accuracy is None else table | {"accuracy": accuracy}, NetworkTable)


def _render(folder: Path, **values: object) -> str:
    from jinja2 import Environment, StrictUndefined

    def quote_path(path: Path) -> str:
        """Return a path in quotes, relative to the suite file unless only the root is common."""
        whole = path.resolve()
        if VARIABLE.search(str(whole)):
            raise ValueError(f"{whole} has a $ in it, which starts a variable in a suite file. Rename it.")
        common = Path(os.path.commonpath([whole, folder])) if whole.anchor == folder.anchor else Path(whole.anchor)
        near = whole if common == Path(whole.anchor) else Path(os.path.relpath(whole, folder))
        return json.dumps(near.as_posix(), ensure_ascii=False)

    template = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template.filters |= {"path": quote_path, "quote": json.dumps}
    return template.from_string(TEMPLATE.read_text(encoding="utf-8")).render(values)
