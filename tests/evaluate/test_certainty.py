"""Intervals of every figure and comparison with the best, against a slow bootstrap that repeats and ranks images."""

from statistics import fmean

import numpy as np
import pytest

from flatfold.core import bootstrap
from flatfold.core.bootstrap import draws
from flatfold.core.intervals import auroc_influence, interval, paired_difference
from flatfold.core.metrics import auroc
from flatfold.evaluate.compare import column_influence, resampled, tabulate
from flatfold.evaluate.results import METRICS

SETS = {"pens": "near", "photos": "far", "noise": "far"}
COLUMNS = {"pens": ("pens",), "photos": ("photos",), "noise": ("noise",), "far": ("photos", "noise"), "all": (*SETS,)}


def make_scores(gaps, n=120, sizes=(60, 90, 75), seed=0, decimals=1):
    """Methods that see the same images with noise of their own, rounded for ties; a larger gap is a better method."""
    rng = np.random.default_rng(seed)
    images = {"id": rng.normal(size=n)} | {
        name: rng.normal(1 + i / 2, 1, size=size) for i, (name, size) in enumerate(zip(SETS, sizes, strict=True))
    }
    return {
        f"{method}/{name}": (x + (name != "id") * gap + 0.5 * rng.normal(size=len(x)))
        .round(decimals)
        .astype(np.float32)
        for method, gap in gaps.items()
        for name, x in images.items()
    }


def make_cells(scores, methods, sets=SETS, **options):
    """The figures of the table by method and column."""
    rows, averages = tabulate(scores, dict.fromkeys(methods, "nothing"), sets, **options)
    return {(row.method, row.dataset): row for row in rows} | {(mean.method, mean.over): mean for mean in averages}


def certainty(*args, **options):
    return {place: cell.certainty for place, cell in make_cells(*args, **options).items()}


def test_the_bootstrap_is_one_of_images_that_every_method_and_data_set_shares():
    """Slow and obvious: repeat the images that were drawn, rank them anew, take the percentiles of the means."""
    scores = make_scores({"msp": 0.0, "knn": 0.4})
    got = certainty(scores, ["msp", "knn"], replicates=60, seed=3)
    counts = {
        name: draws(len(scores[f"msp/{name}"]), 60, np.random.default_rng([3, *name.encode()]))
        for name in ("id", *SETS)
    }
    cells = make_cells(scores, ["msp", "knn"], replicates=0)
    for place, one in got.items():
        for metric, (low, high) in one.intervals.items():
            assert 0 <= low <= getattr(cells[place], metric) <= high <= 1, (place, metric)
    for method in ("msp", "knn"):
        figures = []
        for b in range(60):
            again = {
                f"{method}/{name}": np.repeat(scores[f"{method}/{name}"], count[b]) for name, count in counts.items()
            }
            figures.append(make_cells(again, [method], replicates=0))
        for column in COLUMNS:
            for metric in METRICS[1:]:
                values = [getattr(cells[method, column], metric) for cells in figures]
                expected = np.percentile(values, [2.5, 97.5])
                assert got[method, column].intervals[metric] == pytest.approx(tuple(expected), abs=1e-12)


def test_an_average_counts_that_its_data_sets_share_the_known_images():
    """Against a bootstrap of the average itself: independent data sets would give an interval a fifth too short."""
    scores = make_scores({"msp": 0.0}, n=60, sizes=(300, 400, 350), decimals=6)
    rng, means = np.random.default_rng(0), []
    for _ in range(1500):
        again = {name: values[rng.integers(len(values), size=len(values))] for name, values in scores.items()}
        means.append(fmean(auroc(again["msp/id"], again[f"msp/{name}"]) for name in SETS))
    got = column_influence(scores, "msp", tuple(SETS))
    assert got.stderr == pytest.approx(np.std(means), rel=0.06)
    alone = [auroc_influence(scores["msp/id"], scores[f"msp/{name}"]).stderr for name in SETS]
    assert np.sqrt(sum(np.square(alone))) / 3 < 0.8 * got.stderr


def test_methods_that_are_always_right_or_always_wrong_are_not_certain():
    scores = make_scores({"perfect": 99.0}, n=100, sizes=(30, 50, 80))
    told = certainty(scores, ["perfect"], replicates=20)
    for column, smallest in {"photos": 50, "noise": 80, "all": 30}.items():
        intervals = told["perfect", column].intervals
        assert intervals["auroc"] == (0.025 ** (1 / smallest), 1)
        assert intervals["fpr95_ood_positive"] == (0, 1 - 0.025 ** (1 / 100))
        assert intervals["fpr95_id_positive"] == (0, 1 - 0.025 ** (1 / smallest))
    share = 1 - 0.025 ** (1 / 50)
    for metric, x in {"aupr_out": share * 100 / 50, "aupr_in": share * 50 / 100}.items():
        assert told["perfect", "photos"].intervals[metric] == (pytest.approx(1 - x * np.log(1 + 1 / x)), 1)
    shares = [(1 - 0.025 ** (1 / 30)) * 100 / m for m in (30, 50, 80)]
    expected = fmean(1 - x * np.log(1 + 1 / x) for x in shares)
    assert told["perfect", "all"].intervals["aupr_out"] == (pytest.approx(expected), 1)
    scores = make_scores({"wrong": -99.0}, n=100, sizes=(30, 50, 80))
    intervals = certainty(scores, ["wrong"], replicates=20)["wrong", "photos"].intervals
    assert intervals["auroc"] == (0, 1 - 0.025 ** (1 / 50))
    assert intervals["fpr95_ood_positive"] == (0.025 ** (1 / 100), 1)
    assert intervals["fpr95_id_positive"] == (0.025 ** (1 / 50), 1)


