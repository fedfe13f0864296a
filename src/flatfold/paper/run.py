"""Run all that the paper measured: a benchmark, a curvature study, and what neither of them has."""

import json
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from .. import __version__
from ..evaluate.banks import Settings, extract_all, short_key
from ..evaluate.results import Results, load_results
from ..evaluate.runner import check_specs, forget, provenance, run
from ..evaluate.study import forget_study, run_study
from ..evaluate.study_results import JSON as STUDY
from ..evaluate.study_results import Study
from ..evaluate.suites.suite import Suite
from ..io.progress import track
from .ablations import (
    ARRAYS,
    JSON,
    NORMALISATIONS,
    Ablations,
    effects,
    load_ablations,
    logit_traces,
    sensitivities,
    separations,
)
from .ablations import JSON as ABLATIONS
from .claims import Material, load_material
from .costs import Plan, costs

KEY = "key of the ablations"  # of the provenance


def reproduce(
    suites: Sequence[Suite], folder: Path, settings: Settings | None = None, plan: Plan | None = None
) -> None:
    """Measure all that the paper reports of each network, and write it down as soon as a part is done.

    A network gets a folder of its own, ``folder/NETWORK``, unless it is the only one. There lie the files of a
    benchmark, of a curvature study, and ``ablations.json``; the features under ``banks`` serve all three. An
    interrupted run goes on where it stopped.

    Args:
        suites: One for each network.
        folder: Where the files go.
        settings: How to run the networks and read the images.
        plan: What is measured.
    """
    settings, plan = settings or Settings(), plan or Plan()
    for suite in suites:
        _Reproduction(suite, place_of(suite, folder), settings, plan).run()


def place_of(suite: Suite, folder: Path) -> Path:
    """Return where the files of a network go: a folder of its own, unless it is the only one."""
    return folder / suite.network if len(suite.siblings) > 1 else folder


def forget_reproduction(suite: Suite, place: Path, plan: Plan) -> None:
    """Remove what earlier runs kept of a network: features, scores, parts of its study, and its ablations."""
    forget_study(suite, place, plan.samples)
    forget(place)
    for name in (JSON, ARRAYS):
        (place / name).unlink(missing_ok=True)


class _Reproduction:
    """One network."""

    def __init__(self, suite: Suite, place: Path, settings: Settings, plan: Plan) -> None:
        self.suite, self.place, self.settings, self.plan = suite, place, settings, plan

    def run(self) -> None:
        title = f"reproducing {self.suite.network or self.suite.name}"
        stages: list[Callable[[], None]] = [self._benchmark, self._study, self._ablations]
        for stage in track(stages, title):
            stage()

    def _benchmark(self) -> None:
        tuning = self.suite.ood_val is not None
        self.banks = extract_all(self.suite, self.place / "banks", self.settings, tuning)
        specs = check_specs(self.plan.specs(self.banks), self.suite)
        self.results: Results = run(self.suite, specs, self.place, self.settings)
        self.results.save(self.place)

    def _study(self) -> None:
        asked = {"samples": self.plan.samples, "alpha": self.plan.alpha, "seed": self.suite.seed}
        self.study: Study = run_study(self.suite, self.place, self.settings, **asked)  # type: ignore[arg-type]
        self.study.save(self.place)

    def _ablations(self) -> None:
        key = self._key()
        if _stored_key(self.place) == key:
            return
        start = perf_counter()
        alphas = {kind: self.study.alphas[kind] for kind in NORMALISATIONS}
        hyper = {run.name: run.hyper for run in self.results.methods}
        normalised, no_effect = effects(self.banks, alphas, hyper)
        sensitive, no_curve = sensitivities(self.banks, self.results.methods)
        separated = separations(self.banks, alphas, self.suite.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the benchmark has told them
            priced, no_cost = costs(self.suite, self.banks, self.results.methods, self.settings, self.plan)
        about = provenance(self.suite, self.settings, perf_counter() - start, self.banks.weights)
        Ablations(
            alphas={str(kind): alpha for kind, alpha in alphas.items()},
            effects=normalised,
            sensitivities=sensitive,
            separations=separated.separations,
            costs=priced,
            scores=separated.scores,
            logits=logit_traces(self.banks, alphas["partial"]),
            norms=separated.norms,
            refused={**self.results.refused, **no_cost, **no_curve, **no_effect},
            provenance={**about, **_told(self.plan), KEY: key},
        ).save(self.place)

    def _key(self) -> str:
        """Return what the ablations depend on, in a few letters."""
        known = {name: source.fingerprint for name, source in self.suite.sources.items()}
        methods = {run.method: repr(run.hyper) for run in self.results.methods}
        parts = [__version__, self.banks.weights, self.settings.device, self.suite.seed, known, methods]
        return short_key(json.dumps([*parts, self.study.alphas, _told(self.plan)]))


def _stored_key(place: Path) -> str | None:
    """Return the key of the ablations in a folder, None if there are none that can be read."""
    try:
        return str(load_ablations(place).provenance.get(KEY))
    except ValueError:
        return None


def _told(plan: Plan) -> dict[str, Any]:
    """Return what was asked for; the methods stand in the benchmark."""
    asked = asdict(plan)
    del asked["methods"]
    return asked


# Which networks of a folder can be judged together.


FILES = ("results.json", STUDY, ABLATIONS)


def check_suite(folder: Path, networks: Sequence[str], suite: str) -> None:
    """Raise if results of another suite lie where those of this one go, and would be judged or lost with them.

    Args:
        folder: Of a reproduction.
        networks: All that the suite has; ``[""]`` for a single one, whose files are in ``folder`` itself.
        suite: Its name.
    """
    for network in networks:
        found = _suite_of(folder / network)
        if found not in (None, suite):
            raise ValueError(
                f"{folder / network} holds results of the suite {found!r}, but this run is of {suite!r}. "
                "Give another --out, or remove them."
            )


def finished(folder: Path, networks: Sequence[str], now: Collection[str]) -> tuple[list[Material], dict[str, str]]:
    """Return everything measured of each network that is finished, and why others are left out.

    Args:
        folder: Of a reproduction.
        networks: All that the suite has; ``[""]`` for a single one.
        now: Those of this run. Others, of an earlier one, count where they can be read and saw as many images.
    """
    found, left_out = list[Material](), dict[str, str]()
    for network in networks:
        if network not in now and not all((folder / network / file).exists() for file in FILES):
            continue
        try:
            found.append(load_material(folder / network, network))
        except ValueError as error:
            if network in now:
                raise
            left_out[network] = str(error)
    sizes = next(_sizes(material.results) for material in found if material.network in now)
    earlier = [material for material in found if material.network not in now]
    others = [material.network for material in earlier if _sizes(material.results) != sizes]
    left_out |= dict.fromkeys(others, "it was judged on other numbers of images. Run it with the same options.")
    return [material for material in found if material.network not in others], left_out


def _suite_of(place: Path) -> str | None:
    """Return the suite of the results in a folder, None where there are none that can be read."""
    try:
        return str(load_results(place).suite["name"])
    except (OSError, ValueError):
        return None


def _sizes(results: Results) -> list[tuple[str, int]]:
    """Return how many images of each data set were judged."""
    return [("test", results.suite["n_test"]), *((ood["name"], ood["n"]) for ood in results.suite["ood"])]
