"""Figures of a reproduction and of the theorem: what they draw is what was measured, or what the theory says."""

from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from flatfold.display.figure import ACCENT, RC
from flatfold.paper import figures
from flatfold.paper.figures import alpha_sensitivity, cost_bars, norm_scatter, trace_by_regime
from flatfold.paper.page import build_content
from flatfold.paper.theory import (
    Theorem,
    bayes_weight,
    compare_traces,
    expected_trace,
    monte_carlo_trace,
    random_theorems,
)
from tests.toy_ablations import make_ablations, make_costs, make_network_run
from tests.toy_study import make_study


def drawn(panel):
    with matplotlib.rc_context(RC):
        axes = Figure().subplots()
        panel.draw(axes)
        return axes


def test_bars_end_at_the_times_shortest_on_top():
    costs = make_costs()
    alone = drawn(cost_bars(costs, "costs").panels[2])
    assert [bar.get_x() + bar.get_width() for bar in alone.patches] == pytest.approx(
        sorted((cost.inference_ms for cost in costs if cost.method != "forward"), reverse=True)
    )
    times = {cost.method: cost.total_ms for cost in costs}
    axes = drawn(cost_bars(costs, "costs").panels[1])
    names = [label.get_text() for label in axes.get_yticklabels()]
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert ends == pytest.approx([times[name] for name in names])
    assert ends == sorted(ends, reverse=True)
    assert "forward" not in names  # it is a line
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() != "-"] == [times["forward"]]
    for name, bar in zip(names, axes.patches, strict=True):
        assert (to_hex(bar.get_facecolor()) == ACCENT) == ("fold" in name)
    zero = [replace(cost, setup_ms=0.0) for cost in costs if cost.method != "forward"]
    assert all(bar.get_width() > 0 for bar in drawn(cost_bars(zero, "costs").panels[0]).patches)
    assert cost_bars([], "costs").panels == []


def test_sensitivity_draws_the_averages_and_a_dot_at_the_choice():
    told = make_ablations().sensitivities
    for panel, metric in zip(alpha_sensitivity(told, "alpha").panels, ("auroc", "fpr95"), strict=True):
        _, curve, dot = drawn(panel).lines[:3]
        assert list(curve.get_ydata()) == pytest.approx([100 * value for value in getattr(told[0], metric)["all"]])
        chosen = 100 * getattr(told[0], f"chosen_{metric}")["all"]
        assert (list(dot.get_xdata()), list(dot.get_ydata())) == ([told[0].chosen], [chosen])
    assert alpha_sensitivity([], "alpha").panels == []


def test_the_scatter_has_a_panel_per_normalisation_with_its_d():
    ablations = make_ablations()
    drawing = norm_scatter(ablations, ["near-set", "far-set"], "scatter")
    told = {each.normalisation: each.cohens_d for each in ablations.separations if each.dataset == "all"}
    notes = [f"α = {ablations.alphas[kind]:g}, d = {d:.3f}" for kind, d in told.items()]
    assert [panel.note for panel in drawing.panels] == notes
    near = drawn(drawing.panels[1]).collections[1].get_offsets()
    assert len(near) == 80
    inside = np.abs(near[:, 1] - ablations.scores["partial/near-set"]) < 1e-6
    assert inside.mean() > 0.95  # the outermost are moved onto the edge


def test_figures_of_single_data_sets_show_those_of_the_paper_where_there_are():
    for sets, shown in (
        ({"cifar100": "near", "tin": "near", "mnist": "far", "svhn": "far"}, ["tin", "svhn"]),
        ({"ssb_hard": "near", "ninco": "near", "textures": "far", "inaturalist": "far"}, ["ninco", "inaturalist"]),
        ({"pens": "near", "ink": "near", "noise": "far"}, ["pens", "noise"]),
    ):
        study = make_study(sets)
        assert [key.label for key in figures.typical_traces(study).keys][-2:] == shown
        titles = [panel.title for panel in figures.typical_spectra(study).panels]
        assert titles == [f"{name}, over {over}" for over in ("parameters", "features") for name in ("ID", *shown)]


def test_the_trend_goes_through_the_traces_of_every_network():
    materials = [make_network_run("one"), make_network_run("two")]
    drawing = trace_by_regime(materials, "trend")
    assert [key.label for key in drawing.keys] == ["one", "two"]
    axes, study = drawn(drawing.panels[0]), materials[0].study
    expected = [study.cells[name, "parameter", "trace"].value for name in ("id", "near-set", "far-set")]
    assert list(axes.lines[0].get_ydata()) == pytest.approx(expected)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["ID", "near", "far"]
    below = replace(study, statistics=[replace(each, value=-each.value) for each in study.statistics])
    axes = drawn(trace_by_regime([make_network_run(study=below)], "trend").panels[0])
    assert axes.get_yscale() == "linear"


