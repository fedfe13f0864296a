"""The figures of a curvature study, read back from what was drawn."""

import re
from dataclasses import replace
from math import exp, pi, sqrt

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from flatfold.report.curvature.eigenvalues import quartiles, top_eigenvalues
from flatfold.report.curvature.spectra import curve, share, spectral_densities
from flatfold.report.curvature.traces import bin_count, legend, trace_axis, trace_densities
from flatfold.report.histograms import keys
from flatfold.report.style import GREY, KNOWN, RC, look
from tests.toy_study import make_study

SETS = {"near-set": "near", "far-set": "far"}


@pytest.fixture(scope="module")
def study():
    return make_study(SETS)


def drawn(panel):
    """Return the axes with a panel in it."""
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def with_traces(study, **traces):
    """Return the study with these traces of each data set over features."""
    changed = {f"feature/{name.replace('_', '-')}": np.array(values, dtype=float) for name, values in traces.items()}
    return replace(study, traces={**study.traces, **changed})


def test_known_and_unknown_look_as_in_every_other_figure(study, make_run):
    assert legend(study) == keys(make_run(sets=SETS))


def test_there_is_a_panel_of_traces_for_every_space(study):
    drawing = trace_densities(study)
    assert drawing.name == "curvature-traces"
    assert [(panel.title, panel.note) for panel in drawing.panels] == [
        ("over parameters", "± 10 %"),
        ("over features", "exact"),
        ("over logits", "exact"),
    ]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_bars_are_counts_of_each_data_set_and_all_are_equally_high(study, number):
    space = ("parameter", "feature", "logit")[number]
    axes = drawn(trace_densities(study).panels[number])
    span = trace_axis(np.concatenate([study.traces[f"{space}/{name}"] for name in study.datasets]))
    assert span.logarithmic
    edges = np.array(span.edges(13))  # the root of 40 inputs, twice
    shapes = axes.patches
    for shape, name in zip(shapes, study.datasets, strict=True):
        counts = np.zeros(13)
        for value in study.traces[f"{space}/{name}"]:
            inside = min(max(value, edges[0]), edges[-1])
            counts[min(int(np.searchsorted(edges, inside, side="right")) - 1, 12)] += 1
        heights = shape.get_xy()[1:26:2, 1]
        assert heights == pytest.approx(counts / counts.max())
        assert heights.max() == pytest.approx(1)
    assert [to_hex(shape.get_edgecolor()) for shape in shapes[1:]] == [look(0).colour, look(1).colour]
    assert to_hex(shapes[0].get_facecolor()) == KNOWN
    assert axes.get_xscale() == "log"


def test_traces_of_zero_are_in_the_leftmost_bar_and_counted(study):
    changed = with_traces(study, id=[0.0, 0.0, 0.0, 1.0], near_set=[1e-3, 2.0], far_set=[4.0, 0.0])
    panel = trace_densities(changed).panels[1]
    assert panel.note == "exact, 4 of 8 are 0"
    known = drawn(panel).patches[0].get_xy()
    assert known[known[:, 1] == 1, 0].min() == pytest.approx(1e-3)
    assert known[np.isclose(known[:, 1], 1 / 3), 0].min() > 0.5


def test_negative_traces_have_a_linear_axis(study):
    changed = with_traces(study, id=[-60.0, 1.0, 5000.0], near_set=[1.0, 2.0], far_set=[4.0, 0.0])
    assert drawn(trace_densities(changed).panels[1]).get_xscale() == "linear"


@pytest.mark.parametrize(
    ("high", "scale", "ticks"),
    [(5.0, "linear", None), (50.0, "log", {"1", "2", "5", "10"}), (5000.0, "log", {"1", "10", "100", "1000"})],
)
def test_an_axis_is_logarithmic_from_a_factor_of_ten_and_has_labels_in_any_case(study, high, scale, ticks):
    changed = with_traces(study, id=[1.0, 1.5], near_set=[2.0, 2.5], far_set=[3.0, high])
    axes = drawn(trace_densities(changed).panels[1])
    axes.figure.draw_without_rendering()
    texts = {label.get_text() for label in axes.get_xticklabels()}
    assert axes.get_xscale() == scale
    assert ticks is None or ticks <= texts
    assert len(texts) >= 3


