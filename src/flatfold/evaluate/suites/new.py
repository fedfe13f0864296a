"""A suite file for one's own network and images, with a comment for everything that it says and could say."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...files import write_atomically
from .keys import KEYS, SPLITS
from .new_words import EXAMPLES, HEADER, NORMALISATION, SIZES, TITLES, WEIGHTS
from .seen import Seen, look
from .suite import NAME, RESERVED
from .text import VARIABLE, told

NEEDED = ("network", "val", "test", "ood")  # sections that no suite can do without
DRAWN = 10  # one image in so many of a class is drawn for val


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
        resize, crop: Of every image, in pixels.
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
    resize: int | None = None
    crop: int | None = None


def write_suite(path: Path, parts: Parts, force: bool = False) -> list[str]:
    """Write a suite file and return the sections that must still be filled in.

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
    sections = suite_sections(path, parts)
    name = path.stem if NAME.fullmatch(path.stem) else "mine"
    top = f'{HEADER}\nname = "{name}"\n# about = "What is known, and what is not."\nseed = 0  # of every draw\n'
    texts = [sections.get(section, EXAMPLES[section]) for section in EXAMPLES]
    write_atomically(path, "\n\n".join([top.rstrip(), *texts]) + "\n")
    return [section for section in NEEDED if section not in sections]


def suite_sections(path: Path, parts: Parts) -> dict[str, str]:
    """Return the text of each section of a suite file at ``path`` that ``parts`` has something for."""
    folder = path.parent.resolve()
    places = {name: getattr(parts, name) for name in (*SPLITS, "ood_val") if getattr(parts, name) is not None}
    known = {name: _looked(name, place, name in SPLITS, parts) for name, place in places.items()}
    names = [("near", *each) for each in parts.near] + [("far", *each) for each in parts.far]
    _check_names([name for _, name, _ in names])
    unknown = [(group, name, _looked(name, place, False, parts)) for group, name, place in names]
    sections = {name: _section(name, seen, folder) for name, seen in known.items()}
    if "test" in known and "val" not in known:
        sections |= _divided(known["test"], folder)
    sections |= _network(parts, folder) | _unknown(unknown, folder)
    return sections | _transform(parts, list(known.values()), [seen for _, _, seen in unknown])


def _looked(name: str, place: Path, labelled: bool, parts: Parts) -> Seen:
    with told(name):
        return look(place, labelled, parts.images)


def _section(name: str, seen: Seen, folder: Path, more: Sequence[str] = ()) -> str:
    return "\n".join([f"{TITLES[name]}\n[{name}]", *_source(seen, folder), *more])


def _source(seen: Seen, folder: Path) -> list[str]:
    """Return the lines that say where images come from, and what was seen of them."""
    lines = [f"{seen.kind} = {_written(seen.path, folder)}  # {seen}"]
    return lines if seen.images is None else [*lines, f"images = {_written(seen.images, folder)}"]


def _written(path: Path, folder: Path) -> str:
    """Return a path in quotes, relative to the suite file unless the two have nothing in common."""
    whole = path.resolve()
    if VARIABLE.search(str(whole)):
        raise ValueError(f"{whole} has a $ in it, which stands for a variable in a suite file. Rename it.")
    common = Path(os.path.commonpath([whole, folder])) if whole.anchor == folder.anchor else Path(whole.anchor)
    near = whole if common == Path(whole.anchor) else Path(os.path.relpath(whole, folder))
    return json.dumps(near.as_posix(), ensure_ascii=False)


def _divided(test: Seen, folder: Path) -> dict[str, str]:
    """Return two sections that share the images of one: val draws some of each class, test has the rest."""
    if test.smallest < 2:
        raise ValueError("test: a class has one image only, so none can be drawn for val. Give images for val too.")
    draw = f"per_class = {max(1, test.smallest // DRAWN)}  # so many of each class, drawn with the seed"
    rest = 'rest_of = "val"  # what [val] did not draw'
    return {"val": _section("val", test, folder, [draw]), "test": _section("test", test, folder, [rest])}


def _transform(parts: Parts, known: Sequence[Seen], unknown: Sequence[Seen]) -> dict[str, str]:
    """Return the section about the preparation of images; what nobody said is there as an example."""
    chosen = {name: getattr(parts, name) for name in ("resize", "crop") if getattr(parts, name) is not None}
    lines = [f"{TITLES['transform']}\n[transform]", *(f"{name} = {value}" for name, value in chosen.items())]
    different = len({size for seen in (*known, *unknown) for size in seen.sizes}) > 1
    lines += [] if chosen else [SIZES[different]]
    grey = bool(known) and all(seen.grey for seen in known)
    return {"transform": "\n".join([*lines, NORMALISATION[grey]])}


def _network(parts: Parts, folder: Path) -> dict[str, str]:
    if parts.model is None:
        if parts.weights is not None:
            raise ValueError("weights: it takes a network to load them into. Give the model too.")
        return {}
    keys = [key for key in ("factory", "model") if KEYS["network"][key].fits(parts.model)]
    if not keys:
        raise ValueError(f"model: it must be written package.module:function or library/name, got {parts.model!r}.")
    name = re.sub(r"[^\w+-]+", "-", re.split("[:/]", parts.model)[-1]).strip("-") or "mine"
    lines = [f"{TITLES['network']}\n[[network]]", f'name = "{name}"', f"{keys[0]} = {json.dumps(parts.model)}"]
    if parts.weights is None:
        return {"network": "\n".join([*lines, WEIGHTS[keys[0]]])}
    if not parts.weights.is_file():
        raise FileNotFoundError(f"weights: there is no file {parts.weights}. Check the path.")
    return {"network": "\n".join([*lines, f"weights = {_written(parts.weights, folder)}"])}


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name in RESERVED or names.count(name) > 1 or not NAME.fullmatch(name):
            raise ValueError(
                f"an unknown data set cannot be called {name!r}. Names are unique, made of letters, digits and -_.+, "
                f"and none of {', '.join(RESERVED)}."
            )


def _unknown(sets: Sequence[tuple[str, str, Seen]], folder: Path) -> dict[str, str]:
    """Return the sections of all unknown data sets that are judged, by group, name and what was seen."""
    texts = [
        "\n".join(["[[ood]]", f'name = "{name}"', f'group = "{group}"', *_source(seen, folder)])
        for group, name, seen in sets
    ]
    return {"ood": "\n\n".join([f"{TITLES['ood']}\n{texts[0]}", *texts[1:]])} if texts else {}
