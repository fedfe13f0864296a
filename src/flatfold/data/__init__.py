"""Data: image sources, preprocessing, and conversion of common data containers to batches."""

from .images import ArrayImages, FolderImages, ListImages, NpzImages, TableImages, Transform
from .inputs import as_batches

__all__ = ["ArrayImages", "FolderImages", "ListImages", "NpzImages", "TableImages", "Transform", "as_batches"]
