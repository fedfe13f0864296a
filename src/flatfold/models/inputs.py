"""Images wherever they lie: one function that finds out what it was given."""

from __future__ import annotations

from pathlib import Path

from .folders import holds_images
from .images import FolderImages, NpzImages
from .lists import ListImages
from .sources import ImageSource
from .tables import TableImages
from .transform import Transform

LISTS = (".txt", ".lst", ".list")
FILES = (".parquet", ".npz", *LISTS)
_DATASETS = ("state.json", "dataset_dict.json")  # what `datasets` leaves beside its tables


def open_images(
    place: Path | str,
    transform: Transform,
    batch_size: int = 64,
    *,
    labels: bool,
    root: Path | str | None = None,
    image: str = "image",
    label: str = "label",
    x: str = "x",
    y: str = "y",
) -> ImageSource:
    """Return the images of a folder, a table, an ``.npz`` file or a list.

    Args:
        place: A folder of images; a folder of parquet files, or one that ``datasets`` wrote; or a file that ends in
            ``.parquet``, ``.npz``, or, for a list of paths, in ``.txt``, ``.lst`` or ``.list``.
        transform: Applied to every image.
        batch_size: Images in a batch.
        labels: Whether to read labels: by class folders, from a column or an array, or the numbers of a list. A folder
            without class folders has none. With False nothing that could be a label is looked at.
        root: The folder in which the paths of a list start. Unless given, they start in that of the list, and may also
            be absolute.
        image: Column of the images in a table.
        label: Column of the labels in a table.
        x: Name of the images in an ``.npz`` file.
        y: Name of the labels in an ``.npz`` file.

    Raises:
        FileNotFoundError: There is nothing at ``place``.
        ValueError: It is of another kind, or of two; or there is a root for something that is no list.
    """
    place = Path(place)
    kind = _kind(place)
    if root is not None and kind != "list":
        raise ValueError(f"root is where the paths of a list start, but {place} is no list. Leave it out.")
    if kind == "list":
        return ListImages(place, root, transform, batch_size, labels)
    if kind == "table":
        return TableImages(place, transform, batch_size, image, label if labels else None)
    if kind == "npz":
        return NpzImages(place, transform, batch_size, x, y if labels else None)
    return FolderImages(place, transform, batch_size, labels)


def _kind(place: Path) -> str:
    """Return "folder", "table", "npz" or "list"."""
    if place.is_dir():
        return _kind_of_folder(place)
    suffix = place.suffix.lower()
    if not place.exists():
        raise FileNotFoundError(f"there are no images at {place}: it does not exist. Check the path.")
    if suffix not in FILES:
        raise ValueError(
            f"images are read from a folder, or from a file that ends in {', '.join(FILES)} (the last three for lists "
            f"of paths), got {place}. Pass the folder in which images lie, or a list of them."
        )
    return {".parquet": "table", ".npz": "npz"}.get(suffix, "list")


def _kind_of_folder(place: Path) -> str:
    if any((place / name).is_file() for name in _DATASETS):
        return "table"
    table = next((file for file in place.glob("*.parquet") if file.is_file() and not file.name.startswith(".")), None)
    if table is None:
        return "folder"
    if holds_images(place):
        raise ValueError(
            f"{place} must hold either images or parquet files, but has both: {table.name} lies beside images. "
            "Pass the parquet file itself, or move either to a folder of its own."
        )
    return "table"
