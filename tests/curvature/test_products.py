import pytest
import torch
from torch import nn
from torch.testing import assert_close

from flatfold.curvature import products
from flatfold.curvature.products import batch_operator, mean_operator
from flatfold.curvature.setup import prepared
from tests.small_networks import NETWORKS, dense_hessian, dense_matrix, images, make, row_by_row_hessian

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
CASES = [("hessian", "energy"), ("hessian", "ce_pred"), ("hessian", "ce"), ("ggn", "energy"), ("ggn", "ce")]


def columns(size, k=3, dtype=torch.float64):
    return torch.randn(size, k, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("matrix", "loss"), CASES)
def test_products_are_those_of_the_dense_matrix(network, matrix, loss):
    model, x = make(network), images()
    expected = dense_matrix(matrix, model, x, loss, LABELS)
    v = columns(len(expected), k=3)
    with prepared(model, [(x[:4], LABELS[:4]), (x[4:], LABELS[4:])], loss) as task:
        operator = mean_operator(task, matrix)
        assert operator.size == len(expected)
        assert_close(operator.apply(v), expected @ v)
        assert_close(operator.apply(v[:, :1]), expected @ v[:, :1])
    with prepared(model, [(x, LABELS)], loss) as task:
        operator = batch_operator(task, next(task.each("")), matrix)
        assert_close(operator.apply(v), expected @ v)


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_curvlinops_gives_the_same_products(matrix):
    curvlinops = pytest.importorskip("curvlinops", reason="the second oracle is not installed")
    model, x = make("batch norm"), images()
    kind = curvlinops.HessianLinearOperator if matrix == "hessian" else curvlinops.GGNLinearOperator
    reference = kind(model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, LABELS)])
    v = columns(reference.shape[0])
    with prepared(model, [(x, LABELS)], "ce") as task:
        assert_close(mean_operator(task, matrix).apply(v), reference @ v)


def test_float32_products_are_close_to_float64():
    model, x = make("batch norm"), images()
    expected = dense_hessian(model, x)
    v = columns(len(expected))
    with prepared(model.float(), [x.float()]) as task:
        got = mean_operator(task, "hessian").apply(v.float())
    assert got.dtype == torch.float32
    assert float((got.double() - expected @ v).norm() / (expected @ v).norm()) < 1e-5


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_parameters_that_do_not_reach_the_loss_get_zero(matrix):
    model = make("relu")
    model.unused = nn.Linear(2, 2).double()
    model.forward = lambda x: nn.Sequential(*list(model)[:5])(x)
    x = images()
    size = sum(parameter.numel() for parameter in model.parameters())
    with prepared(model, [x]) as task:
        product = mean_operator(task, matrix).apply(columns(size))
    assert (product[-6:] == 0).all()
    assert (product[:-6] != 0).any()
    with prepared(model, [x], params=["unused"]) as task:
        assert (mean_operator(task, matrix).apply(columns(6)) == 0).all()


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_a_loss_that_is_linear_in_a_parameter_has_no_hessian_there(matrix):
    class Shifted(nn.Module):  # one number added to all logits: the energy rises by it, and nothing bends
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x):
            return x.flatten(1)[:, :3] + self.shift

    with prepared(Shifted(), [images()]) as task:
        assert float(mean_operator(task, matrix).apply(columns(1, 1)).abs()) < 1e-15


def test_attention_can_be_differentiated_twice():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.layer(x.squeeze(1)).mean(dim=1))

    torch.manual_seed(0)
    model, x = Attending().eval().double(), images(3)
    v = columns(sum(parameter.numel() for parameter in model.parameters()), 2)
    with prepared(model, [x]) as task:
        got = mean_operator(task, "hessian").apply(v)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = row_by_row_hessian(model, x)
    assert_close(got, expected @ v)


def test_stored_gradients_are_not_touched():
    model = make("relu")
    model[0].weight.grad = torch.full_like(model[0].weight, 7.0)
    with prepared(model, [images()]) as task:
        for matrix in ("hessian", "ggn"):
            mean_operator(task, matrix).apply(columns(task.size))
    assert (model[0].weight.grad == 7).all()
    assert model[4].weight.grad is None


def test_the_graph_of_a_single_batch_is_built_once(monkeypatch):
    built = []
    original = products._product
    monkeypatch.setattr(products, "_product", lambda *given: built.append(1) or original(*given))
    for batches, expected in (([images(4)], 1), ([images(2), images(2)], 6)):
        built.clear()
        with prepared(make("relu"), batches) as task:
            operator = mean_operator(task, "hessian")
            for _ in range(3):
                operator.apply(columns(task.size))
        assert len(built) == expected


def test_batches_that_change_between_passes_are_noticed():
    class Random:
        def __iter__(self):
            return iter([torch.randn(2, 1, 6, 6, dtype=torch.float64) for _ in range(2)])

    with prepared(make("tanh"), Random()) as task:
        operator = mean_operator(task, "hessian")
        v = columns(task.size)
        with pytest.raises(ValueError, match=r"mean loss was .* the batches change.*augmentation"):
            operator.apply(v), operator.apply(v)
