"""Cost against AUROC, and names that do not cover each other."""

from dataclasses import replace
from itertools import combinations, pairwise
from math import inf

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from flatfold.report.costs import TALL, WIDE, cost_figure, radius
from flatfold.report.frontier import Point, frontier, stairs
from flatfold.report.labels import Box, place
from flatfold.report.style import KNOWN, RC

BOUNDS = Box(0, 0, 800, 500)


def point(cost, auroc):
    return Point("m", cost, auroc, auroc, auroc, 2.0, False)


def test_overlap_is_the_common_area():
    box = Box.around(0, 0, 4, 2)
    assert box == Box(-2, -1, 2, 1)
    assert box.overlap(Box(1, 0, 9, 9)) == 1
    assert box.overlap(Box(2, 1, 9, 9)) == 0
    assert box.overlap(Box(5, 5, 9, 9)) == 0


@pytest.mark.parametrize("outer", [Box(-1, -9, 9, 9), Box(-9, 0, 9, 9), Box(-9, -9, 1, 9), Box(-9, -9, 9, 0)])
def test_a_box_that_sticks_out_is_not_within(outer):
    assert not Box.around(0, 0, 4, 2).within(outer)
    assert Box.around(0, 0, 4, 2).within(Box(-2, -1, 2, 1))


@pytest.mark.parametrize(
    ("start", "end", "crossed"),
    [
        ((-9, 0), (9, 0), True),
        ((0, -9), (0, 9), True),
        ((-9, -9), (9, 9), True),
        ((0, 0), (0, 0), True),
        ((0, 0), (9, 9), True),
        ((-9, 1), (9, 1), False),  # along the edge
        ((2, -9), (2, 9), False),
        ((-9, 0), (-3, 0), False),  # ends before it
        ((3, 0), (9, 0), False),
        ((-4, 0), (0, 4), False),  # passes a corner
        ((0, 5), (0, 5), False),
    ],
)
def test_a_line_crosses_a_box_or_does_not(start, end, crossed):
    box = Box(-2, -1, 2, 1)
    assert box.crossed(start, end) is box.crossed(end, start) is crossed
    assert box.middle == (0, 0)


@given(st.lists(st.integers(-9, 9), min_size=4, max_size=4), st.integers(-5, 5), st.integers(-5, 5))
def test_a_line_crosses_a_box_when_one_of_its_many_points_is_inside(ends, x, y):
    box = Box(x - 1.5, y - 2.5, x + 1.5, y + 2.5)
    shares = np.linspace(0, 1, 4001)
    across, up = ends[0] + shares * (ends[2] - ends[0]), ends[1] + shares * (ends[3] - ends[1])
    inside = (box.left < across) & (across < box.right) & (box.low < up) & (up < box.high)
    if inside.sum() != 1:  # a line that only touches is between yes and no
        assert box.crossed(tuple(ends[:2]), tuple(ends[2:])) == inside.any()


@pytest.mark.parametrize("spread", [200, 90, 60])
def test_no_name_stands_on_the_line_of_another(spread):
    rng = np.random.default_rng(1)
    points = [tuple(p) for p in rng.normal((400, 250), spread, (28, 2)).clip(20, 480).tolist()]
    boxes = place(points, [3.0] * 28, [(60.0, 12.0)] * 28, BOUNDS)
    for i, box in enumerate(boxes):
        others = [other for j, other in enumerate(boxes) if j != i]
        assert not any(other.crossed(points[i], box.middle) for other in others)


def test_a_name_goes_further_out_rather_than_across_a_marker():
    points, radii, sizes = [(100.0, 100.0), (112.0, 100.0)], [3.0, 3.0], [(40.0, 10.0)] * 2
    walls = [Box(50, 94, 96, 106), Box(50, 106, 200, 130), Box(50, 70, 200, 94)]  # free is right, behind the other
    box, _ = place(points, radii, sizes, BOUNDS, walls)
    assert not Box.around(112.0, 100.0, 6, 6).crossed(points[0], box.middle)
    assert box.low >= 130 or box.high <= 70


@pytest.mark.parametrize("spread", [200, 40, 5, 0])
def test_no_two_of_28_names_overlap_however_close_their_points(spread):
    rng = np.random.default_rng(0)
    points = [tuple(p) for p in rng.normal((400, 250), spread, (28, 2)).clip(20, 480).tolist()]
    boxes = place(points, [3.0] * 28, [(60.0, 12.0)] * 28, BOUNDS)
    assert all(box.within(BOUNDS) for box in boxes)
    assert all(a.overlap(b) == 0 for a, b in combinations(boxes, 2))
    markers = [Box.around(x, y, 6, 6) for x, y in points]
    assert all(box.overlap(marker) == 0 for box in boxes for marker in markers)


def test_a_lonely_name_stands_right_beside_its_point_unless_something_is_there():
    ((left, low, _, high),) = place([(100.0, 100.0)], [3.0], [(40.0, 10.0)], BOUNDS)
    assert (left, low, high) == (104.0, 95.0, 105.0)
    (box,) = place([(100.0, 100.0)], [3.0], [(40.0, 10.0)], BOUNDS, [Box(110, 90, 120, 110)])
    assert box.right == 96.0
    (box,) = place([(790.0, 100.0)], [3.0], [(40.0, 10.0)], BOUNDS)
    assert box.right < 790