def test_every_method_is_compared_with_the_best_of_the_column_image_by_image():
    scores = make_scores({"msp": 0.0, "knn": 0.6, "vim": 0.3})
    told = certainty(scores, ["msp", "knn", "vim"], replicates=0)
    for column, members in COLUMNS.items():
        influences = {method: column_influence(scores, method, members) for method in ("msp", "knn", "vim")}
        best = max(influences, key=lambda method: influences[method].auroc)
        for method, influence in influences.items():
            got, expected = told[method, column], paired_difference(influences[best], influence)
            assert got.behind == expected.value >= 0
            if method == best:
                assert (got.behind_low, got.behind_high, got.p_value, got.best) == (0, 0, 1, True)
            else:
                assert (got.behind_low, got.behind_high) == (expected.low, expected.high)
                assert got.p_value == expected.p_value
                assert got.best == (expected.p_value >= 0.05 / 2)


def test_the_more_methods_the_more_evidence_it_takes():
    """One p-value between 0.05 / 3 and 0.05: told apart from the best when alone with it, not among four."""
    for seed in range(200):
        scores = make_scores({"a": 0.0, "b": 0.17, "c": -3.0, "d": -3.0}, seed=seed)
        two = certainty(scores, ["a", "b"], {"pens": "near"}, replicates=0)
        if two["b", "pens"].behind == 0 and 0.05 / 3 < two["a", "pens"].p_value < 0.05:
            break
    assert not two["a", "pens"].best
    four = certainty(scores, ["a", "b", "c", "d"], {"pens": "near"}, replicates=0)
    assert four["a", "pens"].p_value == two["a", "pens"].p_value
    assert four["a", "pens"].best
    assert not four["c", "pens"].best
    scores |= {key.replace("a/", "copy/"): np.exp(values) for key, values in scores.items() if key.startswith("a/")}
    equals = certainty(scores, ["a", "copy"], replicates=0)
    assert all(one.best and one.p_value == 1 and one.behind == 0 for one in equals.values())


def test_intervals_depend_on_the_seed_alone_and_data_sets_are_not_redrawn_in_step(monkeypatch):
    scores = make_scores({"msp": 0.0, "knn": 0.6})
    without = certainty(scores, ["msp", "knn"], replicates=0)
    part = auroc_influence(scores["msp/id"], scores["msp/photos"])
    assert without["msp", "photos"].intervals["auroc"] == interval(part.auroc, part.stderr, 120, 90)
    assert all(tuple(told.intervals) == ("auroc",) for told in without.values())
    for place, told in certainty(scores, ["msp", "knn"], replicates=5).items():
        assert told.intervals["auroc"] == without[place].intervals["auroc"]
        assert told.p_value == without[place].p_value
    whole = certainty(scores, ["msp", "knn"], replicates=40, seed=1)
    assert certainty(scores, ["msp", "knn"], replicates=40, seed=1) == whole
    alone = certainty(scores, ["knn"], {"noise": "far"}, replicates=40, seed=1)["knn", "noise"]
    assert alone.intervals == whole["knn", "noise"].intervals
    other = certainty(scores, ["knn"], {"noise": "far"}, replicates=40, seed=2)["knn", "noise"]
    assert other.intervals["aupr_in"] != alone.intervals["aupr_in"]
    monkeypatch.setattr(bootstrap, "CHUNK", 700)
    assert certainty(scores, ["msp", "knn"], replicates=40, seed=1) == whole
    scores = make_scores({"msp": 0.0}, sizes=(50, 50, 50))
    scores["msp/photos"] = scores["msp/pens"]
    scores["msp/id"] = np.linspace(-3, 3, 500, dtype=np.float32)
    redrawn = resampled(scores, ["msp"], ["pens", "photos"], 50, 0)
    first, second = (redrawn["msp", name]["fpr95_id_positive"] for name in ("pens", "photos"))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.6


def test_what_cannot_be_compared_is_refused():
    scores = make_scores({"msp": 0.0, "short": 0.0})
    scores["short/noise"] = scores["short/noise"][1:]
    with pytest.raises(ValueError, match="replicates"):
        certainty(scores, ["msp"], replicates=-1)
    with pytest.raises(ValueError, match="same"):
        certainty(scores, ["msp", "short"], replicates=0)
