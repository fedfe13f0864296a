"""HTTP service for a guard, with a web page."""
