"""The text of a new suite file: its comments, its sections, and what stands in the place of those not known yet."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ...models.images import Transform
from .seen import Seen
from .text import VARIABLE

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
