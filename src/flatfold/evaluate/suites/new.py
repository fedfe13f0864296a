"""A suite file for one's own network and images, with a comment for everything that it says and could say."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.criteria import MIN_PER_CLASS
from ...files import write_atomically
from ...models.images import Transform
from .keys import KEYS, SPLITS
from .new_words import (
    EXAMPLES,
    FEWEST,
    HEADER,
    TITLES,
    WEIGHTS,
    accuracy_line,
    divided_texts,
    drawn,
    path_text,
    section_text,
    transform_lines,
    unknown_text,
)
from .seen import Looks, Seen, look
from .suite import NAME, check_names
from .text import told

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
