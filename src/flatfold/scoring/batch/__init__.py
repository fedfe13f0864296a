"""Images of any number to a table of verdicts: in parts, which any process may compute and none computes twice."""

from .score import score_images
from .shard import Shard
from .summary import Summary
from .task import Task

__all__ = ["Shard", "Summary", "Task", "score_images"]
