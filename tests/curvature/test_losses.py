import pytest
import torch
from torch.testing import assert_close

from flatfold.curvature.losses import logit_hessian_product, losses, slopes, targets
from tests.small_networks import loss_of


def rows(n=5, c=4, scale=3.0):
    return scale * torch.randn(n, c, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


LABELS = torch.tensor([3, 0, 1, 1, 2])


@pytest.mark.parametrize("loss", ["energy", "ce_pred", "ce"])
def test_each_loss_is_its_formula(loss):
    z = rows()
    assert_close(losses(z, targets(loss, z, LABELS)), loss_of(z, loss, LABELS))


@pytest.mark.parametrize("loss", ["energy", "ce_pred", "ce"])
def test_the_slopes_are_the_gradient(loss):
    z = rows().requires_grad_()
    (expected,) = torch.autograd.grad(loss_of(z, loss, LABELS).sum(), z)
    assert_close(slopes(z, targets(loss, z, LABELS)), expected)


def test_the_slope_of_a_sure_prediction_keeps_its_digits_in_float32():
    z = torch.tensor([[25.0, 0.0, 1.0]])
    exact = slopes(z.double(), torch.tensor([0]))
    assert_close(slopes(z, torch.tensor([0])).double(), exact, rtol=1e-5, atol=0)


def test_the_product_over_logits_is_the_dense_one():
    p = rows().softmax(-1)
    v = torch.randn(7, 5, 4, dtype=torch.float64)
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    assert_close(logit_hessian_product(p, v), torch.einsum("ncd,knd->knc", inner, v))


def test_cross_entropy_of_labels_needs_labels():
    with pytest.raises(ValueError, match=r"loss='ce' needs labels.*ce_pred"):
        targets("ce", rows(), None)


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_must_be_outputs_of_the_model(label):
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.3"):
        targets("ce", rows(), torch.full((5,), label))
