"""Where a command finds images: options, and from them to a source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..models.sources import ImageSource
    from ..models.transform import Transform

BATCH_SIZE = 64
PLACES = "a folder of them or of parquet files, a .parquet or .npz file, or a list of paths (.txt, .lst, .list)"
Root = Annotated[
    Path | None,
    typer.Option(help="Folder in which the paths of a list start. Default: that of the list.", show_default=False),
]
ImageColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of a parquet file, or array of an .npz file, with the images. Default: image, or x.",
        show_default=False,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(help="The same with the labels. Default: label, or y.", show_default=False),
]
SAID = {  # arguments of the library that its sentences speak of, as options
    "x='...'": "--image-column",
    "image='...'": "--image-column",
    "y='...'": "--label-column",
    "label='...'": "--label-column",
    "y=None": "--no-labels",
    "label=None": "--no-labels",
    "labels=False": "--no-labels",
}


def opened(
    place: Path,
    transform: Transform,
    batch_size: int,
    root: Path | None,
    images: str | None,
    labels: str | bool | None = False,
) -> ImageSource:
    """Return the images that the options name.

    Args:
        place: As in ``open_images``.
        transform: Applied to every image.
        batch_size: Images in a batch.
        root: Of a list.
        images: Column or array of the images, if not that of the default.
        labels: Column or array of the labels, None for that of the default, False for no labels.
    """
    from ..models.inputs import open_images

    names = {} if images is None else {"image": images, "x": images}
    names |= {"label": labels, "y": labels} if isinstance(labels, str) else {}
    try:
        return open_images(place, transform, batch_size, labels=labels is not False, root=root, **names)
    except ValueError as error:
        raise ValueError(_in_options(str(error))) from error


def _in_options(sentence: str) -> str:
    """Return a sentence of the library in the words of the command line."""
    for argument, option in SAID.items():
        sentence = sentence.replace(argument, option)
    return sentence


def is_list(place: Path) -> bool:
    """Tell whether a place is a list of paths, by its name."""
    from ..models.inputs import LISTS

    return place.suffix.lower() in LISTS
