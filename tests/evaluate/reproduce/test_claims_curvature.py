"""Claims about curvature against slow sums in float64, and studies in which they are wrong."""

from dataclasses import replace

import numpy as np
import pytest

from flatfold.core.delong import paired_difference
from flatfold.evaluate.reproduce.claims import exhibits
from flatfold.evaluate.reproduce.claims.curvature import figure, path, plus_minus, regimes
from flatfold.evaluate.reproduce.claims.eigenvalues import gaps
from flatfold.evaluate.reproduce.claims.logits import average
from flatfold.evaluate.reproduce.claims.singles import quartile_ratio, shift
from flatfold.evaluate.reproduce.claims.spectra import broad
from tests.toy_ablations import make_ablations, make_material
from tests.toy_study import auroc, make_study

FOUR = {"a": "near", "b": "near", "c": "far", "d": "far"}
EXHIBITS = {exhibit.number: exhibit for exhibit in exhibits()}


@pytest.fixture(scope="module")
def study():
    return make_study(FOUR)


def told(number, study):
    return EXHIBITS[number].verdict([make_material(study=study)])


def holds(number, study):
    return [check.holds for check in told(number, study).checks]


def with_values(study, values, error=0.01):
    """Return a study whose figures are the same in every space and of every kind, by data set."""
    statistics = [
        replace(each, value=values[each.dataset], stderr=error * values[each.dataset]) for each in study.statistics
    ]
    sure = {name: np.full_like(traces, values[name.partition("/")[2]]) for name, traces in study.traces.items()}
    return replace(study, statistics=statistics, traces=sure)


