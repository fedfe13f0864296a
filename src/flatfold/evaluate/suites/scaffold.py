"""A suite file for one's own network and images, with a comment for everything that it says and could say."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ...core.autofold import MIN_PER_CLASS
from ...core.validation import UnreadableImage
from ...io.files import write_atomically
from ...models.images import ListImages, Transform, image_kind, open_images
from ...models.sources import ImageSource
from .schema import KEYS, SPLITS, VARIABLE, told
from .suite import NAME, check_names

# What a folder or file looks like, to whoever wants to judge a network on its images.


LOOKED_AT = 20  # images that are opened to learn their size

ASKED = 10  # images of a list that are looked for

SUFFIXES = {".npz": "npz", ".txt": "list", ".parquet": "table"}


@dataclass(frozen=True)
class Seen:
    """What was seen of a data set.

    Args:
        kind: The key of a suite file that names such a source.
        path: Where it lies.
        images: Where the paths of a list start, None for another kind.
        rows: Number of images.
        classes: Number of classes, 0 without labels.
        smallest: Number of images of the smallest class, 0 without labels.
        sizes: Widths and heights of some images, from the smallest to the largest.
        grey: Whether all of these are grey.
    """

    kind: str
    path: Path
    images: Path | None
    rows: int
    classes: int
    smallest: int
    sizes: tuple[tuple[int, int], ...]
    grey: bool

    def __str__(self) -> str:
        words = f"{self.rows} images" + (f" of {self.classes} classes" if self.classes else "")
        if not self.sizes:
            return words
        width, height = self.sizes[len(self.sizes) // 2]
        different = "of different sizes such as " if len(set(self.sizes)) > 1 else ""
        return f"{words}, {different}{width} x {height} pixels"


class Looks(NamedTuple):
    """What was seen of the four sections with images, by name, and of the unknown sets, with their group and name."""

    sections: dict[str, Seen]
    unknown: list[tuple[str, str, Seen]]

    @property
    def grey(self) -> bool:
        """Whether there are known images and all of them are grey."""
        known = [seen for name, seen in self.sections.items() if name in SPLITS]
        return bool(known) and all(seen.grey for seen in known)

    @property
    def divided(self) -> bool:
        """Whether val must be drawn from test."""
        return "test" in self.sections and "val" not in self.sections


def look(path: Path, labelled: bool, images: Path | None = None) -> Seen:
    """Return what a data set looks like; what kind of source it is follows from its suffix, or from what a folder has.

    Args:
        path: A folder, a ``.npz`` file, a ``.parquet`` file or a folder of them, or a list in a ``.txt`` file.
        labelled: Whether its images need labels.
        images: Where the paths of a list start; by default the folder of the list.

    Raises:
        FileNotFoundError: There is nothing at ``path``.
        ValueError: It is no source of images, has no labels although they are needed, or is a list whose first images
            are not where its paths should start.
    """
    kind = image_kind(path)
    root = (images or path.parent) if kind == "list" else None
    source = open_images(path, Transform(), labels=labelled, kind=kind, root=root)
    if labelled and source.labels is None:
        raise ValueError(f"known images need labels, but {path} has none. Give each class a sub-folder.")
    if isinstance(source, ListImages):
        _check_root(source, path, images)
    counts = np.zeros(0, np.int64) if source.labels is None else np.unique(source.labels, return_counts=True)[1]
    sizes, grey = _sizes(source)
    return Seen(kind, path, root, source.rows, len(counts), int(counts.min(initial=source.rows)), sizes, grey)


def _check_root(source: ListImages, path: Path, images: Path | None) -> None:
    """Raise if the first images that a list names are not where its paths should start."""
    if any((source.root / name).exists() for name in source.paths[:ASKED]):
        return
    if images is None:
        raise ValueError(
            f"{path} names {source.paths[0]}, which is not there. Say with --images in which folder its paths start."
        )
    raise ValueError(
        f"{path} names {source.paths[0]}, which is not in {images}. --images is for all lists: leave out one that "
        "starts elsewhere, and write it into the file with its own images = ."
    )


def _sizes(source: ImageSource) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Return sizes of some images, in ascending order, and whether all of these are grey."""
    seen = []
    for row in np.unique(np.linspace(0, source.rows - 1, LOOKED_AT).astype(int)):
        try:
            _, picture = source.picture(int(row))
        except UnreadableImage:  # whoever judges it will meet it
            continue
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
        seen.append((image.size, image.mode in ("1", "L")))
    ascending = sorted((size for size, _ in seen), key=lambda size: (size[0] * size[1], size))
    return tuple(ascending), bool(seen) and all(grey for _, grey in seen)


