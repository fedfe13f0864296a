"""Benchmark a model and data in memory: build a suite of them and run it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from ..core.bank import Head
from ..data.arrays import ArrayRows
from ..data.loading import Loading
from ..data.sources import Source
from ..detectors import methods as all_methods
from ..network.calls import check_model, weights_dtype
from ..network.execution import Execution
from ..passes.extract import extract_features
from .banks import Settings
from .methods import split_methods
from .results import Results
from .runner import run, run_and_save
from .suites.suite import GROUPS, OodSet, Suite, check_names

TUNING = "val"  # name of the OOD data that hyper-parameters may be tuned on


def benchmark(
    model: nn.Module,
    id_test: Any,
    ood: Mapping[str, Any],
    *,
    fit: Any = None,
    val: Any = None,
    methods: str | Sequence[str] | None = None,
    bootstrap: int = 1000,
    loading: Loading | None = None,
    execution: Execution | None = None,
    out: Path | str | None = None,
) -> Results:
    """Compare methods on a model and data, as ``flatfold bench`` does.

    Data is anything that :func:`flatfold.as_batches` accepts: a ``DataLoader``, a data set of torch or Hugging Face, a
    path of images, arrays ``(X, y)``. Methods that do not apply or fail are listed with the reason in ``left_out``.

    Args:
        model: The trained classifier.
        id_test: Labelled ID inputs for evaluation.
        ood: OOD inputs by name, or such dicts under ``"near"`` and ``"far"``, which are averaged separately: near OOD
            data is similar to ID data. Inputs under ``"val"`` are used for tuning only (``"knn@ood"``). Labels are
            ignored.
        fit: Labelled ID inputs that methods learn from, such as the training data. Without them and ``val``, methods
            that learn are left out.
        val: Labelled ID inputs that the model was not trained on, for methods that learn from or are tuned on
            validation data; by default ``fit``.
        methods: As for ``flatfold bench``: ``"knn"``, ``"knn:k=10"``, ``"knn@id"``, or several of them. By default all.
            Methods that run the network themselves need paths or uint8 arrays of images for all data.
        bootstrap: Bootstrap samples for the intervals; 0 for intervals of AUROC only.
        loading: Settings for loading data; by default 1 % of the images of a data set may be unreadable.
        execution: Settings for running the model.
        out: Folder for the files of the run, which also names it. By default no files are kept.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> fit, test = ((torch.rand(n, 2), torch.arange(n) % 3) for n in (30, 31))
        >>> results = benchmark(model, test, {"noise": torch.randn(20, 2)}, fit=fit, methods=["msp", "ebo"])
        >>> sorted(run.method for run in results.methods)
        ['ebo', 'msp']
    """
    loading, execution = loading or Settings().loading, execution or Execution()
    groups, tuning = _groups(ood)
    check_names([name for group in groups.values() for name in group])
    given = {"train": fit, "val": val, "test": id_test}
    check_model(model)
    dtype = weights_dtype(model)
    data: dict[str, Iterable[Any]] = {
        name: loading.batches(each, dtype=dtype) for name, each in given.items() if each is not None
    }
    unlabelled = {"ood_val": tuning} | {name: each for group in groups.values() for name, each in group.items()}
    data |= {name: loading.batches(each, False, dtype) for name, each in unlabelled.items() if each is not None}
    if execution.device is None and not execution.distributed:
        execution = replace(execution, device=next((p.device for p in model.parameters()), None))
    network, sources = model, {name: batches for name, batches in data.items() if isinstance(batches, Source)}
    if len(sources) < len(data):  # loaders have no random access: extract their features here
        passes = {name: extract_features(model, batches, loading, execution) for name, batches in data.items()}
        sources = {
            name: ArrayRows(it.bank.features if it.bank.labels is None else (it.bank.features, it.bank.labels), 4096)
            for name, it in passes.items()
        }
        network = _as_network(next(iter(passes.values())).network.found.head)
        execution = replace(execution, head=None)
    for name, argument in (("train", "fit"), ("test", "id_test")):
        if name in sources and sources[name].labels is None:
            raise ValueError(f"{argument} needs labels. Pass batches (x, y), a pair (X, y), or folders of classes.")
    suite = Suite(
        name="benchmark" if out is None else Path(out).absolute().name,
        about="",
        model=network,
        train=sources.get("train"),
        val=sources.get("val", sources.get("train")),
        test=sources["test"],
        ood=tuple(OodSet(name, group, sources[name], "") for group, sets in groups.items() for name in sets),
        seed=0,
        ood_val=sources.get("ood_val"),
        head=execution.head,
    )
    settings = Settings(loading, execution, bootstrap)
    names = all_methods() if methods is None else split_methods(methods) if isinstance(methods, str) else methods
    if out is not None:
        return run_and_save(suite, names, Path(out), settings)
    with TemporaryDirectory(prefix="flatfold-") as folder:
        return run(suite, names, Path(folder), settings)


def _groups(ood: Any) -> tuple[dict[Any, dict[str, Any]], Any]:
    """Return the OOD data sets by group and name, and the data for tuning or None."""
    if not isinstance(ood, Mapping) or not ood:
        kind = "an empty one" if isinstance(ood, Mapping) else type(ood).__name__
        raise TypeError(f"ood must be a dict of OOD data by name, such as {{'svhn': loader}}, got {kind}.")
    sets = {name: each for name, each in ood.items() if name != TUNING}
    grouped = {name: each for name, each in sets.items() if name in GROUPS}
    for name, group in grouped.items():
        if not isinstance(group, Mapping) or not group:
            raise TypeError(f"ood[{name!r}] must be a dict of OOD data by name, got {type(group).__name__}.")
    if grouped and len(grouped) < len(sets):
        other = next(name for name in sets if name not in grouped)
        raise ValueError(f"ood must have the groups near and far, or data sets by name, got both: {other!r}.")
    groups = {name: dict(group) for name, group in grouped.items()} or {"far": sets}
    if not any(groups.values()):
        raise ValueError("ood must have a data set to evaluate on, got one for tuning only.")
    return groups, ood.get(TUNING)


def _as_network(head: Head) -> nn.Module:
    """Build a network of the last layer alone, whose inputs are features."""
    layer = nn.Linear(head.width, head.n_classes, bias=head.bias is not None, dtype=head.weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(head.weight)
        if head.bias is not None:
            layer.bias.copy_(head.bias)
    return layer.eval()
