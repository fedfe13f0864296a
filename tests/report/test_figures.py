"""What each figure shows, read from its axes."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from flatfold.evaluate.results import AlphaCurve
from flatfold.report.alphas import alpha_curves, regret
from flatfold.report.curves import roc, roc_curves, thinned
from flatfold.report.family import best_of_family, in_family
from flatfold.report.figures import all_figures
from flatfold.report.histograms import histograms
from flatfold.report.norms import evenly, headings, norm_figures
from flatfold.report.style import GREY, KNOWN, look

MANY_SETS = {f"set{i}": "near" if i % 2 else "far" for i in range(11)}


def drawn(panel, size=(4, 3)):
    axes = Figure(figsize=size).subplots()
    panel.draw(axes)
    return axes


def test_histograms_come_best_first_with_their_average(make_run):
    results = make_run(tuple(f"m{i}" for i in range(7)))
    panels = histograms(results).panels
    assert [panel.title for panel in panels] == [run.method for run in results.ranked]
    best = max(mean.auroc for mean in results.averages if mean.over == "all")
    assert panels[0].note == f"AUROC {100 * best:.2f}"


def test_a_histogram_counts_every_score_of_every_data_set(make_run):
    results = make_run(("msp",), MANY_SETS)
    drawing = histograms(results)
    axes = drawn(drawing.panels[0])
    assert len(axes.patches) == 12
    looks = {(to_hex(patch.get_edgecolor()), str(patch.get_linestyle())) for patch in axes.patches[:-1]}
    assert len(looks) == 11
    assert [key.label for key in drawing.keys] == ["known", *MANY_SETS]
    for patch in axes.patches:
        heights = patch.get_xy()[:, 1]
        assert heights.max() <= 1
        assert heights.max() > 0
    assert axes.get_xscale() == "log"


def test_the_curve_counts_alarms_at_every_known_score():
    known, unknown = np.array([1.0, 2.0, 2.0, 3.0]), np.array([0.0, 2.0, 2.5, 9.0])
    false_alarms, found = roc(known, unknown)
    thresholds = [3.0, 2.0, 1.0]
    assert false_alarms.tolist() == [np.mean(known >= t) for t in thresholds]
    assert found.tolist() == [np.mean(unknown >= t) for t in thresholds]


def test_a_long_curve_is_thinned_to_points_of_its_own():
    rng = np.random.default_rng(0)
    curve = roc(rng.normal(size=20_000), rng.normal(1, 1, size=5_000))
    few = thinned(*curve)
    assert len(few[0]) <= 300
    assert set(zip(*few, strict=True)) <= set(zip(*curve, strict=True))
    for thin, full in zip(few, curve, strict=True):
        assert (thin[0], thin[-1]) == (full[0], full[-1])
    assert np.diff(np.log(few[0])).max() < 0.8  # no gap wider than that between the two first points, a factor of 2
    short = roc(rng.normal(size=50), rng.normal(size=50))
    assert thinned(*short) is not curve
    assert thinned(*short)[0] is short[0]


def test_the_eight_best_methods_have_a_curve_on_every_data_set(make_run):
    results = make_run(tuple(f"m{i}" for i in range(10)))
    drawing = roc_curves(results)
    assert [panel.title for panel in drawing.panels] == ["near-set", "far-set"]
    assert [key.label for key in drawing.keys] == [run.method for run in results.ranked[:8]]
    axes = drawn(drawing.panels[1])
    assert len(axes.lines) == 8
    best = results.ranked[0].method
    false_alarms, found = roc(results.scores[f"{best}/id"], results.scores[f"{best}/far-set"])
    np.testing.assert_allclose(axes.lines[0].get_xydata(), 100 * np.stack([false_alarms, found], 1))
    assert axes.get_xscale() == "log"
    assert axes.get_xlim() == (0.5, 100)


def test_a_single_known_image_can_be_drawn(make_run):
    drawing = roc_curves(make_run(known=1))
    assert drawn(drawing.panels[0]).get_xlim() == (50, 100)


def test_the_figure_of_alpha_says_what_was_chosen_what_was_best_and_the_regret(make_run):
    (panel,) = alpha_curves(make_run()).panels
    assert panel.title == "autofold: α = 0.5"
    assert panel.note == "best 1, regret 50.00"
    axes = drawn(panel)
    assert len(axes.lines) == 5  # criterion, two data sets, their average, the choice
    assert axes.lines[-1].get_xdata() == [0.5, 0.5]
    assert axes.lines[0].get_ydata().tolist() == [70.0, 90.0, 80.0]


def test_a_choice_that_was_rounded_is_found_on_the_grid():
    curve = AlphaCurve("a", [0.1, 0.2 + 1e-9], [0.5, 0.6], [0.0, 0.0], 0.2, {"all": [0.95, 0.93]})
    assert regret(curve) == "best 0.1, regret 2.00"


def test_no_data_set_is_missing_from_the_figure_of_alpha(make_run):
    drawing = alpha_curves(make_run(sets=MANY_SETS))
    assert {f"true: {name}" for name in MANY_SETS} <= {key.label for key in drawing.keys}
    assert len(drawn(drawing.panels[0]).lines) == 3 + len(MANY_SETS)


@pytest.mark.parametrize(
    ("name", "member"), [("fold", True), ("autofold-r", True), ("fold-a", True), ("msp", False), ("unfold", False)]
)
def test_the_family_is_known_by_the_name_of_the_method(name, member, make_run):
    run = replace(make_run().methods[0], name=name)
    assert in_family(run) is member


def test_rows_are_chosen_in_even_steps():
    assert evenly(5) == [0, 1, 2, 3, 4]
    rows = evenly(10_000)
    assert len(rows) == len(set(rows)) == 600
    assert (rows[0], rows[-1]) == (0, 9_999)
    assert set(np.diff(rows)) == {16, 17}
    assert evenly(1) == [0]


def test_norms_are_drawn_for_the_best_fold_and_for_the_best_method(make_run):
    results = make_run(("autofold", "fold-r", "msp", "ebo", "mls", "vim", "knn"))
    family = best_of_family(results)
    best = results.ranked[0]
    assert family.method in ("autofold", "fold-r")
    first, second = norm_figures(results)
    assert (
        [panel.title for panel in first.panels] == [panel.title for panel in second.panels] == ["near-set", "far-set"]
    )
    assert headings(results) == {
        "norms-fold": f"{family.method}, the best of the FOLD family",
        "norms-best": f"{best.method}, the best of all",
    }
    axes = drawn(second.panels[1])
    known, unknown = axes.collections
    assert to_hex(known.get_facecolor()[0]) == GREY
    assert to_hex(unknown.get_facecolor()[0]) == look(1).colour
    inner = np.abs(unknown.get_offsets()[:, 0] - results.norms["far-set"]) < 1e-6
    assert inner.mean() > 0.9  # all but those far out
    assert known.get_rasterized()
    other = drawn(second.panels[0])
    assert other.get_ylim() == axes.get_ylim()
    assert other.get_xlim() != axes.get_xlim()


def test_one_figure_of_norms_is_enough_when_the_best_is_a_fold(make_run):
    results = make_run(("fold",))
    first, second = norm_figures(results)
    assert len(first.panels) == 2
    assert not second.panels
    assert headings(results)["norms-fold"] == "fold, the best of all and of the FOLD family"


def test_a_run_without_a_fold_has_one_figure_of_norms(make_run):
    first, second = norm_figures(make_run(("msp", "knn"), curves=False))
    assert not first.panels
    assert len(second.panels) == 2


def test_few_points_stay_points(make_run):
    (first, _) = norm_figures(make_run(("fold",), known=20, unknown=10))
    assert not drawn(first.panels[0]).collections[0].get_rasterized()


def test_results_without_norms_have_no_figure_of_them(make_run):
    results = make_run(extras=False)
    figures = all_figures(results)
    assert set(figures) == {"histograms", "roc", "norms-fold", "norms-best", "alpha", "costs", "costs-tall"}
    assert not figures["norms-fold"].panels
    assert not figures["norms-best"].panels


def test_known_inputs_are_grey_everywhere(make_run):
    assert histograms(make_run()).keys[0].look.colour == KNOWN
