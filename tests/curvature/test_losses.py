import pytest
import torch
from torch.testing import assert_close

from flatfold.curvature.losses import logit_hessian_product, losses, targets
from tests.small_networks import loss_of


def rows(n=5, c=4, scale=3.0):
    return scale * torch.randn(n, c, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


LABELS = torch.tensor([3, 0, 1, 1, 2])


@pytest.mark.parametrize("loss", ["energy", "ce_pred", "ce"])
def test_each_loss_is_its_formula(loss):
    z = rows()
    assert_close(losses(z, targets(loss, z, LABELS)), loss_of(z, loss, LABELS))


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


def covariance(z):
    """The second derivative of the loss over the logits ``(c,)``, without a difference of nearly equal numbers."""
    p = z.double().softmax(-1)
    top = int(p.argmax())
    others = p.clone()
    others[top] = 0
    found = torch.diag(others) - torch.outer(others, others)
    found[top] = found[:, top] = -others * (1 - others.sum())
    found[top, top] = others.sum() * (1 - others.sum())
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("target", [None, 0, 2])
@pytest.mark.parametrize("certainty", [1.0, 15.0, 30.0, 60.0])
def test_second_derivatives_of_a_sure_prediction_keep_their_digits(certainty, target, dtype):
    z = torch.tensor([certainty, 0.0, 1.5, -2.0], dtype=dtype, requires_grad=True)
    target = None if target is None else torch.tensor([target])
    (slope,) = torch.autograd.grad(losses(z[None], target).sum(), z, create_graph=True)
    bends = torch.stack([torch.autograd.grad(entry, z, retain_graph=True)[0] for entry in slope])
    assert_close(bends.double(), covariance(z.detach()), rtol=1e-5, atol=1e-45)  # float32 holds nothing smaller


@pytest.mark.parametrize("certainty", [15.0, 30.0, 60.0])
def test_products_over_the_logits_of_a_sure_prediction_keep_their_digits(certainty):
    z = torch.tensor([0.0, certainty, 1.5, -2.0])
    v = torch.tensor([[5.0, 7.0, -3.0, 4.0]])
    expected = v.double() @ covariance(z)
    assert_close(logit_hessian_product(z.softmax(-1)[None], v).double(), expected, rtol=1e-5, atol=0)


def test_a_class_that_is_left_out_has_no_part_in_the_loss():
    z = rows()
    masked = torch.cat([z, torch.full((5, 1), -torch.inf, dtype=torch.float64)], dim=1).requires_grad_()
    assert_close(losses(masked, None).detach(), loss_of(z, "energy"))
    (slope,) = torch.autograd.grad(losses(masked, None).sum(), masked)
    assert_close(slope, torch.cat([z.softmax(-1), torch.zeros(5, 1, dtype=torch.float64)], dim=1))