@pytest.mark.parametrize("values", [[0.0, 0.0], [2.0], [np.nan], [np.inf, 1.0], []])
def test_any_traces_can_be_drawn(study, values):
    changed = with_traces(study, id=values, near_set=values, far_set=values)
    assert trace_densities(changed).inline()[1].startswith("<svg")


def test_the_error_of_traces_is_their_median_and_zeros_have_none(study):
    changed = replace(
        with_traces(study, id=[1.0, 2.0], near_set=[0.0, 4.0], far_set=[10.0]),
        trace_stderr={"feature/near-set": np.array([1.0, 0.8]), "feature/far-set": np.array([3.0])},
    )
    assert trace_densities(changed).panels[1].note == "± 25 %, 1 of 5 are 0"


@pytest.mark.parametrize(("sizes", "bars"), [((0, 9), 10), ((24, 100), 10), ((100, 400), 20), ((5000, 800), 50)])
def test_there_are_as_many_bars_as_the_smallest_data_set_can_fill(sizes, bars):
    assert bin_count({str(place): np.zeros(size) for place, size in enumerate(sizes)}) == bars


def test_every_figure_says_of_which_matrix_and_loss_it_is(study):
    changed = [replace(s, matrix="ggn", loss="ce_pred") if s.space == "parameter" else s for s in study.statistics]
    for which, words in (
        (study, "Hessian of the energy"),
        (replace(study, statistics=changed), "GGN of CE(predicted)"),
    ):
        labels = [drawn(panel).get_xlabel() for panel in trace_densities(which).panels]
        assert labels == [
            f"trace at one input, {words}",
            "trace at one input, Hessian of the energy",
            "trace at one input, Hessian of the energy",
        ]
        for panel in spectral_densities(which, "parameter").panels:
            assert drawn(panel).get_xlabel() == f"eigenvalue, {words}"
        for panel in spectral_densities(which, "feature").panels:
            assert drawn(panel).get_xlabel() == "eigenvalue, Hessian of the energy"
        for panel in top_eigenvalues(which).panels:
            assert drawn(panel).get_ylabel() == "eigenvalue,\nHessian of the energy"


@pytest.mark.parametrize("loss", ["energy", "ce_pred"])
def test_labels_fit_into_their_panels(study, loss):
    changed = replace(study, statistics=[replace(s, loss=loss) for s in study.statistics])
    for drawing in (trace_densities(changed), spectral_densities(changed, "parameter"), top_eigenvalues(changed)):
        with matplotlib.rc_context(RC):
            figure = Figure(figsize=drawing.size, layout="constrained")
            axes = figure.subplots()
            drawing.panels[0].draw(axes)
            figure.draw_without_rendering()
            for label in filter(lambda label: label.get_text(), (axes.xaxis.label, axes.yaxis.label)):
                box = label.get_window_extent()
                assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
                assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1


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
def test_a_spectrum_is_drawn_down_to_a_tenth_of_a_single_eigenvalue(study, space):
    panel = spectral_densities(study, space).panels[2]
    assert panel.title == "far-set"
    axes = drawn(panel)
    line = next(line for line in axes.lines if len(line.get_xdata()) > 2)
    nodes, weights = study.nodes[f"{space}/far-set"], study.weights[f"{space}/far-set"]
    for number in range(0, len(line.get_xdata()), 37):
        x, y = line.get_xdata()[number], line.get_ydata()[number]
        density, floor = slow_density(nodes, weights, study.sizes[space], x, zeros=space == "parameter")
        assert y == pytest.approx(max(density, floor), rel=1e-3)  # zeros of an estimate are moved a little
    assert axes.get_ylim()[0] == pytest.approx(floor)
    assert axes.get_yscale() == "log"
    assert to_hex(line.get_color()) == look(1).colour


@pytest.mark.parametrize("space", ["parameter", "feature"])
def test_the_largest_eigenvalue_of_known_and_unknown_is_marked(study, space):
    drawing = spectral_densities(study, space)
    assert [panel.title for panel in drawing.panels] == ["known", *SETS]
    for panel in drawing.panels[1:]:
        marks = {
            to_hex(line.get_color()): line.get_xdata()[0] for line in drawn(panel).lines if len(line.get_xdata()) == 2
        }
        colour = look(list(SETS).index(panel.title)).colour
        assert marks == {
            GREY: study.cell("id", space, "lambda_max").value,
            colour: study.cell(panel.title, space, "lambda_max").value,
        }
    assert drawing.keys[-1].label == "λmax"


