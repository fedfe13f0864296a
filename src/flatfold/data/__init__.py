"""Data: sources of images and texts, preprocessing, and conversion of common data containers to batches."""

from .images import ArrayImages, FolderImages, ListImages, NpzImages, TableImages, Transform
from .inputs import as_batches
from .masks import MaskedImages
from .text_files import TextSource, open_texts

__all__ = [
    "ArrayImages",
    "FolderImages",
    "ListImages",
    "MaskedImages",
    "NpzImages",
    "TableImages",
    "TextSource",
    "Transform",
    "as_batches",
    "open_texts",
]
