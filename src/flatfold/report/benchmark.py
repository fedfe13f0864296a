"""``flatfold.benchmark``: compare methods from Python, with tables and figures of the results."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import ParamSpec, Self

from matplotlib.figure import Figure

from ..evaluate import results as result_files
from ..evaluate.benchmark import benchmark as run_benchmark
from ..evaluate.compare import check_labels
from ..evaluate.results import Results
from .figures import histograms, roc_curves


class BenchmarkResults(Results):
    """Results of a benchmark: :meth:`to_pandas` and :meth:`to_latex` return tables, :meth:`save` writes the files.

    ``rows`` has one row per method and data set, ``averages`` the means, ``scores`` all scores by ``method/dataset``.
    """

    @classmethod
    def of(cls, results: Results) -> Self:
        """Convert results, adding the methods that plot figures."""
        return cls(**{field.name: getattr(results, field.name) for field in fields(results)})

    def plot_roc(self, methods: Sequence[str] | None = None) -> Figure:
        """Return a figure with the ROC curves of methods on every OOD data set.

        Args:
            methods: Labels of methods; by default the best eight.
        """
        return roc_curves(self._only(methods)).figure()

    def plot_scores(self, methods: Sequence[str] | None = None) -> Figure:
        """Return a figure with the scores of methods: histograms of the ID and of each OOD data set.

        Args:
            methods: Labels of methods; by default all.
        """
        return histograms(self._only(methods)).figure()

    def _only(self, methods: Sequence[str] | None) -> Results:
        if methods is None:
            return self
        check_labels(self, methods)
        return replace(self, methods=[run for run in self.methods if run.method in methods])


P = ParamSpec("P")


def _with_figures(function: Callable[P, Results]) -> Callable[P, BenchmarkResults]:
    @wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> BenchmarkResults:
        return BenchmarkResults.of(function(*args, **options))

    return run


benchmark = _with_figures(run_benchmark)


def load_results(folder: Path | str) -> BenchmarkResults:
    """Load the results that ``flatfold bench`` or :func:`benchmark` wrote to a folder.

    Raises:
        ValueError: There are no results in the folder, or they are damaged or have another version.
    """
    return BenchmarkResults.of(result_files.load_results(Path(folder)))
