"""`curvature.operator`: products are counted and looked at, random vectors depend on the seed alone."""

import pytest
import torch

from flatfold.curvature.operator import Operator, random_directions, random_signs

CPU = torch.device("cpu")


def make_operator(apply=lambda v: 2 * v, size=5, dtype=torch.float64):
    return Operator(apply, size, dtype, CPU)


def test_every_column_counts_as_a_product():
    operator = make_operator()
    assert operator.products == 0
    operator(torch.ones(5, 3, dtype=torch.float64))
    operator(torch.ones(5, 1, dtype=torch.float64))
    assert operator.products == 4


def test_vectors_are_handed_over_in_the_type_of_the_operator():
    seen = []
    operator = make_operator(lambda v: seen.append(v.dtype) or v, dtype=torch.float32)
    assert operator(torch.ones(5, 1, dtype=torch.float64)).dtype == torch.float32
    assert seen == [torch.float32]


def test_a_product_of_another_shape_is_refused():
    operator = make_operator(lambda v: v[:4])
    with pytest.raises(ValueError, match=r"vectors of shape \(5, 2\) must have their shape, got \(4, 2\)\. One column"):
        operator(torch.ones(5, 2, dtype=torch.float64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_product_that_is_not_finite_is_refused(bad):
    operator = make_operator(lambda v: torch.where(torch.arange(5)[:, None] == 3, bad, v))
    with pytest.raises(
        ValueError, match=r"must be finite, but one has a NaN or an infinite entry\. Look at the model's"
    ):
        operator(torch.ones(5, 2, dtype=torch.float64))


@pytest.mark.parametrize("size", [0, -1])
def test_a_matrix_without_columns_is_refused(size):
    with pytest.raises(ValueError, match=f"size must be a whole number from 1 on, got {size}"):
        make_operator(size=size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_signs_are_plus_and_minus_one_with_even_odds(dtype):
    signs = random_signs(make_operator(size=10_000, dtype=dtype), 3, torch.Generator().manual_seed(0))
    assert (signs.dtype, signs.shape) == (dtype, (10_000, 3))
    assert set(signs.unique().tolist()) == {-1, 1}
    assert signs.mean(dim=0).abs().max() < 0.04  # four standard deviations
    assert (signs.T @ signs / 10_000 - torch.eye(3)).abs().max() < 0.04


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_directions_have_length_one_and_are_equally_likely(dtype):
    directions = random_directions(make_operator(size=3, dtype=dtype), 4000, torch.Generator().manual_seed(0)).double()
    assert directions.shape == (3, 4000)
    torch.testing.assert_close(directions.norm(dim=0), torch.ones(4000).double(), rtol=1e-6, atol=0)
    # On a sphere in three dimensions every coordinate is uniform between -1 and 1.
    grid = torch.linspace(-1, 1, 4000, dtype=torch.float64)
    for row in directions:
        assert (row.sort().values - grid).abs().max() < 0.07


@pytest.mark.parametrize("draw", [random_signs, random_directions])
def test_random_vectors_depend_on_the_seed_and_not_on_how_many_are_drawn_at_once(draw):
    operator = make_operator(size=37)
    together = draw(operator, 5, torch.Generator().manual_seed(3))
    one_by_one = torch.Generator().manual_seed(3)
    assert torch.equal(together, torch.cat([draw(operator, 1, one_by_one) for _ in range(5)], dim=1))
    assert not torch.equal(together, draw(operator, 5, torch.Generator().manual_seed(4)))


def test_a_matrix_that_is_not_symmetric_is_refused():
    matrix = torch.eye(5, dtype=torch.float64)
    matrix[0, 1] = 0.5
    vectors = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sentence = r"must be symmetric, but this one has .* weight_norm \(remove the param.*use loss='ce_pred'\)"
    with pytest.raises(ValueError, match=sentence):
        make_operator(lambda v: matrix @ v)(vectors)
    operator = make_operator(lambda v: matrix @ v)
    operator(vectors[:, :1])
    with pytest.raises(ValueError, match="must be symmetric"):
        operator(vectors[:, 1:])


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_symmetric_matrix_in_float32_passes_in_whatever_directions(scale):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.diag(scale * torch.logspace(0, -8, 40)).float()
    turn = torch.linalg.qr(torch.randn(40, 40, generator=generator)).Q
    operator = make_operator(lambda v: turn @ (matrix @ (turn.T @ v)), size=40, dtype=torch.float32)
    operator(turn[:, :5])
    operator(turn[:, 20:])  # next to nothing but rounding
    operator(torch.zeros(40, 1))
    assert operator(turn[:, :1]).shape == (40, 1)
