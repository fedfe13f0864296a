"""Our scores against those that the authors' code and OpenOOD gave on real features of a ResNet-56.

Their sign is the opposite of ours. Their trace is a difference of two moments in float32: it is good to 1e-5, and a
curve of AUROCs of such traces to 4e-4.
"""

import numpy as np
import pytest
import torch

import flatfold as ff
from flatfold.detectors import METHODS

CASES = {
    "fold_a0.3_norm0": ("fold", {"alpha": 0.3}, 1e-5),
    "fold_a0.7_norm0": ("fold", {"alpha": 0.7}, 1e-5),
    "fold_a1.0_norm0": ("fold", {"alpha": 1.0}, 1e-5),
    "fold_a0.7_norm1": ("fold", {"alpha": 0.7, "score_norm": "weight"}, 1e-5),
    "fold_react_p90_a0.3_norm0": ("fold-r", {"alpha": 0.3, "percentile": 90, "masked": True}, 1e-5),
    "fold_ash_p65_a0.7_norm0": ("fold-a", {"alpha": 0.7, "percentile": 65}, 1e-5),
    "msp": ("msp", {}, 1e-6),
    "ebo": ("ebo", {}, 1e-6),
    "mls": ("mls", {}, 1e-6),
    "react_p90": ("react", {"percentile": 90}, 1e-6),
    "ash_p65": ("ash", {"percentile": 65}, 1e-6),
    "ash_p90": ("ash", {"percentile": 90}, 1e-6),
    "openmax": ("openmax", {}, 1e-5),
    "temp_scaling": ("tempscale", {}, 5e-7),
    "mds": ("mds", {}, 2e-4),  # of up to 750: 1e-6 relative
    "rmds": ("rmds", {}, 1.5e-4),
    "vim_dim32": ("vim", {"dim": 32}, 8e-4),  # their covariance is float32
    "knn_k50": ("knn", {"k": 50}, 3e-7),
    "she": ("she", {}, 2e-5),
    "klm": ("klm", {}, 1e-6),
    "scale_p85": ("scale", {"percentile": 85}, 2e-4),  # of up to 250
}


def fit(name, hyper, golden):
    """Fit a method on the split it asks for."""
    split = "train" if METHODS[name].fits_on == "train" else "val"
    bank = ff.FeatureBank(golden[f"{split}_feat"], golden[f"{split}_label"].astype(np.int64))
    return ff.create(name, **hyper).fit(bank, ff.Head(golden["W"], golden["b"]))


def scores(detector, golden, side):
    return detector(torch.from_numpy(golden[f"test_{side}_feat"])).numpy()


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_reference(case, golden):
    name, hyper, tolerance = CASES[case]
    detector = fit(name, hyper, golden)
    for side in ("id", "ood"):
        got = scores(detector, golden, side)
        np.testing.assert_allclose(got, -golden[f"score_{case}_{side}"], rtol=0, atol=tolerance)


def test_gen_is_the_references_where_float32_still_knows_one_minus_p(golden):
    """(1 - p)^0.1 of a confident sample: the reference rounds 1 - p, by 6e-8, before the root is taken."""
    detector = fit("gen", {}, golden)
    for side in ("id", "ood"):
        h = golden[f"test_{side}_feat"].astype(np.float64)
        z = h @ golden["W"].T.astype(np.float64) + golden["b"]
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        rest = np.array([[np.delete(row, c).sum() for c in range(10)] for row in p])  # 1 - p without its rounding
        exact = (p**0.1 * rest**0.1).sum(1)
        got, reference = scores(detector, golden, side), -golden[f"score_gen_{side}"]
        np.testing.assert_allclose(got, exact, rtol=1e-6)
        unsure = rest.min(1) > 1e-2
        assert unsure.sum() > 20
        np.testing.assert_allclose(got[unsure], reference[unsure], rtol=1e-5)
        assert np.abs(reference - exact).max() > 0.1  # and there it is not


def test_the_threshold_of_react_is_the_references(golden):
    detector = fit("react", {"percentile": 90}, golden)
    assert float(detector.shaping.threshold_) == pytest.approx(float(golden["aux_react_threshold_p90"]), rel=1e-6)


def test_what_openmax_learns_is_what_the_reference_learnt(golden):
    """LibMR stops its search at a tolerance of 1e-6."""
    detector = fit("openmax", {}, golden)
    scale, shape, _, _, smallest = golden["aux_openmax_params"].T
    np.testing.assert_allclose(detector.scale, scale, rtol=1e-5)
    np.testing.assert_allclose(detector.shape, shape, rtol=1e-5)
    np.testing.assert_allclose(detector.smallest, smallest, rtol=1e-6)
    np.testing.assert_allclose(detector.means, golden["aux_openmax_mean"], rtol=2e-6, atol=1e-5)


def test_the_temperature_is_the_references_and_the_exact_one_is_better(golden):
    reference, exact = (fit("tempscale", {"solver": solver}, golden).temperature_ for solver in ("reference", "exact"))
    assert float(reference) == pytest.approx(float(golden["aux_temp_scaling_T"][0]), rel=1e-6)
    assert float(exact) == pytest.approx(2.3029, abs=1e-3)


def test_the_scale_of_vims_virtual_logit_is_the_references(golden):
    assert float(fit("vim", {"dim": 32}, golden).alpha_virtual_) == pytest.approx(
        float(golden["aux_vim_alpha_dim32"]), rel=1e-5
    )


def test_the_one_vs_rest_curve_is_the_authors(golden):
    detector = fit("autofold", {"criterion": "one_vs_rest", "grid": golden["alpha_grid"].tolist()}, golden)
    np.testing.assert_allclose(detector.curve_.numpy(), golden["curve_autofold_norm0"], rtol=0, atol=4e-4)
    assert float(detector.alpha_) == pytest.approx(float(golden["alpha_autofold_norm0"]))
