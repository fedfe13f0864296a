"""What is said of a study's numbers: no data set that is not above the known images passes for one that is."""

from dataclasses import replace

import pytest

from flatfold.evaluate.study.certainty import above
from flatfold.report.curvature.compare import compare
from flatfold.report.curvature.finding import finding
from flatfold.report.curvature.numbers import factor, quantity, tick
from tests.toy_study import make_study

FIVE = {"a": "near", "b": "near", "c": "far", "d": "far", "e": "far"}


def with_values(study, values, stderr=None):
    """Return the study with these figures of each data set, over parameters and features, and 1 for the known."""
    told = {"id": 1.0, **values}
    figures = [replace(s, value=told[s.dataset], stderr=stderr) for s in study.statistics]
    return replace(study, statistics=figures)


def changed(study, dataset, space, name, value):
    """Return the study with another value of one figure."""
    found = [
        replace(s, value=value) if (s.dataset, s.space, s.name) == (dataset, space, name) else s
        for s in study.statistics
    ]
    return replace(study, statistics=found)


@pytest.fixture(scope="module")
def study():
    return make_study(FIVE, classes=3, width=4, known=10, unknown=8)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.99996, "1.000"),
        (999.96, "1,000"),
        (1234.5678, "1,235"),
        (999_999.9, "1,000,000"),
        (1e6, "1.000·10⁶"),
        (9.9999e9, "1.000·10¹⁰"),
        (0.001, "0.001000"),
        (0.00099, "9.900·10⁻⁴"),
        (-2.5e-12, "−2.500·10⁻¹²"),
        (5e-324, "4.941·10⁻³²⁴"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (0.0, "0"),
        (-0.0, "0"),
    ],
)
def test_a_number_has_four_digits_and_a_power_of_ten_where_it_needs_one(value, text):
    assert quantity(value) == text


def test_a_factor_is_told_between_positive_figures_only():
    assert factor(3.0, 2.0) == "×\u00a01.50"
    assert [factor(*pair) for pair in ((1.0, 0.0), (1.0, -2.0), (-1.0, 2.0), (0.0, 1.0))] == [""] * 4


@pytest.mark.parametrize(
    ("value", "text"), [(0.25, "0.25"), (-1e-7, "−10⁻⁷"), (3e-5, "3·10⁻⁵"), (0.0, "0"), (1500, "1500")]
)
def test_a_tick_has_no_more_digits_than_it_needs(value, text):
    assert tick(value) == text


@pytest.mark.parametrize(
    ("value", "stderr", "known_stderr", "order"),
    [
        (1.1, None, None, 1),
        (0.9, None, None, -1),
        (1.0, None, None, 0),
        (1.1, 0.01, None, 1),
        (1.1, 0.06, None, 0),
        (1.1, 0.03, 0.03, 0),
        (0.9, None, 0.06, 0),
        (0.8, 0.03, 0.06, -1),
    ],
)
def test_two_standard_errors_of_both_must_lie_between_two_figures(study, value, stderr, known_stderr, order):
    first = study.statistics[0]
    assert above(replace(first, value=value, stderr=stderr), replace(first, value=1.0, stderr=known_stderr)) == order


def test_groups_of_several_data_sets_have_a_mean_and_a_single_one_has_none(study):
    comparison = compare(study)
    assert list(comparison.unknown) == list(FIVE)
    assert list(comparison.means) == ["near", "far"]
    pair = [comparison.unknown[name]["feature", "trace"].value for name in ("a", "b")]
    assert comparison.means["near"]["feature", "trace"].value == pytest.approx(sum(pair) / 2)
    assert compare(make_study()).means == {}


def test_parameters_come_first_whatever_the_order_in_the_file(study):
    columns = [(space, name) for space in ("parameter", "feature", "logit") for name in ("lambda_max", "trace")]
    assert list(compare(replace(study, statistics=study.statistics[::-1])).known) == columns


def test_all_above_is_said_with_the_range_of_factors(study, parsed):
    text = "".join(parsed(finding(compare(with_values(study, {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6.5})))).text)
    assert text.startswith(
        "Both the largest eigenvalue λmax and the trace of the curvature, over parameters and over features, exceed "
        "those of the known images in all 5 unknown data sets. "
    )
    for words in ("λmax over parameters", "trace over parameters", "λmax over features", "trace over features"):
        assert f"{words} ×\u00a02.00 to 6.50" in text
    assert "logit" not in text
    assert "Not so" not in text


def test_one_figure_below_is_enough_to_be_named_with_its_factor(study, parsed):
    high = with_values(study, dict.fromkeys(FIVE, 2.0))
    text = "".join(parsed(finding(compare(changed(high, "c", "parameter", "lambda_max", 0.8)))).text)
    assert "in 4 of 5 unknown data sets" in text
    assert "λmax over parameters ×\u00a00.800 to 2.00" in text
    assert "trace over parameters ×\u00a02.00, " in text  # all the same: no range
    assert "Not so in c (λmax over parameters ×\u00a00.800)." in text


def test_a_logit_below_is_not_counted(study):
    high = with_values(study, dict.fromkeys(FIVE, 2.0))
    assert finding(compare(changed(high, "c", "logit", "trace", 0.1))) == finding(compare(high))


def test_what_the_errors_do_not_tell_apart_does_not_count_as_above(study, parsed):
    low = with_values(study, {"a": 2, "b": 2, "c": 1.1, "d": 2, "e": 0.5}, stderr=0.1)
    text = "".join(parsed(finding(compare(low))).text)
    assert "in 3 of 5 unknown data sets" in text
    assert "c (λmax over parameters not to be told apart, trace over parameters not to be told apart" in text
    assert ") and e (λmax over parameters ×\u00a00.500" in text


def test_a_negative_trace_has_no_factor_and_is_called_lower(study, parsed):
    low = changed(with_values(study, dict.fromkeys(FIVE, 2.0)), "b", "parameter", "trace", -60.0)
    text = "".join(parsed(finding(compare(low))).text)
    assert "Not so in b (trace over parameters lower)." in text
    assert "trace over parameters ×" not in text
    assert "trace over features ×\u00a02.00" in text


def test_known_figures_of_zero_leave_no_sentence_on_factors(study, parsed):
    zero = replace(
        study, statistics=[replace(s, value=float(s.dataset != "id"), stderr=None) for s in study.statistics]
    )
    text = "".join(parsed(finding(compare(zero))).text)
    assert "all 5" in text
    assert "Against" not in text


def test_a_single_data_set_is_spoken_of_in_the_singular(parsed):
    study = make_study({"only": "far"}, classes=3, width=4, known=10, unknown=8)
    assert "in 1 of 1 unknown data set." in "".join(parsed(finding(compare(with_values(study, {"only": 2})))).text)
    text = "".join(parsed(finding(compare(with_values(study, {"only": 0.5})))).text)
    assert "in 0 of 1 unknown data set." in text
    assert "Not so in only (" in text


def test_names_become_no_markup():
    study = make_study({"<b>&": "far"}, classes=3, width=4, known=10, unknown=8)
    assert "&lt;b&gt;&amp;" in finding(compare(with_values(study, {"<b>&": 0.5})))
