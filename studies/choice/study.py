"""The study from beginning to end: networks, methods, rules, tables and the page."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from flatfold.core.bank import FeatureBank, Head
from flatfold.core.intervals import Difference, Influence, auroc_influence, mean_influence, paired_difference
from flatfold.core.metrics import auroc
from flatfold.detectors import METHODS, FourFold, create, get_method, parse_method
from flatfold.detectors.base import Detector
from flatfold.errors import MethodRefusedError
from flatfold.evaluate.banks import Banks, accuracy, extract_all
from flatfold.evaluate.results import as_csv
from flatfold.evaluate.suites.library import load_suites
from flatfold.evaluate.suites.suite import Suite
from flatfold.io.files import write_atomically
from flatfold.io.progress import track
from flatfold.passes.extract import extract

from ..autofold.cases import CIFAR, Role
from ..autofold.development import development_suites
from ..autofold.page import filled
from .figure import draw, draw_samples

log = logging.getLogger(__name__)

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "choice.md"
DIGIT_NETWORKS = ("cnn", "mlp", "residual")
OURS = "fourfold"
BANKS = "banks"  # the folder with features of large networks, and their role
# FourFold's parts are not what a user would choose between, and methods that run the network take longer.
SINGLE = [
    *(
        name
        for name, method in METHODS.items()
        if method.sees == "features" and name not in (OURS, "direction", "length", "fold-ct")
    ),
    "mds:alpha=1",
]
SHOWN = ("msp", "ebo", "autofold", "mds:alpha=1", "fdbd", "knn")
COMPARED = ("msp", "ebo", "gen", "scale", "fdbd", "nci", "knn", "mds:alpha=1", "autofold")
HALF_INTERVAL = 1.96  # standard errors
ALARMS = (0.05, 0.01)  # shares of the ID test data that raise an alarm
MOST_CLASSES = 10  # to leave out in turn: the rule would take hours on ImageNet networks
RULE = "leave one class out"
ABLATIONS = {
    "all weights 1": "fourfold:length=1.0:margin=1.0:curvature=1.0",
    "without direction": "fourfold:direction=0.0",
    "without length": "fourfold:length=0.0",
    "without margin": "fourfold:margin=0.0",
    "without curvature": "fourfold:curvature=0.0",
    "direction alone": "fourfold:length=0.0:margin=0.0:curvature=0.0",
    "length alone": "fourfold:direction=0.0:margin=0.0:curvature=0.0",
    "margin alone": "fourfold:direction=0.0:length=0.0:curvature=0.0",
    "curvature alone": "fourfold:direction=0.0:length=0.0:margin=0.0",
}
SAMPLES = (400, 200, 100, 50, 25)
FULL_TRUST = "full trust"
DRAWS = 5  # of few samples, and of wrong labels
WRONG_LABELS = (0.1, 0.3)


@dataclass(frozen=True)
class Network:
    """A network with its features, and those of validation images that were prepared in a wrong way, if any."""

    name: str
    role: str
    banks: Banks
    wrongly_prepared: FeatureBank | None = None

    @property
    def val(self) -> FeatureBank:
        """Labelled ID data that the network was not trained on."""
        return self.banks.fitted_on("val")


@dataclass(frozen=True)
class Measured:
    """The mean AUROC over OOD sets of every method, rule and variant on a network, as fractions.

    ``few`` has FourFold's by samples per class, as it is and with full trust; ``detected`` has the share of OOD inputs
    that a method detects at each of :data:`ALARMS`.
    """

    name: str
    role: str
    accuracy: float
    singles: dict[str, Influence]
    ours: Influence
    picked: str | None
    variants: dict[str, float]
    few: dict[float, tuple[float, float]]
    detected: dict[str, tuple[float, ...]]

    @property
    def best(self) -> str:
        """The single method with the highest AUROC on this network, which only somebody with OOD data could choose."""
        return max(self.singles, key=lambda method: self.singles[method].auroc)

    def regret(self, value: float) -> float:
        """Return what an AUROC is behind that of the best single method, in percentage points."""
        return 100 * (self.singles[self.best].auroc - value)

    def ahead_of(self, method: str) -> Difference:
        """Return how far FourFold is ahead of a single method, with a 95 % interval."""
        return paired_difference(self.ours, self.singles[method])


def networks(out: Path, data: Path | None) -> Iterator[Network]:
    """Yield all networks: development networks first, then held-out ones, then those of which there are features."""
    suites: list[tuple[Suite, Role]] = [
        (suite, "development") for suite in load_suites("digits", out / "digits", (0,), names=DIGIT_NETWORKS)
    ]
    if data is not None:
        letters = next((out / "digits").rglob("letters.npz"))
        suites += [(suite, "development") for suite in development_suites(data, letters, out / "networks")]
        suites += [(suite, "held out") for suite in load_suites(str(CIFAR), out)]
    for suite, role in track(suites, "networks"):
        banks = extract_all(suite, out / "banks")
        assert suite.val is not None
        wrong, _ = extract(suite.model, ((2 * x, y) for x, y in suite.val))  # as if std had been half as large
        yield Network(f"{suite.name} {suite.network}", role, banks, wrong)
    for path in sorted(data.glob(f"{BANKS}/*.npz")) if data is not None else ():
        yield Network(path.stem.replace("_", " "), BANKS, read_banks(path))


def read_banks(path: Path) -> Banks:
    """Return the features of a network from a file with arrays W, b, id_val, id_test, their labels, and ood_*."""
    with np.load(path) as file:
        features = {name: torch.from_numpy(file[name]).float() for name in file.files if not name.endswith("_labels")}
        labels = {name: torch.from_numpy(file[f"{name}_labels"]).long() for name in ("id_val", "id_test")}
    val, test = (FeatureBank(features[name], labels[name]) for name in ("id_val", "id_test"))
    ood = {name.removeprefix("ood_"): FeatureBank(h) for name, h in features.items() if name.startswith("ood_")}
    return Banks(Head(features["W"], features["b"]), None, val, test, ood)


def run(out: Path, data: Path | None) -> list[Measured]:
    """Measure every network and write ``choice.csv``, ``choice.svg`` and the sections of the page."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few samples and flat curves, which are the subject here
        measured = [measure(network) for network in networks(out, data)]
    rows = [
        {"network": it.name, "role": it.role, "method": method, "auroc": value, "regret": it.regret(value)}
        | {f"detected at {rate:.0%}": it.detected.get(method, ("",) * len(ALARMS))[i] for i, rate in enumerate(ALARMS)}
        for it in measured
        for method, value in averages(it).items()
    ]
    write_atomically(out / "choice.csv", as_csv(rows))
    write_atomically(out / "choice.svg", draw({it.name: regrets(it) for it in measured}))
    few = {it.name: {m: (it.regret(a), it.regret(b)) for m, (a, b) in it.few.items()} for it in measured}
    write_atomically(out / "choice-samples.svg", draw_samples(few, [it.name for it in measured if it.role == BANKS]))
    for name, text in sections(measured).items():
        write_atomically(out / "sections" / f"{name}.md", text)
    return measured


