"""Benchmarks: suites, evaluation protocol, runner and result files."""