# The text of a new suite file: its comments, its sections, and what stands in the place of those not known yet.


HEADER = """\
# A suite for flatfold: networks, and the images on which methods are judged. Paths start from the folder of this file,
# and $NAME is an environment variable. `flatfold doctor` says what is missing, `flatfold bench` judges.
"""

TITLES = {
    "transform": "# What happens to every image before a network sees it: the same as in its validation.",
    "network": "# Any number of networks, each judged on the same images.",
    "train": "# Known images that the network was trained with. Methods that learn from them need them.",
    "val": "# Known images, with labels, that the network was not trained with: some methods learn from them.",
    "test": "# Known images, with labels, that methods are judged on.",
    "ood_val": "# Unknown images by which methods choose a setting when asked to, as in knn@ood. None is judged.",
    "ood": "# Unknown images that methods are judged on: near ones look like the known ones, far ones do not.",
}

SIZES = {
    False: """\
# resize = 256  # the shorter side, in pixels
# crop = 224  # a square from the middle""",
    True: """\
# Images of different sizes need a resize and a crop, which make them one.
# resize = 256  # the shorter side, in pixels
# crop = 224  # a square from the middle""",
}

VALUES = "  # per channel, of values from 0 to 1"

NORMALISATION = {
    False: f"""\
# mean = [0.485, 0.456, 0.406]{VALUES}
# std = [0.229, 0.224, 0.225]
# mode = "L"  # for a network that takes grey images; all become RGB if nothing is said""",
    True: f"""\
# All known images are grey. They become RGB unless the network takes grey ones:
# mode = "L"
# mean = [0.5]{VALUES}
# std = [0.25]""",
}

GREY = 'mode = "L"  # one number per channel is one channel: the network takes grey images'

ACCURACY = "accuracy = {}  # what it should reach on [test], in per cent; flatfold doctor compares"

FEWEST, MOST = 5, 100  # images of a class that are drawn for val

_FOLDER = '# folder = "{}"  # one sub-folder per class; or npz = , table = , or list = with images ='

_MIXED = '# folder = "{}"  # in any sub-folders; or npz = , table = , or list = with images ='

EXAMPLES = {
    "transform": TITLES["transform"],
    "network": f"""\
{TITLES["network"]}
# [[network]]
# name = "mine"
# factory = "my_networks:make"  # package.module:function without arguments; a file beside this one will do
# model = "torchvision/resnet50"  # or, in its place, a network of openood, torchvision, timm or transformers
# weights = "mine.safetensors"  # a state dict, of safetensors or torch.save
# {ACCURACY.format(91.7)}""",
    "train": f"{TITLES['train']}\n# [train]\n{_FOLDER.format('train')}",
    "val": f"{TITLES['val']}\n# [val]\n{_FOLDER.format('val')}",
    "test": f"{TITLES['test']}\n# [test]\n{_FOLDER.format('test')}",
    "ood_val": f"{TITLES['ood_val']}\n# [ood_val]\n{_MIXED.format('more-unknown')}",
    "ood": f"""\
{TITLES["ood"]}
# [[ood]]
# name = "strange"
# group = "far"  # or "near"
{_MIXED.format("strange")}""",
}

WEIGHTS = {
    "factory": '# weights = "mine.safetensors"  # a state dict, unless the function loads its own',
    "model": """\
# weights = "mine.safetensors"  # a state dict, or else
# pretrained = "DEFAULT"  # those that the library publishes, which are downloaded""",
}


def transform_lines(transform: Transform, different: bool, grey: bool) -> list[str]:
    """Return the section about the preparation of images; what nobody said is there as an example.

    Args:
        transform: What was said.
        different: Whether there are images of different sizes.
        grey: Whether all known images are grey.
    """
    sizes = {name: value for name in ("resize", "crop") if (value := getattr(transform, name)) is not None}
    lines = [TITLES["transform"], "[transform]", *(f"{name} = {value}" for name, value in sizes.items())]
    lines += [] if sizes else [SIZES[different]]
    if transform.mean is None and transform.std is None:
        return [*lines, NORMALISATION[grey]]
    for name, values in (("mean", transform.mean), ("std", transform.std)):
        lines += [] if values is None else [f"{name} = {json.dumps(values)}{VALUES}"]
    return [*lines, GREY] if transform.mode == "L" else lines


