"""Gaussians of features against scikit-learn, scipy and the slow formula."""

import numpy as np
import pytest
import torch
from scipy.linalg import pinvh
from sklearn.covariance import EmpiricalCovariance
from torch.testing import assert_close

from flatfold.core import chunks
from flatfold.core.gaussian import class_means, fit_gaussian, mean_row, squared_distances, whitening_of


def make_case(n=200, c=4, d=6, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(c, (n,), generator=g)
    mixing = torch.randn(d, d, generator=g, dtype=torch.float64)
    features = torch.randn(n, d, generator=g, dtype=torch.float64) @ mixing + 5 * labels[:, None]
    return features.to(dtype), labels


def slow_distances(h, features, labels):
    """The textbook: one class and one sample at a time, with scikit-learn's covariance and scipy's inverse."""
    features, labels, h = features.double().numpy(), labels.numpy(), h.double().numpy()
    means = {k: features[labels == k].mean(0) for k in np.unique(labels)}
    centred = np.stack([row - means[k] for row, k in zip(features, labels, strict=True)])
    precision = pinvh(EmpiricalCovariance(assume_centered=False).fit(centred).covariance_)
    return np.array([[(x - mean) @ precision @ (x - mean) for mean in means.values()] for x in h])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_distances_are_those_of_the_textbook(dtype):
    features, labels = make_case(dtype=dtype)
    got = squared_distances(features[:20], fit_gaussian(features, labels))
    np.testing.assert_allclose(got, slow_distances(features[:20], features, labels), rtol=1e-9)


def test_without_labels_there_is_one_gaussian():
    features, _ = make_case()
    got = squared_distances(features[:20], fit_gaussian(features)).squeeze(-1)
    np.testing.assert_allclose(got, EmpiricalCovariance().fit(features.numpy()).mahalanobis(features[:20].numpy()))


def test_directions_without_variance_do_not_count():
    features, labels = make_case()
    flat = torch.cat([features, features[:, :2], torch.ones(len(features), 1).double()], dim=1)  # rank 6 of 9
    gaussian = fit_gaussian(flat, labels)
    assert gaussian.whitening.shape == (9, 6)
    np.testing.assert_allclose(
        squared_distances(flat[:5], gaussian),
        squared_distances(features[:5], fit_gaussian(features, labels)),
        rtol=1e-7,
    )


def test_a_whitening_squares_to_the_pseudo_inverse():
    features, _ = make_case()
    covariance = features.T.cov(correction=0)
    a = whitening_of(covariance)
    np.testing.assert_allclose(a @ a.T, pinvh(covariance.numpy()), rtol=1e-8, atol=1e-12)


def test_features_that_never_vary_are_refused():
    with pytest.raises(ValueError, match="needs features that vary within a class"):
        fit_gaussian(torch.ones(5, 3), torch.tensor([0, 0, 1, 1, 1]))


def test_small_eigenvalues_survive_float32_features():
    """Standard deviations from 1 down to 1e-4: the distance along the smallest one is still right."""
    g = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -4, 5, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=g, dtype=torch.float64)).Q
    features = (torch.randn(2000, 5, generator=g, dtype=torch.float64) * scales @ rotation).float()
    got = squared_distances(features, fit_gaussian(features)).mean()
    assert_close(float(got), 5.0, rtol=1e-6, atol=0)  # the mean squared distance is the rank, whatever the scales


def test_means_are_those_of_the_classes_that_occur_whatever_the_chunks(monkeypatch):
    features, labels = make_case(n=50)
    labels = labels * 3
    monkeypatch.setattr(chunks, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(chunks.row_chunks, "__defaults__", (7,))
    classes, means = class_means(features, labels)
    assert classes.tolist() == sorted(set(labels.tolist()))
    for k, mean in zip(classes, means, strict=True):
        assert_close(mean, features[labels == k].mean(0))
    assert_close(mean_row(features), features.mean(0))
    small = fit_gaussian(features, labels)
    monkeypatch.undo()
    assert_close(squared_distances(features, small), squared_distances(features, fit_gaussian(features, labels)))


def test_distances_are_never_negative_and_noise_is_no_direction():
    features, labels = make_case()
    gaussian = fit_gaussian(features, labels)
    means = class_means(features, labels)[1]
    assert (squared_distances(means, gaussian) >= 0).all()
    eps = torch.finfo(torch.float64).eps
    assert whitening_of(torch.diag(torch.tensor([1.0, 0.5, 2 * eps], dtype=torch.float64))).shape == (3, 2)


def test_labels_may_lie_anywhere_in_memory():
    features, labels = make_case()
    strided = torch.stack([labels, labels], dim=1)[:, 0]
    assert_close(fit_gaussian(features, strided).means, fit_gaussian(features, labels).means)
