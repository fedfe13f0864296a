"""Colours, dashes, ticks and ends of axes."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from flatfold.report.span import Span
from flatfold.report.style import PALETTE, logarithmic, look, power_of_ten


def test_no_two_of_many_lines_look_alike():
    looks = [look(number) for number in range(100)]
    assert len(set(looks)) == 100
    assert [line.colour for line in looks[:8]] == list(PALETTE)
    assert all(line.stroke == "-" for line in looks[:8])
    assert all(len(line.dashes) % 2 == 0 for line in looks)
    assert look(17).stroke == (0, (4.0, 1.5, 1.0, 1.5))


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (0.001, "0.001"), (1e-12, "10⁻¹²"), (1e4, "10⁴"), (5.0, ""), (0.0, ""), (-1.0, "")]
)
def test_only_powers_of_ten_have_a_text(value, text):
    assert power_of_ten(value) == text


@pytest.mark.parametrize(("subs", "texts"), [((1.0,), {"1", "10"}), ((1.0, 2.0, 5.0), {"1", "2", "5", "10"})])
def test_a_logarithmic_axis_labels_the_ticks_it_is_told(subs, texts):
    axes = Figure().subplots()
    axes.plot([1, 10], [1, 10])
    logarithmic(axes, "y", subs)
    assert axes.get_yscale() == "log"
    assert axes.get_xscale() == "linear"
    axes.set_ylim(1, 10)
    axes.figure.draw_without_rendering()
    shown = {label.get_text() for label in axes.get_yticklabels()}
    assert texts <= shown
    assert not any(label.get_text() for label in axes.get_yticklabels(minor=True))


def test_a_span_holds_all_but_one_percent():
    span = Span.of(np.arange(-500.0, 501.0))
    assert (span.low, span.high, span.logarithmic) == (-495.0, 495.0, False)
    assert span.clip(np.array([-9e9, 3.0, np.inf], dtype=np.float32)).tolist() == [-495.0, 3.0, 495.0]


def test_positive_values_over_many_decades_get_a_logarithmic_axis():
    span = Span.of(np.geomspace(1e-9, 1.0, 1001))
    assert span.logarithmic
    edges = span.edges(4)
    assert edges[0] == span.low
    assert edges[-1] == span.high
    np.testing.assert_allclose(np.diff(np.log(edges)), np.log(span.high / span.low) / 4)
    axes = Figure().subplots()
    span.apply(axes, "x")
    assert axes.get_xscale() == "log"
    assert axes.get_yscale() == "linear"
    room = (span.high / span.low) ** 0.03
    assert axes.get_xlim() == pytest.approx((span.low / room, span.high * room))


def test_values_of_either_sign_get_a_linear_axis():
    span = Span.of(np.array([-1.0, 1e6]))
    assert not span.logarithmic
    np.testing.assert_allclose(np.diff(span.edges(3)), (span.high - span.low) / 3)
    axes = Figure().subplots()
    span.apply(axes, "y")
    assert axes.get_ylim() == pytest.approx((-1 - 0.03 * (1e6 + 1), 1e6 + 0.03 * (1e6 + 1)))


@pytest.mark.parametrize("value", [0.0, 5.0, -1e20, 1e-30])
def test_constant_values_have_room(value):
    span = Span.of(np.full(10, value, dtype=np.float32))
    assert span.low < np.float32(value) < span.high
    assert len(set(span.edges(50))) == 51


def test_infinite_values_do_not_stretch_the_axis():
    assert Span.of(np.array([np.inf, 1.0, 2.0, -np.inf])).high < 2.1
    assert Span.of(np.array([np.inf])) == Span(0.0, 1.0, False)
