"""A run with everything that a report can show, made of random numbers; and pages, read back from their HTML."""

import json
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure

from flatfold.evaluate.compare import tabulate
from flatfold.evaluate.results import METRICS, AlphaCurve, Certainty, MethodRun, Results, WorstCase
from tests.browser import browser, visit  # noqa: F401 - fixtures
from tests.toy_study import draw_nothing

VOID = {"meta", "link", "br", "img", "hr", "input"}
SETS = {"near-set": "near", "far-set": "far"}


@dataclass
class Cell:
    """A cell of a table: its attributes and its text."""

    attributes: dict
    words: list = field(default_factory=list)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    @property
    def metrics(self):
        """What the page's script may show: value, text and interval of every metric."""
        return json.loads(self.attributes["data-metrics"])


class Page(HTMLParser):
    """A page, read back: it fails on a tag that is not closed."""

    def __init__(self, html):
        super().__init__()
        self.html, self.open, self.tags, self.words, self.tables, self.sections = html, [], [], [], [], {}
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append((tag, attributes))
        if tag == "table":
            self.tables.append([])
            for name in self.inside:
                self.sections.setdefault(name, []).append(self.tables[-1])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(Cell(attributes))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        self.words.append((self.inside, data))
        if any(tag in ("td", "th") for tag, _ in self.open):
            self.tables[-1][-1][-1].words.append(data)

    @property
    def inside(self):
        return [attributes["id"] for _, attributes in self.open if "id" in attributes]

    def text(self, name=None):
        """Return the text of the page, or of the element of this id."""
        return " ".join("".join(data for inside, data in self.words if name is None or name in inside).split())

    def rows(self, name, number=0):
        """Return the lines below the head of a table inside the element of this id, by what stands first in them."""
        return {row[0].attributes.get("data-sort", row[0].text): row for row in self.sections[name][number][1:]}

    def values(self, name, tag=None):
        """Return an attribute of all elements that have it."""
        return [told[name] for kind, told in self.tags if name in told and tag in (None, kind)]

    @property
    def menu(self):
        """The sections that the menu leads to."""
        return [link[1:] for link in self.values("href", "a") if re.match(r"#(?!method-)", link)]

    def check(self):
        """Fail unless the page is sound, and asks nobody else for anything."""
        ids = self.values("id")
        assert len(ids) == len(set(ids))
        assert [tag for tag, _ in self.tags].count("h1") == 1
        outside = {address for address in self.values("href", "a") if address.startswith("https://")}
        links = [link for name in ("src", "href", "xlink:href") for link in self.values(name) if link not in outside]
        assert all(link.startswith(("#", "data:image/")) for link in links)
        assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
        loaded = re.sub(r'<a href="https://[^"]*"', "", self.html)  # a link loads nothing until it is followed
        assert not re.search(r"@import|https?://(?!www\.w3\.org/)|url\((?!#)", loaded)
        return self


def certain(figures, best):
    """Return the figures with an interval of two points either side if there is room, and a mark for the best."""
    values = {metric: getattr(figures, metric) for metric in METRICS}
    intervals = {metric: (max(0.0, value - 0.02), min(1.0, value + 0.02)) for metric, value in values.items()}
    behind = best - figures.auroc
    return replace(figures, certainty=Certainty(intervals, behind, behind - 0.01, behind + 0.01, 0.5, behind < 0.01))


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
                wrong.append(
                    WorstCase(method, name, row, f"images/{name}/{row}.png", float(values[row]), share, 1, label)
                )
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
    rows, means = tabulate(scores, dict.fromkeys(methods, "id"), sets, replicates=0)
    if certainty:
        rows = [certain(row, max(r.auroc for r in rows if r.dataset == row.dataset)) for row in rows]
        means = [certain(mean, max(m.auroc for m in means if m.over == mean.over)) for mean in means]
    else:
        rows, means = ([replace(figures, certainty=None) for figures in table] for table in (rows, means))
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


def drawn(panel):
    """Return axes with a panel in them."""
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


@pytest.fixture(scope="session")
def make_run():
    return make_results


@pytest.fixture
def undrawn(monkeypatch):
    """Leave the panels of all figures empty: the words of a page do not depend on them."""
    draw_nothing(monkeypatch)