def test_zeros_are_told_as_a_share(study):
    zeros = np.mean(np.abs(study.nodes["feature/id"]) < 1e-6 * study.nodes["feature/id"].max())
    assert 0 < zeros < 1
    assert spectral_densities(study, "feature").panels[0].note == f"{100 * zeros:.1f} % are zero"


def test_of_an_estimate_the_share_within_the_kernel_is_told_for_it_never_meets_zero_itself(study):
    nodes, weights = study.nodes["parameter/id"] + 1e-4, study.weights["parameter/id"]
    inside = [
        weight for node, weight in zip(nodes.ravel(), weights.ravel(), strict=True) if abs(node) <= 0.01 * nodes.max()
    ]
    moved = replace(study, nodes={**study.nodes, "parameter/id": nodes})
    note = spectral_densities(moved, "parameter").panels[0].note
    assert 0.5 < sum(inside) / 8 < 1
    assert note == f"{100 * sum(inside) / 8:.1f} % near zero"


def test_a_band_shows_what_the_probes_leave_open(study):
    found = curve(study, "parameter", "far-set")
    assert np.all(found.lower <= found.mean)
    assert np.all(found.mean <= found.upper)
    assert np.any(found.upper > 1.05 * found.mean)
    exact = curve(study, "feature", "far-set")
    assert np.array_equal(exact.lower, exact.upper)
    band = drawn(spectral_densities(study, "parameter").panels[2]).collections[1].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(found.upper.max())


def test_a_far_narrower_spectrum_of_known_images_does_not_flatten_the_unknown(study):
    nodes = {**study.nodes, "feature/id": 1e-9 * study.nodes["feature/id"]}
    found = [
        replace(s, value=1e-9 * s.value) if (s.dataset, s.space, s.name) == ("id", "feature", "lambda_max") else s
        for s in study.statistics
    ]
    axes = drawn(spectral_densities(replace(study, nodes=nodes, statistics=found), "feature").panels[1])
    assert axes.get_ylim()[1] <= 200 * curve(study, "feature", "near-set").upper.max()


def test_a_spectrum_of_nothing_but_zeros_can_be_drawn(study):
    nothing = {key: np.zeros_like(values) for key, values in study.nodes.items()}
    found = [replace(s, value=0.0) for s in study.statistics]
    drawing = spectral_densities(replace(study, nodes=nothing, statistics=found), "feature")
    assert [panel.note for panel in drawing.panels] == ["100 % are zero"] * 3
    assert all(svg.startswith("<svg") for svg in drawing.inline())


def test_negative_eigenvalues_are_inside_the_axis(study):
    nodes = {**study.nodes, "parameter/far-set": study.nodes["parameter/far-set"] - 1.0}
    low, _ = drawn(spectral_densities(replace(study, nodes=nodes), "parameter").panels[2]).get_xlim()
    assert low < nodes["parameter/far-set"].min() < 0


@pytest.mark.parametrize(
    ("part", "text"), [(0.99949, "99.9 %"), (0.9996, "over 99.9 %"), (0.0006, "0.1 %"), (1e-9, "under 0.1 %")]
)
def test_a_share_is_not_rounded_to_all_or_none(part, text):
    assert share(part) == text


