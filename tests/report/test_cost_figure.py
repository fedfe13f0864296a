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

from flatfold.report.cost_figure import TALL, WIDE, Box, cost_figure, frontier, place, stairs
from flatfold.report.cost_figure import CostPoint as Point
from flatfold.report.figure import RC

BOUNDS = Box(0, 0, 800, 500)


@pytest.mark.parametrize("spread", [90, 5])
def test_no_two_of_20_names_overlap_however_close_their_points(spread):
    rng = np.random.default_rng(0)
    points = [tuple(p) for p in rng.normal((400, 250), spread, (20, 2)).clip(20, 480).tolist()]
    boxes = place(points, [3.0] * 20, [(60.0, 12.0)] * 20, BOUNDS)
    assert all(box.within(BOUNDS) for box in boxes)
    assert all(a.overlap(b) == 0 for a, b in combinations(boxes, 2))
    markers = [Box.around(x, y, 6, 6) for x, y in points]
    assert all(box.overlap(marker) == 0 for box in boxes for marker in markers)
    if spread == 90:  # where there is room, no name stands on the line of another
        for i, box in enumerate(boxes):
            others = [other for j, other in enumerate(boxes) if j != i]
            assert not any(other.crossed(points[i], box.middle) for other in others), i


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20))
def test_a_method_on_the_frontier_is_beaten_by_none(pairs):
    points = [Point("m", cost, auroc, auroc, auroc, 2.0, False) for cost, auroc in pairs]
    best = frontier(points)
    for one in best:
        assert not any(
            (p.cost <= one.cost and p.auroc > one.auroc) or (p.cost < one.cost and p.auroc >= one.auroc) for p in points
        )
    corners = stairs(points)
    assert set(corners) >= {(p.cost, p.auroc) for p in best}
    assert corners == sorted(corners)
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(corners))  # never slanting
    beaten = [p for p in points if p not in best]
    assert all(any(b.cost <= p.cost and b.auroc >= p.auroc for b in best) for p in beaten)


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
    boxes = [Box(*Text.get_window_extent(text).extents) for text in names]  # without the line to the point
    height = boxes[0].high - boxes[0].low
    assert all(a.overlap(b) < 0.2 * height**2 for a, b in combinations(boxes, 2))


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
