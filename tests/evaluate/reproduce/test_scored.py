"""`evaluate.reproduce.scored`: traces over logits against softmax written out in float64."""

import pytest
import torch
from torch.testing import assert_close

from flatfold.evaluate.reproduce.scored import logit_traces, scored
from tests.evaluate.reproduce.toys import make_banks


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_the_trace_over_logits_is_one_minus_the_squares_of_the_probabilities(alpha):
    banks = make_banks()
    found = logit_traces(banks, alpha)
    assert list(found) == list(banks.judged)
    for name, bank in banks.judged.items():
        h = bank.features.double()
        h = h / h.norm(dim=1, keepdim=True) ** alpha
        probs = (h @ banks.head.weight.double().T + banks.head.bias.double()).softmax(dim=1)
        assert_close(torch.from_numpy(found[name]).double(), 1 - probs.square().sum(dim=1), rtol=1e-5, atol=1e-9)


def test_over_features_the_trace_is_the_score_of_fold():
    banks = make_banks()
    weight, bias = banks.head.weight.double(), banks.head.bias.double()
    h = banks.test.features.double()
    probs = (h / h.norm(dim=1, keepdim=True) ** 0.4 @ weight.T + bias).softmax(dim=1)
    hessians = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :]
    expected = torch.stack([(weight.T @ each @ weight).trace() for each in hessians])
    assert_close(torch.from_numpy(scored("fold", banks, alpha=0.4)["id"]).double(), expected, rtol=1e-4, atol=1e-7)
