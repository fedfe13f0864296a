"""Suites by name or from a file."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...data.sources import Source, take_subset
from .digits import DIGIT_NETWORKS, FIRST, digits
from .schema import BUILT_IN, OPENOOD, built_in_names
from .suite import Suite
from .toml_file import SuiteFile

DIGITS = "digits"


def open_suite_file(
    name: str,
    seeds: Sequence[int] | None = None,
    batch_size: int = 256,
    data: Path | None = None,
    any_counts: bool = False,
) -> SuiteFile:
    """Return a built-in suite of OpenOOD, or a suite file, which ends in ``.toml``.

    ``data`` is the folder with OpenOOD's folders ``data`` and ``results``, by default ``$OPENOOD``; for the others see
    ``SuiteFile``.
    """
    if not name.endswith(".toml") and name not in built_in_names():
        raise ValueError(
            f"no suite is called {name!r}. Built in: {', '.join([DIGITS, *built_in_names()])}. "
            "For your own network and data, give the path of a suite file, which ends in .toml."
        )
    path = Path(name) if name.endswith(".toml") else BUILT_IN / f"{name}.toml"
    variables = dict(os.environ)
    place = data or variables.get(OPENOOD)
    if place:  # relative to the working directory, not to the folder of the suite file
        variables[OPENOOD] = str(Path(place).resolve())
    return SuiteFile(path, seeds, batch_size, any_counts, variables)


def load_suites(
    name: str,
    out: Path,
    seeds: Sequence[int] | None = None,
    batch_size: int = 256,
    data: Path | None = None,
    any_counts: bool = False,
    names: Sequence[str] | None = None,
    limit: int | None = None,
    limit_fit: int | None = None,
) -> list[Suite]:
    """Return a suite for each network and seed.

    Args:
        name: One of the built-in suites, or the path of a suite file, which ends in ``.toml`` (see ``SuiteFile``).
        out: Folder for the images and networks that a built-in suite makes.
        seeds: Of everything random in it; by default the suite file's, and 0 for a built-in suite.
        batch_size: Images per forward pass.
        data: Folder that holds OpenOOD's ``data`` and ``results``.
        any_counts: Whether a data set may have another number of images than expected.
        names: Of the networks wanted, all of them by default; of digits the first alone.
        limit: Most images of any data set that methods are evaluated on (see :func:`limit_suite`).
        limit_fit: Most images of any data set that methods learn from.
    """
    if name == DIGITS:
        if data or any_counts:
            raise ValueError("digits makes its own network and images, so there are no folders or counts to choose.")
        suites = _digits(out, seeds or [0], batch_size, names)
    else:
        place = data or (os.environ.get(OPENOOD) if name in built_in_names() else None)
        if place and not Path(place).is_dir():
            raise NotADirectoryError(f"OpenOOD's data and results should be in {place}, but there is no such folder.")
        suites = open_suite_file(name, seeds, batch_size, data, any_counts).suites(names)
    return [limit_suite(suite, limit, limit_fit) for suite in suites]


def limit_suite(suite: Suite, limit: int | None = None, limit_fit: int | None = None) -> Suite:
    """Return a suite with at most so many random images of a data set, evenly over the classes where it has any.

    ``limit`` is that of the data sets that methods are evaluated on. What they learn from or are tuned on (training,
    validation and OOD validation images) is limited by ``limit_fit`` alone, because a method that learns from less is
    another method: knn's rank among them can change. A deviation states each limit that took effect. The images are the
    same for every network.
    """
    judged = suite.test, *(ood.images for ood in suite.ood)
    learnt = [source for source in (suite.train, suite.val, suite.ood_val) if source is not None]
    deviations = list(suite.deviations)
    if limit is not None and any(source.rows > limit for source in judged):
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
        val=take(suite.val, limit_fit),
        test=take(suite.test, limit),
        ood=tuple(replace(ood, images=take(ood.images, limit)) for ood in suite.ood),
        ood_val=None if suite.ood_val is None else take(suite.ood_val, limit_fit),
        deviations=tuple(deviations),
    )


def _digits(out: Path, seeds: Sequence[int], batch_size: int, names: Sequence[str] | None) -> list[Suite]:
    """Return the built-in suite for every seed with its first network, or with those that are named."""
    for name in names or ():
        if name not in DIGIT_NETWORKS:
            raise ValueError(
                f"digits makes its own networks and has no {name!r}. There are {', '.join(DIGIT_NETWORKS)}."
            )
    several = len(seeds) > 1
    if names is None:
        folders = {(FIRST, seed): f"seed{seed}" if several else "" for seed in seeds}
    else:
        folders = {(name, seed): f"{name}-seed{seed}" if several else name for name in DIGIT_NETWORKS for seed in seeds}
    return [
        replace(
            digits(out, seed=seed, batch_size=batch_size, network=name),
            network=folder,
            family=DIGITS if names is None else name,
            architecture="" if names is None else name,
            siblings=tuple(folders.values()),
        )
        for (name, seed), folder in folders.items()
        if names is None or name in names
    ]
