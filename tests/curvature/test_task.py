"""A task reads its batches again and again, and notices when they change."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader

from flatfold.curvature.eigenvalues import param_lambda_max
from flatfold.curvature.setup import prepared
from flatfold.curvature.task import recordable
from flatfold.models.batches import split_batch
from tests.small_networks import images, make


@pytest.mark.parametrize("loss", ["energy", "ce_pred"])
def test_another_order_is_not_another_data_set(loss):
    model = make("relu", dtype=torch.float32)
    model[4].weight.data *= 8  # confident: losses near 0, of which rounding is a part
    data = images(24, dtype=torch.float32)
    for end in (nn.Identity(), nn.LogSoftmax(dim=-1)):
        loader = DataLoader(data, batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(0))
        expected = param_lambda_max(nn.Sequential(model, end), [data], matrix="ggn", loss=loss).value
        got = param_lambda_max(nn.Sequential(model, end), loader, matrix="ggn", loss=loss).value
        assert got == pytest.approx(expected, rel=1e-4)


def test_a_mean_loss_may_move_by_rounding_only():
    with prepared(make("relu", dtype=torch.float32), [images(2)]) as task:
        task.check_same(1e-9, size=20.0)
        task.check_same(1e-6, size=20.0)
        with pytest.raises(ValueError, match=r"mean loss was 1e-09 in one pass .* 0\.001 in another"):
            task.check_same(1e-3, size=20.0)
    with prepared(make("relu", dtype=torch.float32), [images(2)]) as task:
        task.check_same(1.0, size=1.0)
        with pytest.raises(ValueError, match="the batches change"):
            task.check_same(1.001, size=1.0)


def test_tensors_that_no_graph_may_hold_are_copied_and_others_are_not():
    x = images(2)
    with torch.inference_mode():
        batch = split_batch(({"a": x, "b": x.clone(), "c": 3}, torch.tensor([0, 1])))
    got = recordable(batch)
    assert got.kwargs["a"] is x
    assert got.kwargs["c"] == 3
    assert not got.kwargs["b"].is_inference()
    assert not got.labels.is_inference()
    assert_close(got.kwargs["b"], x)
