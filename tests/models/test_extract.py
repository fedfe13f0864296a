"""`models.extract` in memory: the same features as a forward pass by hand, and a sentence for every misuse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from flatfold.models.extract import extract


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 3))


def make_data(n=10):
    g = torch.Generator().manual_seed(3)
    return torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)


def by_hand(model, x):
    return (x @ model[0].weight.T + model[0].bias).clamp(min=0).detach()


def test_features_labels_and_head_agree_with_a_pass_by_hand():
    model, (x, y) = make_model(), make_data()
    bank, head = extract(model, DataLoader(TensorDataset(x, y), batch_size=4))
    assert_close(bank.features, by_hand(model, x))
    assert torch.equal(bank.labels, y)
    assert torch.equal(head.weight, model[3].weight)
    assert_close(head(bank.features), model.eval()(x))
    assert not bank.features.requires_grad


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any), labelled=st.booleans())
def test_every_row_comes_once_and_in_order_from_a_one_shot_generator(sizes, labelled):
    model, (x, y) = make_model(), make_data(sum(sizes))
    drawn = zip(x.split(sizes), y.split(sizes), strict=True) if labelled else iter(x.split(sizes))
    bank, _ = extract(model, drawn)
    assert_close(bank.features, by_hand(model, x))
    assert torch.equal(bank.labels, y) if labelled else bank.labels is None


def test_no_batch_runs_twice():
    rows = []
    model = make_model()
    model.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    extract(model, make_data()[0].split(4))
    assert rows == [4, 4, 2]


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
    ids=str,
)
def test_features_are_float32_unless_the_model_is_float64(dtype, stored):
    bank, head = extract(make_model().to(dtype), [make_data()[0].to(dtype)])
    assert bank.features.dtype == head.weight.dtype == stored
    assert bank.features.device.type == "cpu"


class Stream(IterableDataset):
    def __iter__(self):
        yield from make_data()[0]


def test_a_loader_without_a_known_length_is_fine():
    assert len(extract(make_model(), DataLoader(Stream(), batch_size=3))[0]) == 10


def test_an_iterable_data_set_of_batches_is_a_loader():
    class Batches(IterableDataset):
        def __iter__(self):
            yield from make_data()[0].split(3)

    assert len(extract(make_model(), Batches())[0]) == 10


def test_a_named_head_is_used():
    x = make_data()[0]
    with pytest.warns(UserWarning, match="the output of '0' is not what the model returns") as seen:
        bank, head = extract(make_model(), x.split(4), head="0")
    assert seen[0].filename == __file__
    assert torch.equal(bank.features, x)
    assert head.n_classes == 7


def test_some_batches_without_labels_are_refused():
    x, y = make_data()
    message = (
        r"either all batches have labels or none has, but the first has {} and the one that starts at row 4 has {}\."
    )
    with pytest.raises(ValueError, match=message.format("labels", "none")):
        extract(make_model(), [(x[:4], y[:4]), x[4:]])
    with pytest.raises(ValueError, match=message.format("none", "labels")):
        extract(make_model(), [x[:4], (x[4:], y[4:])])


def test_features_that_are_not_finite_are_refused_with_their_place():
    x = make_data()[0]
    x[5, 0] = torch.nan
    with pytest.raises(ValueError, match="features must be finite, but row 5 has"):
        extract(make_model(), x.split(4))


@pytest.mark.parametrize("loader", [[], iter([]), [torch.zeros(0, 6)]], ids=["list", "iterator", "empty batch"])
def test_an_empty_loader_is_refused(loader):
    with pytest.raises(ValueError, match="the loader gave no input at all"):
        extract(make_model(), loader)


X = make_data()[0]


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (X, r"must be an iterable of batches, not Tensor\. Wrap a single batch in a list, \[batch\]"),
        ({"x": X}, "not dict"),
        ((X, torch.zeros(len(X), dtype=torch.int64)), r"not tuple\. Wrap a single batch in a list, \[batch\]"),
        ("photos/", r"not str\. .* read a folder with FolderImages"),
        (3, "not int"),
        (TensorDataset(X), r"TensorDataset is a data set of single items\. Wrap it: torch.utils.data.DataLoader"),
        ([None], "a batch must hold a tensor, got NoneType"),
        ([X, None], "a batch must hold a tensor, got NoneType"),
    ],
    ids=["tensor", "dict", "pair", "path", "number", "dataset", "None first", "None later"],
)
def test_a_loader_of_another_kind_is_refused(loader, message):
    with pytest.raises(TypeError, match=message):
        extract(make_model(), loader)


def test_a_model_that_is_no_module_is_refused():
    with pytest.raises(
        TypeError, match=r"the model must be a torch.nn.Module, not function\. Call extract\(model, loader\)"
    ):
        extract(by_hand, [X])
