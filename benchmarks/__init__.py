"""Ratios against references and peers, measured in one run: ``make bench``, or ``python -m benchmarks NAME``."""
