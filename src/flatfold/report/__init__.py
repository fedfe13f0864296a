"""HTML pages and figures generated from result files."""
