"""Guards on disk."""

from .guard_file import load, load_judge, save

__all__ = ["load", "load_judge", "save"]