def test_where_there_is_no_room_at_all_every_name_still_gets_a_place():
    boxes = place([(5.0, 5.0)] * 3, [3.0] * 3, [(8.0, 4.0)] * 3, Box(0, 0, 10, 10))
    assert len(boxes) == 3
    boxes = place([(5.0, 5.0)], [3.0], [(80.0, 4.0)], Box(0, 0, 10, 10))
    assert len(boxes) == 1


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20))
def test_a_method_on_the_frontier_is_beaten_by_none(pairs):
    points = [point(*pair) for pair in pairs]
    best = frontier(points)
    for one in best:
        assert not any(
            (p.cost <= one.cost and p.auroc > one.auroc) or (p.cost < one.cost and p.auroc >= one.auroc) for p in points
        )
    corners = stairs(points)
    assert set(corners) >= {(p.cost, p.auroc) for p in best}
    assert len(corners) == 2 * len(best) - 1
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(corners))  # never slanting
    assert corners == sorted(corners)
    beaten = [p for p in points if p not in best]
    assert all(any(b.cost <= p.cost and b.auroc >= p.auroc for b in best) for p in beaten)


def test_a_marker_grows_by_a_point_for_every_factor_of_ten():
    assert radius(0.0) == radius(1e-3) == 2
    assert radius(1e-2) == pytest.approx(3)
    assert radius(10) == pytest.approx(6)


def drawn(results, size=WIDE):
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        cost_figure(results, size).panels[0].draw(axes)
        figure.draw_without_rendering()
    return axes


def names_of(axes):
    """Return the names that are text; what is below them, as outlines, is their halo."""
    return [text for text in axes.texts if not text.get_path_effects()]


def boxes_of(texts):
    return [Box(*Text.get_window_extent(text).extents) for text in texts]  # without the line to the point


@pytest.mark.parametrize("size", [WIDE, TALL])
def test_every_method_is_named_once_and_no_name_covers_another(make_run, size):
    results = make_run(tuple(f"method-{i}" for i in range(28)))
    axes = drawn(results, size)
    names = [text.get_text() for text in names_of(axes)]
    assert sorted(names) == sorted(run.method for run in results.methods)
    boxes = boxes_of(names_of(axes))
    assert not any(text.get_in_layout() for text in axes.texts)  # or they would move the axes under themselves
    height = boxes[0].high - boxes[0].low
    assert all(a.overlap(b) < 0.2 * height**2 for a, b in combinations(boxes, 2))


def crowded(make_run):
    """Return a run whose methods lie close together, as real ones do near a microsecond."""
    results = make_run(tuple(f"mm{'m' * (i % 5)}{i}" for i in range(16)))
    rng = np.random.default_rng(3)
    aurocs = {run.method: auroc for run, auroc in zip(results.methods, rng.uniform(0.86, 0.95, 16), strict=True)}
    means = []
    for mean in results.averages:
        auroc = aurocs[mean.method]
        ends = {**mean.certainty.intervals, "auroc": (auroc - 0.004, auroc + 0.004)}
        means.append(replace(mean, auroc=auroc, certainty=replace(mean.certainty, intervals=ends)))
    runs = [replace(run, microseconds_per_sample=float(rng.uniform(0.15, 0.9))) for run in results.methods[1:]]
    return replace(results, averages=means, methods=[replace(results.methods[0], microseconds_per_sample=9e3), *runs])


@pytest.mark.parametrize("size", [WIDE, TALL])
def test_no_name_covers_a_bar_a_marker_or_the_line_of_the_frontier(make_run, size):
    axes = drawn(crowded(make_run), size)
    boxes = boxes_of(names_of(axes))
    for line in axes.lines:
        ends = [tuple(end) for end in axes.transData.transform(line.get_xydata()).tolist()]
        segments = list(pairwise(ends)) or [(ends[0], ends[0])]
        assert not any(box.crossed(*segment) for box in boxes for segment in segments)


def test_the_line_of_the_frontier_is_below_all_else_and_pale(make_run):
    axes = drawn(make_run())
    front, *others = axes.lines
    assert front.get_color() == KNOWN == cost_figure(make_run()).keys[-1].look.colour
    assert all(front.get_zorder() < other.get_zorder() for other in [*others, *axes.texts])


def test_every_name_is_text_above_a_white_halo_that_hides_no_marker(make_run):
    results = make_run()
    axes = drawn(results)
    names = names_of(axes)
    halos = [text for text in axes.texts if text not in names]
    assert [text.get_text() for text in halos] == [text.get_text() for text in names]
    assert [text.xyann for text in halos] == [text.xyann for text in names]
    markers = [line for line in axes.lines if line.get_marker() == "o"]
    assert max(text.get_zorder() for text in halos) < min(artist.get_zorder() for artist in [*markers, *names])
    (svg,) = cost_figure(results).inline()
    assert all(f">{run.method}</text>" in svg for run in results.methods)
    assert "stroke: #ffffff; stroke-width: 2.5" in svg


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
    low, high = axes.get_ylim()
    assert low < 99
    assert 99.9 < high < inf
    assert axes.get_xlim()[0] > 0
    assert all(box.high <= axes.bbox.y1 + 1 for box in boxes_of(axes.texts))


def test_ticks_lie_on_the_axis_and_go_from_equal_factors_to_equal_steps(make_run):
    axes = drawn(make_run(tuple(f"m{i}" for i in range(9))))
    low, high = axes.get_ylim()
    ticks = axes.get_yticks()
    assert len(ticks) >= 2
    assert all(low <= tick <= high for tick in ticks)
    heights = [axes.transData.transform((1, auroc))[1] for auroc in (80, 90, 95)]
    np.testing.assert_allclose(heights[1] - heights[0], heights[2] - heights[1])