def update(out: Path, page: Path = PAGE) -> None:
    """Put the results of a run into the page, and its table and figure beside it."""
    contents = {path.stem: path.read_text(encoding="utf8") for path in sorted((out / "sections").glob("*.md"))}
    write_atomically(page, filled(page.read_text(encoding="utf8"), contents))
    for name in ("choice.csv", "choice.svg", "choice-samples.svg"):
        copyfile(out / name, page.with_name(name))


def averages(it: Measured) -> dict[str, float]:
    """Return the AUROC of everything that was measured on a network."""
    singles = {method: influence.auroc for method, influence in it.singles.items()}
    rule = {} if it.picked is None else {RULE: it.singles[it.picked].auroc}
    return {OURS: it.ours.auroc, **rule, **it.variants, **singles}


def regrets(it: Measured) -> dict[str, float]:
    """Return the regrets that the figure shows."""
    found = averages(it)
    return {method: it.regret(found[method]) if method in found else math.nan for method in (OURS, RULE, *SHOWN)}


@torch.no_grad()
def measure(network: Network) -> Measured:
    """Return the AUROCs of every single method, of FourFold, of its variants, and what the rule picks."""
    singles = {method: it for method in SINGLE if (it := single(method, network)) is not None}
    val, banks = network.val, network.banks
    variants = {name: fitted_on(val, network, method).auroc for name, method in ABLATIONS.items()}
    variants["predicted labels"] = fitted_on(FeatureBank(val.features), network).auroc
    if network.wrongly_prepared is not None:
        variants["wrong transform"] = fitted_on(network.wrongly_prepared, network).auroc
    if banks.train is not None:
        variants["training data"] = fitted_on(banks.train, network).auroc
    for share in WRONG_LABELS:
        noisy = [wrong_labels(val, share, seed) for seed in range(DRAWS)]
        variants[f"{share:.0%} wrong labels"] = fmean(fitted_on(bank, network).auroc for bank in noisy)
    by_samples = {}
    for n in (len(val), *(n for n in SAMPLES if n < len(val))):
        draws = [val] if n == len(val) else [val[torch.from_numpy(shuffled(len(val), s)[:n])] for s in range(DRAWS)]
        found = [by_trust(bank, network) for bank in draws]
        with_trust, without = (fmean(values) for values in zip(*found, strict=True))
        by_samples[n / banks.head.n_classes] = (with_trust, without)
        if n == len(val):
            variants[FULL_TRUST] = without
        else:
            variants[f"{n} samples"] = with_trust
    detected = {
        method: detections(fitted(method, network), network)
        for method in (OURS, *COMPARED)
        if method in {OURS, *singles}
    }
    return Measured(
        network.name,
        network.role,
        accuracy(banks.test, banks.head),
        singles,
        fitted_on(val, network),
        pick(network, list(singles)) if banks.head.n_classes <= MOST_CLASSES else None,
        variants,
        by_samples,
        detected,
    )


