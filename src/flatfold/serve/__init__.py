"""A guard over HTTP, with a page."""
