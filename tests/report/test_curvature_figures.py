"""The figures of a curvature study, read back from what was drawn."""

from dataclasses import replace
from math import exp, pi, sqrt

import numpy as np
import pytest
from matplotlib.colors import to_hex

from flatfold.display.figure import GREY, line_style
from flatfold.report.curvature_figures import (
    bin_count,
    quartiles,
    share,
    spectral_curve,
    spectral_densities,
    top_eigenvalues,
    trace_axis,
    trace_densities,
)
from tests.report.conftest import drawn
from tests.toy_study import make_study

SETS = {"near-set": "near", "far-set": "far"}


@pytest.fixture(scope="module")
def study():
    return make_study(SETS)


def with_traces(study, id, near, far):
    """Return the study with these traces of each data set over features."""
    changed = {
        f"feature/{name}": np.array(x, dtype=float) for name, x in (("id", id), ("near-set", near), ("far-set", far))
    }
    return replace(study, traces={**study.traces, **changed})


def test_bars_are_counts_of_traces_and_all_data_sets_are_equally_high(study):
    drawing = trace_densities(study)
    assert [key.label for key in drawing.keys] == ["ID", *SETS]
    assert [(panel.title, panel.note) for panel in drawing.panels] == [
        ("over parameters", "± 10 %"),
        ("over features", "exact"),
        ("over logits", "exact"),
    ]
    for panel, space in zip(drawing.panels, ("parameter", "feature", "logit"), strict=True):
        axes = drawn(panel)
        edges = np.array(trace_axis(np.concatenate([study.traces[f"{space}/{n}"] for n in study.datasets])).edges(13))
        for shape, name in zip(axes.patches, study.datasets, strict=True):
            counts = np.zeros(13)  # the root of 40 inputs, twice
            for value in study.traces[f"{space}/{name}"]:
                inside = min(max(value, edges[0]), edges[-1])
                counts[min(int(np.searchsorted(edges, inside, side="right")) - 1, 12)] += 1
            assert shape.get_xy()[1:26:2, 1] == pytest.approx(counts / counts.max()), (space, name)
        assert axes.get_xscale() == "log"
        assert axes.get_xlabel() == "trace at one input, Hessian of the energy"
    for sizes, bars in [((0, 9), 10), ((24, 100), 10), ((100, 400), 20), ((5000, 800), 50)]:
        assert bin_count([np.zeros(size) for size in sizes]) == bars, sizes


def test_traces_of_zero_are_counted_in_the_leftmost_bar_and_errors_are_medians(study):
    changed = with_traces(study, [0.0, 0.0, 0.0, 1.0], [1e-3, 2.0], [4.0, 0.0])
    panel = trace_densities(changed).panels[1]
    assert panel.note == "exact, 4 of 8 are 0"
    known = drawn(panel).patches[0].get_xy()
    assert known[known[:, 1] == 1, 0].min() == pytest.approx(1e-3)
    errors = {"feature/near-set": np.array([1.0, 0.8]), "feature/far-set": np.array([3.0])}
    changed = replace(with_traces(study, [1.0, 2.0], [0.0, 4.0], [10.0]), trace_stderr=errors)
    assert trace_densities(changed).panels[1].note == "± 25 %, 1 of 5 are 0"


def test_the_axis_of_traces_is_logarithmic_from_a_factor_of_ten_and_linear_below_zero(study):
    for low, high, scale in [(1.0, 5.0, "linear"), (1.0, 50.0, "log"), (1.0, 5000.0, "log"), (-60.0, 5000.0, "linear")]:
        axes = drawn(trace_densities(with_traces(study, [low, 1.5], [2.0, 2.5], [3.0, high])).panels[1])
        axes.figure.draw_without_rendering()
        assert axes.get_xscale() == scale, (low, high)
        assert len({label.get_text() for label in axes.get_xticklabels()}) >= 3, (low, high)


def test_any_numbers_can_be_drawn(study):
    for values in ([0.0, 0.0], [2.0], [np.nan], [np.inf, 1.0], []):
        drawing = trace_densities(with_traces(study, values, values, values))
        assert replace(drawing, panels=drawing.panels[1:2]).inline()[0].startswith("<svg"), values
    for value in (0.0, np.nan, np.inf):
        drawing = top_eigenvalues(replace(study, eigenvalues=dict.fromkeys(study.eigenvalues, np.full((2, 4), value))))
        assert replace(drawing, panels=drawing.panels[:1]).inline()[0].startswith("<svg"), value
    single = make_study(known=1, unknown=1)
    for drawing in (trace_densities(single), spectral_densities(single, "parameter"), top_eigenvalues(single)):
        assert "<path" in replace(drawing, panels=drawing.panels[-1:]).inline()[0], drawing.name


def slow_density(nodes, weights, size, x, zeros=True):
    """Return the density of all nodes, with or without the zeros, at one point, kernel by kernel."""
    scale = max(abs(float(node)) for node in nodes.ravel())
    width = 0.01 * scale
    total = 0.0
    for node, weight in zip(nodes.ravel(), weights.ravel(), strict=True):
        if zeros or abs(node) > 1e-6 * scale:
            total += weight * exp(-0.5 * ((x - node) / width) ** 2) / (width * sqrt(2 * pi))
    return total / len(nodes), 0.1 / (size * width * sqrt(2 * pi))


