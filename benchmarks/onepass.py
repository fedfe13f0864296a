"""A benchmark of every method that sees features against the extraction of the features alone, on real data."""

import os
import tempfile
from pathlib import Path
from time import perf_counter

import flatfold as ff
from flatfold.detectors import METHODS
from flatfold.evaluate.banks import Settings, extract_all
from flatfold.evaluate.runner import run as run_suite
from flatfold.evaluate.suites.library import load_suites

from .ratio import report

SUITE = Path(__file__).parents[1] / "examples" / "cifar10.toml"


def run() -> list[bool]:
    """Extract all images of the CIFAR-10 example with its ResNet-56, then run all methods on them."""
    if "FLATFOLD_DATA" not in os.environ:
        print("skip  a whole benchmark against extraction alone: FLATFOLD_DATA is not set, so there are no real images")
        return []
    names = [name for name in ff.methods() if METHODS[name].sees == "features"]
    with tempfile.TemporaryDirectory() as folder:
        suite = next(suite for suite in load_suites(str(SUITE), Path(folder)) if suite.network == "resnet56")
        start = perf_counter()
        banks = extract_all(suite, Path(folder) / "banks")
        extraction = perf_counter() - start
        start = perf_counter()
        extract_all(suite, Path(folder) / "banks")
        reading = perf_counter() - start  # of features that are there, which the runs below do again
        # The first one also pays for what is imported on demand.
        results = run_suite(suite, names, Path(folder))
        point = run_suite(suite, names, Path(folder), Settings(replicates=0))
    whole, rest = (run.provenance["seconds"] - reading for run in (results, point))
    images = sum(map(len, [banks.train, banks.val, *banks.test_sets.values()]))
    fits = sum(method.fit_seconds for method in results.methods)
    print(f"      extraction of {images:,} images {extraction:.1f} s, then {len(names)} methods {rest:.1f} s")
    figures = 4 * (len(results.rows) + len(results.averages))
    print(f"      bootstrap intervals of their {figures:,} figures, 1000 replicates, {whole - rest:.1f} s")
    print(f"      fitting all methods {fits:.1f} s; by method:")
    for method in sorted(results.methods, key=lambda method: -method.fit_seconds):
        times = f"fit {method.fit_seconds:7.3f} s, score {method.microseconds_per_sample:7.2f} us a sample"
        print(f"      {method.method:12} {times}")
    what = f"a benchmark of {len(names)} methods on {images:,} images against extraction alone"
    return [
        report(f"{what}, with bootstrap intervals", (extraction + whole) / extraction, "times", 1.1, at_least=False),
        report(f"{what}, without", (extraction + rest) / extraction, "times", 1.1, at_least=False),
    ]