def accuracy_line(accuracy: float | None) -> str:
    """Return the line about what a network should reach, as an example if that is not known."""
    return f"# {ACCURACY.format(91.7)}" if accuracy is None else ACCURACY.format(accuracy)


def section_text(name: str, seen: Seen, folder: Path, more: Sequence[str] = ()) -> str:
    """Return a section about images, with more lines at its end."""
    return "\n".join([f"{TITLES[name]}\n[{name}]", *_source(seen, folder), *more])


def _source(seen: Seen, folder: Path) -> list[str]:
    """Return the lines that say where images come from, and what was seen of them."""
    lines = [f"{seen.kind} = {path_text(seen.path, folder)}  # {seen}"]
    return lines if seen.images is None else [*lines, f"images = {path_text(seen.images, folder)}"]


def path_text(path: Path, folder: Path) -> str:
    """Return a path in quotes, relative to the suite file unless the two have nothing in common."""
    whole = path.resolve()
    if VARIABLE.search(str(whole)):
        raise ValueError(f"{whole} has a $ in it, which stands for a variable in a suite file. Rename it.")
    common = Path(os.path.commonpath([whole, folder])) if whole.anchor == folder.anchor else Path(whole.anchor)
    near = whole if common == Path(whole.anchor) else Path(os.path.relpath(whole, folder))
    return json.dumps(near.as_posix(), ensure_ascii=False)


