"""`FeatureBank` and `Head` at the door: each bad input has its own sentence."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from flatfold import FeatureBank, Head

GOOD = torch.arange(6.0).reshape(3, 2)


def with_entry(value):
    features = GOOD.clone()
    features[1, 0] = value
    return features


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        (with_entry(float("nan")), ValueError, "features must be finite, but row 1 has a NaN or infinite entry"),
        (with_entry(float("-inf")), ValueError, "features must be finite, but row 1"),
        (torch.zeros(0, 4), ValueError, r"must not be empty, got shape \(0, 4\)"),
        (torch.zeros(4, 0), ValueError, r"must not be empty, got shape \(4, 0\)"),
        (torch.zeros(4), ValueError, r"two dimensions, got \(4,\)"),
        (torch.zeros(2, 2, dtype=torch.float16), TypeError, r"float32 or float64, got torch\.float16"),
        (torch.zeros(2, 2, dtype=torch.int64), TypeError, "float32 or float64"),
        ([[1.0, 2.0]], TypeError, "torch tensor or a numpy array, not list"),
    ],
)
def test_bad_features_are_refused(features, error, message):
    with pytest.raises(error, match=message):
        FeatureBank(features)


def test_the_bad_row_is_named_in_a_large_bank_too():
    features = torch.zeros(70_000, 1)
    features[69_999] = torch.nan
    with pytest.raises(ValueError, match="row 69999"):
        FeatureBank(features)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.zeros(3), TypeError, r"whole class indices, got torch\.float32"),
        (torch.zeros(2, dtype=torch.int64), ValueError, r"shape \(3,\), one per feature row, got \(2,\)"),
        (torch.tensor([0, -1, 1]), ValueError, "class indices from 0, got -1"),
    ],
)
def test_bad_labels_are_refused(labels, error, message):
    with pytest.raises(error, match=message):
        FeatureBank(GOOD, labels)


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.ones(1, 3), None, "at least two classes"),
        (torch.full((2, 3), torch.nan), None, "the head's weight must be finite"),
        (torch.ones(2, 3), torch.ones(3), r"bias must have shape \(2,\)"),
        (torch.ones(2, 3), torch.ones(2, dtype=torch.float64), r"got \(2,\) and torch\.float64"),
        (torch.ones(2, 3), torch.tensor([0.0, torch.inf]), "the head's bias must be finite, but row 1"),
    ],
)
def test_bad_heads_are_refused(weight, bias, message):
    with pytest.raises(ValueError, match=message):
        Head(weight, bias)


def test_numpy_arrays_are_taken_without_a_copy():
    array = np.ones((2, 3), dtype=np.float32)
    bank = FeatureBank(array, np.array([0, 1]))
    array[0, 0] = 5
    assert bank.features[0, 0] == 5
    assert bank.labels.tolist() == [0, 1]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64])
def test_labels_of_any_integer_type_become_int64(dtype):
    assert FeatureBank(GOOD, np.array([0, 1, 1], dtype=dtype)).labels.dtype == torch.int64


def test_a_bank_can_be_cut_and_moved():
    bank = FeatureBank(GOOD, torch.tensor([0, 1, 1]))
    assert bank[1:].labels.tolist() == [1, 1]
    assert_close(bank[bank.labels == 0].features, GOOD[:1])
    assert FeatureBank(GOOD)[:1].labels is None
    assert FeatureBank(GOOD).to("cpu").labels is None
    assert bank.to("cpu").labels.tolist() == [0, 1, 1]


def test_both_say_what_they_hold():
    assert repr(FeatureBank(GOOD)) == "FeatureBank(3 rows, 2 features, no labels, torch.float32)"
    assert (
        repr(FeatureBank(GOOD, torch.tensor([0, 1, 1]))) == "FeatureBank(3 rows, 2 features, 2 classes, torch.float32)"
    )
    assert repr(Head(GOOD)) == "Head(3 classes, 2 features, no bias, torch.float32)"
    assert "bias, torch.float64" in repr(Head(GOOD, torch.ones(3)).to(torch.float64))


def test_a_head_gives_logits_with_and_without_bias():
    h = torch.tensor([[1.0, 2.0]])
    assert_close(Head(GOOD)(h), h @ GOOD.T)
    assert_close(Head(GOOD, torch.ones(3))(h), h @ GOOD.T + 1)


def test_a_bank_does_not_hold_on_to_a_graph():
    assert not FeatureBank(torch.ones(2, 2, requires_grad=True)).features.requires_grad


def test_a_head_does_not_hold_on_to_the_models_graph():
    assert not Head(torch.nn.Linear(2, 3).weight).weight.requires_grad
