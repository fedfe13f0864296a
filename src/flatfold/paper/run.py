"""Run the paper's experiments: for each network a benchmark, a curvature study and the ablations."""

import json
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from .. import __version__
from ..detectors import create, get_method
from ..evaluate.banks import Banks, Settings, extract_all
from ..evaluate.methods import Spec
from ..evaluate.results import Results, load_results
from ..evaluate.runner import check_specs, forget, provenance, run_and_save
from ..evaluate.study import forget_study, run_study
from ..evaluate.study_results import JSON as STUDY
from ..evaluate.study_results import Study, load_study
from ..evaluate.suites.suite import Suite
from ..evaluate.tuning import grid_points
from ..io.progress import track
from ..network.fingerprint import weights_hash
from ..passes.passes import session
from .ablations import (
    ARRAYS,
    JSON,
    NORMALISATIONS,
    Ablations,
    load_ablations,
    logit_traces,
    measure_costs,
    measure_effects,
    measure_sensitivities,
    measure_separations,
)
from .measurements import NetworkRun
from .tables import FOLD_FAMILY, read_table
from .verdicts import ClaimVerdict, compute_verdicts

FILES = ("results.json", STUDY, JSON)
NOT_IN_TABLES = ("mdsens",)  # a baseline of the paper's appendix that none of its tables has


@dataclass(frozen=True)
class Plan:
    """The experiments to run on a network; :class:`Settings` has how the network is run."""

    samples: int = 200  # maximum number of images of each data set whose curvature is measured
    batch_size: int = 256  # inputs in the batch on which costs are measured
    rounds: int = 11  # number of times that each cost is measured
    methods: Sequence[Spec] | None = None  # as for a benchmark; None: those of the paper
    alpha: float | None = None  # exponent of partial normalisation; None: AutoFold's choice on validation data

    def specs(self, banks: Banks) -> list[Spec]:
        """Return the given methods, or the paper's, tuned on OOD validation data as in the paper where possible."""
        if self.methods is not None:
            return list(self.methods)
        return [Spec(name, tune="ood") if _can_tune(name, banks) else Spec(name) for name in paper_methods()]

    @property
    def numbers(self) -> dict[str, Any]:
        """Everything but the methods, which the benchmark lists."""
        return {name: value for name, value in asdict(self).items() if name != "methods"}


def paper_methods() -> list[str]:
    """Return the names of all methods of the paper as in the registry, its 14 baselines first."""
    rows = dict.fromkeys(number.row.lower() for number in read_table("main"))
    return [*(name for name in rows if name not in FOLD_FAMILY), *NOT_IN_TABLES, *FOLD_FAMILY]


def _can_tune(name: str, banks: Banks) -> bool:
    """Return whether a method can be tuned: on OOD validation data, with at least one usable point of its grid."""
    method = get_method(name)
    points = grid_points(method.grid, name) if method.grid else []
    if banks.ood_val is None or len(points) < 2:
        return False
    bank = banks.train if method.fits_on == "train" else banks.val
    if method.sees != "features" or bank is None:
        return True  # the benchmark reports the error
    for point in points:
        with suppress(ValueError):  # ViM with more dimensions than the features have, for example
            create(name, **point).fit(bank, banks.head)
            return True
    return False


def reproduce(suite: Suite, place: Path, settings: Settings, plan: Plan) -> NetworkRun:
    """Measure everything that the paper reports of a network, write it to files and return it.

    The files are those of a benchmark and of a curvature study, and ``ablations.json``; all three use the features in
    ``banks``. An interrupted run resumes where it stopped.
    """
    return _Reproduction(suite, place, settings, plan).run()


def forget_reproduction(suite: Suite, place: Path, plan: Plan) -> None:
    """Remove the files of earlier runs of a network: features, scores, parts of its study, and its ablations."""
    forget_study(suite, place, plan.samples)
    forget(place)
    for name in (JSON, ARRAYS):
        (place / name).unlink(missing_ok=True)