def test_the_price_is_what_the_ablations_measured_or_else_the_benchmark():
    for costs, wanted in ((make_costs(fold=(0.1, 246.0)), 1000.0), (make_costs()[:1], 2.0)):  # 256 ms with the pass
        axes = drawn(
            figures.cost_against_auroc(make_network_run(ablations=make_ablations(costs=costs)), "price").panels[0]
        )
        dots = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
        assert max(dots) == pytest.approx(wanted)


def test_every_figure_draws_always_the_same():
    for number in ("Figure 3", "Figure 4", "Figure 5"):
        svg, again = (build_content(number, [make_network_run()]).drawings[0].inline() for _ in range(2))
        assert "<path" in svg[0], number
        assert again == svg, number


@pytest.fixture(scope="module")
def proof():
    return figures.theorem_figure("theorem")


def unknown(setting):
    """Return what the trace of a setting's OOD inputs is taken from."""
    weight = bayes_weight(setting.mean, setting.covariance, setting.alpha)
    return setting.c * setting.rotation @ setting.mean, setting.covariance, weight


def test_points_above_one_are_those_where_the_condition_of_the_theorem_is_true(proof):
    axes = drawn(proof.panels[0])
    clouds = {to_hex(cloud.get_facecolor()[0]): cloud.get_offsets() for cloud in axes.collections}
    true, false = (np.asarray(clouds[key.style.colour]) for key in proof.keys)
    assert (true[:, 0] <= 1).all()
    assert (true[:, 1] >= 1).all()
    assert (false[:, 0] > 1).all()
    assert (false[:, 1] < 1).all()
    points = []
    for s, _ in random_theorems():
        towards = torch.linalg.inv(s.covariance) @ s.mean
        ratio = s.c * abs(float(towards @ s.rotation @ s.mean)) / float(towards @ s.mean)
        elsewhere, covariance, weight = unknown(s)
        traces = [expected_trace(mean, covariance, weight) for mean in (elsewhere, s.mean)]
        points.append((ratio, traces[0] / traces[1]))
    assert sorted(map(tuple, np.concatenate([true, false]))) == [pytest.approx(point) for point in sorted(points)]
    wrong = Theorem(id=2.0, ood=1.0, log_ratio=-np.log(2), shifted=1.0, bound=2.0, alpha=2.0)
    axes = drawn(replace(proof.panels[0], draw=lambda axes: figures._draw_condition([wrong], axes)))
    assert axes.collections[0].get_offsets().tolist() == [[0.5, 0.5]]  # a counterexample would be seen


def test_every_average_of_the_proof_falls_to_both_sides(proof):
    for line, deviation in zip(drawn(proof.panels[1]).lines, figures.DEVIATIONS, strict=True):
        x, y = line.get_data()
        middle = len(x) // 2
        assert (np.diff(y[middle:]) < 0).all()
        np.testing.assert_allclose(y, y[::-1], rtol=1e-9)
        draws = x[middle + 20] + deviation * np.random.default_rng(0).standard_normal(200_000)
        assert y[middle + 20] == pytest.approx((0.25 / np.cosh(draws / 2) ** 2).mean(), rel=0.01)


def test_random_draws_lie_around_the_quadrature_within_their_bars(proof):
    containers = drawn(proof.panels[2]).containers
    assert len(containers) == figures.CHECKED
    for number, (container, (setting, _)) in enumerate(zip(containers, random_theorems(), strict=False)):
        marker, _, (bars,) = container
        (x,), (y,) = marker.get_data()
        assert x == pytest.approx(expected_trace(*unknown(setting)))
        estimate = monte_carlo_trace(*unknown(setting), figures.DRAWS, number)
        assert y == pytest.approx(100 * (estimate.value - x) / x)
        (_, low), (_, high) = bars.get_segments()[0]
        assert (low, high) == pytest.approx((y - 200 * estimate.stderr / x, y + 200 * estimate.stderr / x))
        true = compare_traces(setting.mean, setting.covariance, setting.rotation, setting.c).holds
        assert marker.get_color() == proof.keys[0 if true else 1].style.colour
        assert abs(2 * y / (high - y)) < 4
