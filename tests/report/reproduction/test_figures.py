"""Figures of a reproduction: what they draw is what was measured."""

from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from flatfold.report.reproduction.bars import cost_bars
from flatfold.report.reproduction.exhibits import SHOWS
from flatfold.report.reproduction.pieces import one_of_each, price, typical_spectra, typical_traces
from flatfold.report.reproduction.scatter import norm_scatter
from flatfold.report.reproduction.sensitivity import alpha_sensitivity
from flatfold.report.reproduction.shift import trace_by_regime
from flatfold.report.style import ACCENT, KNOWN, RC
from tests.toy_ablations import make_ablations, make_costs, make_material
from tests.toy_study import make_study

FOUR = {"a": "near", "b": "near", "c": "far", "d": "far"}


def drawn(panel):
    with matplotlib.rc_context(RC):
        axes = Figure().subplots()
        panel.draw(axes)
        return axes


@pytest.fixture(scope="module")
def ablations():
    return make_ablations()


def test_bars_end_at_the_times_shortest_on_top():
    setup, inference = cost_bars(make_costs(), "costs").panels
    axes = drawn(inference)
    names = [label.get_text() for label in axes.get_yticklabels()]
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    times = {cost.method: cost.inference_ms for cost in make_costs()}
    assert ends == pytest.approx([times[name] for name in names])
    assert ends == sorted(ends, reverse=True)
    assert "forward" not in names
    assert axes.get_xscale() == "log"
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() != "-"] == [times["forward"]]
    assert drawn(setup).get_xscale() == "log"
    assert (setup.note, inference.note) == ("once", "a batch of 256")


def test_bars_of_the_family_have_its_colour():
    axes = drawn(cost_bars(make_costs(), "costs").panels[0])
    names = [label.get_text() for label in axes.get_yticklabels()]
    for name, bar in zip(names, axes.patches, strict=True):
        assert matplotlib.colors.to_hex(bar.get_facecolor()) == (ACCENT if "fold" in name else KNOWN)


def test_bars_have_whiskers_from_quartile_to_quartile():
    costs = [replace(cost, inference_low=cost.inference_ms) for cost in make_costs()]
    costs = [replace(cost, inference_high=cost.inference_ms) if "fold" in cost.method else cost for cost in costs]
    axes = drawn(cost_bars(costs, "costs").panels[1])
    whiskers = [line for line in axes.lines if line.get_linestyle() == "-"]
    assert len(whiskers) == sum("fold" not in cost.method for cost in costs) - 1  # the forward pass is a line


def test_times_of_zero_have_a_place_and_no_costs_no_panel():
    costs = [replace(cost, setup_ms=0.0) for cost in make_costs()]
    assert all(bar.get_width() > 0 for bar in drawn(cost_bars(costs, "costs").panels[0]).patches)
    assert cost_bars([], "costs").panels == []
    alone = [cost for cost in make_costs() if cost.method != "forward"]
    assert all(line.get_linestyle() == "-" for line in drawn(cost_bars(alone, "costs").panels[1]).lines)


def test_sensitivity_draws_the_averages_and_a_dot_at_the_choice(ablations):
    drawing = alpha_sensitivity(ablations.sensitivities, "alpha")
    assert [key.label for key in drawing.keys] == ["fold", "fold-r", "fold-a", "AutoFold's choice"]
    for panel, metric in zip(drawing.panels, ("auroc", "fpr95"), strict=True):
        across, curve, dot = drawn(panel).lines[:3]
        told = ablations.sensitivities[0]
        chosen = getattr(told, f"chosen_{metric}")["all"]
        assert list(curve.get_ydata()) == pytest.approx([100 * value for value in getattr(told, metric)["all"]])
        assert (list(dot.get_xdata()), list(dot.get_ydata())) == ([told.chosen], [100 * chosen])
        assert set(across.get_ydata()) == {100 * chosen}
        assert across.get_linestyle() != "-"
    assert alpha_sensitivity([], "alpha").panels == []


def test_the_scatter_has_a_panel_per_normalisation_with_its_d(ablations):
    drawing = norm_scatter(ablations, ["near-set", "far-set"], "scatter")
    told = {each.normalisation: each.cohens_d for each in ablations.separations if each.dataset == "all"}
    notes = [f"α = {ablations.alphas[kind]:g}, d = {d:.3f}" for kind, d in told.items()]
    assert [panel.note for panel in drawing.panels] == notes
    axes = drawn(drawing.panels[1])
    points = axes.collections[1].get_offsets()
    assert len(axes.collections) == 3
    assert len(points) == 80
    inside = np.abs(points[:, 1] - ablations.scores["partial/near-set"]) < 1e-6
    assert inside.mean() > 0.95  # the outermost are moved onto the edge
    assert axes.collections[0].get_rasterized()


def test_the_trend_goes_through_the_traces_of_every_network():
    materials = [make_material("one"), make_material("two")]
    drawing = trace_by_regime(materials, "trend")
    assert [key.label for key in drawing.keys] == ["one", "two"]
    axes = drawn(drawing.panels[0])
    study = materials[0].study
    expected = [study.cell(name, "parameter", "trace").value for name in ("id", "near-set", "far-set")]
    assert list(axes.lines[0].get_ydata()) == pytest.approx(expected)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["known", "near", "far"]
    assert axes.get_yscale() == "log"
    assert trace_by_regime(materials[:1], "trend").keys == []


def test_negative_traces_get_a_linear_axis():
    study = make_study()
    below = replace(study, statistics=[replace(each, value=-each.value) for each in study.statistics])
    axes = drawn(trace_by_regime([make_material(study=below)], "trend").panels[0])
    assert axes.get_yscale() == "linear"


def test_typical_figures_take_one_near_and_one_far_data_set():
    study = make_study(FOUR)
    assert [ood["name"] for ood in one_of_each(study).suite["ood"]] == ["a", "c"]
    traces = typical_traces(study, "figure-2")
    assert [panel.title for panel in traces.panels] == ["over parameters"]
    assert [key.label for key in traces.keys] == ["known", "a", "c"]
    spectra = typical_spectra(study, "figure-7")
    titles = [f"{name}, over {space}" for space in ("parameters", "features") for name in ("known", "a", "c")]
    assert [panel.title for panel in spectra.panels] == titles
    assert (traces.name, spectra.name) == ("figure-2", "figure-7")


def test_the_price_is_what_the_ablations_measured():
    costs = make_costs(fold=(0.1, 25.6))
    axes = drawn(price(make_material(ablations=make_ablations(costs=costs)), "price").panels[0])
    dots = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert len(dots) == len(costs) - 1
    assert max(dots) == pytest.approx(100.0)  # microseconds: 25.6 ms for 256 inputs


def test_without_measured_costs_the_price_is_that_of_the_benchmark():
    axes = drawn(price(make_material(ablations=make_ablations(costs=make_costs()[:1])), "price").panels[0])
    assert {line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"} == {2.0}


def test_figures_are_files_for_papers(tmp_path):
    (drawing,) = SHOWS["Figure 4"]([make_material()], "figure-4").drawings
    drawing.save(tmp_path)
    assert (tmp_path / "figure-4.svg").read_text(encoding="utf8").lstrip().startswith("<?xml")
    assert (tmp_path / "figure-4.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("number", ["Figure 3", "Figure 4", "Figure 5"])
def test_the_same_numbers_give_the_same_figure(number):
    assert SHOWS[number]([make_material()], "figure").html == SHOWS[number]([make_material()], "figure").html
