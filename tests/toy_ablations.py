"""Ablations and costs of a made-up network, and everything else that a reproduction needs of it."""

import numpy as np

from flatfold.evaluate.compare import tabulate
from flatfold.evaluate.results import MethodRun, Results
from flatfold.paper.ablations import NORMALISATIONS, Ablations, Cost, Effect, Sensitivity, Separation
from flatfold.paper.measurements import NetworkRun
from tests.toy_study import ALPHAS, SETS, make_study

METHODS = ("msp", "knn@ood", "vim", "rmds", "fold", "fold-r", "fold-a", "autofold", "autofold-r", "autofold-a")
SEVEN = ("msp", "ebo", "react", "ash", "fold", "fold-r", "fold-a")
SHIFTS = {"none": 1.0, "partial": 1.6, "full": 0.3}  # of unknown scores, in deviations
GRID = [round(0.1 * step, 1) for step in range(11)]


def make_results(methods=METHODS, sets=None, known=120, unknown=80, better=0.6, seed=0, **suite):
    """Return a run in which every method of the FOLD family is better than all others, by ``better`` deviations."""
    sets = SETS if sets is None else sets
    rng = np.random.default_rng(seed)
    scores = {}
    base = {name: rng.normal(size=unknown if name != "id" else known) for name in ("id", *sets)}
    for method in methods:
        shift = 1.2 + better * ("fold" in method)
        for name, values in base.items():
            noise = 0.3 * rng.normal(size=len(values))
            scores[f"{method}/{name}"] = (values + noise + shift * (name != "id")).astype(np.float32)
    rows, averages = tabulate(scores, dict.fromkeys(methods, ""), sets, replicates=0)
    return Results(
        suite={
            "name": "toy",
            "network": "",
            "about": "Known and unknown.",
            "n_classes": 5,
            "accuracy": 0.9,
            "n_train": 2560,
            "n_val": 128,
            "n_test": known,
            "ood": [{"name": n, "group": g, "n": unknown, "about": f"About {n}."} for n, g in sets.items()],
            **suite,
        },
        methods=[MethodRun(m, m.partition("@")[0], {}, split_of(m), "nothing", 0.01, 2.0) for m in methods],
        refused={},
        rows=rows,
        averages=averages,
        alpha_curves=[],
        provenance={"weights, sha256": "abc"},
        scores=scores,
    )


def split_of(method):
    """Return the data that a method learns from."""
    return "train" if method.partition("@")[0] in ("knn", "vim", "rmds") else "val"


def make_scores(sets=None, known=120, unknown=80, shifts=None):
    """Return FOLD's scores by normalisation and data set, on the same images, and the norms."""
    sets, shifts = SETS if sets is None else sets, SHIFTS if shifts is None else shifts
    rng = np.random.default_rng(1)
    base = {name: rng.normal(size=unknown if name != "id" else known) for name in ("id", *sets)}
    scores = {
        f"{kind}/{name}": (values + shifts[kind] * (name != "id")).astype(np.float32)
        for kind in NORMALISATIONS
        for name, values in base.items()
    }
    return scores, {name: rng.gamma(6, 1, len(values)).astype(np.float32) for name, values in base.items()}


def make_logits(scores, sets):
    """Return traces over logits that tell unknown from known images a little worse than those over features."""
    rng = np.random.default_rng(2)
    noisy = {name: scores[f"partial/{name}"] for name in ("id", *sets)}
    return {name: (values + 0.8 * rng.normal(size=len(values))).astype(np.float32) for name, values in noisy.items()}


def make_ablations(sets=None, gain=0.02, regret=0.002, costs=None, **scores):
    """Return ablations: partial normalisation gains everywhere, full loses, and AutoFold gives little away."""
    sets = SETS if sets is None else sets
    found, norms = make_scores(sets, **scores)
    return Ablations(
        alphas=dict(ALPHAS),
        effects=[effect(m, kind, name, gain) for m in SEVEN for kind in NORMALISATIONS for name in (*sets, "all")],
        sensitivities=[sensitivity(method, sets, regret) for method in ("fold", "fold-r", "fold-a")],
        separations=[separation(kind, name, found, sets) for kind in NORMALISATIONS for name in (*sets, "all")],
        costs=make_costs() if costs is None else costs,
        scores=found,
        logits=make_logits(found, sets),
        norms=norms,
        refused={},
        provenance={"weights, sha256": "abc"},
        computed_from={},
    )


def effect(method, kind, dataset, gain):
    moved = {"none": 0.0, "partial": gain, "full": -2 * gain}[kind]
    room = 0.0 if kind == "none" else 0.01
    return Effect(method, kind, ALPHAS[kind], dataset, 0.9 + moved, 0.3 - moved, moved, moved - room, moved + room)


def sensitivity(method, sets, regret):
    """Return a curve whose top is at 0.5, where AutoFold chose 0.6."""
    curve = [0.95 - 0.1 * (alpha - 0.5) ** 2 for alpha in GRID]
    rate = [0.2 + 0.3 * (alpha - 0.5) ** 2 for alpha in GRID]
    names = (*sets, "all")
    place = GRID.index(0.6)
    return Sensitivity(
        method,
        list(GRID),
        dict.fromkeys(names, curve),
        dict.fromkeys(names, rate),
        0.6,
        dict.fromkeys(names, curve[place]),
        dict.fromkeys(names, rate[place]),
        regret,
        regret - 0.001,
        regret + 0.001,
    )


def separation(kind, dataset, scores, sets):
    names = list(sets) if dataset == "all" else [dataset]
    known = scores[f"{kind}/id"].astype(np.float64)
    unknown = np.concatenate([scores[f"{kind}/{name}"] for name in names]).astype(np.float64)
    d = float(cohens_d(known, unknown))
    moments = unknown.mean() - known.mean(), known.var(), unknown.var()
    return Separation(kind, ALPHAS[kind], dataset, d, d - 0.1, d + 0.1, *map(float, moments), 0.5, -0.4)


def cohens_d(known, unknown):
    """Slow and obvious: difference of the means over the pooled deviation."""
    n, m = len(known), len(unknown)
    pooled = ((n - 1) * np.var(known, ddof=1) + (m - 1) * np.var(unknown, ddof=1)) / (n + m - 2)
    return (np.mean(unknown) - np.mean(known)) / np.sqrt(pooled)


def make_costs(methods=METHODS, **changed):
    """Return costs; ``changed`` gives other milliseconds to some methods, as (set-up, alone), behind a pass of 10."""
    known = {"forward": (0.0, 10.0), "knn": (1.0, 50.0), "vim": (80.0, 0.6), "rmds": (90.0, 30.0)}
    found = []
    for method in ("forward", *methods):
        name = method.partition("@")[0]
        default = (3.0 if name.startswith("auto") else 0.1, 0.2)
        setup, inference = changed.get(name.replace("-", "_"), known.get(name, default))
        total = inference if method == "forward" else 10 + inference
        times = [ratio * time for time in (inference, total, total / 10) for ratio in (1, 0.99, 1.01)]
        found.append(Cost(method, "features", setup, *times, 9, None, 256))
    return found


def make_network_run(network="", sets=None, study=None, results=None, ablations=None):
    """Return everything measured of one network."""
    return NetworkRun(
        network,
        results or make_results(sets=sets, network=network),
        study or make_study(sets),
        ablations or make_ablations(sets),
    )


def save(run, folder):
    """Write the files of a network into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in (run.results, run.study, run.ablations):
        part.save(folder)
