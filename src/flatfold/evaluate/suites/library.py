"""Open suites by name or from a file, and limit their number of images."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...data.sources import Source, take_subset
from .digits import DIGIT_NETWORKS, FIRST, digits
from .scenes import scenes
from .schema import BUILT_IN, DIGITS, OPENOOD, SCENES, TEXTS, built_in_names, suite_names
from .suite import Suite
from .texts import texts
from .toml_file import SuiteFile

MADE = {SCENES: scenes, TEXTS: texts}  # suites with one network, made with their data


def open_suite_file(
    name: str,
    seeds: Sequence[int] | None = None,
    batch_size: int = 256,
    data: Path | str | None = None,
    any_counts: bool = False,
) -> SuiteFile:
    """Return a built-in suite of OpenOOD, or the suite file at a path that ends in ``.toml``.

    ``data`` is the folder with OpenOOD's folders ``data`` and ``results``, by default ``$OPENOOD``; ``SuiteFile``
    describes the other arguments.
    """
    if not name.endswith(".toml") and name not in built_in_names():
        raise ValueError(
            f"no suite is called {name!r}. Built in: {', '.join(suite_names())}. "
            "For your own network and data, pass the path of a suite file, which ends in .toml."
        )
    path = Path(name) if name.endswith(".toml") else BUILT_IN / f"{name}.toml"
    variables = dict(os.environ)
    place = data or variables.get(OPENOOD)
    if place:  # relative to the working directory, not to the folder of the suite file
        variables[OPENOOD] = str(Path(place).resolve())
    return SuiteFile(path, seeds, batch_size, any_counts, variables)


def load_suites(
    name: str,
    out: Path | str,
    seeds: Sequence[int] | None = None,
    batch_size: int = 256,
    data: Path | str | None = None,
    any_counts: bool = False,
    names: Sequence[str] | None = None,
    limit: int | None = None,
    limit_fit: int | None = None,
) -> list[Suite]:
    """Return a suite for each network and seed of a built-in suite, a benchmark of OpenOOD, or a suite file.

    ``out`` keeps the data and networks that ``digits``, ``texts`` and ``scenes`` make. ``names`` selects networks, by
    default all, of ``digits`` only the first. ``limit_suite`` describes the limits, ``open_suite_file`` the other
    arguments.
    """
    if name == DIGITS or name in MADE:
        if data or any_counts:
            raise ValueError(f"{name} makes its own network and data. Leave out data= and any_counts=.")
        seeds = seeds or [0]
        if name == DIGITS:
            suites = _digits(Path(out), seeds, batch_size, names)
        elif names is not None:
            raise ValueError(f"{name} makes its own single network. Leave out the names of networks.")
        else:
            suites = _of_one_network(MADE[name], name, Path(out), seeds, batch_size)
    else:
        place = data or (os.environ.get(OPENOOD) if name in built_in_names() else None)
        if place and not Path(place).is_dir():
            raise NotADirectoryError(f"OpenOOD's data and results should be in {place}, which is no folder. Check it.")
        suites = open_suite_file(name, seeds, batch_size, data, any_counts).suites(names)
    return [limit_suite(suite, limit, limit_fit) for suite in suites]


def limit_suite(suite: Suite, limit: int | None = None, limit_fit: int | None = None) -> Suite:
    """Return a suite with a random subset of each data set, balanced over the classes if it has labels.

    ``limit`` is the largest number of images of data sets on which methods are evaluated, ``limit_fit`` that of the
    training, validation and OOD validation data. The two differ because a method that learns from less data is another
    method. Each limit that takes effect is stated as a deviation. The images are the same for every network.
    """
    evaluated = suite.test, *(ood.images for ood in suite.ood)
    learnt = [source for source in (suite.train, suite.val, suite.ood_val) if source is not None]
    deviations = list(suite.deviations)
    if limit is not None and any(source.rows > limit for source in evaluated):
        deviations.append(f"methods were evaluated on at most {limit} images of each data set")
    if limit_fit is not None and any(source.rows > limit_fit for source in learnt):
        deviations.append(
            f"methods learned from at most {limit_fit} images each of the training and validation data, which changes "
            "their results"
        )

    def take(source: Source, count: int | None) -> Source:
        return take_subset(source, count, seed=0, balanced=True)

    return replace(
        suite,
        train=None if suite.train is None else take(suite.train, limit_fit),
        val=None if suite.val is None else take(suite.val, limit_fit),
        test=take(suite.test, limit),
        ood=tuple(replace(ood, images=take(ood.images, limit)) for ood in suite.ood),
        ood_val=None if suite.ood_val is None else take(suite.ood_val, limit_fit),
        deviations=tuple(deviations),
    )


def _of_one_network(
    make: Callable[..., Suite], name: str, out: Path, seeds: Sequence[int], batch_size: int
) -> list[Suite]:
    folders = {seed: f"seed{seed}" if len(seeds) > 1 else "" for seed in seeds}
    return [
        replace(make(out, seed, batch_size), network=folder, family=name, siblings=tuple(folders.values()))
        for seed, folder in folders.items()
    ]


def _digits(out: Path, seeds: Sequence[int], batch_size: int, names: Sequence[str] | None) -> list[Suite]:
    for name in names or ():
        if name not in DIGIT_NETWORKS:
            raise ValueError(
                f"digits makes its own networks, but no {name!r}. Choose from {', '.join(DIGIT_NETWORKS)}."
            )
    folders = {}  # all that this choice of seeds may give, so that results are found again
    for network in [FIRST] if names is None else DIGIT_NETWORKS:
        for seed in seeds:
            parts = ([] if names is None else [network]) + ([f"seed{seed}"] if len(seeds) > 1 else [])
            folders[network, seed] = "-".join(parts)
    return [
        replace(
            digits(out, seed=seed, batch_size=batch_size, network=network),
            network=folder,
            family=DIGITS if names is None else network,
            architecture="" if names is None else network,
            siblings=tuple(folders.values()),
        )
        for (network, seed), folder in folders.items()
        if names is None or network in names
    ]
