"""The figures of a report: what they show, read from their axes."""

import numpy as np
from matplotlib.colors import to_hex

from flatfold.evaluate.results import FIGURES, AlphaCurve
from flatfold.report.figures import (
    BAND,
    NARROW_BAND,
    alarm_threshold,
    all_figures,
    alpha_curves,
    histograms,
    norm_figures,
    regret,
    roc,
    roc_curves,
    threshold_figure,
)
from tests.report.conftest import drawn

MANY_SETS = {f"set{i}": "near" if i % 2 else "far" for i in range(11)}


def test_histograms_come_best_first_and_count_every_data_set(make_run):
    results = make_run(("msp", "knn"), MANY_SETS)
    drawing = histograms(results)
    assert [panel.title for panel in drawing.panels] == [run.method for run in results.ranked]
    best = max(mean.auroc for mean in results.averages if mean.over == "all")
    assert drawing.panels[0].note == f"AUROC {100 * best:.2f}"
    assert [key.label for key in drawing.keys] == ["ID", *MANY_SETS]
    axes = drawn(drawing.panels[0])
    assert len(axes.patches) == 12
    assert len({(to_hex(patch.get_edgecolor()), str(patch.get_linestyle())) for patch in axes.patches[:-1]}) == 11
    for patch in axes.patches:
        assert 0 < patch.get_xy()[:, 1].max() <= 1
    assert axes.get_xscale() == "log"


def test_the_roc_curve_counts_alarms_at_every_id_score():
    known, unknown = np.array([1.0, 2.0, 2.0, 3.0]), np.array([0.0, 2.0, 2.5, 9.0])
    false_alarms, found = roc(known, unknown)
    assert false_alarms.tolist() == [np.mean(known >= t) for t in (3.0, 2.0, 1.0)]
    assert found.tolist() == [np.mean(unknown >= t) for t in (3.0, 2.0, 1.0)]


def test_the_eight_best_methods_have_a_roc_curve_on_every_data_set(make_run):
    results = make_run(tuple(f"m{i}" for i in range(10)))
    drawing = roc_curves(results)
    assert [panel.title for panel in drawing.panels] == ["near-set", "far-set"]
    assert [key.label for key in drawing.keys] == [run.method for run in results.ranked[:8]]
    axes = drawn(drawing.panels[1])
    assert len(axes.lines) == 8
    best = results.ranked[0].method
    false_alarms, found = roc(results.scores[f"{best}/id"], results.scores[f"{best}/far-set"])
    np.testing.assert_allclose(axes.lines[0].get_xydata(), 100 * np.stack([false_alarms, found], 1))
    assert drawn(roc_curves(make_run(known=1)).panels[0]).get_xlim() == (50, 100)


def test_the_figure_of_alpha_shows_choice_best_and_regret(make_run):
    drawing = alpha_curves(make_run(sets=MANY_SETS))
    (panel,) = drawing.panels
    assert (panel.title, panel.note) == ("autofold: α = 0.5", "best 1, regret 50.00")
    axes = drawn(panel)
    assert len(axes.lines) == 3 + len(MANY_SETS)  # criterion, average and choice
    assert axes.lines[-1].get_xdata() == [0.5, 0.5]
    assert axes.lines[0].get_ydata().tolist() == [70.0, 90.0, 80.0]
    assert {f"true: {name}" for name in MANY_SETS} <= {key.label for key in drawing.keys}
    rounded = AlphaCurve("a", [0.1, 0.2 + 1e-9], [0.5, 0.6], [0.0, 0.0], 0.2, {"all": [0.95, 0.93]})
    assert regret(rounded) == "best 0.1, regret 2.00"


def test_norms_are_drawn_for_the_best_fold_and_for_the_best_method(make_run):
    results = make_run(("autofold", "fold-r", "msp", "ebo", "mls", "vim", "knn"))
    family = next(run.method for run in results.ranked if run.method in ("autofold", "fold-r"))
    first, second = norm_figures(results)
    assert first.heading == f"{family}, the best of the FOLD family"
    assert second.heading == f"{results.ranked[0].method}, the best of all"
    for drawing in (first, second):
        assert [panel.title for panel in drawing.panels] == ["near-set", "far-set"]
    known, unknown = drawn(second.panels[1]).collections
    assert len(known.get_offsets()) == 200
    inner = np.abs(unknown.get_offsets()[:, 0] - results.norms["far-set"]) < 1e-6
    assert inner.mean() > 0.9  # all but those far out
    for methods, panels in ((("fold",), (2, 0)), (("msp", "knn"), (0, 2))):
        figures = norm_figures(make_run(methods, curves=False))
        assert tuple(len(drawing.panels) for drawing in figures) == panels, methods
    without = all_figures(make_run(extras=False))
    assert not without["norms-fold"].panels
    assert not without["norms-best"].panels
    assert without.keys() - {"costs-tall", "threshold-tall"} == set(FIGURES)  # the files that new results remove


def test_the_first_figure_draws_the_threshold_among_the_scores_of_a_method_for_guards(make_run):
    results = make_run(("odin", "msp"))
    for size in (BAND, NARROW_BAND):
        (panel,) = threshold_figure(results, size).panels
        axes = drawn(panel)
        threshold = alarm_threshold(results.scores["msp/id"])
        assert axes.lines[0].get_xdata()[0] == threshold
        assert axes.get_xlim()[0] < threshold < axes.get_xlim()[1]
        assert "msp" in axes.get_xlabel()
