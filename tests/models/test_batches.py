"""`models.batches`: every form a loader may yield, and a sentence for the others."""

from collections import UserDict

import numpy as np
import pytest
import torch

from flatfold.models.batches import Batch, split_batch

X = torch.arange(6.0).reshape(2, 3)
Y = torch.tensor([1, 0])


@pytest.mark.parametrize(
    ("batch", "labelled"),
    [
        (X, False),
        ((X,), False),
        ([X, Y], True),
        ((X, Y), True),
        ((X, None), False),
        ({"x": X, "y": Y}, True),
        ({"image": X, "label": Y}, True),
        ({"images": X, "target": Y}, True),
        ({"inputs": X, "targets": Y}, True),
        ({"input": X, "labels": None}, False),
        (({"image": X}, Y), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_single_input_is_passed_by_position(batch, labelled):
    args, kwargs, labels, rows = split_batch(batch)
    assert len(args) == 1
    assert args[0] is X
    assert kwargs == {}
    assert rows == 2
    assert labels is None if not labelled else torch.equal(labels, Y)


@pytest.mark.parametrize("kind", [dict, UserDict])  # Hugging Face's BatchFeature is a UserDict
def test_other_entries_of_a_dict_are_passed_by_name(kind):
    batch = split_batch(kind(pixel_values=X, bool_masked_pos=None, labels=Y))
    assert batch.args == ()
    assert batch.kwargs == {"pixel_values": X, "bool_masked_pos": None}
    assert torch.equal(batch.labels, Y)


def test_an_input_name_with_company_is_passed_by_name():
    assert list(split_batch({"image": X, "mask": X}).kwargs) == ["image", "mask"]


@pytest.mark.parametrize("labels", [Y.int(), Y.byte(), Y.numpy(), [1, 0], (1, 0)], ids=str)
def test_labels_become_int64(labels):
    got = split_batch((X, labels)).labels
    assert got.dtype == torch.int64
    assert got.tolist() == [1, 0]


def test_moving_a_batch_leaves_labels_and_other_values_where_they_are():
    batch = split_batch(({"a": X, "flag": True}, Y)).to("meta")
    assert batch.kwargs["a"].device.type == "meta"
    assert batch.kwargs["flag"] is True
    assert batch.labels.device.type == "cpu"
    assert split_batch(X).to("meta").args[0].device.type == "meta"


def test_a_part_of_a_batch_has_some_inputs_and_all_that_is_not_one_per_input():
    scale, shift = torch.rand(5, 1), torch.rand(3)
    batch = Batch(
        (torch.arange(5), True), {"scale": scale, "shift": shift, "whole": torch.tensor(2)}, torch.arange(5), 5
    )
    some = batch.part(1, 3)
    assert (some.rows, some.labels.tolist(), some.args[0].tolist(), some.args[1]) == (2, [1, 2], [1, 2], True)
    assert torch.equal(some.kwargs["scale"], scale[1:3])
    assert some.kwargs["shift"] is shift
    assert some.kwargs["whole"] == 2
    assert batch.rows == len(batch.labels) == 5


@pytest.mark.parametrize(("start", "stop", "rows"), [(3, 9, [3, 4]), (0, 5, [0, 1, 2, 3, 4]), (5, 6, []), (2, 2, [])])
def test_a_part_that_ends_behind_the_batch_ends_with_it(start, stop, rows):
    some = split_batch(torch.arange(5)).part(start, stop)
    assert some.args[0].tolist() == rows
    assert some.rows == len(rows)
    assert some.labels is None


@pytest.mark.parametrize(
    ("value", "found"),
    [(X, True), (Y, True), (torch.zeros(3, 2), False), (torch.tensor(1.0), False), ([1, 2], False), (None, False)],
    ids=str,
)
def test_an_argument_comes_once_per_input_if_it_is_a_tensor_as_long_as_the_batch(value, found):
    assert split_batch(X).one_per_input(value) is found


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (X.numpy(), TypeError, r"a batch must hold a tensor, got ndarray\. Use a tensor, a pair \(x, y\), or a dict"),
        ("text", TypeError, "a batch must hold a tensor, got str"),
        (None, TypeError, "a batch must hold a tensor, got NoneType"),
        (([X], Y), TypeError, "a batch must hold a tensor, got list"),
        ((X, Y, Y), ValueError, r"a batch must be \(x,\) or \(x, y\), got 3 entries\. Use a tensor"),
        ((), ValueError, "got 0 entries"),
        ({"y": Y}, TypeError, "a batch must hold a tensor for the model, got none"),
        ({"path": "a.png"}, TypeError, r"a batch must hold a tensor for the model, got \['path'\]"),
        ({"x": X, "label": Y, "y": Y}, ValueError, "one entry of labels, got 'label' and 'y'. Drop one."),
        (torch.tensor(1.0), ValueError, "first dimension that counts its inputs, got a tensor without dimensions"),
        (
            (X, Y.float()),
            TypeError,
            r"labels must be integer class indices, one per input, got torch.float32\. Turn one-hot",
        ),
        ((X, Y.bool()), TypeError, "got torch.bool"),
        ((X, Y.to(torch.complex64)), TypeError, "got torch.complex64"),
        ((X, np.array([0.5, 1])), TypeError, "got torch.float64"),
        ((X, "ab"), TypeError, "integer class indices, one per input, got str"),
        ((X, 1), TypeError, "got int"),
        ((X, Y[:1]), ValueError, r"labels must have shape \(2,\), one per feature row, got \(1,\)"),
        ((X, torch.eye(2).long()), ValueError, r"labels must have shape \(2,\)"),
        ((X, Y - 1), ValueError, "labels must be class indices from 0, got -1"),
    ],
)
def test_a_batch_of_another_form_is_refused(batch, error, message):
    with pytest.raises(error, match=message):
        split_batch(batch)
