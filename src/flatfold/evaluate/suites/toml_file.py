"""Suites from a TOML file: any networks, evaluated on any images.

``examples/cifar10.toml`` shows every part of such a file, ``schema.py`` has all keys; an unknown key is an error, so a
misspelt one never passes for one that was left out. The benchmarks of OpenOOD are such files too.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ...models.feature_files import linear_head
from ...models.images import ListImages
from ...models.model_loading import load_weights, make_model, named_model
from ...models.sources import Source
from .data import SuiteData
from .schema import SPLITS, Table, TransformTable, check_table, error_context, expand_path, read_document, section_title
from .suite import FOLDERS, OodSet, Suite

MAKERS = ("factory", "model", "linear")
LOOKED_FOR = 10  # images of an optional list, before it is taken to be there

log = logging.getLogger(__name__)


class Network(NamedTuple):
    """One network to evaluate: ``resnet18-s1`` of the family ``resnet18``, say.

    ``seed`` is that of its training, ``draws`` that of the draws of images for it, ``table`` its section in the file.
    """

    name: str
    family: str
    seed: int
    draws: int
    table: Table


class SuiteFile:
    """A suite file, read and checked; its images and networks are opened when they are asked for.

    Relative paths in it start from its folder, and ``$NAME`` stands for one of ``variables``, by default those of the
    environment. ``seeds`` replace the file's own, of networks and draws; without either it is 0.
    """

    def __init__(
        self,
        path: Path,
        seeds: Sequence[int] | None = None,
        batch_size: int = 256,
        any_counts: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.path, self.batch_size, self.any_counts = path, batch_size, any_counts
        self.variables = os.environ if variables is None else variables
        with error_context(str(path)):
            self.document = read_document(path)
            self.networks = _networks(self.document, seeds)
        self._data: dict[str, SuiteData] = {}

    @property
    def folder(self) -> Path:
        """Where relative paths start."""
        return self.path.parent

    def lenient(self) -> "SuiteFile":
        """Return the same suite with as many images as there are, whatever was expected."""
        other = copy(self)
        other.any_counts, other._data = True, {}
        return other

    def data(self, network: Network) -> SuiteData:
        """Return the images as a network needs them; networks with the same needs share them."""
        transform = network.table.get("transform", {})
        key = repr((sorted(transform.items()), network.draws))
        if key not in self._data:
            places = self.folder, self.variables
            self._data[key] = SuiteData(
                self.document, *places, self.batch_size, network.draws, transform, self.any_counts
            )
        return self._data[key]

    def suites(self, names: Sequence[str] | None = None) -> list[Suite]:
        """Return one suite for each network, or for those that are named by themselves or by their family."""
        with error_context(str(self.path)):
            for name in names or ():
                if not any(name in (network.name, network.family) for network in self.networks):
                    there = ", ".join(network.name for network in self.networks)
                    raise ValueError(f"no network is called {name!r}. There are {there}.")
            chosen = [it for it in self.networks if names is None or {it.name, it.family} & set(names)]
            models = [load_network(network, self.folder, self.variables) for network in chosen]
            shared = {id(data): data for data in map(self.data, chosen)}
            sources = {key: self._sources(data) for key, data in shared.items()}
            return [
                Suite(
                    name=self.document.get("name", self.path.stem),
                    about=self.document.get("about", ""),
                    model=model,
                    seed=network.seed,
                    network=network.name,
                    family=network.family,
                    head=network.table.get("head"),
                    accuracy=network.table.get("accuracy"),
                    architecture=network.table.get("model") or network.table.get("factory", ""),
                    protocol=self.document.get("protocol", ""),
                    deviations=(*self.data(network).deviations, *self._changed_keys(network)),
                    siblings=tuple(sibling.name for sibling in self.networks),
                    classes=next(iter(self.data(network).classes.values()), ()),
                    **sources[id(self.data(network))],
                )
                for network, model in zip(chosen, models, strict=True)
            ]

    def train(self, data: SuiteData) -> Source | None:
        """Return the training images, None if the file has none or they are optional and not there."""
        table = self.document.get("train")
        if table is None:
            return None
        reason: object = "the first images of the list do not exist"
        try:
            source = data.split("train")
            if not (table.get("optional") and isinstance(source, ListImages)):
                return source
            if any((source.root / path).exists() for path in source.paths[:LOOKED_FOR]):
                return source
        except (FileNotFoundError, NotADirectoryError) as error:
            if not table.get("optional"):
                raise
            reason = error
        log.warning("there are no training images, so methods that learn from them are left out: %s", reason)
        return None

    def _changed_keys(self, network: Network) -> list[str]:
        """Return in what a network departs from the protocol of the suite, as one sentence or none."""
        table = network.table
        own = set(table.get("transform", {})) | ({"head"} if "head" in table else set())
        if table.get("model", "").startswith("torchvision/"):
            own -= {"resize", "crop", "interpolation"}  # which torchvision gives with the weights
        if "protocol" not in self.document or not own:
            return []
        return [f"the network {network.name} has its own {', '.join(sorted(own))}"]

    def _sources(self, data: SuiteData) -> dict[str, Any]:
        """Return all data sets of a suite, by the name of its argument."""
        ood_val = self.document.get("ood_val")
        return {
            "train": self.train(data),
            "val": data.split("val"),
            "test": data.split("test"),
            "ood": tuple(
                OodSet(table["name"], table["group"], data.unlabelled("ood", table), table.get("about", ""))
                for table in self.document["ood"]
            ),
            "ood_val": None if ood_val is None else data.unlabelled("ood_val", ood_val),
        }


def load_network(network: Network, folder: Path, variables: Mapping[str, str]) -> nn.Module:
    """Return a network in evaluation mode, with its weights."""
    table = network.table
    with error_context(section_title("network", table)):
        keys = [key for key in MAKERS if key in table]
        if len(keys) != 1:
            raise ValueError(f"a network is made by one of {', '.join(MAKERS)}, got {' and '.join(keys) or 'none'}.")
        if "pretrained" in table and keys != ["model"]:
            raise ValueError("pretrained = belongs to model = only. Remove it, or name a file of weights.")
        if "weights" in table and keys == ["linear"]:
            raise ValueError("linear = names a file of weights already. Remove weights =.")
        weights = None
        if "weights" in table:
            with error_context("weights"):
                weights = expand_path(table["weights"].replace("{seed}", str(network.seed)), folder, variables)
        with error_context(keys[0]):
            if keys == ["linear"]:
                return linear_head(expand_path(table["linear"], folder, variables))
            if keys == ["model"]:
                return named_model(table["model"], weights, table.get("pretrained"))
            model = make_model(table["factory"], folder, network.seed)
        if weights is not None:
            with error_context("weights"):
                load_weights(model, weights)
        return model.eval()


def _networks(document: Table, seeds: Sequence[int] | None) -> list[Network]:
    """Return the networks of a suite file, one for every seed; by default those of an entry, or else the file's own."""
    names = [table["name"] for table in document["network"]]
    drawn = any("per_class" in document.get(split, {}) for split in SPLITS)
    networks: list[Network] = []
    for table in document["network"]:
        with error_context(section_title("network", table)):
            _check_seeds(table, seeds or (), drawn)
            if table["name"] in FOLDERS:
                raise ValueError(f"this name is taken: results have a folder {table['name']}. Choose another.")
            if names.count(table["name"]) > 1:
                raise ValueError("two networks have this name. Give each its own.")
            check_table(table.get("transform", {}), TransformTable)
            networks += _one_per_seed(table, document.get("seed", 0), seeds)
    for name in (network.name for network in networks):
        if sum(name == network.name for network in networks) > 1:
            raise ValueError(f"two networks would be called {name}. Rename one, and give every seed once.")
    return networks


