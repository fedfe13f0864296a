"""Labels in every form in which people have them become class indices, or are refused with what to do."""

import numpy as np
import pandas as pd
import pytest
import torch

from flatfold.data.arrays import ArrayRows, split_arrays, to_tensors
from flatfold.data.labels import are_labels, class_indices
from tests.refusals import refused

Y = [1, 0, 2, 1]
ONE_HOT = torch.eye(3)[Y]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        *((form, None) for form in (
            Y, tuple(Y), np.array(Y), np.array(Y, np.uint16), np.array(Y, ">i4"), np.array(Y, object), torch.tensor(Y),
            torch.tensor(Y).byte(), [np.int64(y) for y in Y], [torch.tensor(y) for y in Y], np.array(Y)[:, None],
            torch.tensor(Y)[:, None], pd.Series(Y), pd.Series(Y, dtype="Int64"), pd.DataFrame({"y": Y}),
            pd.Series(Y).astype("category"), pd.Categorical(Y), pd.array(Y), pd.Index(Y),
            np.ma.masked_array(Y, [False] * 4),
        )),
        *((form, 3) for form in (
            ONE_HOT, ONE_HOT.long(), ONE_HOT.bool(), ONE_HOT.numpy(), ONE_HOT.tolist(), pd.get_dummies(pd.Series(Y)),
        )),
    ],
)  # fmt: skip
def test_labels_of_any_form_are_class_indices(labels, classes):
    indices, stated = class_indices(labels, 4)
    assert (indices.dtype, indices.tolist(), stated) == (torch.int64, Y, classes)


def test_booleans_are_of_two_classes():
    for labels in ([True, False], np.array([True, False]), torch.tensor([True, False]), pd.Series([True, False])):
        indices, classes = class_indices(labels, 2)
        assert (indices.tolist(), classes) == ([1, 0], 2)


def test_what_is_no_label_is_refused():
    for labels, error, keyword in [
        (["cat", "dog"], TypeError, r"'cat'.*names\.index"), (np.array(["cat", "dog"]), TypeError, "'cat'"),
        (pd.Series(["cat", "dog"]), TypeError, "'cat'"), (pd.Series(["a", "b"]).astype("category"), TypeError, "'a'"),
        ([0.0, 1.0], TypeError, r"float64.*astype\(int\)"), (torch.tensor([0.5, 1]), TypeError, "not classes"),
        ([1, None], TypeError, "None"), (pd.Series([1, None]), TypeError, "without a class"),
        (pd.Categorical(["a", "b"]), TypeError, "'a'"), (pd.array([1, None]), TypeError, "without a class"),
        ([[1], [1, 2]], ValueError, "several lengths"),
        (np.ma.masked_array([0, 1], [True, False]), ValueError, "masked"), ("ab", TypeError, "got str"),
        ([[1, 1], [0, 1]], ValueError, r"\(2, 2\).*single 1"), ([[0.3, 0.7], [0, 1]], ValueError, r"\(2, 2\)"),
        ([[[1]], [[0]]], ValueError, r"\(2, 1, 1\)"), ([1], ValueError, r"\(1,\)"), ([1, -1], ValueError, "-1"),
        ([10**30, 1], TypeError, "1000"), (np.array([1, 2], "datetime64[s]"), TypeError, "datetime64"),
    ]:  # fmt: skip
        with refused(labels, keyword, error):
            class_indices(labels, 2)


def test_labels_are_told_from_inputs_of_another_batch():
    x, tokens = torch.rand(4, 5), torch.arange(20).reshape(4, 5)
    forms = Y, torch.tensor(Y), ONE_HOT, ONE_HOT.numpy(), pd.Series(Y), torch.tensor(Y)[:, None], ["a"] * 4
    for labels in (*forms, pd.Categorical(Y)):
        assert are_labels(labels, x), labels
    for other in (x, torch.rand(4, 6), torch.rand(3, 5), torch.rand(4, 3), 3, None, "ab", [x], []):
        assert not are_labels(other, x), other
    assert are_labels(torch.arange(4), tokens)
    assert not are_labels(torch.arange(8).reshape(4, 2), tokens)  # another batch, of shorter texts


def test_arrays_are_cast_and_tensors_are_not():
    for array in (np.ones((2, 3)), np.ones((2, 3), ">f8"), np.ones((2, 3), "f2"), np.ones((2, 3), np.longdouble)):
        assert to_tensors(array, torch.float32).dtype == torch.float32
    assert to_tensors(np.ones((2, 3)), torch.bfloat16).dtype == torch.bfloat16
    assert to_tensors(np.ones((2, 3))).dtype == torch.float64
    assert to_tensors(np.ones((2, 3), ">i8"), torch.float32).dtype == torch.int64  # tokens
    assert to_tensors(torch.ones(2, 3).double(), torch.float32).dtype == torch.float64
    frame = pd.DataFrame({"a": [1, 2], "b": [True, False], "c": pd.array([1, None], "Int64"), "d": [0.5, 1]})
    values = to_tensors(frame, torch.float32)
    assert values.dtype == torch.float32
    assert values[0].tolist() == [1, 1, 1, 0.5]
    assert values.isnan().tolist()[1] == [False, False, True, False]
    assert to_tensors(pd.DataFrame({"a": [1, 2]}), torch.float32).dtype == torch.float32
    arrays = to_tensors({"x": np.ones((2, 3)), "labels": [0, 1]}, torch.float32)
    assert (arrays["x"].dtype, arrays["labels"]) == (torch.float32, [0, 1])


def test_arrays_without_plain_numbers_are_refused():
    scipy_matrix = type("csr_matrix", (), {"toarray": None, "shape": (2, 2)})()
    for values, error, keyword in [
        (pd.DataFrame({"a": [1.0], "city": ["x"]}), TypeError, r"'city'.*frame\[name\]"),
        (pd.Series(["a"]), TypeError, "frame"),
        (np.ma.masked_array([[1.0, 2.0]], [[True, False]]), ValueError, r"1 of 2.*filled"),
        (torch.eye(2).to_sparse(), ValueError, r"to_dense"), (torch.rand(2, 2, device="meta"), ValueError, "meta"),
        (scipy_matrix, TypeError, "toarray"), (np.array([["a"]]), TypeError, "collate="),
        (np.array([[1j]]), TypeError, "complex128"),
    ]:  # fmt: skip
        assert split_arrays(values) == (values, None)
        with refused(values, keyword, error):
            to_tensors(values)


def test_a_source_knows_how_many_classes_its_labels_imply():
    rows = ArrayRows((torch.rand(4, 5), ONE_HOT))
    assert (rows.labels.tolist(), rows.label_classes, rows.subset(np.array([0, 2])).label_classes) == (Y, 3, 3)
    assert rows.without_labels().labels is None
