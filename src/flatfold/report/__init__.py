"""Pages from result files."""
