"""The figure of the theorem: what its points and lines say is what the theory says."""

from dataclasses import replace
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from flatfold.curvature.theory import Theorem, bayes_weight, compare, expected_trace, monte_carlo_trace
from flatfold.report import theorem
from flatfold.report.drawing import LINE
from flatfold.report.style import RC
from flatfold.report.theorem import Check, check, random_settings, theorem_figure


@pytest.fixture(scope="module")
def drawing():
    return theorem_figure()


@pytest.fixture(scope="module")
def svg(drawing):
    return drawing.svg()


@pytest.fixture(scope="module")
def settings():
    return random_settings(theorem.SETTINGS)


def drawn(panel):
    with matplotlib.rc_context(RC):
        axes = Figure().subplots()
        panel.draw(axes)
        return axes


def unknown(setting):
    """Return what the trace of a setting's unknown inputs is taken from."""
    weight = bayes_weight(setting.mean, setting.covariance, setting.alpha)
    return setting.c * setting.rotation @ setting.mean, setting.covariance, weight


def test_there_are_three_panels_and_a_legend_and_the_loss_is_named(drawing, svg):
    assert drawing.name == "theorem"
    assert [panel.title for panel in drawing.panels] == [
        "Condition and order",
        "A step of the proof",
        "Quadrature and draws",
    ]
    assert drawing.panels[0].note == "200 settings"
    assert all(len(panel.title) + len(panel.note) <= LINE for panel in drawing.panels)  # on one line
    assert [key.label for key in drawing.keys] == ["condition true", "condition false"]
    assert svg.count("of the energy") == 2


def test_the_figure_is_the_same_in_every_run(svg):
    assert theorem_figure().svg() == svg


def test_settings_are_random_and_repeat_with_their_seed(settings):
    again, other = random_settings(3), random_settings(3, seed=1)
    for setting, same, different in zip(settings, again, other, strict=False):
        assert torch.equal(setting.covariance, same.covariance)
        assert (setting.c, setting.alpha) == (same.c, same.alpha)
        assert setting.c != different.c
    assert {len(setting.mean) for setting in settings} == set(range(2, 9))


def test_settings_spread_around_the_end_of_the_condition(settings):
    ratios = [compare(s.mean, s.covariance, s.rotation, s.c, s.alpha).ratio for s in settings]
    assert min(ratios) > 0
    assert max(ratios) < 2
    counts, _ = np.histogram(ratios, bins=4, range=(0, 2))
    assert counts.min() > 30
    assert min(setting.alpha for setting in settings) < 1 < 2 < max(setting.alpha for setting in settings)


def test_points_above_one_are_those_where_the_condition_is_true(drawing, settings):
    axes = drawn(drawing.panels[0])
    clouds = {to_hex(cloud.get_facecolor()[0]): cloud.get_offsets() for cloud in axes.collections}
    true, false = (np.asarray(clouds[key.look.colour]) for key in drawing.keys)
    assert (true <= [1, np.inf]).all()
    assert (true[:, 1] >= 1).all()
    assert (false[:, 0] > 1).all()
    assert (false[:, 1] < 1).all()
    points = []
    for s in settings:
        towards = torch.linalg.inv(s.covariance) @ s.mean
        ratio = s.c * abs(float(towards @ s.rotation @ s.mean)) / float(towards @ s.mean)
        elsewhere, covariance, weight = unknown(s)
        traces = [expected_trace(mean, covariance, weight) for mean in (elsewhere, s.mean)]
        points.append((ratio, traces[0] / traces[1]))
    assert sorted(map(tuple, np.concatenate([true, false]))) == [pytest.approx(point) for point in sorted(points)]


