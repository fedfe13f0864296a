"""`core.histograms` against the exact metrics of all scores, scikit-learn, and repeated draws of images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from flatfold.core.bootstrap import draws
from flatfold.core.histograms import (
    METRICS,
    bin_edges,
    coarsen,
    count_scores,
    histogram_metrics,
    influence_of_images,
    resampled_metrics,
    rounding,
)
from flatfold.core.metrics import aupr, auroc, fpr_at_tpr

EXACT = {
    "auroc": auroc,
    "fpr95_ood_positive": fpr_at_tpr,
    "fpr95_id_positive": lambda known, unknown: fpr_at_tpr(known, unknown, positive="id"),
    "aupr_out": aupr,
    "aupr_in": lambda known, unknown: aupr(known, unknown, positive="id"),
}


def exact(known, unknown):
    return {name: metric(known, unknown) for name, metric in EXACT.items()}


def binned(known, unknown, edges):
    scores = np.concatenate([known, unknown])
    return count_scores(scores, np.arange(len(scores)) >= len(known), edges)


@pytest.mark.parametrize("shift", [0.3, 1.5, 6.0])
def test_metrics_of_many_pixels_agree_with_the_exact_ones_within_1e_4_and_within_their_bound(shift):
    rng = np.random.default_rng(0)
    known = rng.normal(size=150_000).astype(np.float32)
    unknown = (shift + rng.normal(size=100_000)).astype(np.float32)
    edges = bin_edges(np.concatenate([rng.normal(size=40_000), shift + rng.normal(size=2_000)]))
    counts = binned(known, unknown, edges)
    assert counts.shape == (2, 2**16)
    wanted, bound = exact(known, unknown), rounding(*counts)
    for name, value in histogram_metrics(*counts).items():
        assert value == pytest.approx(wanted[name], abs=1e-4), name
        assert abs(value - wanted[name]) <= bound[name] + 1e-12, name
        assert bound[name] < 2e-3, name
    labels = np.arange(len(known) + len(unknown)) >= len(known)
    peer = roc_auc_score(labels, np.concatenate([known, unknown]))
    assert histogram_metrics(*counts)["auroc"] == pytest.approx(peer, abs=1e-5)


@given(
    known=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    unknown=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    bins=st.integers(2, 12),
)
def test_the_bound_holds_for_any_edges_and_the_error_vanishes_if_each_score_has_a_bin(known, unknown, bins):
    known, unknown = np.array(known, np.float32), np.array(unknown, np.float32)
    counts = binned(known, unknown, np.linspace(0, 30, bins - 1).astype(np.float32))
    wanted, bound = exact(known, unknown), rounding(*counts)
    for name, value in histogram_metrics(*counts).items():
        assert abs(value - wanted[name]) <= bound[name] + 1e-9, name
    fine = binned(known, unknown, np.arange(31, dtype=np.float32))
    for name, value in histogram_metrics(*fine).items():
        assert value == pytest.approx(wanted[name], abs=1e-9), name


def test_a_class_without_a_pixel_has_no_metric_and_coarse_bins_keep_every_pixel():
    counts = binned(np.arange(8.0), np.arange(4.0, 8.0), bin_edges(np.arange(8.0), 8))
    assert coarsen(counts, 2).tolist() == [[4, 4], [0, 4]]
    assert all(np.isnan(value) for value in histogram_metrics(counts[0], 0 * counts[1]).values())


def images_of(rng, n, pixels=50, shared=1.0, edges=None):
    """Histograms of images, half of whose pixels are OOD; those of a class share a shift."""
    edges = bin_edges(rng.normal(size=5000) * (1 + shared), 64) if edges is None else edges
    images = []
    for _ in range(n):
        scores = shared * rng.normal(size=2).repeat(pixels) + rng.normal(size=2 * pixels)
        scores[pixels:] += 0.7
        images.append(count_scores(scores, np.arange(2 * pixels) >= pixels, edges))
    return np.stack(images)


def test_the_influence_of_images_measures_the_spread_of_auroc_between_draws_of_images():
    rng = np.random.default_rng(1)
    edges = bin_edges(2 * rng.normal(size=5000), 64)
    several = [influence_of_images(images_of(rng, 40, edges=edges)) for _ in range(300)]
    spread = np.std([each.auroc for each in several])
    stated = np.mean([each.stderr for each in several])
    assert stated == pytest.approx(spread, rel=0.12)
    naive = np.sqrt(1 / 12 / (40 * 50) * 2)  # of independent pixels
    assert stated > 1.5 * naive


def test_resampled_images_give_the_metrics_of_the_pooled_histograms():
    rng = np.random.default_rng(2)
    images, counts = images_of(rng, 12), draws(12, 40, rng)
    found = resampled_metrics(images, counts)
    for row in (0, 39):
        pooled = (counts[row][:, None, None] * images).sum(axis=0)
        wanted = histogram_metrics(*pooled)
        assert [found[name][row] for name in METRICS] == pytest.approx([float(wanted[name]) for name in METRICS])
    spread = np.std(resampled_metrics(images, draws(12, 2000, rng), ["auroc"])["auroc"])
    assert spread == pytest.approx(influence_of_images(images).stderr, rel=0.15)
