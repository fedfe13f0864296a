"""Criteria, families and rules of the AutoFold study, and what a case reaches under them, against slow loops."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from flatfold import FeatureBank
from flatfold.core.metrics import auroc
from flatfold.data.images import ArrayImages, Transform
from flatfold.detectors.ebo import Ebo
from flatfold.detectors.fold import Fold
from studies.autofold import criteria
from studies.autofold.development import split
from studies.autofold.families import ALPHAS, PAPER, Family
from studies.autofold.measure import measure
from studies.autofold.networks import NETWORKS, trained
from studies.autofold.resampled import Ranked
from studies.autofold.rules import RULES, chosen, curve
from studies.autofold.surface import draw, surface
from studies.autofold.view import likeliest_temperature, logits_at, view_of
from tests.studies.worlds import CLASSES, make_banks, make_case

ALPHA, REPLICATES = 0.35, 7


@pytest.fixture(scope="module")
def val():
    return make_case().val


@pytest.fixture(scope="module")
def counts(val):
    return np.random.default_rng(0).integers(1, 4, (3, len(val.labels)))


def trace(val, h, masked=None):
    """Slow and obvious: build the Hessian of the energy of one sample, without one class if asked to."""
    weight, bias = val.head.weight.double(), val.head.bias.double()
    kept = [k for k in range(CLASSES) if k != masked]
    p = (weight[kept] @ (h / h.norm() ** ALPHA) + bias[kept]).softmax(dim=0)
    return float((weight[kept].T @ (p.diag() - p.outer(p)) @ weight[kept]).trace())


def pairwise_auroc(low, high, low_counts, high_counts):
    """Compare every pair, as often as it was drawn."""
    low, high = np.repeat(low, low_counts), np.repeat(high, high_counts)
    return np.mean([(u > k) + (u == k) / 2 for k in low for u in high])


def check(val, counts, criterion, value):
    got = criterion(val, PAPER.fit(val, (ALPHA,)), ALPHA, counts)
    np.testing.assert_allclose(got, [value(row) for row in counts], rtol=1e-9)


def masked_traces(val, length=1.0):
    labels = val.labels.tolist()
    return np.array([trace(val, length * h, k) for h, k in zip(val.features, labels, strict=True)])


def test_paired_and_one_vs_rest_compare_class_by_class(val, counts):
    labels = val.labels.numpy()
    known = np.array([trace(val, h) for h in val.features])
    masked = masked_traces(val)
    of_class = [labels == k for k in range(CLASSES)]
    scores = [np.array([trace(val, h, k) for h in val.features]) for k in range(CLASSES)]

    def paired(row):
        return np.mean([pairwise_auroc(known[own], masked[own], row[own], row[own]) for own in of_class])

    def one_vs_rest(row):
        pairs = zip(scores, of_class, strict=True)
        return np.mean([pairwise_auroc(s[~own], s[own], row[~own], row[own]) for s, own in pairs])

    check(val, counts, criteria.paired, paired)
    check(val, counts, criteria.one_vs_rest, one_vs_rest)


def test_other_criteria_compare_all_samples_with_what_is_made_of_them(val, counts):
    n, generator = len(val.labels), torch.Generator().manual_seed(0)
    known = np.array([trace(val, h) for h in val.features])
    for criterion, length in ((criteria.pooled, 1.0), (criteria.shrunk, 0.5)):
        masked = masked_traces(val, length)
        check(val, counts, criterion, lambda row, masked=masked: pairwise_auroc(known, masked, row, row))
    shuffled = torch.stack([column[torch.randperm(n, generator=generator)] for column in val.features.T], dim=1)
    broken = np.array([trace(val, h) for h in shuffled])
    check(val, counts, criteria.shuffled, lambda row: pairwise_auroc(known, broken, row, row))
    partner = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    rows = np.flatnonzero(val.labels != val.labels[partner])
    assert 0 < len(rows) < n
    mixed = np.array([trace(val, (val.features[i] + val.features[partner[i]]) / 2) for i in rows])
    check(val, counts, criteria.mixed, lambda row: pairwise_auroc(known, mixed, row, row[rows]))


def test_likelihood_is_the_mean_log_probability_of_the_labels(val, counts):
    fitted = Family(times=1).fit(val, (ALPHA,))
    logits = fitted.logits(val.view, ALPHA)
    drawn = [torch.arange(len(row)).repeat_interleave(torch.from_numpy(row)) for row in counts]
    expected = [-float(torch.nn.functional.cross_entropy(logits[rows], val.labels[rows])) for rows in drawn]
    np.testing.assert_allclose(criteria.likelihood(val, fitted, ALPHA, counts), expected, rtol=1e-9)


def test_a_class_with_too_few_samples_is_left_out_and_labels_are_needed():
    few = make_case(n=17).val  # four samples of each class and a fifth of class 0
    kept = (few.labels != 3) | (torch.arange(17) < 8)  # which leaves two of class 3
    both = [
        type(few).of(FeatureBank(few.features[r], few.labels[r]), few.head) for r in (kept, kept & (few.labels != 3))
    ]
    values = [criteria.paired(each, PAPER.fit(each, (0.5,)), 0.5, np.ones((1, len(each.labels)), int)) for each in both]
    np.testing.assert_allclose(*values, rtol=1e-12)
    with pytest.raises(ValueError, match="labels"):
        type(few).of(FeatureBank(few.features), few.head)


def test_the_paper_is_fold_and_a_cap_shortens_what_is_longer_than_a_quantile_of_validation_norms(val):
    fold = Fold(0.4).fit(FeatureBank(val.features, val.labels), val.head.to(torch.float64))
    assert_close(PAPER.fit(val, (0.4,)).scores(val.view, 0.4), fold(val.features), rtol=1e-9, atol=0)
    other = 2 * val.features + 0.1
    norms, longest = other.norm(dim=1, keepdim=True), val.features.norm(dim=1).quantile(0.75)
    assert 0 < int((norms > longest).sum()) < len(norms)
    view = view_of(other, val.head)
    before = view.projected.clone()
    got = Family(cap=0.75).fit(val, (0.4,)).scores(view, 0.4)
    assert_close(got, fold(other * (longest / norms).clamp(max=1)), rtol=1e-9, atol=0)
    assert torch.equal(view.projected, before)


def test_a_temperature_is_a_multiple_of_the_likeliest_of_capped_features(val):
    for cap in (None, 0.25):
        fitted = Family(times=3, cap=cap).fit(val, (0.0, 0.5))
        for alpha, temperature in fitted.temperatures.items():
            likeliest = likeliest_temperature(fitted.capped(val.view), val.labels, val.classes, alpha)
            assert temperature == pytest.approx(3 * likeliest), (cap, alpha)
    assert likeliest != pytest.approx(likeliest_temperature(val.view, val.labels, val.classes, alpha))


def test_the_likeliest_temperature_has_the_smallest_cross_entropy_of_a_fine_grid(val):
    torch.manual_seed(0)
    labels = torch.distributions.Categorical(logits=logits_at(val.view, val.classes, 0.5, 2.0)).sample()
    grid = torch.logspace(-1, 2, 3001).tolist()
    losses = [torch.nn.functional.cross_entropy(logits_at(val.view, val.classes, 0.5, t), labels) for t in grid]
    best = grid[int(torch.stack(losses).argmin())]
    assert likeliest_temperature(val.view, labels, val.classes, 0.5) == pytest.approx(best, rel=3e-3)
    largest = logits_at(val.view, val.classes, 0.0, 1e-3).argmax(dim=1)
    assert likeliest_temperature(val.view, largest, val.classes, 0.0) == pytest.approx(1e-3, rel=1e-6)


def test_the_best_or_the_outermost_within_a_standard_error_is_taken():
    # the standard deviation of the best, in the last two rows, is 0.02
    curves = np.array([[0.5, 0.68, 0.7, 0.69, 0.1], [0.5, 0.68, 0.72, 0.69, 0.1], [0.5, 0.68, 0.68, 0.6, 0.1]])
    for take, expected in (("best", [2, 2, 1]), ("smallest", [1, 2, 1]), ("largest", [3, 2, 2])):
        assert chosen(curves + 1e-13, take).tolist() == expected, take
    equals = np.array([[0.2, 0.9, 0.9, 0.9, 0.1], [0.9, 0.9, 0.1, 0.1, 0.9]])
    assert chosen(equals).tolist() == [2, 1], "not the middle one"


def test_rules_know_their_group_and_share_a_curve_if_family_and_criterion_are_the_same():
    names = ("paired", "fixed-0.5", "paired-T2", "paired-cap50-T2")
    assert [RULES[name].group for name in names] == ["exponent", "exponent", "temperature", "cap"]
    assert RULES["paired"].curve_of == RULES["paired-smallest"].curve_of != RULES["paired-T1"].curve_of
    assert RULES["paired"].curve_of != RULES["pooled"].curve_of
    assert {rule.criterion for rule in RULES.values() if isinstance(rule.criterion, float)} <= set(ALPHAS)


# --- a case under every rule


@pytest.fixture(scope="module")
def measured():
    return measure(make_case(), REPLICATES)


def row(measured, name):
    return measured.methods.index(name)


def test_a_replicate_is_the_auroc_of_the_images_that_were_drawn():
    rng = np.random.default_rng(0)
    for levels in (3, 1000):  # many ties, hardly any
        known, unknown = (rng.integers(levels, size=size).astype(float) for size in (13, 9))
        known_counts, unknown_counts = rng.integers(0, 4, (5, 13)), rng.integers(0, 4, (5, 9))
        ranked = Ranked(known, known_counts)
        for values in (unknown, -unknown):
            expected = [
                auroc(np.repeat(known, ks), np.repeat(values, us))
                for ks, us in zip(known_counts, unknown_counts, strict=True)
            ]
            np.testing.assert_allclose(ranked.auroc(values, unknown_counts), expected, rtol=1e-12)


def test_replicate_0_is_what_the_detector_reaches(measured):
    banks = make_banks()
    for name, detector in (("fixed-0.5", Fold(0.5)), ("fixed-0.25", Fold(0.25)), ("ebo", Ebo())):
        fitted = detector.fit(banks.val, banks.head)
        each = [auroc(fitted(banks.test.features), fitted(ood.features)) for ood in banks.ood.values()]
        np.testing.assert_allclose(measured.auroc[row(measured, name), 0], [*each, np.mean(each)], err_msg=name)


def test_the_first_draw_is_all_images_and_others_are_as_many_within_their_class():
    case = make_case()
    drawn = draw(case, REPLICATES)
    for counts in (drawn.val, drawn.test, *drawn.ood.values()):
        assert (counts[0] == 1).all()
        assert (counts.sum(axis=1) == counts.shape[1]).all()
        assert (counts[1:] != 1).any()
    for label in range(4):
        rows = case.val.labels.numpy() == label
        assert (drawn.val[:, rows].sum(axis=1) == rows.sum()).all()
    same, other = draw(make_case(1), REPLICATES), draw(make_case(suite="b"), REPLICATES)
    np.testing.assert_array_equal(drawn.test, same.test)  # networks of one suite get the same draws
    assert (drawn.test != other.test).any()


def test_rules_and_oracles_are_points_of_the_surface(measured):
    case = make_case()
    drawn, fitted = draw(case, REPLICATES), PAPER.fit(case.val)
    reached = surface(case, fitted, drawn)
    assert reached.shape == (REPLICATES + 1, len(ALPHAS), 3)
    known = np.repeat(fitted.scores(case.test, ALPHAS[4]).numpy(), drawn.test[5])
    unknown = np.repeat(fitted.scores(case.ood["long"], ALPHAS[4]).numpy(), drawn.ood["long"][5])
    assert reached[5, 4, 1] == pytest.approx(auroc(known, unknown))
    np.testing.assert_allclose(reached[..., 2], reached[..., :2].mean(axis=-1))
    # a rule keeps its choice in one column and chooses again in the other
    index = chosen(curve(case.val, fitted, RULES["paired"].criterion, drawn.val))
    number = row(measured, "paired")
    assert len(set(index.tolist())) > 1
    np.testing.assert_allclose(measured.auroc[number], reached[:, index[0]])
    np.testing.assert_allclose(measured.redrawn[number], [reached[b, index[b]] for b in range(REPLICATES + 1)])
    np.testing.assert_allclose(measured.alphas[number, :, 0], np.asarray(ALPHAS)[index])
    # the oracle is the best exponent of each set and keeps it
    number = row(measured, "oracle")
    for dataset in range(3):
        best = reached[0, :, dataset].argmax()
        np.testing.assert_allclose(measured.redrawn[number, :, dataset], reached[:, best, dataset])
        assert measured.alphas[number, 0, dataset] == ALPHAS[best]
    families = {rule.family for rule in RULES.values() if rule.family.cap is None}
    best = max(surface(case, family.fit(case.val), draw(case, 1))[0, :, -1].max() for family in families)
    assert measured.auroc[row(measured, "oracle-T"), 0, -1] == pytest.approx(best)
    assert np.isnan(measured.alphas[row(measured, "msp")]).all()
    np.testing.assert_allclose(measured.truth, reached[0])


def test_split_takes_the_same_share_of_every_class_and_no_row_twice():
    labels = np.repeat([0, 1, 2, 3], [10, 20, 30, 40])
    parts = split(labels, 3, (0.5, 0.2, 0.3))
    assert [np.bincount(labels[rows]).tolist() for rows in parts] == [[5, 10, 15], [2, 4, 6], [3, 6, 9]]
    assert sorted(np.concatenate(parts)) == list(range(60))


def pixels(seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(40) % 2
    x = (rng.integers(0, 100, (40, 28, 28)) + 100 * y[:, None, None]).astype(np.uint8)
    return ArrayImages(x, y, Transform(mode="L", mean=(0.5,), std=(0.25,)), batch_size=40)


@pytest.mark.parametrize("architecture", NETWORKS)
def test_a_network_learns_what_it_is_shown(architecture, tmp_path):
    network = trained(architecture, pixels(), tmp_path / "net.safetensors", steps=40)
    x, y = next(iter(pixels(1)))
    assert not network.training
    assert (network(x).argmax(dim=1) == y).double().mean() > 0.9


def test_a_network_is_read_again_if_it_is_the_same_and_trained_again_if_not(tmp_path):
    path = tmp_path / "net.safetensors"

    def weights(seed=0):
        torch.manual_seed(3)
        state = trained("plain", pixels(), path, 1, seed).state_dict()
        assert torch.equal(torch.rand(1), expected), "the random numbers of others are touched"
        return torch.cat([value.flatten() for value in state.values()]), path.stat().st_mtime_ns

    torch.manual_seed(3)
    expected = torch.rand(1)
    first, written = weights()
    again, read = weights()
    assert torch.equal(first, again)
    assert read == written
    other, rewritten = weights(seed=1)
    assert not torch.equal(first, other)
    assert rewritten > written
    path.write_bytes(b"no such thing")
    assert torch.equal(first, weights()[0])