def single(method: str, network: Network) -> Influence | None:
    """Return the AUROC of a method on a network; None where it refuses the data."""
    try:
        return mean_auroc(fitted(method, network), network)
    except MethodRefusedError as reason:
        log.info("%s is left out of %s: %s", method, network.name, reason)
        return None


def fitted(method: str, network: Network) -> Detector:
    """Return a method that has learnt from the data that it asks for, as far as the network has it."""
    banks = network.banks
    wants_train = get_method(parse_method(method)[0]).fits_on == "train"
    return (
        make(method)
        .fit(banks.fitted_on("train" if wants_train and banks.train is not None else "val"), banks.head)
        .eval()
    )


def fitted_on(bank: FeatureBank, network: Network, method: str = OURS) -> Influence:
    """Return the mean AUROC over OOD sets of a method that was fitted on a bank."""
    return mean_auroc(make(method).fit(bank, network.banks.head).eval(), network)


def by_trust(bank: FeatureBank, network: Network) -> tuple[float, float]:
    """Return the mean AUROC of FourFold, and with the same weights for any number of samples and without doubt."""
    detector = make(OURS).fit(bank, network.banks.head).eval()
    assert isinstance(detector, FourFold)
    ours = mean_auroc(detector, network).auroc
    detector.weights_ = detector.weights_.new_tensor([*detector.weights, 0.0])
    return ours, mean_auroc(detector, network).auroc


def mean_auroc(detector: Detector, network: Network) -> Influence:
    """Return the mean AUROC over OOD sets."""
    known = detector(network.banks.test.features)
    return mean_influence([auroc_influence(known, detector(bank.features)) for bank in network.banks.ood.values()])


def detections(detector: Detector, network: Network) -> tuple[float, ...]:
    """Return the mean share of OOD sets above the thresholds that ID test data exceed at the rates :data:`ALARMS`."""
    known = detector(network.banks.test.features).double()
    ood = [detector(bank.features) for bank in network.banks.ood.values()]
    thresholds = [float(known.quantile(1 - rate)) for rate in ALARMS]
    return tuple(fmean(float((scores > limit).double().mean()) for scores in ood) for limit in thresholds)


def make(method: str) -> Detector:
    """Return an unfitted detector."""
    name, hyper = parse_method(method)
    return create(name, **hyper)


