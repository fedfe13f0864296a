"""Claims about curvature against slow sums in float64, and studies in which they are wrong."""

from dataclasses import replace

import numpy as np
import pytest

from flatfold.paper.measurements import (
    count_modes,
    large_share,
    mean_auroc,
    quartile_ratio,
    rank_aurocs,
    spectral_spread,
    statistic,
    trace_auroc,
    unimodality,
)
from flatfold.paper.verdicts import compute_verdicts, judge
from tests.toy_ablations import make_ablations, make_network_run
from tests.toy_study import auroc, make_study

FOUR = {"a": "near", "b": "near", "c": "far", "d": "far"}
UP = {"id": 1.0, "a": 2.0, "b": 3.0, "c": 4.0, "d": 5.0}
DOWN = {"id": 9.0, "a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0}
SAME = dict.fromkeys(UP, 1.0)
BENT = {"id": 1.0, "a": 2.0, "b": 5.0, "c": 4.0, "d": 6.0}  # a near set above a far one; the means still grow


@pytest.fixture(scope="module")
def study():
    return make_study(FOUR)


@pytest.fixture(scope="module")
def holds():
    """Return whether the checks of an exhibit hold for other parts of the material."""
    material = make_network_run()
    return lambda number, **parts: [c.holds for c in judge(number, [material._replace(**parts)]).checks]


def with_values(study, values, error=0.01):
    """Return a study whose figures are the same in every space and of every kind, by data set."""
    changed = [replace(s, value=values[s.dataset], stderr=error * values[s.dataset]) for s in study.statistics]
    sure, top = (
        {name: np.full_like(each, values[name.partition("/")[2]]) for name, each in arrays.items()}
        for arrays in (study.traces, study.top_shares)
    )
    return replace(study, statistics=changed, traces=sure, top_shares=top)


def test_errors_count_the_images_and_groups_have_independent_errors(study):
    for name, values in (("trace", study.traces["parameter/a"]), ("lambda_max", study.top_shares["parameter/a"])):
        cell, found = study.cells["a", "parameter", name], statistic(study, "a", "parameter", name)
        drawn = np.sqrt(((values - values.mean()) ** 2).sum() / (len(values) - 1) / len(values))
        assert found.stderr == pytest.approx(np.hypot(cell.stderr, drawn), rel=1e-12)
        assert found.value == cell.value == pytest.approx(values.mean(), rel=1e-9)
    assert statistic(replace(study, top_shares={}), "a", "parameter", "lambda_max").stderr == np.inf
    near, a, b = (statistic(study, name, "feature", "trace") for name in ("near", "a", "b"))
    assert near.value == pytest.approx((a.value + b.value) / 2, rel=1e-12)
    assert near.stderr == pytest.approx(np.hypot(a.stderr, b.stderr) / 2, rel=1e-12)
    single = replace(study, traces={**study.traces, "feature/a": study.traces["feature/a"][:1]})
    assert statistic(single, "a", "feature", "trace").stderr == np.inf


def test_figures_must_grow_from_id_to_near_to_far_and_the_highest_data_set_must_be_a_far_one(study, holds):
    for number in ("Table 1", "Table 6"):
        assert holds(number, study=with_values(study, UP)) == [True] * 4
        assert holds(number, study=with_values(study, DOWN)) == [False] * 4
        assert holds(number, study=with_values(study, SAME)) == [None] * 4
        assert holds(number, study=with_values(study, UP, error=0.5)) == [None] * 4
    up, down = with_values(study, UP), with_values(study, DOWN)
    mixed = [a if a.space == "parameter" else b for a, b in zip(up.statistics, down.statistics, strict=True)]
    own = {"Table 1": True, "Table 6": False, "Figures 8 and 10": True, "Figures 9 and 11": False}
    for number, expected in own.items():
        assert set(holds(number, study=replace(up, statistics=mixed))) == {expected}, number

    for values, expected in ((UP, [True]), (DOWN, [False]), (BENT, [True]), (SAME, [None])):
        assert holds("Table 7", study=with_values(study, values)) == expected * 8, values
    assert holds("Table 7", study=with_values(study, {**BENT, "b": 7.0})) == [True, False] * 4


def test_without_near_data_claims_about_near_and_far_stay_open():
    far = {"far-set": "far"}
    material = make_network_run(sets=far, study=make_study(far))
    found = {each.number: each.checks for each in compute_verdicts([material])}
    assert [check.holds for check in found["Table 1"]][1::2] == [None, None]
    assert [check.holds for check in found["Table 7"] if "near" in check.what] == [None] * 4


def test_traces_of_single_inputs_must_be_shifted_by_more_than_their_errors_and_broader(study, holds):
    known = 1.2 * study.traces["parameter/id"]  # the toy study says 10 % of every trace
    expected = np.mean([auroc(known, study.traces[f"parameter/{name}"]) for name in "ab"])
    assert trace_auroc(study, ["a", "b"]).auroc == pytest.approx(expected, abs=1e-12)
    plain = auroc(study.traces["parameter/id"], study.traces["parameter/a"])
    assert trace_auroc(replace(study, trace_stderr={}), ["a"]).auroc == pytest.approx(plain, abs=1e-12)

    def of(number, known, unknown, n=300):
        rng = np.random.default_rng(3)
        laws = {name: known if name == "id" else unknown for name in study.datasets}
        traces = {f"parameter/{name}": rng.lognormal(*law, n) for name, law in laws.items()}
        return holds(number, study=replace(study, traces={**study.traces, **traces}, trace_stderr={}))

    for number in ("Figure 2", "Figures 12 to 15"):
        assert of(number, (0, 1), (3, 1))[:4] == [True] * 4
        assert of(number, (3, 1), (0, 1))[:4] == [False] * 4
    assert of("Figure 2", (0, 1), (1.5, 0.1)) == [True, False] * 2 + [False]  # and one mode
    assert None in of("Figures 12 to 15", (0, 1), (0, 1), n=25)


def test_several_modes_are_found_and_a_single_one_is_not_taken_for_more(study, holds):
    rng = np.random.default_rng(4)
    two = np.concatenate([rng.normal(0, 1, 120), rng.normal(5, 1, 80)])
    assert count_modes(two, 0.5) == 2
    assert count_modes(two, 5.0) == 1
    assert unimodality(two) < 0.01
    assert unimodality(np.exp(two)) == pytest.approx(unimodality(two), abs=0.02)  # traces above 0 on a logarithmic axis
    levels = [unimodality(rng.lognormal(size=150)) for _ in range(8)]
    assert sum(level < 0.05 for level in levels) <= 2
    assert unimodality(np.zeros(5)) == unimodality(np.array([1.0, 2.0])) == 1.0
    for names, expected in (("abcd", True), ("ab", True), ("a", None)):  # at least half of them
        traces = {**study.traces, **{f"parameter/{name}": rng.lognormal(size=200) for name in "abcd"}}
        traces |= {f"parameter/{name}": np.exp(two) for name in names}
        assert holds("Figure 2", study=replace(study, traces=traces, trace_stderr={}))[-1] is expected, names


def test_the_ratio_of_quartiles_has_an_interval_that_covers_it():
    known, unknown = np.arange(101.0), 3 * np.arange(201.0)
    ratio, low, high = quartile_ratio(known, unknown)
    assert ratio == pytest.approx(300 / 50)
    assert low < ratio < high
    assert quartile_ratio(np.ones(5), unknown)[0] == np.inf
    rng, covered = np.random.default_rng(0), 0
    for _ in range(100):
        _, low, high = quartile_ratio(rng.normal(size=120), 2 * rng.normal(size=90))
        covered += low <= 2 <= high
    assert 88 <= covered <= 100


def test_spectra_must_reach_further_than_the_id_one_and_be_broader_over_features(study, holds):
    values = study.nodes["feature/a"][0]
    assert large_share(study, "feature", "a", 0.01) == (pytest.approx(np.mean(values > 0.01 * values.max())), 0.0)
    nodes, weights = study.nodes["parameter/a"], study.weights["parameter/a"]
    large = nodes > 0.01 * study.cells["a", "parameter", "lambda_max"].value
    shares = np.array([row_weights[row].sum() for row, row_weights in zip(large, weights, strict=True)])
    expected = shares.mean(), shares.std(ddof=1) / np.sqrt(len(shares))
    assert large_share(study, "parameter", "a", 0.01) == pytest.approx(expected)
    assert holds("Figure 7", study=with_values(study, {**UP, "c": 1.5, "d": 1.5}))[:4] == [True] * 4
    assert holds("Figure 7", study=with_values(study, DOWN))[:4] == [False] * 4
    assert holds("Figure 7", study=study)[4:9] == [True] * 5
    spread, error = spectral_spread(study, "a")
    assert spread == pytest.approx(study.nodes["feature/a"][0].std())
    assert 0 < error < spread
    zero = {name: 0 * values for name, values in study.square_shares.items()}
    ends = {name: [True, None, False][(name[-1] > "a") + (name[-1] > "b")] for name in "abcd"}
    nodes = {
        f"feature/{name}": np.linspace(0, {True: 4, None: 2, False: 1}[ends.get(name)], 9)[None]
        for name in study.datasets
    }
    flat = {name: 0 * values for name, values in study.traces.items()}
    weights = {**study.weights, **{name: np.full((1, 9), 1 / 9) for name in nodes}}
    changed = replace(study, nodes={**study.nodes, **nodes}, weights=weights, square_shares=zero, traces=flat)
    assert holds("Figure 7", study=changed)[9:] == list(ends.values())
    assert holds("Figure 7", study=replace(changed, square_shares={}))[9:] == [None] * 4
    others = {"parameter": "feature", "feature": "parameter", "logit": "logit"}

    def swapped(entries):
        return {"/".join((others[key.split("/")[0]], key.split("/")[1])): values for key, values in entries.items()}

    statistics = [replace(each, space=others[each.space]) for each in study.statistics]
    spectra = {"nodes": swapped(study.nodes), "weights": swapped(study.weights)}
    assert holds("Figure 7", study=replace(study, statistics=statistics, **spectra))[4:9] == [False] * 5


def test_partial_normalisation_must_widen_the_gap_at_most_ranks_and_full_make_it_collapse(study, holds):
    found, rng = rank_aurocs(study, "partial"), np.random.default_rng(5)
    assert len(found) == 4  # one less than classes
    for rank, each in enumerate(found):
        values = {name: study.eigenvalues[f"partial/{name}"][:, rank] for name in study.datasets}
        expected = np.mean([auroc(values["id"], values[name]) for name in FOUR])
        assert each.auroc == pytest.approx(expected, abs=1e-12)
    base = {name: rng.normal(10, 1, (200, 5)) for name in study.datasets}

    def of(**shifts):
        pairs = [(kind, name) for kind in shifts for name in base]
        made = {f"{kind}/{name}": base[name] + (name != "id") * np.asarray(shifts[kind]) for kind, name in pairs}
        return holds("Figure 6", study=replace(study, eigenvalues=made))

    assert of(none=1.0, partial=2.0, full=0.1) == [True, True]
    assert of(none=2.0, partial=1.0, full=2.0) == [False, False]
    assert of(none=1.0, partial=1.0, full=0.5) == [None, None]
    assert of(none=1.0, partial=[2.0, 2.0, 1.0, 1.0, 1.0], full=0.1)[0] is None  # wider at half of the ranks
    flat = {name: 0 * values for name, values in study.eigenvalues.items()}
    assert holds("Figure 6", study=replace(study, eigenvalues=flat)) == [None, None]


def test_features_must_tell_better_than_logits_on_the_same_images(holds):
    ablations = make_ablations(FOUR)
    expected = np.mean([auroc(ablations.logits["id"], ablations.logits[name]) for name in FOUR])
    assert mean_auroc(ablations.logits).auroc == pytest.approx(expected, abs=1e-12)
    rng = np.random.default_rng(7)
    base = {name: rng.normal(10, 1, 150) for name in ("id", *FOUR)}
    for feature, logit, expected in ((2, 1, True), (1, 2, False), (1, 1, None)):
        scores = {f"partial/{name}": values + feature * (name != "id") for name, values in base.items()}
        logits = {name: values + logit * (name != "id") for name, values in base.items()}
        assert holds("Table 4", ablations=replace(ablations, scores=scores, logits=logits)) == [expected]
