"""A curvature study as a page of its own, and as a part of the report of a benchmark."""
