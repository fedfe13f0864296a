"""Models and data: find the head of a model, extract its features once, read images, keep banks on disk."""

from .images import ArrayImages, FolderImages, ListImages, NpzImages, TableImages, Transform

__all__ = ["ArrayImages", "FolderImages", "ListImages", "NpzImages", "TableImages", "Transform"]
