"""Compare two things in one run, in turn: machines differ and drift, ratios travel."""

from collections.abc import Callable
from statistics import median
from time import perf_counter


def seconds(action: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = perf_counter()
    action()
    return perf_counter() - start


def time_ratio(candidate: Callable[[], object], reference: Callable[[], object], rounds: int = 9) -> float:
    """Return the median over rounds of t(reference) / t(candidate), both timed in every round."""
    candidate(), reference()  # warm-up: allocator, threads, caches
    return median(seconds(reference) / seconds(candidate) for _ in range(rounds))


def report(what: str, value: float, unit: str, wanted: float, at_least: bool = True) -> bool:
    """Print one measured figure beside what it should be, and tell whether it is."""
    passed = value >= wanted if at_least else value <= wanted
    sign = ">=" if at_least else "<="
    print(f"{'ok  ' if passed else 'MISS'}  {what}: {value:.3g} {unit} (wanted {sign} {wanted:g})")
    return passed
