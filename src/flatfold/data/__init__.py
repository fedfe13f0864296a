"""Data: sources of images, their preparation, and batches of what people have."""

from .images import ArrayImages, FolderImages, ListImages, NpzImages, TableImages, Transform
from .inputs import as_batches

__all__ = ["ArrayImages", "FolderImages", "ListImages", "NpzImages", "TableImages", "Transform", "as_batches"]
