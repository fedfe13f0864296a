"""A curvature study of a linear head on random features, every number of which solves a small eigen-problem."""

import numpy as np

from flatfold.display.figure import Drawing
from flatfold.evaluate.study_results import Detection, Statistic, Study

SETS = {"near-set": "near", "far-set": "far"}
ALPHAS = {"none": 0.0, "partial": 0.5, "full": 1.0}
IDLE = 200  # parameters that do nothing, so that most eigenvalues are zero


def make_study(sets=None, classes=5, width=8, known=60, unknown=40, weights="abc", **suite):
    """Return a study; known features lie at the weight of their class, unknown ones are noise, less of it each time."""
    sets = SETS if sets is None else sets
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(classes, width)) * (6 / width) ** 0.5
    features = {"id": weight[rng.integers(0, classes, known)] + 0.5 * rng.normal(size=(known, width))}
    for place, name in enumerate(sets):
        features[name] = rng.normal(size=(unknown, width)) * 1.2 * 0.8**place
    groups = {"id": "id", **sets}
    study = Study(
        suite={
            "name": "toy",
            "network": "head",
            "about": "Known and unknown.",
            "n_classes": classes,
            "n_features": width,
            "n_parameters": classes * width + IDLE,
            "accuracy": 0.9,
            "n_test": known,
            "ood": [{"name": name, "group": sets[name], "n": unknown, "about": f"About {name}."} for name in sets],
            **suite,
        },
        statistics=[],
        detections=[],
        alphas=dict(ALPHAS),
        traces={},
        trace_stderr={},
        nodes={},
        weights={},
        sizes={"parameter": classes * width + IDLE, "feature": width},
        eigenvalues={},
        provenance={"weights, sha256": weights, "loss": "energy", "matrix": "hessian", "probes": 8, "seed": 0},
    )
    for name, h in features.items():
        add_dataset(study, name, groups[name], h, weight)
    add_detections(study)
    return study


def draw_less(monkeypatch):
    """Leave out of pages what takes long and is looked at elsewhere: files for papers."""
    monkeypatch.setattr(Drawing, "save", lambda drawing, folder: None)


def draw_nothing(monkeypatch):
    """Leave all panels empty: which pages there are, and with which sections, does not depend on them."""
    draw_less(monkeypatch)
    monkeypatch.setattr(Drawing, "inline", lambda drawing: ["<svg></svg>"] * len(drawing.panels))


def refusal(function, *args, **kwargs):
    """Return the message of the ``ValueError`` that a call raises, an empty one if it raises none."""
    try:
        function(*args, **kwargs)
    except ValueError as error:
        return str(error)
    return ""


def add_dataset(study, name, group, h, weight):
    """Add everything that is known of one data set."""
    inner = [logit_hessian(row) for row in h @ weight.T]
    over_features = np.stack([weight.T @ s @ weight for s in inner])
    over_parameters = np.stack([np.kron(s, np.outer(row, row)) for s, row in zip(inner, h, strict=True)])
    study.traces[f"logit/{name}"] = np.trace(np.stack(inner), axis1=1, axis2=2)
    study.traces[f"feature/{name}"] = np.trace(over_features, axis1=1, axis2=2)
    study.traces[f"parameter/{name}"] = np.trace(over_parameters, axis1=1, axis2=2)
    for space, each in (("parameter", over_parameters), ("feature", over_features)):
        vector = np.linalg.eigh(each.mean(0))[1][:, -1]
        study.top_shares[f"{space}/{name}"] = np.einsum("i,nij,j->n", vector, each, vector)
    study.square_shares[f"feature/{name}"] = (over_features * over_features.mean(0)).sum((1, 2))
    study.trace_stderr[f"parameter/{name}"] = 0.1 * study.traces[f"parameter/{name}"]
    mean = np.pad(over_parameters.mean(0), (0, IDLE))
    study.nodes[f"parameter/{name}"], study.weights[f"parameter/{name}"] = quadrature(mean)
    values = np.linalg.eigvalsh(over_features.mean(0)).clip(min=0)
    study.nodes[f"feature/{name}"] = values[None]
    study.weights[f"feature/{name}"] = np.full((1, len(values)), 1 / len(values))
    add_statistics(study, name, group, len(h), mean, values, np.linalg.eigvalsh(np.mean(inner, axis=0)))
    for kind, alpha in study.alphas.items():
        z = h / np.linalg.norm(h, axis=1, keepdims=True) ** alpha @ weight.T
        spectra = [np.linalg.eigvalsh(weight.T @ logit_hessian(row) @ weight)[::-1] for row in z]
        study.eigenvalues[f"{kind}/{name}"] = np.stack(spectra)[:, : len(weight)].clip(min=0)


def add_statistics(study, name, group, n, mean, values, over_logits):
    """Add the six figures of the table: exact over features and logits, with an error over parameters."""
    largest, trace = float(np.linalg.eigvalsh(mean)[-1]), float(np.trace(mean))
    found = [
        ("parameter", "lambda_max", largest, 1e-6 * largest, "lanczos"),
        ("parameter", "trace", trace, 0.01 * trace, "xtrace"),
        ("feature", "lambda_max", float(values[-1]), None, "exact"),
        ("feature", "trace", float(values.sum()), None, "exact"),
        ("logit", "lambda_max", float(over_logits[-1]), None, "exact"),
        ("logit", "trace", float(over_logits.sum()), None, "exact"),
    ]
    study.statistics.extend(Statistic(name, group, *told, "hessian", "energy", 20, n) for told in found)


def add_detections(study):
    """Add the traces as detectors, and their means."""
    sets = {ood["name"]: ood["group"] for ood in study.suite["ood"]}
    for space in ("parameter", "feature", "logit"):
        found = {name: auroc(study.traces[f"{space}/id"], study.traces[f"{space}/{name}"]) for name in sets}
        for group in ("near", "far"):
            inside = [found[name] for name in sets if sets[name] == group]
            if inside:
                found[group] = float(np.mean(inside))
        found["all"] = float(np.mean([found[name] for name in sets]))
        study.detections.extend(
            Detection(space, 0.0, name, value, max(value - 0.03, 0.0), min(value + 0.03, 1.0))
            for name, value in found.items()
        )


def auroc(known, unknown):
    """Return the chance that an unknown input is above a known one, pair by pair."""
    above, equal = unknown[:, None] > known[None], unknown[:, None] == known[None]
    return float((above + 0.5 * equal).mean())


def logit_hessian(z):
    p = np.exp(z - z.max())
    p /= p.sum()
    return np.diag(p) - np.outer(p, p)


def quadrature(matrix, probes=8):
    """Return eigenvalues and their shares as random probes see them: what Lanczos gives after all of its steps."""
    values, vectors = np.linalg.eigh(matrix)
    seen = (np.random.default_rng(1).normal(size=(probes, len(matrix))) @ vectors) ** 2
    return np.repeat(values[None], probes, axis=0), seen / seen.sum(axis=1, keepdims=True)
