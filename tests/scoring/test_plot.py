"""The figure of a guard: calibration, threshold and new scores, read from its axes."""

import pytest
import torch
from matplotlib.figure import Figure

import flatfold as ff
from flatfold.scoring.calibrated import Verdict
from tests.four_classes import known, make_model

pytestmark = pytest.mark.filterwarnings("ignore:this data has no labels")


def make_guard(**options):
    return ff.Guard.fit(make_model().eval(), known(400), method="ebo", fpr=0.1, **options)


def texts(figure):
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    return legend, " ".join(figure.axes[0].get_title(loc=side) for side in ("left", "right"))


def test_new_scores_are_drawn_beside_the_calibration_and_the_threshold():
    guard = make_guard()
    x = torch.cat([known(30, seed=3)[0], 0.3 * torch.rand(10, 8)])
    verdict = guard(x)
    for data in (x, verdict):
        figure = guard.plot(data)
        assert isinstance(figure, Figure)
        (axes,) = figure.axes
        threshold = float(guard.calibration.threshold[0])
        assert axes.lines[0].get_xdata()[0] == pytest.approx(threshold)
        low, high = axes.get_xlim()
        assert low < threshold < high
        calibration, new = axes.patches
        widths = [patch.get_xy()[:, 1] for patch in (calibration, new)]
        assert all(0 < heights.max() <= 1 for heights in widths)
        legend, title = texts(figure)
        alarms = int(verdict.is_ood.sum())
        assert legend == [
            "calibration: 200 ID inputs", f"new: 40 inputs, {alarms} alarms", "threshold at 10 % false alarms",
        ]  # fmt: skip
        assert "ebo" in title
        assert f"alarm above {threshold:.3g}" in title


def test_the_threshold_is_not_at_the_edge_and_new_inputs_may_be_missing_empty_or_not_finite():
    guard = make_guard()
    threshold = float(guard.calibration.threshold[0])
    verdict = guard(known(5, seed=1)[0])
    infinite = verdict._replace(score=torch.tensor([1.0, torch.inf, torch.nan, -torch.inf, 2.0]))
    empty = Verdict(*(column[:0] for column in verdict))
    lowest = verdict._replace(score=torch.full((5,), -1e9))
    for data, bars in ((None, 1), (empty, 1), (infinite, 2), (lowest, 2), (verdict, 2)):
        (axes,) = guard.plot(data).axes
        low, high = axes.get_xlim()
        assert threshold < low + 0.99 * (high - low)
        assert len(axes.patches) == bars


def test_thresholds_of_classes_are_named_and_not_drawn():
    guard = make_guard(per_class=True)
    figure = guard.plot(known(20, seed=1)[0])
    low, high = (f"{float(end):.3g}" for end in guard.calibration.threshold.aminmax())
    assert f"alarm above {low} to {high}, by class" in texts(figure)[1]
    assert len(figure.axes[0].lines) == 0
    assert len(texts(figure)[0]) == 2
