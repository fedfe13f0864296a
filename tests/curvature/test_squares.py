"""Squares of numbers that have none in their own type, against float64."""

import pytest
import torch
from torch.func import vmap
from torch.testing import assert_close

from flatfold.curvature.squares import row_products


def some_rows(scale, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return (torch.randn(2, 3, 50, generator=g, dtype=torch.float64) * scale).to(dtype)


@pytest.mark.parametrize("scale", [1e-36, 1e-23, 1.0, 1e19, 1e37])
@pytest.mark.parametrize("pairs", [False, True])
def test_whatever_float32_can_hold_has_a_square(scale, pairs):
    rows = some_rows(scale)
    wide = rows.double() @ rows.double().mT
    expected = wide if pairs else wide.diagonal(dim1=1, dim2=2)
    got = row_products(rows, pairs)
    assert got.dtype == torch.float64
    size = wide.diagonal(dim1=1, dim2=2).sqrt()
    rounding = 1e-6 * (size[:, :, None] * size[:, None, :] if pairs else size.square())
    assert ((got - expected).abs() <= rounding).all()
    assert (got != 0).all()
    assert_close(vmap(lambda one: row_products(one, pairs))(rows), got)


def test_each_row_has_a_scale_of_its_own():
    rows = some_rows(1.0)[0] * torch.tensor([[1e-30], [1.0], [1e30]])
    wide = rows.double() @ rows.double().T
    assert_close(row_products(rows, pairs=True), wide, rtol=1e-5, atol=0)
    assert_close(row_products(rows, pairs=False), wide.diagonal(), rtol=1e-6, atol=0)


def test_float64_keeps_its_digits():
    rows = some_rows(1.0, torch.float64)
    assert_close(row_products(rows, pairs=True), rows @ rows.mT, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("columns", [0, 4])
def test_rows_of_nothing_and_rows_of_zeros_have_no_length(columns):
    rows = torch.zeros(3, columns)
    for pairs, shape in ((False, (3,)), (True, (3, 3))):
        got = row_products(rows, pairs)
        assert (got.shape, got.dtype) == (shape, torch.float64)
        assert not got.any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_does_not_become_one(bad):
    rows = torch.tensor([[1.0, bad], [3.0, 4.0]])
    lengths = row_products(rows, pairs=False)
    assert not lengths[0].isfinite()
    assert lengths[1] == 25
    assert not row_products(rows, pairs=True)[0].isfinite().any()
