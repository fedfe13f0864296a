"""Our scores against those that the authors' code and OpenOOD gave on real features of a ResNet-56.

Their sign is the opposite of ours. Their trace is a difference of two moments in float32: it is good to 1e-5, and a
curve of AUROCs of such traces to 4e-4.
"""

import numpy as np
import pytest
import torch

import flatfold as ff

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
}


@pytest.fixture(scope="module")
def fitted_on(golden):
    bank = ff.FeatureBank(golden["val_feat"], golden["val_label"].astype(np.int64))
    return bank, ff.Head(golden["W"], golden["b"])


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_reference(case, golden, fitted_on):
    name, hyper, tolerance = CASES[case]
    detector = ff.create(name, **hyper).fit(*fitted_on)
    for side in ("id", "ood"):
        got = detector(torch.from_numpy(golden[f"test_{side}_feat"])).numpy()
        np.testing.assert_allclose(got, -golden[f"score_{case}_{side}"], rtol=0, atol=tolerance)


def test_the_threshold_of_react_is_the_references(golden, fitted_on):
    detector = ff.create("react", percentile=90).fit(*fitted_on)
    assert float(detector.shaping.threshold_) == pytest.approx(float(golden["aux_react_threshold_p90"]), rel=1e-6)


def test_the_one_vs_rest_curve_is_the_authors(golden, fitted_on):
    detector = ff.AutoFold("one_vs_rest", grid=golden["alpha_grid"].tolist()).fit(*fitted_on)
    np.testing.assert_allclose(detector.curve_.numpy(), golden["curve_autofold_norm0"], rtol=0, atol=4e-4)
    assert float(detector.alpha_) == pytest.approx(float(golden["alpha_autofold_norm0"]))
