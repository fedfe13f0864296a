"""What changed between two runs or methods: the right differences, paired exactly when the images are the same."""

from dataclasses import replace

import numpy as np
import pytest

from flatfold.core.bootstrap import draws
from flatfold.core.intervals import independent_difference, paired_difference
from flatfold.core.metrics import fpr_at_tpr
from flatfold.evaluate.compare import Change, column_influence, compare, compare_methods, only_one_has, tabulate
from flatfold.evaluate.results import MethodRun, Results

SETS = {"pens": "near", "photos": "far", "noise": "far"}
SIZES = {"id": 110, "pens": 60, "photos": 90, "noise": 75, "cats": 40}


def make_results(gaps, sets=SETS, seed=0, own=1, prints=""):
    """A run whose methods find unknown images by a gap, on images given by ``seed`` with noise given by ``own``."""
    rng, noise = np.random.default_rng(seed), np.random.default_rng(own)
    images = {name: rng.normal(size=SIZES[name]) for name in ("id", *sets)}
    scores = {
        f"{method}/{name}": (x + (name != "id") * gap + 0.4 * noise.normal(size=len(x))).round(1).astype(np.float32)
        for method, gap in gaps.items()
        for name, x in images.items()
    }
    rows, averages = tabulate(scores, dict.fromkeys(gaps, "id"), sets, replicates=0)
    return Results(
        suite={
            "name": "toy", "ood": [{"name": name} for name in sets],
            "fingerprints": {name: f"{prints}{seed}-{name}" for name in ("train", "test", *sets)},
        },
        methods=[MethodRun(method, method, {}, "val", "id", 0.1, 2.0) for method in gaps], refused={}, rows=rows,
        averages=averages, alpha_curves=[], provenance={}, scores=scores,
    )  # fmt: skip


@pytest.fixture
def before():
    return make_results({"msp": 1.0, "knn": 2.0})


@pytest.fixture
def after():
    return make_results({"msp": 1.4, "knn": 2.0}, own=2)


def by_place(changes):
    return {(change.method, change.column, change.metric): change for change in changes}


SINGLE = {name: (name,) for name in SETS}
COLUMNS = SINGLE | {"near": ("pens",), "far": ("noise", "photos"), "all": ("noise", "pens", "photos")}


def test_every_figure_of_both_runs_is_there_with_its_difference(before, after):
    changes = by_place(compare(before, after, replicates=5))
    assert len(changes) == 2 * 6 * 2
    for (method, column, metric), change in changes.items():
        assert change.a == pytest.approx(getattr(before.cells[method, column], metric), abs=1e-15)
        assert change.b == pytest.approx(getattr(after.cells[method, column], metric), abs=1e-15)
        assert change.difference == pytest.approx(change.b - change.a, abs=1e-15)
        assert change.low <= change.difference <= change.high
        assert (change.p_value is None) == (metric != "auroc")
        assert change.paired
    assert {change.method for change in compare(before, after, ["knn"], replicates=0)} == {"knn"}
    for seed in (0, 1):  # the outcome depends on the seed alone
        assert (compare(before, after, replicates=5, seed=seed) == list(changes.values())) == (seed == 0)
    other_way_round = make_results({"msp": 1.0, "knn": 2.0}, dict(reversed(SETS.items())))
    assert len(compare(before, other_way_round, replicates=0)) == 2 * 6


@pytest.mark.parametrize("paired", [True, False])
def test_aurocs_are_compared_image_by_image_where_the_images_are_the_same(before, after, paired):
    if not paired:
        after.suite["fingerprints"]["test"] = "other"
    test = paired_difference if paired else independent_difference
    changes = by_place(compare(before, after, replicates=0))
    for method in ("msp", "knn"):
        for column, members in COLUMNS.items():
            a, b = (column_influence(run.scores, method, members) for run in (before, after))
            expected, got = test(b, a), changes[method, column, "auroc"]
            assert (got.difference, got.low, got.high) == (expected.value, expected.low, expected.high)
            assert got.p_value == expected.p_value
            assert got.paired is paired


def repeated_fpr95(results, method, members, counts, row):
    """Slow and obvious: FPR95 of images that are really repeated."""
    known = np.repeat(results.scores[f"{method}/id"], counts["id"][row])
    rates = (fpr_at_tpr(known, np.repeat(results.scores[f"{method}/{s}"], counts[s][row])) for s in members)
    return np.mean(list(rates))


@pytest.mark.parametrize("paired", [True, False])
def test_fpr95_is_compared_on_redrawn_images(before, after, paired):
    if not paired:
        after.suite["fingerprints"]["test"] = "other"
    drawn = [
        {s: draws(SIZES[s], 40, np.random.default_rng([seed, *s.encode()])) for s in ("id", *SETS)} for seed in (6, 7)
    ]
    changes = by_place(compare(before, after, replicates=40, seed=6))
    for column in ("photos", "all"):
        replicates = [
            repeated_fpr95(after, "msp", COLUMNS[column], drawn[0 if paired else 1], row)
            - repeated_fpr95(before, "msp", COLUMNS[column], drawn[0], row)
            for row in range(40)
        ]
        got = changes["msp", column, "fpr95_ood_positive"]
        assert (got.low, got.high) == pytest.approx(tuple(np.percentile(replicates, [2.5, 97.5])), abs=1e-12)


