"""The networks of a suite file: each entry once, or once for every seed that it was trained with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from ...models.factory import make_model
from ...models.features import linear_head
from ...models.named import named_model
from ...models.weights import load_weights
from .keys import SPLITS, TRANSFORM, Table, check_table
from .suite import FOLDERS
from .text import expanded, title, told

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
