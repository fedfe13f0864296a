"""`FeatureBank` and `Head`: what they hold and what they refuse."""

import numpy as np
import torch
from torch.testing import assert_close

from flatfold import FeatureBank, Head
from tests.refusals import assert_refused

GOOD = torch.arange(6.0).reshape(3, 2)


def with_entry(value):
    features = GOOD.clone()
    features[1, 0] = value
    return features


def test_bad_features_are_refused():
    for features, error, keyword in (
        (with_entry(float("nan")), ValueError, "row 1"),
        (with_entry(float("-inf")), ValueError, "row 1"),
        (torch.zeros(0, 4), ValueError, "empty"),
        (torch.zeros(4, 0), ValueError, "empty"),
        (torch.zeros(4), ValueError, "dimensions"),
        (torch.zeros(2, 2, dtype=torch.float16), TypeError, "float16"),
        (torch.zeros(2, 2, dtype=torch.int64), TypeError, "int64"),
        ([[1.0, 2.0]], TypeError, "list"),
    ):
        assert_refused(error, keyword, FeatureBank, features)
    large = torch.zeros(70_000, 1)
    large[69_999] = torch.nan
    assert_refused(ValueError, "row 69999", FeatureBank, large)


def test_bad_labels_are_refused():
    for labels, error, keyword in (
        (torch.zeros(3), TypeError, "float32"),
        (torch.zeros(2, dtype=torch.int64), ValueError, "shape"),
        (torch.tensor([0, -1, 1]), ValueError, "-1"),
    ):
        assert_refused(error, keyword, FeatureBank, GOOD, labels)


def test_bad_heads_are_refused():
    for weight, bias, keyword in (
        (torch.full((2, 3), torch.nan), None, "weight must be finite"),
        (torch.ones(2, 3), torch.ones(3), "bias must have shape"),
        (torch.ones(2, 3), torch.ones(2, dtype=torch.float64), "float64"),
        (torch.ones(2, 3), torch.tensor([0.0, torch.inf]), "bias must be finite, but row 1"),
    ):
        assert_refused(ValueError, keyword, Head, weight, bias)


def test_numpy_arrays_are_taken_without_a_copy():
    array = np.ones((2, 3), dtype=np.float32)
    bank = FeatureBank(array, np.array([0, 1]))
    array[0, 0] = 5
    assert bank.features[0, 0] == 5
    assert bank.labels.tolist() == [0, 1]
    for dtype in (np.uint8, np.int16, np.int32, np.int64):
        assert FeatureBank(GOOD, np.array([0, 1, 1], dtype=dtype)).labels.dtype == torch.int64, dtype


def test_a_bank_can_be_cut_and_moved():
    bank = FeatureBank(GOOD, torch.tensor([0, 1, 1]))
    assert bank[1:].labels.tolist() == [1, 1]
    assert_close(bank[bank.labels == 0].features, GOOD[:1])
    assert FeatureBank(GOOD)[:1].labels is None
    assert FeatureBank(GOOD).to("cpu").labels is None
    assert bank.to("cpu").labels.tolist() == [0, 1, 1]


def test_a_head_predicts_the_largest_logit_whatever_the_parts(monkeypatch):
    g = torch.Generator().manual_seed(0)
    head, h = Head(torch.randn(5, 3, generator=g), torch.randn(5, generator=g)), torch.randn(20, 3, generator=g)
    monkeypatch.setattr("flatfold.core.hessian.ENTRIES_AT_ONCE", 17)
    assert torch.equal(head.predict(h), head(h).argmax(-1))


def test_a_head_gives_logits_with_and_without_bias():
    h = torch.tensor([[1.0, 2.0]])
    assert_close(Head(GOOD)(h), h @ GOOD.T)
    assert_close(Head(GOOD, torch.ones(3))(h), h @ GOOD.T + 1)
    assert Head(GOOD).to(torch.float64).weight.dtype == torch.float64


def test_neither_keeps_the_graph_of_its_tensors():
    assert not FeatureBank(torch.ones(2, 2, requires_grad=True)).features.requires_grad
    assert not Head(torch.nn.Linear(2, 3).weight).weight.requires_grad