def test_both_corners_that_stay_empty_are_shaded_from_edge_to_edge(drawing):
    axes = drawn(drawing.panels[0])
    low, high = axes.get_ylim()
    boxes = [patch.get_bbox().extents.tolist() for patch in axes.patches]
    assert boxes == [pytest.approx([0, low, 1, 1]), pytest.approx([1, 1, 2, high])]
    assert [text.get_text() for text in axes.texts] == ["never", "never"]
    for text, (left, bottom, right, top) in zip(axes.texts, boxes, strict=True):
        assert left < text.get_position()[0] < right
        assert bottom < text.get_position()[1] < top
    points = np.concatenate([cloud.get_offsets() for cloud in axes.collections])
    assert ((points > [0, low]) & (points < [2, high])).all()


def test_a_point_against_the_theorem_would_be_seen(drawing):
    wrong = Theorem(id=2.0, ood=1.0, log_ratio=-np.log(2), shifted=1.0, bound=2.0, alpha=2.0)
    axes = drawn(replace(drawing.panels[0], draw=lambda axes: theorem._draw_condition([wrong], axes)))
    cloud = axes.collections[0]
    assert cloud.get_offsets().tolist() == [[0.5, 0.5]]
    assert to_hex(cloud.get_facecolor()[0]) == drawing.keys[0].look.colour


def test_every_average_has_its_line_which_falls_to_both_sides(drawing):
    axes = drawn(drawing.panels[1])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["s = 0.1", "s = 1", "s = 2", "s = 5"]
    tops = []
    for line, deviation in zip(axes.lines, theorem.DEVIATIONS, strict=True):
        x, y = line.get_data()
        middle = len(x) // 2
        assert x[middle] == 0
        assert all(after < before for before, after in pairwise(y[middle:]))
        np.testing.assert_allclose(y, y[::-1], rtol=1e-9)
        draws = x[middle + 20] + deviation * np.random.default_rng(0).standard_normal(200_000)
        assert y[middle + 20] == pytest.approx((0.25 / np.cosh(draws / 2) ** 2).mean(), rel=0.01)
        tops.append(y[middle])
    assert all(after < before for before, after in pairwise(tops))
    assert len({line.get_color() for line in axes.lines}) == len(axes.lines)


def test_draws_lie_around_the_quadrature_within_their_bars(drawing, settings):
    axes = drawn(drawing.panels[2])
    colours = [key.look.colour for key in drawing.keys]
    assert len(axes.containers) == theorem.CHECKED
    scores = []
    for number, (container, setting) in enumerate(zip(axes.containers, settings, strict=False)):
        marker, _, (bars,) = container
        (x,), (y,) = marker.get_data()
        assert x == pytest.approx(expected_trace(*unknown(setting)))
        estimate = monte_carlo_trace(*unknown(setting), theorem.DRAWS, number)
        assert y == pytest.approx(100 * (estimate.value - x) / x)
        (_, low), (_, high) = bars.get_segments()[0]
        assert (low, high) == pytest.approx((y - 200 * estimate.stderr / x, y + 200 * estimate.stderr / x))
        true = compare(setting.mean, setting.covariance, setting.rotation, setting.c).holds
        assert marker.get_color() == colours[0 if true else 1]
        scores.append(2 * y / (high - y))
    assert np.abs(scores).max() < 4


def test_a_check_holds_both_traces(settings):
    setting = settings[3]
    estimate = monte_carlo_trace(*unknown(setting), theorem.DRAWS, seed=7)
    assert check(setting, seed=7) == Check(
        expected_trace(*unknown(setting)),
        estimate.value,
        estimate.stderr,
        compare(setting.mean, setting.covariance, setting.rotation, setting.c).holds,
    )


def test_every_axis_says_what_it_shows(drawing):
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in map(drawn, drawing.panels)]
    assert labels == [
        ("c |μ′S⁻¹Rμ| / μ′S⁻¹μ", "E tr H of the energy,\nunknown / known"),
        ("mean m of the logit difference", "E φ over N(m, s²)"),
        ("E tr H of the energy, unknown, by quadrature", "draws less quadrature, %"),
    ]
