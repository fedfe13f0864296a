"""AUROC against cost: points, intervals, the frontier, and names that do not cover each other."""

from dataclasses import replace
from itertools import combinations, pairwise

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from flatfold.display.figure import RC
from flatfold.report.figures import TALL, WIDE, cost_figure, pareto_front, place_labels
from flatfold.report.figures import CostPoint as Point


def overlaps(boxes):
    """Return the areas that pairs of boxes, given by their lower left and upper right corners, share."""
    sides = [np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) for a, b in combinations(boxes, 2)]
    return np.maximum(sides, 0).prod(axis=1)


@pytest.mark.parametrize("spread", [90, 5])
def test_no_two_of_20_labels_overlap_however_close_their_points(spread):
    points = np.random.default_rng(0).normal((400, 250), spread, (20, 2)).clip(20, 480)
    wall = np.array([[300.0, 0.0, 310.0, 500.0]])
    middles = place_labels(points, np.full(20, 3.0), np.tile([60.0, 12.0], (20, 1)), np.array([0, 0, 800, 500]), wall)
    half = np.array([30.0, 6.0])
    boxes = np.hstack([middles - half, middles + half])
    assert (boxes >= 0).all()
    assert (boxes <= [800, 500, 800, 500]).all()
    assert not overlaps([*boxes, *wall]).any()
    for marker in np.hstack([points - 3, points + 3]):
        assert not overlaps([marker, *boxes])[:20].any()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20))
def test_the_line_joins_the_methods_that_no_other_beats(pairs):
    best = {
        (cost, auroc)
        for cost, auroc in pairs
        if not any((c <= cost and a > auroc) or (c < cost and a >= auroc) for c, a in pairs)
    }
    corners = pareto_front([Point("m", cost, auroc, auroc, auroc, 2.0, False) for cost, auroc in pairs])
    assert set(corners[::2]) == best
    assert corners == sorted(corners)
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(corners))  # never slanting


def drawn(results, size=WIDE):
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        cost_figure(results, size).panels[0].draw(axes)
        figure.draw_without_rendering()
    return axes


@pytest.mark.parametrize("size", [WIDE, TALL])
def test_every_method_is_named_and_no_name_covers_another(make_run, size):
    results = make_run(tuple(f"method-{i}" for i in range(28)), known=50, unknown=30)
    axes = drawn(results, size)
    names = [text for text in axes.texts if not text.get_path_effects()]  # others are white halos
    assert sorted(text.get_text() for text in names) == sorted(run.method for run in results.methods)
    boxes = [Text.get_window_extent(text).extents for text in names]  # without the line to the point
    assert (overlaps(boxes) < 0.2 * (boxes[0][3] - boxes[0][1]) ** 2).all()


def test_the_bar_is_the_interval_and_the_marker_the_average(make_run):
    results = make_run()
    best = results.ranked[0]
    mean = results.cells[best.method, "all"]
    _, bar, marker, *_ = drawn(results).lines
    np.testing.assert_allclose(bar.get_ydata(), [100 * end for end in mean.certainty.intervals["auroc"]])
    assert marker.get_xydata()[0].tolist() == [best.microseconds_per_sample, 100 * mean.auroc]
    _, bar, *_ = drawn(make_run(certainty=False)).lines
    assert bar.get_ydata()[0] == bar.get_ydata()[1] == 100 * mean.auroc


def test_a_perfect_method_and_one_without_a_time_are_on_the_figure(make_run):
    results = make_run(certainty=False)
    means = [replace(mean, auroc=1.0) if mean.method == "msp" else mean for mean in results.averages]
    runs = [replace(run, microseconds_per_sample=0.0) for run in results.methods]
    axes = drawn(replace(results, averages=means, methods=runs))
    assert axes.get_ylim()[0] < 99 < 99.9 < axes.get_ylim()[1] < np.inf
    assert axes.get_xlim()[0] > 0
    heights = [axes.transData.transform((1, auroc))[1] for auroc in (80, 90, 95)]  # stretched towards 100
    np.testing.assert_allclose(heights[1] - heights[0], heights[2] - heights[1])
