"""Suites from a TOML file: anyone's networks, judged on anyone's images.

``examples/cifar10.toml`` shows every part of such a file. ``keys.py`` has the whole of what one may say;
everything else is refused, so that a misspelt key never passes for one that was left out. The benchmarks of OpenOOD
are such files too, in the folder ``openood``.
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
from .schema import SPLITS, TRANSFORM, Table, check_table, expanded, parsed, title, told
from .suite import FOLDERS, Suite

# The networks of a suite file: each entry once, or once for every seed that it was trained with.


MAKERS = ("factory", "model", "linear")


class Network(NamedTuple):
    """One network to judge.

    Attributes:
        name: Of this network, such as ``resnet18-s1``.
        family: What it has in common with those of other seeds, such as ``resnet18``.
        seed: Of its training.
        draws: Seed of the draws of images for it.
        table: Its section in the suite file.
    """

    name: str
    family: str
    seed: int
    draws: int
    table: Table


def networks(document: Table, seeds: Sequence[int] | None = None) -> list[Network]:
    """Return the networks of a suite file, a copy of each for every seed.

    Args:
        document: The checked content of the file.
        seeds: Which ones; by default those that an entry has, or else the file's own.
    """
    names = [table["name"] for table in document["network"]]
    found = []
    drawn = any("per_class" in document.get(split, {}) for split in SPLITS)
    for table in document["network"]:
        with told(title("network", table)):
            _check_seeds(table, seeds or (), drawn)
            if table["name"] in FOLDERS:
                raise ValueError(f"a network cannot be called so: results have a folder {table['name']} already.")
            if names.count(table["name"]) > 1:
                raise ValueError("two networks have this name. Give each one of its own.")
            check_table(table.get("transform", {}), TRANSFORM)
            found += _of_each_seed(table, document.get("seed", 0), seeds)
    for name in (network.name for network in found):
        if sum(name == network.name for network in found) > 1:
            raise ValueError(f"two networks would be called {name}. Rename one, and give every seed once.")
    return found


def _check_seeds(table: Table, seeds: Sequence[int], drawn: bool) -> None:
    """Raise if several seeds would give one result several times."""
    fixed = "weights" in table or "pretrained" in table or "linear" in table
    named = "{seed}" in table.get("weights", "")
    if "seeds" in table and fixed and not named:
        raise ValueError("seeds needs {seed} in the path of its weights, or all of them would be one network.")
    if "seeds" not in table and len(seeds) > 1 and fixed and not drawn:
        raise ValueError(
            "neither its weights nor its images depend on a seed, so several would give one result several times. "
            "Name a seed's weights with seeds and {seed}, or draw images with per_class."
        )


def _of_each_seed(table: Table, draws: int, seeds: Sequence[int] | None) -> list[Network]:
    name = table["name"]
    if "seeds" in table:
        unknown = sorted(set(seeds or ()) - set(table["seeds"]))
        if unknown:
            raise ValueError(f"it has no seed {unknown[0]}, only {', '.join(map(str, table['seeds']))}.")
        return [Network(f"{name}-s{seed}", name, seed, draws, table) for seed in seeds or table["seeds"]]
    if seeds is None or len(seeds) == 1:
        seed = draws if seeds is None else seeds[0]
        return [Network(name, name, seed, seed, table)]
    return [Network(f"{name}-seed{seed}", name, seed, seed, table) for seed in seeds]


def load_network(network: Network, folder: Path, variables: Mapping[str, str]) -> nn.Module:
    """Return a network in evaluation mode, with its weights."""
    table = network.table
    with told(title("network", table)):
        made_by = [key for key in MAKERS if key in table]
        if len(made_by) != 1:
            raise ValueError(f"a network is made by one of {', '.join(MAKERS)}, got {' and '.join(made_by) or 'none'}.")
        if "pretrained" in table and made_by != ["model"]:
            raise ValueError("pretrained = belongs to model = only. Remove it, or name a file of weights.")
        if "weights" in table and made_by == ["linear"]:
            raise ValueError("linear = names a file of weights already. Remove weights =.")
        weights = weights_path(network, folder, variables)
        with told(made_by[0]):
            if made_by == ["linear"]:
                return linear_head(expanded(table["linear"], folder, variables))
            if made_by == ["model"]:
                return named_model(table["model"], weights, table.get("pretrained"))
            model = make_model(table["factory"], folder, network.seed)
        if weights is not None:
            with told("weights"):
                load_weights(model, weights)
        return model.eval()


def weights_path(network: Network, folder: Path, variables: Mapping[str, str]) -> Path | None:
    """Return where the weights of a network lie, ``{seed}`` replaced by its own, if it has a file of them."""
    if "weights" not in network.table:
        return None
    with told("weights"):
        return expanded(network.table["weights"].replace("{seed}", str(network.seed)), folder, variables)


log = logging.getLogger(__name__)


ASKED = 10  # images of an optional list that are looked for before it is taken to be there


class SuiteFile:
    """A suite file, read and checked; its images and networks are opened when they are asked for.

    Args:
        path: The TOML file. Relative paths in it start from its folder, and ``$NAME`` stands for an environment
            variable.
        seeds: Of networks and draws, in place of the file's own; without either it is 0.
        batch_size: Images per forward pass.
        any_counts: Whether a data set may have another number of images than the file expects.
        variables: What ``$NAME`` stands for, in place of the environment.
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
        with told(str(path)):
            self.document = parsed(path)
            self.networks = networks(self.document, seeds)
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
        """Return the images as a network wants them; those that want the same share them."""
        transform = network.table.get("transform", {})
        key = repr((sorted(transform.items()), network.draws))
        if key not in self._data:
            self._data[key] = SuiteData(
                self.document,
                self.folder,
                self.variables,
                self.batch_size,
                network.draws,
                transform,
                self.any_counts,
            )
        return self._data[key]

    def suites(self, names: Sequence[str] | None = None) -> list[Suite]:
        """Return one suite for each network, or for those that are named by themselves or by their family."""
        with told(str(self.path)):
            chosen = _chosen(self.networks, names)
            models = [load_network(network, self.folder, self.variables) for network in chosen]
            shared = {id(data): data for data in map(self.data, chosen)}
            judged = {key: self._judged(data) for key, data in shared.items()}
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
                    deviations=(*self.data(network).deviations, *self._own_ways(network)),
                    siblings=tuple(each.name for each in self.networks),
                    classes=next(iter(self.data(network).classes.values()), ()),
                    **judged[id(self.data(network))],
                )
                for network, model in zip(chosen, models, strict=True)
            ]

    def _own_ways(self, network: Network) -> list[str]:
        """Return in what a network departs from the protocol of the suite, one sentence each."""
        if "protocol" not in self.document:
            return []
        table = network.table
        own = set(table.get("transform", {})) | ({"head"} if "head" in table else set())
        if table.get("model", "").startswith("torchvision/"):
            own -= {"resize", "crop", "interpolation"}  # which torchvision gives with the weights
        return [f"the network {network.name} has its own {', '.join(sorted(own))}"] if own else []

    def _judged(self, data: SuiteData) -> dict[str, Any]:
        """Return all data sets of a suite, by the name of its argument."""
        ood_val = self.document.get("ood_val")
        return {
            "train": self.train(data),
            "val": data.split("val"),
            "test": data.split("test"),
            "ood": tuple(data.unknown_set(table) for table in self.document["ood"]),
            "ood_val": None if ood_val is None else data.unknown("ood_val", ood_val),
        }

    def train(self, data: SuiteData) -> Source | None:
        """Return the training images, None if the file has none or says that it can do without."""
        if "train" not in self.document:
            return None
        try:
            source = data.split("train")
        except (FileNotFoundError, NotADirectoryError) as error:
            if not self.document["train"].get("optional"):
                raise
            log.warning("there are no training images, so methods that learn from them are left out: %s", error)
            return None
        if self.document["train"].get("optional") and _nowhere(source):
            log.warning("the training images are not there, so methods that learn from them are left out")
            return None
        return source


def _chosen(all_of_them: list[Network], names: Sequence[str] | None) -> list[Network]:
    for name in names or ():
        if not any(name in (network.name, network.family) for network in all_of_them):
            there = ", ".join(network.name for network in all_of_them)
            raise ValueError(f"no network is called {name!r}. There are {there}.")
    return [network for network in all_of_them if names is None or {network.name, network.family} & set(names)]


def _nowhere(source: Source) -> bool:
    """Tell whether the first images of a list do not exist."""
    if not isinstance(source, ListImages):
        return False
    return not any((source.root / path).exists() for path in source.paths[:ASKED])


def read_suites(path: Path, batch_size: int = 256, seed: int | None = None) -> list[Suite]:
    """Return one suite for each network of a suite file; they share their images.

    Args:
        path: The TOML file (see ``SuiteFile``).
        batch_size: Images per forward pass.
        seed: Of every draw, in place of the file's own.

    Raises:
        ValueError: The file says something that cannot be; the message begins with the file and the section.
        FileNotFoundError: The file, or one that it names, is not there.
    """
    return SuiteFile(path, None if seed is None else [seed], batch_size).suites()
