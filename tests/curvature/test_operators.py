"""Matrices known by their products: against dense ones and curvlinops, counted, and checked for symmetry."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from flatfold.curvature import param_lambda_max, param_spectrum, param_trace
from flatfold.curvature.operators import batch_operator, mean_operator, random_directions
from flatfold.curvature.problem import open_problem
from tests.curvature.matrices import check_refused, dense, operator, rotated, seeded
from tests.small_networks import NETWORKS, Net, dense_matrix, images, make, row_by_row_hessian

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
CASES = [("hessian", "energy"), ("hessian", "ce_pred"), ("hessian", "ce"), ("ggn", "energy"), ("ggn", "ce")]


def columns(size, k=3):
    return torch.randn(size, k, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("network", NETWORKS)
def test_products_are_those_of_the_dense_matrix(network):
    model, x = make(network), images()
    for matrix, loss in CASES:
        expected = dense_matrix(matrix, model, x, loss, LABELS)
        v = columns(len(expected))
        with open_problem(model, [(x[:4], LABELS[:4]), (x[4:], LABELS[4:])], loss, matrix=matrix) as problem:
            of_all = mean_operator(problem)
            assert of_all.size == len(expected)
            assert_close(of_all.apply(v), expected @ v)
            assert_close(of_all.apply(v[:, :1]), expected @ v[:, :1])
        with open_problem(model, [(x, LABELS)], loss, matrix=matrix) as problem:
            assert_close(batch_operator(problem, next(problem.each(""))).apply(v), expected @ v)


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_curvlinops_gives_the_same_products(matrix):
    curvlinops = pytest.importorskip("curvlinops", reason="the second oracle is not installed")
    model, x = make("batch norm"), images()
    kind = curvlinops.HessianLinearOperator if matrix == "hessian" else curvlinops.GGNLinearOperator
    reference = kind(model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, LABELS)])
    v = columns(reference.shape[0])
    with open_problem(model, [(x, LABELS)], "ce", matrix=matrix) as problem:
        assert_close(mean_operator(problem).apply(v), reference @ v)


def test_attention_can_be_differentiated_twice():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True)
    model = Net(lambda m, x: m.head(m.layer(x.squeeze(1)).mean(dim=1)), layer=layer, head=nn.Linear(6, 3))
    model, x = model.eval().double(), images(3)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = row_by_row_hessian(model, x)
    got = param_spectrum(model, [x], steps=25, probes=1)
    values = torch.linalg.eigvalsh(expected)
    assert (got.lambda_min, got.lambda_max) == pytest.approx((float(values[0]), float(values[-1])), rel=1e-6)
    exact = param_trace(model, [x], method="xtrace", probes=len(expected))
    assert exact.value == pytest.approx(float(expected.trace()), rel=1e-9)


def test_parameters_that_take_no_part_or_only_a_linear_one_have_no_curvature():
    # one number is added to all logits: the energy rises by it, and nothing bends
    parts = {"shift": nn.Parameter(torch.zeros(1)), "unused": nn.Parameter(torch.ones(2))}
    model = Net(lambda m, x: x.flatten(1)[:, :3] + m.shift, **parts).double()
    for matrix in ("hessian", "ggn"):
        got = param_trace(model, [images()], matrix=matrix, method="xtrace", probes=3)
        assert abs(got.value) < 1e-15
        got = param_spectrum(model, [images()], matrix=matrix, steps=3)
        assert (got.size, got.nodes.abs().max() < 1e-15) == (3, True)


def test_products_are_counted_and_handed_over_in_the_type_of_the_operator():
    seen = []
    one = operator(lambda v: seen.append(v.dtype) or v, 5, torch.float32)
    assert one(torch.ones(5, 3, dtype=torch.float64)).dtype == torch.float32
    one(torch.ones(5, 1))
    assert (one.products, seen) == (4, [torch.float32] * 2)


def test_products_that_are_no_numbers_are_refused():
    bad = [float("nan"), float("inf"), -float("inf")]
    check_refused(
        lambda apply: operator(apply, 5)(torch.ones(5, 2, dtype=torch.float64)),
        [(lambda v, b=b: torch.where(torch.arange(5)[:, None] == 3, b, v), ValueError, "finite") for b in bad],
    )


def test_random_directions_are_equally_likely():
    for dtype in (torch.float32, torch.float64):
        directions = random_directions(operator(None, 3, dtype), 4000, seeded()).double()
        assert_close(directions.norm(dim=0), torch.ones(4000).double(), rtol=1e-6, atol=0)
        # On a sphere in three dimensions every coordinate is uniform between -1 and 1.
        off = directions.sort(dim=1).values - torch.linspace(-1, 1, 4000, dtype=torch.float64)
        assert off.abs().max() < 0.07


def test_random_vectors_depend_on_the_seed_and_not_on_how_many_are_drawn_at_once():
    together, generator = random_directions(operator(None, 37), 5, seeded(3)), seeded(3)
    single = [random_directions(operator(None, 37), 1, generator) for _ in range(5)]
    assert torch.equal(together, torch.cat(single, dim=1))
    assert not torch.equal(together, random_directions(operator(None, 37), 5, seeded(4)))


def test_a_matrix_that_is_not_symmetric_is_refused():
    matrix = torch.eye(5, dtype=torch.float64)
    matrix[0, 1] = 0.5
    vectors = torch.randn(5, 2, generator=seeded(), dtype=torch.float64)
    for scale in (1e-30, 1.0, 1e30):
        with pytest.raises(ValueError, match="symmetric"):
            dense(scale * matrix)(vectors)
        one_by_one = dense(scale * matrix)
        one_by_one(vectors[:, :1])
        with pytest.raises(ValueError, match="symmetric"):
            one_by_one(vectors[:, 1:])


def test_a_symmetric_matrix_in_float32_passes_in_whatever_directions():
    values = torch.logspace(0, -8, 40, dtype=torch.float64)
    turn = torch.linalg.eigh(rotated(values))[1].flip(1).float()  # the smallest eigenvalues last
    for scale in (1e-30, 1.0, 1e30):
        diagonal = torch.diag(scale * values).float()
        one = operator(lambda v, d=diagonal: turn @ (d @ (turn.T @ v)), 40, torch.float32)
        one(turn[:, :5])
        one(turn[:, 20:])  # next to nothing but rounding
        one(torch.zeros(40, 1))
        assert one(turn[:, :1]).shape == (40, 1)


def test_errors_that_are_not_about_derivatives_are_passed_on():
    def fail(gradient):
        raise RuntimeError("out of memory")

    def run(model, x):
        z = model.last(x).tanh()
        if z.requires_grad:
            z.register_hook(fail)
        return z

    for call in (param_lambda_max, param_trace, param_spectrum):
        with pytest.raises(RuntimeError, match="out of memory"):
            call(Net(run, last=nn.Linear(3, 2)), [torch.randn(4, 3)])
