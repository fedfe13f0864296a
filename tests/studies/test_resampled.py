"""`studies.autofold.resampled` against repeating the images and counting pairs."""

import numpy as np
import pytest

from studies.autofold.resampled import Ranked


def pairwise_auroc(known, unknown):
    """Slow and obvious: every pair, ties counted half."""
    return np.mean([(u > k) + (u == k) / 2 for k in known for u in unknown])


@pytest.mark.parametrize("levels", [3, 1000], ids=["many ties", "hardly any"])
def test_a_replicate_is_the_auroc_of_the_images_that_were_drawn(levels):
    rng = np.random.default_rng(0)
    known, unknown = (rng.integers(levels, size=size).astype(float) for size in (13, 9))
    known_counts, unknown_counts = rng.integers(0, 4, (5, 13)), rng.integers(0, 4, (5, 9))
    got = Ranked(known, known_counts).auroc(unknown, unknown_counts)
    expected = [
        pairwise_auroc(np.repeat(known, k), np.repeat(unknown, u))
        for k, u in zip(known_counts, unknown_counts, strict=True)
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_counts_stay_with_their_images_whatever_the_order_of_the_scores():
    known, counts = np.array([3.0, 1.0, 2.0]), np.array([[0, 5, 1]])
    assert Ranked(known, counts).auroc(np.array([1.5]), np.array([[1]])) == pytest.approx(5 / 6)


def test_one_sort_serves_several_sets_of_unknown_images():
    ranked = Ranked(np.array([0.0, 1.0]), np.array([[1, 1]]))
    assert ranked.auroc(np.array([2.0]), np.array([[1]])) == 1
    assert ranked.auroc(np.array([-1.0, 0.5]), np.array([[1, 1]])) == 0.25