@pytest.mark.parametrize("space", ["parameter", "feature"])
def test_a_spectrum_is_drawn_down_to_a_tenth_of_a_single_eigenvalue_with_its_largest_marked(study, space):
    drawing = spectral_densities(study, space)
    assert [panel.title for panel in drawing.panels] == ["ID", *SETS]
    axes = drawn(drawing.panels[2])
    line = next(line for line in axes.lines if len(line.get_xdata()) > 2)
    nodes, weights = study.nodes[f"{space}/far-set"], study.weights[f"{space}/far-set"]
    for number in range(0, len(line.get_xdata()), 37):
        x, y = line.get_xdata()[number], line.get_ydata()[number]
        density, floor = slow_density(nodes, weights, study.sizes[space], x, zeros=space == "parameter")
        assert y == pytest.approx(max(density, floor), rel=1e-3)  # zeros of an estimate are moved a little
    assert axes.get_ylim()[0] == pytest.approx(floor)
    assert axes.get_xlabel() == "eigenvalue, Hessian of the energy"
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2
    marks = {to_hex(line.get_color()): line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2}
    largest = [study.cells[name, space, "lambda_max"].value for name in ("id", "far-set")]
    assert marks == dict(zip((GREY, line_style(1).colour), largest, strict=True))


def test_zeros_of_a_spectrum_are_told_as_a_share(study):
    zeros = np.mean(np.abs(study.nodes["feature/id"]) < 1e-6 * study.nodes["feature/id"].max())
    assert 0 < zeros < 1
    assert spectral_densities(study, "feature").panels[0].note == f"{100 * zeros:.1f} % are zero"
    nodes, weights = study.nodes["parameter/id"] + 1e-4, study.weights["parameter/id"]  # never exactly zero
    inside = weights[np.abs(nodes) <= 0.01 * nodes.max()].sum() / 8
    moved = replace(study, nodes={**study.nodes, "parameter/id": nodes})
    assert 0.5 < inside < 1
    assert spectral_densities(moved, "parameter").panels[0].note == f"{100 * inside:.1f} % near zero"
    parts = {0.99949: "99.9 %", 0.9996: "over 99.9 %", 0.0006: "0.1 %", 1e-9: "under 0.1 %"}
    assert {part: share(part) for part in parts} == parts
    nothing = {key: np.zeros_like(values) for key, values in study.nodes.items()}
    flat = replace(study, nodes=nothing, statistics=[replace(s, value=0.0) for s in study.statistics])
    assert [panel.note for panel in spectral_densities(flat, "feature").panels] == ["100 % are zero"] * 3
    drawn(spectral_densities(flat, "feature").panels[1])


def test_a_band_shows_how_far_probes_differ_and_zeros_do_not_depend_on_chance(study):
    found, exact = (spectral_curve(study, space, "far-set") for space in ("parameter", "feature"))
    mean, upper = found.density.mean, found.density.upper
    assert (found.density.lower <= mean).all()
    assert (mean <= upper).all()
    assert (upper > 1.05 * mean).any()
    assert (exact.density.lower == exact.density.upper).all()
    moved = {**study.nodes, "parameter/far-set": study.nodes["parameter/far-set"] + 1e-5}
    near = spectral_curve(replace(study, nodes=moved), "parameter", "far-set")
    assert float(mean.max()) == pytest.approx(float(near.density.mean.max()), rel=1e-3)
    assert found.zeros == near.zeros
    assert exact.density.mean[0] < 1e-3 * exact.density.mean.max()


def test_medians_and_quartiles_of_every_eigenvalue_are_drawn(study):
    drawing = top_eigenvalues(study)
    assert [panel.note for panel in drawing.panels] == ["α = 0", "α = 0.5", "α = 1"]
    for panel, kind in zip(drawing.panels, study.alphas, strict=True):
        axes = drawn(panel)
        assert axes.get_yscale() == "log"
        for line, name in zip(axes.lines, study.datasets, strict=True):
            assert line.get_xdata().tolist() == [1, 2, 3, 4]  # five classes have four eigenvalues
            assert line.get_ydata() == pytest.approx(np.median(study.eigenvalues[f"{kind}/{name}"], axis=0)[:4])
        assert [to_hex(line.get_color()) for line in axes.lines] == [GREY, line_style(0).colour, line_style(1).colour]
        band = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert band.max() == pytest.approx(quartiles(study.eigenvalues[f"{kind}/id"])[2].max())


def test_eigenvalues_have_readable_axes_however_few_equal_or_small_they_are(study):
    for values in ([0.0937] * 4, [7e-9] * 4, [0.4, 0.3, 0.15, 0.12], [1.0, 1e-3, 1e-20, 0.0]):
        changed = replace(study, eigenvalues={key: np.array([values] * 3) for key in study.eigenvalues})
        axes = drawn(top_eigenvalues(changed).panels[0])
        axes.figure.draw_without_rendering()
        low, high = axes.get_ylim()
        assert sum(low < tick < high for tick in axes.get_yticks()) >= 2, values
        assert low < values[0] <= high, values
    assert np.isnan(axes.lines[0].get_ydata()[3])  # zero has no logarithm
    assert 1e-20 < low < 1e-12
    for classes in (2, 7):
        axes = drawn(top_eigenvalues(make_study(classes=classes, width=9, known=9, unknown=7)).panels[0])
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low < tick < high]
        assert ticks == [round(tick) for tick in ticks], classes
        assert low < 1 <= classes - 1 < high
        assert classes > 2 or axes.lines[0].get_marker() == "o"  # a single eigenvalue is a dot