def test_a_change_is_significant_when_its_interval_leaves_out_0_and_pairing_finds_smaller_ones(before, after):
    paired = by_place(compare(before, after, replicates=100))
    assert paired["msp", "all", "auroc"].significant
    assert paired["msp", "all", "auroc"].p_value < 0.05
    assert paired["msp", "all", "fpr95_ood_positive"].significant
    assert paired["msp", "all", "fpr95_ood_positive"].difference < 0
    assert not paired["knn", "photos", "auroc"].significant
    assert paired["knn", "photos", "auroc"].p_value > 0.05
    del after.suite["fingerprints"]
    for place, change in by_place(compare(before, after, replicates=100)).items():
        assert not change.paired
        assert change.high - change.low > paired[place].high - paired[place].low
    for low, high, significant in ((-1, 1, False), (0, 1, False), (0.1, 1, True), (-1, -0.1, True)):
        change = Change("msp", "all", "auroc", 0.5, 0.6, 0.1, low, high, 0.5, True)
        assert change.significant is significant, (low, high)
        assert replace(change, low=-high, high=-low).significant is significant, (low, high)


def test_only_columns_with_other_images_are_not_paired(before):
    for change in (
        lambda run: run.suite["fingerprints"].update(photos="other"),
        lambda run: run.suite["fingerprints"].pop("photos"),
        lambda run: run.unreadable.update(photos={"3": "truncated"}),
        lambda run: run.scores.update({f"{m}/photos": run.scores[f"{m}/photos"][1:] for m in ("msp", "knn")}),
    ):  # fmt: skip
        after = make_results({"msp": 1.4, "knn": 2.0}, own=2)
        change(after)
        paired = {change.column for change in compare(before, after, replicates=0) if change.paired}
        assert paired == {"pens", "noise", "near"}


def test_runs_without_fingerprints_are_not_paired_but_two_methods_of_a_run_always_are(before, after):
    for run in (before, after):
        del run.suite["fingerprints"]
    assert not any(change.paired for change in compare(before, after, replicates=0))
    changes = by_place(compare_methods(before, "msp", "knn", replicates=30))
    assert list(dict.fromkeys(column for _, column, _ in changes)) == list(COLUMNS)
    for column, members in COLUMNS.items():
        got = changes["msp -> knn", column, "auroc"]
        a, b = (column_influence(before.scores, method, members) for method in ("msp", "knn"))
        assert (got.a, got.b, got.p_value) == (a.auroc, b.auroc, paired_difference(b, a).p_value)
        assert got.difference > 0
        assert got.paired
        assert changes["msp -> knn", column, "fpr95_ood_positive"].difference < 0
    assert all(change.metric == "auroc" for change in compare_methods(before, "msp", "knn", replicates=0))


def test_two_perfect_methods_may_still_differ():
    results = make_results({"one": 90.0, "two": 99.0})
    for change in compare_methods(results, "one", "two", replicates=10):
        assert (change.difference, change.significant) == (0, False)
        n = 110 if change.metric.startswith("fpr") else min(SIZES[name] for name in COLUMNS[change.column])
        bound = 1 - 0.025 ** (1 / n)
        assert (change.low, change.high) == pytest.approx((-bound, bound))
    other = make_results({"one": 90.0, "two": 99.0}, prints="other")  # other images, though the scores are the same
    assert all(change.low < 0 < change.high for change in compare(results, other, replicates=10))


@pytest.mark.parametrize("gap", [1.0, 90.0, -90.0])
def test_methods_that_rank_alike_do_not_differ_however_perfect_they_are(gap):
    results = make_results({"msp": gap})
    for name in ("id", *SETS):
        results.scores[f"copy/{name}"] = 2 * results.scores[f"msp/{name}"] + 1
    results.methods.append(replace(results.methods[0], method="copy"))
    changes = [*compare_methods(results, "msp", "copy", replicates=10), *compare(results, results, replicates=10)]
    assert len(changes) == 6 * 2 + 6 * 2 * 2
    for change in changes:
        assert (change.difference, change.low, change.high) == (0, 0, 0)
        assert change.p_value == (1 if change.metric == "auroc" else None)
    known = results.scores["copy/id"]
    known[:2] = known.max() + 1, known.max() + 2  # two images in another place are not alike
    if gap == 90.0:
        assert all(change.low < 0 < change.high for change in compare_methods(results, "msp", "copy", replicates=10))


def test_what_only_one_run_has_is_left_out_and_told_and_nothing_in_common_is_refused(before):
    after = make_results({"knn": 2.0, "vim": 2.0}, {"pens": "near", "noise": "far", "cats": "far"})
    changes = compare(before, after, replicates=0)
    assert {change.method for change in changes} == {"knn"}
    assert [change.column for change in changes] == ["pens", "noise", "near"]
    told = "\n".join(only_one_has(before, after))
    assert all((name in told) == (name != "knn") for name in ("msp", "vim", "photos", "cats", "'far'", "'all'", "knn"))
    assert only_one_has(before, before) == []
    after = make_results({"msp": 1.4, "knn": 2.0}, own=2)
    assert compare(before, after, ["knn", "knn"], replicates=0) == compare(before, after, ["knn"], replicates=0)
    for call, keyword in (
        (lambda: compare_methods(before, "msp", "msp"), "twice"),
        (lambda: compare_methods(before, "knn", "mps"), "Did you mean msp"),
        (lambda: compare(before, after, ["gradient"]), "of A .*'gradient'"),
        (lambda: compare(before, make_results({"msp": 1.0}), ["knn"]), "of B .*'knn'"),
        (lambda: compare(before, make_results({"vim": 1.0})), "no method"),
        (lambda: compare(before, make_results({"msp": 1.0}, {"cats": "near"})), "no data set"),
    ):
        with pytest.raises(ValueError, match=keyword):
            pytest.fail(f"{keyword}: {call()}")
