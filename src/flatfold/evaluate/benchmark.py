"""A benchmark of a model and data that are in memory: the runner of suites, on a suite made of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from ..core.bank import Head
from ..data.inputs import ArrayRows, as_batches
from ..data.sources import Source
from ..detectors import methods as all_methods
from ..passes.extract import extract_features
from .banks import Settings
from .results import Results
from .runner import run
from .suites.suite import OodSet, Suite, check_names


def run_on_data(
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
) -> Results:
    """Return the results of :func:`flatfold.benchmark`, whose arguments these are."""
    if not isinstance(ood, Mapping) or not ood:
        kind = "an empty one" if isinstance(ood, Mapping) else type(ood).__name__
        raise TypeError(f"ood must be a dict of OOD data by name, such as {{'svhn': loader}}, got {kind}.")
    check_names(list(ood))
    if unknown := [word for word in near if word not in ood]:
        raise ValueError(f"near names data sets of ood, but there is no {unknown[0]!r}. It has {', '.join(ood)}.")
    given = {"train": fit, "val": val, "test": id_test, "ood_val": ood_val, **ood}
    unlabelled = {"ood_val", *ood}
    data: dict[str, Iterable[Any]] = {
        word: as_batches(each, batch_size, transform=transform, collate=collate, labels=word not in unlabelled)
        for word, each in given.items()
        if each is not None
    }
    device = str(next((p.device for p in model.parameters()), "cpu")) if device is None else device
    network, sources = model, {word: batches for word, batches in data.items() if isinstance(batches, Source)}
    if len(sources) < len(data):  # loaders cannot be read again from the middle: their features are taken here
        banks = {word: extract_features(model, batches, device, head) for word, batches in data.items()}
        sources = {
            word: ArrayRows(it.bank.features if it.bank.labels is None else (it.bank.features, it.bank.labels), 4096)
            for word, it in banks.items()
        }
        network, head = _as_network(next(iter(banks.values())).found.head), None
    for word in ("train", "test"):
        if sources[word].labels is None:
            argument = {"train": "fit", "test": "id_test"}[word]
            raise ValueError(f"{argument} needs labels. Give batches (x, y), a pair (X, y), or folders of classes.")
    suite = Suite(
        name=name,
        about="",
        model=network,
        train=sources["train"],
        val=sources.get("val", sources["train"]),
        test=sources["test"],
        ood=tuple(OodSet(word, "near" if word in near else "far", sources[word], "") for word in ood),
        seed=seed,
        ood_val=sources.get("ood_val"),
        head=head,
    )
    settings = Settings(device=device, replicates=bootstrap)
    names = all_methods() if methods is None else methods
    if out is not None:
        results = run(suite, names, Path(out), settings)
        results.save(Path(out))
        return results
    with TemporaryDirectory(prefix="flatfold-") as folder:
        return run(suite, names, Path(folder), settings)


def _as_network(head: Head) -> nn.Module:
    """Return a network of the last layer alone, which takes features."""
    layer = nn.Linear(head.width, head.n_classes, bias=head.bias is not None, dtype=head.weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(head.weight)
        if head.bias is not None:
            layer.bias.copy_(head.bias)
    return layer.eval()
