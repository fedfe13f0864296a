"""Atomic file writes, file formats, resumable stores, progress bars and machine resources."""