def shuffled(n: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers below n in random order."""
    return np.random.default_rng(seed).permutation(n)


def wrong_labels(bank: FeatureBank, share: float, seed: int) -> FeatureBank:
    """Return a bank in which a share of the labels is replaced by labels of other classes."""
    assert bank.labels is not None
    labels, classes = bank.labels.clone(), int(bank.labels.max()) + 1
    rows = torch.from_numpy(shuffled(len(bank), seed)[: round(share * len(bank))])
    shift = torch.from_numpy(np.random.default_rng(seed).integers(1, classes, len(rows)))
    labels[rows] = (labels[rows] + shift) % classes
    return FeatureBank(bank.features, labels)


def pick(network: Network, methods: Sequence[str]) -> str:
    """Return the single method that detects classes best that it was not fitted on: a rule without OOD data.

    Each class in turn is left out of the head and of one half of the validation data; its samples in the other half
    are then to be told from those of the other classes.
    """
    order = torch.from_numpy(shuffled(len(network.val), 0))
    fit, judge = network.val[order[: len(order) // 2]], network.val[order[len(order) // 2 :]]
    assert fit.labels is not None
    assert judge.labels is not None

    def value(method: str) -> float:
        found = []
        for label in range(network.banks.head.n_classes):
            try:
                detector = make(method).fit_without(fit, network.banks.head, label).eval()
            except MethodRefusedError:
                return 0.0
            scores, out = detector(judge.features), judge.labels == label
            found.append(auroc(scores[~out], scores[out]))
        return fmean(found)

    return max(methods, key=value)


def sections(measured: Sequence[Measured]) -> dict[str, str]:
    """Return the sections of the page that come from a run, by name."""
    roles = {role: [it for it in measured if it.role == role] for role in ("development", "held out", BANKS)}
    roles = {role: group for role, group in roles.items() if group}
    return {
        "answer": answer(measured),
        "networks": network_table(measured),
        "compared": comparison_table(measured),
        "methods": method_table(roles),
        "variants": variant_table(roles),
    }


def comparison_table(measured: Sequence[Measured]) -> str:
    """Return AUROC and detections of a few methods: their means over all networks of a kind, and each of the banks."""
    columns = {"small networks": [it for it in measured if it.role != BANKS]}
    columns |= {it.name: [it] for it in measured if it.role == BANKS}
    columns = {name: group for name, group in columns.items() if group}

    def cell(method: str, group: Sequence[Measured]) -> str:
        if any(method not in it.detected for it in group):
            return "-"
        values = zip(*((averages(it)[method], *it.detected[method]) for it in group), strict=True)
        return " / ".join(f"{100 * fmean(value):.1f}" for value in values)

    rows = [[f"`{method}`", *(cell(method, group) for group in columns.values())] for method in (OURS, *COMPARED)]
    return markdown(["AUROC / detected at 5 % / at 1 %", *columns], rows)


def answer(measured: Sequence[Measured]) -> str:
    """Return the results in a few sentences."""
    ours = [it.regret(it.ours.auroc) for it in measured]
    worst = max(measured, key=lambda it: it.regret(it.ours.auroc))
    fixed = {method: [it.regret(it.singles[method].auroc) for it in measured] for method in complete(measured)}
    best = min(fixed, key=lambda method: fmean(fixed[method]))
    rule = [it.regret(it.singles[it.picked].auroc) for it in measured if it.picked is not None]
    behind = {name: [it.name for it in measured if it.ahead_of(name).value < 0] for name in ("msp", "ebo")}
    lost = " and ".join(f"behind `{name}` on {', '.join(names) or 'none of them'}" for name, names in behind.items())
    texts = {name: f"{fmean(fixed[name]):.1f} and {max(fixed[name]):.1f}" for name in ("autofold", "ebo", "msp")}
    return (
        f"Over {len(measured)} networks FourFold has a mean regret of {fmean(ours):.2f} percentage points of AUROC, "
        f"and {max(ours):.1f} at worst ({worst.name}). Of single methods, the same for all networks, `{best}` has the "
        f"smallest: {fmean(fixed[best]):.2f}, and {max(fixed[best]):.1f} at worst. AutoFold has {texts['autofold']}, "
        f"energy {texts['ebo']}, MSP {texts['msp']}. A rule that selects a method by leaving out classes has "
        f"{fmean(rule):.1f} and {max(rule):.1f} on the {len(rule)} networks with at most {MOST_CLASSES} classes. "
        f"FourFold is {lost}."
    )


def complete(measured: Sequence[Measured]) -> list[str]:
    """Return the single methods that no network refuses."""
    return [method for method in SINGLE if all(method in it.singles for it in measured)]


def with_interval(difference: Difference) -> str:
    """Return a difference in percentage points with its interval."""
    return f"{100 * difference.value:+z.1f} ({100 * difference.low:+z.1f} to {100 * difference.high:+z.1f})"


def network_table(measured: Sequence[Measured]) -> str:
    """Return a table of networks: FourFold against the best single method, MSP, energy and what the rule picks."""
    header = ["network", "accuracy", "best single method", "FourFold", "minus best", "minus `msp`", "minus `ebo`", RULE]
    rows = [
        [
            it.name + (" *" if it.role == "held out" else ""),
            f"{100 * it.accuracy:.1f}",
            f"`{it.best}` {100 * it.singles[it.best].auroc:.1f}",
            f"{100 * it.ours.auroc:.1f}",
            *(with_interval(it.ahead_of(method)) for method in (it.best, "msp", "ebo")),
            "-" if it.picked is None else f"`{it.picked}` {100 * it.singles[it.picked].auroc:.1f}",
        ]
        for it in measured
    ]
    return markdown(header, rows)


def method_table(roles: Mapping[str, Sequence[Measured]]) -> str:
    """Return a table of methods: mean AUROC with the half of its 95 % interval, mean and worst regret; best first."""
    every = [it for group in roles.values() for it in group]
    names = [OURS, RULE, *(method for method in SINGLE if any(method in it.singles for it in every))]
    ordered = sorted(names, key=lambda name: fmean(regrets_of(name, every)))

    def cells(name: str, group: Sequence[Measured]) -> list[str]:
        found = [{**it.singles, OURS: it.ours, RULE: it.singles.get(it.picked or "")}.get(name) for it in group]
        parts = [influence for influence in found if influence is not None]
        if len(parts) < len(group):
            return ["-"] * 3
        half = HALF_INTERVAL * math.hypot(*(part.stderr for part in parts)) / len(parts)
        return [f"{100 * fmean(part.auroc for part in parts):.1f} ± {100 * half:.1f}", *regret_cells(name, group)]

    header = ["", *(f"{role}: {what}" for role in roles for what in ("AUROC", "mean regret", "worst"))]
    return markdown(header, [row(name, cells, roles) for name in ordered])


def variant_table(roles: Mapping[str, Sequence[Measured]]) -> str:
    """Return a table of FourFold's variants with their mean and worst regret, in the order of the page."""
    names = [OURS, *dict.fromkeys(name for group in roles.values() for it in group for name in it.variants)]
    header = ["", *(f"{role}: {what}" for role in roles for what in ("mean regret", "worst"))]
    return markdown(header, [row(name, regret_cells, roles) for name in names])


def regrets_of(name: str, group: Sequence[Measured]) -> list[float]:
    """Return the regrets of a method or variant on the networks where it was measured."""
    return [it.regret(found[name]) for it in group if name in (found := averages(it))]


def regret_cells(name: str, group: Sequence[Measured]) -> list[str]:
    """Return mean and worst regret, or dashes if a network has none."""
    found = regrets_of(name, group)
    return [f"{figure(found):.2f}" if len(found) == len(group) else "-" for figure in (fmean, max)]


def row(
    name: str, cells: Callable[[str, Sequence[Measured]], list[str]], roles: Mapping[str, Sequence[Measured]]
) -> list[str]:
    """Return the cells of a method or variant for every role, after its name."""
    return [f"**{name}**" if name == OURS else name, *(cell for group in roles.values() for cell in cells(name, group))]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is aligned to the left and the others to the right."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