def test_medians_and_quartiles_of_every_eigenvalue_are_drawn(study):
    drawing = top_eigenvalues(study)
    assert [(panel.title, panel.note) for panel in drawing.panels] == [
        ("no normalisation", "α = 0"),
        ("partial normalisation", "α = 0.5"),
        ("full normalisation", "α = 1"),
    ]
    for panel, kind in zip(drawing.panels, study.alphas, strict=True):
        axes = drawn(panel)
        assert axes.get_yscale() == "log"
        for line, name in zip(axes.lines, study.datasets, strict=True):
            values = np.sort(study.eigenvalues[f"{kind}/{name}"], axis=0)
            middle = [(column[(len(column) - 1) // 2] + column[len(column) // 2]) / 2 for column in values.T]
            assert line.get_xdata().tolist() == [1, 2, 3, 4]  # five classes have four eigenvalues
            assert line.get_ydata() == pytest.approx(middle[:4])
        assert [to_hex(line.get_color()) for line in axes.lines] == [GREY, look(0).colour, look(1).colour]
        band = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert band.max() == pytest.approx(quartiles(study.eigenvalues[f"{kind}/id"])[2].max())


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_ranks_are_whole_numbers(classes):
    for panel in top_eigenvalues(make_study(classes=classes, width=9, known=9, unknown=7)).panels:
        axes = drawn(panel)
        axes.figure.draw_without_rendering()
        low, high = axes.get_xlim()
        inside = [tick for tick in axes.get_xticks() if low < tick < high]
        assert inside
        assert all(tick == round(tick) for tick in inside)
        assert low < 1 <= classes - 1 < high


@pytest.mark.parametrize("value", [0.0937, 0.11, 3.3, 7e-9])
def test_an_axis_of_nearly_equal_eigenvalues_has_two_labels(value, study):
    values = {key: np.array([[value] * 4] * 3) for key in study.eigenvalues}
    axes = drawn(top_eigenvalues(replace(study, eigenvalues=values)).panels[0])
    axes.figure.draw_without_rendering()
    low, high = axes.get_ylim()
    assert sum(low < tick < high for tick in axes.get_yticks()) >= 2
    assert low < value < high


@pytest.mark.parametrize("space", ["parameter", "feature"])
def test_an_axis_of_densities_has_two_labels_at_least(study, space):
    axes = drawn(spectral_densities(study, space).panels[0])
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2


def test_zeros_of_an_estimate_are_drawn_wherever_chance_has_put_them(study):
    moved = {**study.nodes, "parameter/far-set": study.nodes["parameter/far-set"] + 1e-5}
    zeros = np.abs(study.nodes["parameter/far-set"]) < 1e-9
    assert zeros.any()
    at, near = (curve(each, "parameter", "far-set") for each in (study, replace(study, nodes=moved)))
    assert at.mean.max() == pytest.approx(near.mean.max(), rel=1e-3)
    assert at.zeros == near.zeros
    assert curve(study, "feature", "far-set").mean[0] < 1e-3 * curve(study, "feature", "far-set").mean.max()


def test_two_classes_have_one_eigenvalue_which_is_a_dot():
    study = make_study(classes=2, width=3, known=9, unknown=7)
    assert study.eigenvalues["none/id"].shape == (9, 2)
    for panel in top_eigenvalues(study).panels:
        lines = drawn(panel).lines
        assert [line.get_xdata().tolist() for line in lines] == [[1]] * 3
        assert all(line.get_marker() == "o" for line in lines)


def test_eigenvalues_of_zero_are_not_drawn_and_tiny_ones_lie_below_the_axis(study):
    values = {key: np.array([[1.0, 1e-3, 1e-20, 0.0]] * 3) for key in study.eigenvalues}
    axes = drawn(top_eigenvalues(replace(study, eigenvalues=values)).panels[0])
    heights = axes.lines[0].get_ydata()
    assert heights[:3].tolist() == [1.0, 1e-3, 1e-20]
    assert np.isnan(heights[3])
    assert 1e-20 < axes.get_ylim()[0] < 1e-12


def test_a_short_axis_of_eigenvalues_has_labels_too(study):
    values = {key: np.array([[0.4, 0.3, 0.15, 0.12]] * 3) for key in study.eigenvalues}
    axes = drawn(top_eigenvalues(replace(study, eigenvalues=values)).panels[0])
    axes.figure.draw_without_rendering()
    low, high = axes.get_ylim()
    texts = [label.get_text() for label in axes.get_yticklabels()]
    assert [text for text in texts if low < float(text) < high] == ["0.1", "0.2", "0.5"]


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_eigenvalues_that_no_logarithm_knows_do_no_harm(study, value):
    values = {key: np.full((2, 4), value) for key in study.eigenvalues}
    assert len(top_eigenvalues(replace(study, eigenvalues=values)).inline()) == 3


def test_one_input_of_each_data_set_is_enough():
    study = make_study(known=1, unknown=1)
    drawings = [trace_densities(study), spectral_densities(study, "parameter"), top_eigenvalues(study)]
    assert all(re.search(r"<path", svg) for drawing in drawings for svg in drawing.inline())
