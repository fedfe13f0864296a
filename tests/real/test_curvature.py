"""The curvature of a pretrained network on real images, against its own second derivatives and the paper's claim."""

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from flatfold import curvature
from flatfold.curvature.operators import batch_operator
from flatfold.curvature.problem import open_problem

from .conftest import example, images


@pytest.fixture(scope="module")
def resnet20(data):
    model = example("cifar_resnet").resnet20()
    model.load_state_dict(load_file(data / "cifar10_resnet20.safetensors"))
    return model.eval()


@pytest.fixture(scope="module")
def batch(data):
    """A few images of each data set, known ones first."""

    def some(name, n):
        x, _ = images(data, name).read(range(250))
        return x[:n]

    return {name: some(name, 16) for name in ("cifar10_test", "textures_dtd10_32", "svhn_test_4k", "mnist_test")}


def test_the_exact_trace_is_the_diagonal_of_the_hessian_where_it_is_looked_at(resnet20, batch):
    """Of 170 parameters, near the images, in the middle and at the end, column by column in float64."""
    model, x = resnet20.double(), batch["textures_dtd10_32"][:2].double()
    try:
        names = ["linear.bias", "layer2.0.bn2", "layer2.2.bn1", "bn1"]
        with open_problem(model, [x], params=names) as problem:
            operator = batch_operator(problem, next(problem.each("")))
            expected = float(operator(torch.eye(operator.size, dtype=torch.float64)).trace())
        got = curvature.param_trace(model, [x], params=names)
        assert (got.method, got.stderr) == ("exact", None)
        assert got.value == pytest.approx(expected, rel=1e-9)
    finally:
        resnet20.float()


def test_float32_and_batches_change_the_traces_by_rounding_only(resnet20, batch):
    x = batch["svhn_test_4k"]
    whole = curvature.param_trace(resnet20, [x], level="sample")
    parts = curvature.param_trace(resnet20, x.split(7), level="sample")
    assert whole.stderr is None
    assert_close(parts.value, whole.value, rtol=1e-4, atol=0)
    try:
        exact = curvature.param_trace(resnet20.double(), [x.double()], level="sample")
    finally:
        resnet20.float()
    assert_close(whole.value, exact.value, rtol=1e-4, atol=0)


def test_the_largest_eigenvalue_is_found_in_few_products(resnet20, batch):
    x = batch["textures_dtd10_32"]
    got = curvature.param_lambda_max(resnet20, [x], loss="ce_pred")
    assert got.matvecs <= 15
    try:
        truth = curvature.param_lambda_max(resnet20.double(), [x.double()], loss="ce_pred", rtol=1e-10)
    finally:
        resnet20.float()
    assert got.value == pytest.approx(truth.value, rel=1e-5)


def test_known_images_bend_the_loss_least(resnet20, batch):
    weight = resnet20.linear.weight.detach()
    over_parameters = {name: curvature.param_trace(resnet20, [x]).value for name, x in batch.items()}
    over_features = {
        name: float(curvature.feature_trace(weight, resnet20(x).detach()).mean()) for name, x in batch.items()
    }
    for traces in (over_parameters, over_features):
        known = traces.pop("cifar10_test")
        assert all(2 * known < unknown for unknown in traces.values())
