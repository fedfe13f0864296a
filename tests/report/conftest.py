"""A run with everything that a report can show, made of random numbers."""

from html.parser import HTMLParser

import numpy as np
import pytest

from flatfold.evaluate.results import AlphaCurve, Results, Wrong
from flatfold.evaluate.rows import METRICS, Certainty, MethodRun, averages, make_row

VOID = {"meta", "link", "br", "img", "hr", "input"}
SETS = {"near-set": "near", "far-set": "far"}


class Strict(HTMLParser):
    """Notes every tag and fails on one that is not closed."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.text, self.links, self.tags = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def certain(figures, best):
    """Return the figures with an interval of two points either side, and a mark for those near the best."""
    intervals = {metric: (getattr(figures, metric) - 0.02, getattr(figures, metric) + 0.02) for metric in METRICS}
    behind = best - figures.auroc
    certainty = Certainty(intervals, behind, behind - 0.01, behind + 0.01, 0.5, behind < 0.01)
    return type(figures)(**{**vars(figures), "certainty": certainty})


def make_scores(methods, sets, known, unknown):
    rng = np.random.default_rng(0)
    scores = {}
    for shift, method in enumerate(methods):
        scores[f"{method}/id"] = rng.lognormal(-4, 3, known).astype(np.float32)
        for name in sets:
            scores[f"{method}/{name}"] = rng.lognormal(0.3 * (shift % 7), 1, unknown).astype(np.float32)
    return scores


def make_wrong(methods, sets, scores, count):
    rng = np.random.default_rng(1)
    wrong, thumbnails = [], {}
    for method in methods:
        known = scores[f"{method}/id"]
        for name in ("id", *sets):
            values = scores[f"{method}/{name}"]
            order = np.argsort(-values if name == "id" else values)[:count]
            for row in order.tolist():
                share = float((known < values[row]).mean())
                label = 2 if name == "id" else None
                wrong.append(Wrong(method, name, row, f"images/{name}/{row}.png", float(values[row]), share, 1, label))
                thumbnails[f"{name}/{row}"] = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return wrong, thumbnails


def make_results(
    methods=("autofold", "msp"),
    sets=None,
    curves=True,
    certainty=True,
    extras=True,
    known=200,
    unknown=100,
    pictures=3,
    **suite,
):
    """Return a run; without ``certainty`` and ``extras`` it is one of a version that had neither."""
    sets = SETS if sets is None else sets
    scores = make_scores(methods, sets, known, unknown)
    rows = [make_row(m, "id", s, g, scores[f"{m}/id"], scores[f"{m}/{s}"]) for m in methods for s, g in sets.items()]
    means = averages(rows)
    if certainty:
        rows = [certain(row, max(r.auroc for r in rows if r.dataset == row.dataset)) for row in rows]
        means = [certain(mean, max(m.auroc for m in means if m.over == mean.over)) for mean in means]
    grid = [0.1, 0.5, 1.0]
    curve = AlphaCurve(methods[0], grid, [0.7, 0.9, 0.8], [0.01] * 3, 0.5, {**dict.fromkeys(sets, grid), "all": grid})
    wrong, thumbnails = make_wrong(methods, sets, scores, pictures) if extras else ([], {})
    rng = np.random.default_rng(2)
    norms = {"id": rng.gamma(9, 1, known), **{name: rng.gamma(4, 1, unknown) for name in sets}}
    ood = [{"name": name, "group": group, "n": unknown, "about": f"About {name}."} for name, group in sets.items()]
    return Results(
        suite={
            "name": "toy",
            "network": "",
            "about": "Known and unknown.",
            "n_classes": 3,
            "accuracy": 0.9,
            "n_test": known,
            "ood": ood,
            **suite,
        },
        methods=[
            MethodRun(
                m, m.partition("@")[0], {"grid": grid}, "val", "id", 0.1, 2.0 + place, {"alpha_": 0.5}, ["take care"]
            )
            for place, m in enumerate(methods)
        ],
        refused={"ash": "ASH is made for <positive> features."},
        rows=rows,
        averages=means,
        alpha_curves=[curve] if curves else [],
        provenance={"seed": 0, "command": "flatfold bench toy"},
        scores=scores,
        norms={name: values.astype(np.float32) for name, values in norms.items()} if extras else {},
        wrong=wrong,
        thumbnails=thumbnails,
    )


def parse(text):
    page = Strict()
    page.feed(text)
    return page


@pytest.fixture(scope="session")
def make_run():
    return make_results


@pytest.fixture(scope="session")
def parsed():
    return parse