@dataclass
class _Reproduction:
    """The three stages of measuring one network."""

    suite: Suite
    place: Path
    settings: Settings
    plan: Plan

    def run(self) -> NetworkRun:
        stages: list[Callable[[], None]] = [self._run_benchmark, self._run_study, self._run_ablations]
        with session(self.settings.execution):
            for stage in track(stages, f"reproducing {self.suite.network or self.suite.name}"):
                stage()
        network = self.suite.network if len(self.suite.siblings) > 1 else ""
        return NetworkRun(network, self.results, self.study, self.ablations)

    def _run_benchmark(self) -> None:
        self.banks = extract_all(self.suite, self.place / "banks", self.settings, self.suite.ood_val is not None)
        specs = check_specs(self.plan.specs(self.banks), self.suite)
        self.results: Results = run_and_save(self.suite, specs, self.place, self.settings)

    def _run_study(self) -> None:
        plan, seed = self.plan, self.suite.seed
        self.study: Study = run_study(
            self.suite, self.place, self.settings, samples=plan.samples, alpha=plan.alpha, seed=seed
        )
        self.study.save(self.place)

    def _run_ablations(self) -> None:
        computed_from = {
            "version": __version__,
            "weights": weights_hash(self.suite.model),
            "device": self.settings.device,
            "seed": str(self.suite.seed),
            "data": json.dumps({name: source.fingerprint for name, source in self.suite.sources.items()}),
            "methods": json.dumps({run.method: repr(run.hyper) for run in self.results.methods}),
            "alphas": json.dumps(self.study.alphas),
            "plan": json.dumps(self.plan.numbers),
        }
        with suppress(ValueError):  # missing or damaged
            self.ablations = load_ablations(self.place)
            if self.ablations.computed_from == computed_from:
                return
        start = perf_counter()
        alphas = {kind: self.study.alphas[kind] for kind in NORMALISATIONS}
        effects, no_effect = measure_effects(self.banks, alphas, {run.name: run.hyper for run in self.results.methods})
        sensitivities, no_curve = measure_sensitivities(self.banks, self.results.methods)
        separations, scores, norms = measure_separations(self.banks, alphas, self.suite.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the benchmark has reported them
            costs, no_cost = measure_costs(
                self.suite, self.banks, self.results.methods, self.settings, self.plan.batch_size, self.plan.rounds
            )
        self.ablations = Ablations(
            alphas={str(kind): alpha for kind, alpha in alphas.items()},
            effects=effects,
            sensitivities=sensitivities,
            separations=separations,
            costs=costs,
            scores=scores,
            logits=logit_traces(self.banks, alphas["partial"]),
            norms=norms,
            refused={**self.results.refused, **no_cost, **no_curve, **no_effect},
            provenance=provenance(self.suite, self.settings, perf_counter() - start) | self.plan.numbers,
            computed_from=computed_from,
        )
        self.ablations.save(self.place)


@dataclass(frozen=True)
class Reproduction:
    """The measurements of all networks of a suite, and the verdicts on the paper."""

    runs: list[NetworkRun]
    verdicts: list[ClaimVerdict]
    left_out: dict[str, str]  # networks of earlier runs that cannot be used, with the reason


def conclude(folder: Path, networks: Sequence[str], now: Collection[NetworkRun]) -> Reproduction:
    """Return the measurements of this run and of earlier ones on the same numbers of images, with the verdicts.

    ``networks`` are the names of all networks of the suite, in order; ``[""]`` for a single one.
    """
    runs, left_out = {run.network: run for run in now}, dict[str, str]()
    sizes = _count_images(next(iter(now)).results)
    for network in networks:
        place = folder / network
        if network in runs or not all((place / file).exists() for file in FILES):
            continue
        try:
            earlier = load_network_run(place, network)
        except ValueError as error:
            left_out[network] = str(error)
            continue
        if _count_images(earlier.results) == sizes:
            runs[network] = earlier
        else:
            left_out[network] = "it was measured on other numbers of images. Run it with the same options."
    ordered = [runs[network] for network in networks if network in runs]
    return Reproduction(ordered, compute_verdicts(ordered), left_out)


def load_network_run(folder: Path, network: str) -> NetworkRun:
    """Read the measurements of a network from its folder."""
    return NetworkRun(network, load_results(folder), load_study(folder), load_ablations(folder))


def check_suite(folder: Path, networks: Sequence[str], suite: str) -> None:
    """Raise if the folders of these networks hold results of another suite, which would be overwritten."""
    for network in networks:
        try:
            earlier = str(load_results(folder / network).suite["name"])
        except (OSError, ValueError):
            continue
        if earlier != suite:
            raise ValueError(
                f"{folder / network} holds results of the suite {earlier!r}, but this run is of {suite!r}. "
                "Choose another folder, or remove them."
            )


def _count_images(results: Results) -> list[tuple[str, int]]:
    """Return the number of images of each data set."""
    return [("test", results.suite["n_test"]), *((ood["name"], ood["n"]) for ood in results.suite["ood"])]