UP = {"id": 1.0, "a": 2.0, "b": 3.0, "c": 4.0, "d": 5.0}
DOWN = {"id": 9.0, "a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0}
SAME = dict.fromkeys(UP, 1.0)
BENT = {"id": 1.0, "a": 2.0, "b": 5.0, "c": 4.0, "d": 6.0}  # a near set above a far one; the means still grow


def test_the_error_of_a_trace_counts_the_images_that_of_lambda_max_does_not(study):
    told = figure(study, "a", "parameter", "trace")
    traces = study.traces["parameter/a"]
    drawn = np.sqrt(((traces - traces.mean()) ** 2).sum() / (len(traces) - 1) / len(traces))
    computed = study.cell("a", "parameter", "trace").stderr
    assert told.stderr == pytest.approx(np.sqrt(computed**2 + drawn**2), rel=1e-12)
    assert figure(study, "a", "parameter", "lambda_max") == study.cell("a", "parameter", "lambda_max")


def test_a_group_is_the_mean_of_its_data_sets_with_independent_errors(study):
    told = figure(study, "near", "feature", "trace")
    a, b = (figure(study, name, "feature", "trace") for name in "ab")
    assert told.value == pytest.approx((a.value + b.value) / 2, rel=1e-12)
    assert told.stderr == pytest.approx(np.sqrt(a.stderr**2 + b.stderr**2) / 2, rel=1e-12)


def test_one_image_leaves_every_trace_open(study):
    single = replace(study, traces={**study.traces, "feature/a": study.traces["feature/a"][:1]})
    assert figure(single, "a", "feature", "trace").stderr == np.inf


def test_regimes_are_told_in_a_row(study):
    assert regimes(study) == ["id", "near", "far"]
    assert path(with_values(study, UP), "feature", "trace") == "trace 1.00 known, 2.50 near, 4.50 far"
    assert plus_minus(replace(study.cell("a", "feature", "trace"), value=2.0)) == "2.00"
    assert plus_minus(replace(study.cell("a", "feature", "trace"), value=2.0, stderr=0.5)) == "2.00 ± 0.500"


@pytest.mark.parametrize("number", ["Table 1", "Table 6"])
def test_figures_must_grow_from_known_to_near_and_from_near_to_far(study, number):
    assert holds(number, with_values(study, UP)) == [True] * 4
    assert holds(number, with_values(study, DOWN)) == [False] * 4
    assert holds(number, with_values(study, SAME)) == [None] * 4
    assert holds(number, with_values(study, UP, error=0.5)) == [None] * 4


def test_the_space_of_a_table_is_its_own(study):
    up, down = with_values(study, UP), with_values(study, DOWN)
    mixed = replace(
        up, statistics=[a if a.space == "parameter" else b for a, b in zip(up.statistics, down.statistics, strict=True)]
    )
    assert told("Table 1", mixed).agreement == "agrees"
    assert told("Table 6", mixed).agreement == "disagrees"
    assert told("Figures 8 and 10", mixed).agreement == "agrees"
    assert told("Figures 9 and 11", mixed).agreement == "disagrees"


def test_every_data_set_must_lie_above_the_known_one_and_the_highest_must_be_a_far_one(study):
    assert holds("Table 7", with_values(study, UP)) == [True] * 8
    assert holds("Table 7", with_values(study, DOWN)) == [False] * 8
    assert holds("Table 7", with_values(study, BENT)) == [True] * 8
    assert holds("Table 7", with_values(study, {**BENT, "b": 7.0})) == [True, False] * 4
    assert "trace over features is highest in b, 3.00 and d, 5.00 (near and far)" in [
        check.what for check in told("Table 7", with_values(study, UP)).checks
    ]
    assert holds("Table 7", with_values(study, SAME)) == [None] * 8
    assert "λmax over parameters 4" in told("Table 7", with_values(study, UP)).shows


def test_a_spectrum_must_reach_further_than_the_known_one_even_where_it_falls_from_near_to_far(study):
    found = told("Figure 7", with_values(study, {**UP, "c": 1.5, "d": 1.5})).checks[:4]
    assert [check.holds for check in found] == [True] * 4
    assert [check.what.partition(":")[0] for check in found[:2]] == [
        "λmax over parameters grows from known to near",
        "λmax over parameters grows from known to far",
    ]
    assert [check.holds for check in told("Figure 7", with_values(study, DOWN)).checks[:4]] == [False] * 4


def test_known_traces_are_enlarged_by_two_typical_errors_before_they_are_compared(study):
    known = 1.2 * study.traces["parameter/id"]  # the toy study says 10 % of every trace
    expected = np.mean([auroc(known, study.traces[f"parameter/{name}"]) for name in "ab"])
    assert shift(study, ["a", "b"]).auroc == pytest.approx(expected, abs=1e-12)
    exact = replace(study, trace_stderr={})
    plain = auroc(study.traces["parameter/id"], study.traces["parameter/a"])
    assert shift(exact, ["a"]).auroc == pytest.approx(plain, abs=1e-12)


def with_parameter_traces(study, known, unknown):
    rng = np.random.default_rng(3)
    traces = {f"parameter/{name}": rng.lognormal(*(known if name == "id" else unknown), 300) for name in study.datasets}
    return replace(study, traces={**study.traces, **traces}, trace_stderr={})


def test_traces_of_single_inputs_must_be_shifted_and_broader(study):
    assert holds("Figure 2", with_parameter_traces(study, (0, 1), (3, 1))) == [True] * 4
    assert holds("Figure 2", with_parameter_traces(study, (3, 1), (0, 1))) == [False] * 4
    assert holds("Figure 2", with_parameter_traces(study, (0, 1), (1.5, 0.1))) == [True, False] * 2
    assert holds("Figures 12 to 15", with_parameter_traces(study, (0, 1), (3, 1))) == [True] * 4
    assert holds("Figures 12 to 15", with_parameter_traces(study, (3, 1), (0, 1))) == [False] * 4
    alike = with_parameter_traces(study, (0, 1), (0, 1))
    few = replace(alike, traces={name: traces[:25] for name, traces in alike.traces.items()})
    assert None in holds("Figures 12 to 15", few)


def test_the_ratio_of_quartiles_is_that_of_sorted_values():
    known, unknown = np.arange(101.0), 3 * np.arange(201.0)
    ratio, low, high = quartile_ratio(known, unknown)
    assert ratio == pytest.approx(300 / 50)
    assert low < ratio < high
    assert quartile_ratio(known, unknown) == (ratio, low, high)
    assert quartile_ratio(np.ones(5), unknown)[0] == np.inf


def test_the_interval_of_the_ratio_covers_it_in_most_trials():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(100):
        _, low, high = quartile_ratio(rng.normal(size=120), 2 * rng.normal(size=90))
        covered += low <= 2 <= high
    assert 88 <= covered <= 100


def test_the_share_of_large_eigenvalues_is_counted(study):
    values = study.nodes["feature/a"][0]
    assert broad(study, "feature", "a") == (pytest.approx(np.mean(values > 0.01 * values.max())), 0.0)
    nodes, weights = study.nodes["parameter/a"], study.weights["parameter/a"]
    largest = study.cell("a", "parameter", "lambda_max").value
    shares = [
        sum(w for n, w in zip(*row, strict=True) if n > 0.01 * largest) for row in zip(nodes, weights, strict=True)
    ]
    share, error = broad(study, "parameter", "a")
    assert share == pytest.approx(np.mean(shares))
    assert error == pytest.approx(np.std(shares, ddof=1) / np.sqrt(len(shares)))


def test_the_spectrum_over_features_must_be_broader(study):
    found = told("Figure 7", with_values(study, UP)).checks
    assert [check.holds for check in found[:4]] == [True] * 4
    assert [check.holds for check in told("Figure 7", study).checks[4:]] == [True] * 5
    swapped = {
        name: {
            key.replace(*words): values
            for words in (("parameter", "feature"), ("feature", "parameter"))
            for key, values in getattr(study, name).items()
            if key.startswith(words[0])
        }
        for name in ("nodes", "weights")
    }
    others = {"parameter": "feature", "feature": "parameter", "logit": "logit"}
    statistics = [replace(each, space=others[each.space]) for each in study.statistics]
    assert [c.holds for c in told("Figure 7", replace(study, statistics=statistics, **swapped)).checks[4:]] == [
        False
    ] * 5


def test_a_gap_is_the_auroc_of_one_eigenvalue_averaged_over_data_sets(study):
    found = gaps(study, "partial")
    assert len(found) == 4  # one less than classes
    for rank, each in enumerate(found):
        values = {name: study.eigenvalues[f"partial/{name}"][:, rank] for name in study.datasets}
        expected = np.mean([auroc(values["id"], values[name]) for name in FOUR])
        assert each.auroc == pytest.approx(expected, abs=1e-12)


def with_eigenvalues(study, **shifts):
    """Return a study with the same eigenvalues under all normalisations, unknown ones shifted by some amount."""
    rng = np.random.default_rng(5)
    base = {name: rng.normal(10, 1, (200, 5)) for name in study.datasets}
    made = {
        f"{kind}/{name}": values + (name != "id") * np.asarray(moved)
        for kind, moved in shifts.items()
        for name, values in base.items()
    }
    return replace(study, eigenvalues=made)


def test_partial_normalisation_must_widen_the_gap_at_most_ranks_and_full_make_it_collapse(study):
    assert holds("Figure 6", with_eigenvalues(study, none=1.0, partial=2.0, full=0.1)) == [True, True]
    assert holds("Figure 6", with_eigenvalues(study, none=2.0, partial=1.0, full=2.0)) == [False, False]
    assert holds("Figure 6", with_eigenvalues(study, none=1.0, partial=1.0, full=0.5)) == [None, None]
    half = with_eigenvalues(study, none=[1.0] * 5, partial=[2.0, 2.0, 1.0, 1.0, 1.0], full=0.1)
    assert "wider at 2, narrower at 0 of 4 ranks" in told("Figure 6", half).checks[0].what
    assert holds("Figure 6", half)[0] is None


def test_known_eigenvalues_of_zero_have_no_ratio(study):
    zero = {name: 0 * values for name, values in study.eigenvalues.items()}
    assert "ratio of unknown to known 0 none" in told("Figure 6", replace(study, eigenvalues=zero)).shows


def with_traces(feature, logit):
    """Return ablations in which both traces have the same noise, and unknown ones lie above by two numbers."""
    rng = np.random.default_rng(7)
    base = {name: rng.normal(10, 1, 150) for name in ("id", *FOUR)}
    scores = {f"partial/{name}": values + feature * (name != "id") for name, values in base.items()}
    logits = {name: values + logit * (name != "id") for name, values in base.items()}
    return replace(make_ablations(FOUR), scores=scores, logits=logits)


def test_logits_and_features_are_compared_on_the_same_images_under_partial_normalisation():
    ablations = make_ablations(FOUR)
    over_features = {name: ablations.scores[f"partial/{name}"] for name in ("id", *FOUR)}
    for traces in (over_features, ablations.logits):
        expected = np.mean([auroc(traces["id"], traces[name]) for name in FOUR])
        assert average(traces).auroc == pytest.approx(expected, abs=1e-12)
    found = paired_difference(average(over_features), average(ablations.logits))
    verdict = EXHIBITS["Table 4"].verdict([make_material(ablations=ablations)])
    assert f"{100 * found.value:+.2f} (" in verdict.checks[0].what
    assert f"At α 0.5 average AUROC {100 * average(over_features).auroc:.2f} % over features" in verdict.shows


@pytest.mark.parametrize(("feature", "logit", "expected"), [(2, 1, True), (1, 2, False), (1, 1, None)])
def test_features_must_tell_better_than_logits(feature, logit, expected):
    found = EXHIBITS["Table 4"].verdict([make_material(ablations=with_traces(feature, logit))])
    assert [check.holds for check in found.checks] == [expected]