def drawn(smallest: int) -> int:
    """Return how many images of each class val draws: a fifth of the smallest, 5 to 100, and at most half of it."""
    return min(MOST, max(smallest // 5, min(FEWEST, smallest // 2)))


def divided_texts(test: Seen, folder: Path) -> dict[str, str]:
    """Return two sections that share the images of one: val draws some of each class, test has the rest."""
    if test.smallest < 2:
        raise ValueError("test: a class has one image only, so none can be drawn for val. Give images for val too.")
    draw = f"per_class = {drawn(test.smallest)}  # so many of each class, drawn with the seed"
    rest = 'rest_of = "val"  # what [val] did not draw'
    return {"val": section_text("val", test, folder, [draw]), "test": section_text("test", test, folder, [rest])}


def unknown_text(sets: Sequence[tuple[str, str, Seen]], folder: Path) -> str:
    """Return the sections of unknown data sets that are judged: their group, name and what was seen."""
    texts = [
        "\n".join(["[[ood]]", f'name = "{name}"', f'group = "{group}"', *_source(seen, folder)])
        for group, name, seen in sets
    ]
    return "\n\n".join([f"{TITLES['ood']}\n{texts[0]}", *texts[1:]])


NEEDED = ("network", "val", "test", "ood")  # sections that no suite can do without


@dataclass(frozen=True)
class Parts:
    """What is there to judge, and what to judge it on; all of it may be left out.

    Args:
        train, val, test: Known images. Without ``val`` some are drawn from ``test``.
        ood_val: Unknown images to choose settings by.
        near, far: Names and places of unknown images.
        images: Where the paths of lists start; by default the folder of each list.
        model: ``package.module:function`` or ``library/name``.
        weights: A file for the network.
        accuracy: What the network should reach on ``test``, in per cent.
        resize, crop: Of every image, in pixels.
        mean, std: Per channel, of values from 0 to 1: three numbers, or one for a network that takes grey images.
    """

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
        mean, std = (None if given is None else tuple(given) for given in (self.mean, self.std))
        return Transform(self.resize, self.crop, mean, std, "L" if len(mean or std or ()) == 1 else "RGB")


@dataclass(frozen=True)
class Written:
    """What is left to do about a suite file that was written.

    Args:
        missing: Sections that must still be filled in.
        notes: What is worth knowing before the suite is used.
    """

    missing: list[str]
    notes: list[str]


def look_at(parts: Parts) -> Looks:
    """Look at all images that ``parts`` names."""

    def looked(name: str, place: Path, labelled: bool) -> Seen:
        with told(name):
            return look(place, labelled, parts.images)

    places = {name: getattr(parts, name) for name in (*SPLITS, "ood_val") if getattr(parts, name) is not None}
    sections = {name: looked(name, place, name in SPLITS) for name, place in places.items()}
    sets = [("near", *each) for each in parts.near] + [("far", *each) for each in parts.far]
    check_names([name for _, name, _ in sets])
    return Looks(sections, [(group, name, looked(name, place, False)) for group, name, place in sets])


def write_suite(path: Path, parts: Parts, force: bool = False) -> Written:
    """Write a suite file and return what is left to do.

    Args:
        path: The file, which ends in ``.toml``.
        parts: What goes into it.
        force: Whether to replace a file that is there already.

    Raises:
        FileExistsError: There is such a file, and ``force`` is not given.
        FileNotFoundError: Something that ``parts`` names is not there.
        ValueError: It cannot be judged, or nothing can be judged on it; the message begins with the part.
    """
    if path.suffix != ".toml":
        raise ValueError(f"a suite file ends in .toml, got {path}.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} is there already. Pass --force to replace it, or choose another name.")
    looks = look_at(parts)
    sections = suite_sections(path, parts, looks)
    name = path.stem if NAME.fullmatch(path.stem) else "mine"
    top = f'{HEADER}\nname = "{name}"\n# about = "What is known, and what is not."\nseed = 0  # of every draw\n'
    texts = [sections.get(section, EXAMPLES[section]) for section in EXAMPLES]
    write_atomically(path, "\n\n".join([top.rstrip(), *texts]) + "\n")
    return Written([section for section in NEEDED if section not in sections], _notes(path, parts, looks))


def suite_sections(path: Path, parts: Parts, looks: Looks) -> dict[str, str]:
    """Return the text of each section of a suite file at ``path`` that ``parts`` has something for."""
    folder = path.parent.resolve()
    sections = {name: section_text(name, seen, folder) for name, seen in looks.sections.items()}
    if looks.divided:
        sections |= divided_texts(looks.sections["test"], folder)
    seen = [*looks.sections.values(), *(seen for _, _, seen in looks.unknown)]
    different = len({size for each in seen for size in each.sizes}) > 1
    transform = "\n".join(transform_lines(parts.transform, different, looks.grey))
    unknown = {"ood": unknown_text(looks.unknown, folder)} if looks.unknown else {}
    return sections | _network(parts, folder) | unknown | {"transform": transform}


def _notes(path: Path, parts: Parts, looks: Looks) -> list[str]:
    """Return what whoever made a suite file should know before they use it."""
    transform, notes = parts.transform, []
    if transform.mean is None and transform.std is None:
        notes.append(
            "nothing is normalised, the network sees values from 0 to 1: if it is used to others, write mean and std "
            f"into [transform] of {path}"
        )
    if transform.mode == "L" and any(name in SPLITS and not seen.grey for name, seen in looks.sections.items()):
        notes.append('one number for mean or std makes all images grey (mode = "L"): give three for colours')
    if looks.divided and drawn(looks.sections["test"].smallest) < FEWEST:
        smallest = looks.sections["test"].smallest
        notes.append(
            f"a class of test has {smallest} images only, so val draws {drawn(smallest)} of each: methods that are "
            f"tuned on it need {MIN_PER_CLASS}, and {FEWEST} or more are better. Give images for val, or more for test"
        )
    return notes


def _network(parts: Parts, folder: Path) -> dict[str, str]:
    if parts.model is None:
        if parts.weights is not None:
            raise ValueError("weights: it takes a network to load them into. Give the model too.")
        if parts.accuracy is not None:
            raise ValueError("accuracy: it takes a network that should reach it. Give the model too.")
        return {}
    keys = [key for key in ("factory", "model") if KEYS["network"][key].fits(parts.model)]
    if not keys:
        raise ValueError(f"model: it must be written package.module:function or library/name, got {parts.model!r}.")
    if parts.accuracy is not None and not KEYS["network"]["accuracy"].fits(parts.accuracy):
        raise ValueError(f"accuracy: it must be a number of per cent, above 0 and up to 100, got {parts.accuracy}.")
    name = re.sub(r"[^\w+-]+", "-", re.split("[:/]", parts.model)[-1]).strip("-") or "mine"
    lines = [f"{TITLES['network']}\n[[network]]", f'name = "{name}"', f"{keys[0]} = {json.dumps(parts.model)}"]
    if parts.weights is not None and not parts.weights.is_file():
        raise FileNotFoundError(f"weights: there is no file {parts.weights}. Check the path.")
    lines += [WEIGHTS[keys[0]] if parts.weights is None else f"weights = {path_text(parts.weights, folder)}"]
    return {"network": "\n".join([*lines, accuracy_line(parts.accuracy)])}
