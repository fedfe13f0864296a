"""Curvature over the output of a layer, as the example computes it, against closed forms and autograd."""

import importlib
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from flatfold.curvature import feature_eigenvalues, feature_trace
from tests.small_networks import images, make


@pytest.fixture
def layer_curvature(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    return importlib.import_module("layer_curvature").layer_curvature


def test_over_the_features_it_is_the_closed_form_and_elsewhere_the_gauss_newton_matrix(layer_curvature):
    model, x = make("tanh"), images(3)
    trace, largest = layer_curvature(model, "3", x)
    weight, logits = model[4].weight.detach(), model(x).detach()
    assert_close(trace, feature_trace(weight, logits))
    assert_close(largest, feature_eigenvalues(weight, logits, 1)[:, 0])
    trace, largest = layer_curvature(model, "0", x)
    for i, output in enumerate(model[0](x).detach()):
        jacobian = torch.autograd.functional.jacobian(lambda h: model[1:](h[None])[0], output).flatten(1)
        p = logits[i].softmax(0)
        matrix = jacobian.T @ (p.diag() - p[:, None] * p) @ jacobian
        assert_close(trace[i], matrix.trace())
        assert_close(largest[i], torch.linalg.eigvalsh(matrix)[-1])
