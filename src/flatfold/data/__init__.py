"""Models and data: find the head of a model, extract its features once, read images, keep banks on disk."""

from .images import ArrayImages, FolderImages, ListImages, NpzImages, TableImages, Transform
from .inputs import as_batches

__all__ = ["ArrayImages", "FolderImages", "ListImages", "NpzImages", "TableImages", "Transform", "as_batches"]