def _check_seeds(table: Table, seeds: Sequence[int], drawn: bool) -> None:
    """Raise if several seeds would give the same result."""
    if len(set(table.get("seeds", ()))) < len(table.get("seeds", ())):
        raise ValueError(f"seeds must be different, got {table['seeds']}.")
    fixed = "weights" in table or "pretrained" in table or "linear" in table
    if "seeds" in table and fixed and "{seed}" not in table.get("weights", ""):
        raise ValueError("seeds needs {seed} in the path of its weights, or all of them would be one network.")
    if "seeds" not in table and len(seeds) > 1 and fixed and not drawn:
        raise ValueError(
            "neither its weights nor its images depend on a seed, so several would give the same result. Name a seed's "
            "weights with seeds and {seed}, or draw images with per_class."
        )


def _one_per_seed(table: Table, draws: int, seeds: Sequence[int] | None) -> list[Network]:
    name = table["name"]
    if "seeds" in table:
        for seed in sorted(set(seeds or ()) - set(table["seeds"])):
            raise ValueError(f"it has no seed {seed}, only {', '.join(map(str, table['seeds']))}.")
        return [Network(f"{name}-s{seed}", name, seed, draws, table) for seed in seeds or table["seeds"]]
    if seeds is None or len(seeds) == 1:
        seed = draws if seeds is None else seeds[0]
        return [Network(name, name, seed, seed, table)]
    return [Network(f"{name}-seed{seed}", name, seed, seed, table) for seed in seeds]
