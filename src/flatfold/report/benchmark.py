"""``flatfold.benchmark``: compare methods from Python, with tables and figures of the results."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

from matplotlib.figure import Figure
from torch import nn

from ..evaluate import results as result_files
from ..evaluate.benchmark import run_on_data
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


def benchmark(
    model: nn.Module,
    id_test: Any,
    ood: Mapping[str, Any],
    *,
    fit: Any,
    methods: Sequence[str] | None = None,
    val: Any = None,
    ood_val: Any = None,
    near: Collection[str] = (),
    transform: Any = None,
    collate: Any = None,
    batch_size: int = 64,
    device: str | None = None,
    head: str | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    name: str = "benchmark",
    out: Path | str | None = None,
) -> BenchmarkResults:
    """Compare methods on a model and data, as ``flatfold bench`` does.

    Data is anything that :func:`flatfold.extract` accepts: a ``DataLoader``, a data set of torch or Hugging Face, a
    path of images, arrays ``(X, y)``. A method that does not apply or fails is omitted with its reason (``left_out``).

    Args:
        model: The trained classifier.
        id_test: ID inputs with labels, on which methods are evaluated.
        ood: OOD inputs by name; labels are ignored.
        fit: ID inputs with labels that methods are fitted on, such as the training data.
        methods: As for ``flatfold bench``: ``"knn"``, ``"knn:k=10"``, ``"knn@id"``. By default all. Methods that run
            the network themselves need paths or uint8 arrays of images for all data.
        val: ID inputs with labels that the model was not trained on, for methods that are fitted or tuned on validation
            data; by default ``fit``.
        ood_val: OOD inputs for tuning, ``"knn@ood"``. No method is evaluated on them.
        near: Names in ``ood`` of data sets that are similar to ID data; their mean is reported separately.
        transform: Converts images of a path or of a data set to tensors (see :func:`flatfold.extract`).
        collate: Converts items of a data set to a batch (see :func:`flatfold.extract`).
        batch_size: Inputs per batch, for data that is not batched.
        device: Any torch device string; by default the device of the model.
        head: Name of the last layer, if it cannot be found automatically.
        bootstrap: Bootstrap samples for the intervals; 0 for intervals of AUROC only.
        seed: Seed of the bootstrap.
        name: Name of the run in tables and on the page.
        out: Folder for the files of a run. None writes no files.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> fit, test = ((torch.rand(n, 2), torch.arange(n) % 3) for n in (30, 31))
        >>> results = benchmark(model, test, {"noise": torch.randn(20, 2)}, fit=fit, methods=["msp", "ebo"])
        >>> sorted(run.method for run in results.methods)
        ['ebo', 'msp']
    """
    results = run_on_data(
        model,
        id_test,
        ood,
        fit=fit,
        methods=methods,
        val=val,
        ood_val=ood_val,
        near=near,
        transform=transform,
        collate=collate,
        batch_size=batch_size,
        device=device,
        head=head,
        bootstrap=bootstrap,
        seed=seed,
        name=name,
        out=out,
    )
    return BenchmarkResults.of(results)


def load_results(folder: Path | str) -> BenchmarkResults:
    """Load the results that ``flatfold bench`` or :func:`benchmark` wrote to a folder.

    Raises:
        ValueError: There are no results in the folder, or they are damaged or have another version.
    """
    return BenchmarkResults.of(result_files.load_results(Path(folder)))
