"""Every form of batch a loader may yield, its parts, and the refusal of others."""

from collections import UserDict

import numpy as np
import torch

from flatfold.data.batch import Batch, split_batch
from tests.refusals import refused

X = torch.arange(6.0).reshape(2, 3)
Y = torch.tensor([1, 0])


def test_a_single_input_is_passed_by_position():
    labelled = [[X, Y], (X, Y), ({"image": X}, Y), {"x": X, "y": Y}, {"image": X, "label": Y}]
    labelled += [{"images": X, "target": Y}, {"inputs": X, "targets": Y}]
    for batch in [X, (X,), (X, None), {"input": X, "labels": None}, *labelled]:
        args, kwargs, labels, rows, *_ = split_batch(batch)
        assert (len(args), kwargs, rows) == (1, {}, 2), batch
        assert args[0] is X, batch
        assert torch.equal(labels, Y) if any(batch is each for each in labelled) else labels is None, batch


def test_other_entries_of_a_dict_are_passed_by_name():
    for kind in (dict, UserDict):  # Hugging Face's BatchFeature is a UserDict
        batch = split_batch(kind(pixel_values=X, bool_masked_pos=None, labels=Y))
        assert batch.args == ()
        assert batch.kwargs == {"pixel_values": X, "bool_masked_pos": None}
        assert torch.equal(batch.labels, Y)
    assert list(split_batch({"image": X, "mask": X}).kwargs) == ["image", "mask"]


def test_labels_become_int64_and_stay_where_they_are_when_a_batch_is_moved():
    for labels in (Y.int(), Y.byte(), Y.numpy(), [1, 0], (1, 0)):
        got = split_batch((X, labels)).labels
        assert (got.dtype, got.tolist()) == (torch.int64, [1, 0]), labels
    batch = split_batch(({"a": X, "flag": True}, Y)).to("meta")
    assert batch.kwargs["a"].device.type == "meta"
    assert batch.kwargs["flag"] is True
    assert batch.labels.device.type == "cpu"
    assert split_batch(X).to("meta").args[0].device.type == "meta"


def test_a_part_of_a_batch_has_some_inputs_and_all_that_is_not_one_per_input():
    scale, shift = torch.rand(5, 1), torch.rand(3)
    named = {"scale": scale, "shift": shift, "whole": torch.tensor(2)}
    some = Batch((torch.arange(5), True), named, torch.arange(5), 5).part(1, 3)
    assert (some.rows, some.labels.tolist(), some.args[0].tolist(), some.args[1]) == (2, [1, 2], [1, 2], True)
    assert torch.equal(some.kwargs["scale"], scale[1:3])
    assert some.kwargs["shift"] is shift
    assert some.kwargs["whole"] == 2
    for start, stop, rows in [(3, 9, [3, 4]), (0, 5, [0, 1, 2, 3, 4]), (5, 6, []), (2, 2, [])]:
        part = split_batch(torch.arange(5)).part(start, stop)
        assert (part.args[0].tolist(), part.rows, part.labels) == (rows, len(rows), None)


def test_a_batch_of_another_form_is_refused():
    for batch, error, keyword in [
        (X.numpy(), TypeError, "ndarray"), ("text", TypeError, "str"), (None, TypeError, "NoneType"),
        (([X], Y), TypeError, "list"), ((X, Y, Y), ValueError, "3 entries"), ((), ValueError, "0 entries"),
        ({"y": Y}, TypeError, "got none"), ({"path": "a.png"}, TypeError, "'path'"),
        ({"x": X, "label": Y, "y": Y}, ValueError, "'label' and 'y'"),
        (torch.tensor(1.0), ValueError, "without dimensions"), ((X, Y.float()), TypeError, "float32"),
        ((X, Y.to(torch.complex64)), TypeError, "complex64"),
        ((X, np.array([0.5, 1])), TypeError, "float64"), ((X, "ab"), TypeError, "got str"),
        ((X, 1), TypeError, "got int"), ((X, Y[:1]), ValueError, r"shape \(2,\)"),
        ((X, torch.ones(2, 2).long()), ValueError, r"shape \(2, 2\)"), ((X, Y - 1), ValueError, "-1"),
    ]:  # fmt: skip
        with refused(batch, keyword, error):
            split_batch(batch)
