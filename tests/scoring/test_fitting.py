"""`scoring.fitting`: what is said about labels that a model does not know, or knows under other numbers."""

import pytest
import torch

import flatfold as ff
from flatfold.core.bank import FeatureBank
from flatfold.core.head import Head
from flatfold.scoring.fitting import fit_judge

CLASSES = 12


def notes(labels, caplog, signal=0.5, classes=None):
    """Fit on inputs of twelve classes, of which the head knows most, under some labels; return what is remarked."""
    caplog.clear()
    classes = true_classes() if classes is None else classes
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(1200, CLASSES, generator=generator) + signal * torch.eye(CLASSES)[classes]
    fit_judge(ff.create("fold"), FeatureBank(features, labels), Head(torch.eye(CLASSES)), 0.05)
    return caplog.messages


def true_classes():
    return torch.arange(1200) % CLASSES


def folder_order():
    """Of each class the number that its folder gets by its name: 0, 1, 10, 11, 2, ..."""
    return torch.tensor(sorted(range(CLASSES), key=str)).argsort()


@pytest.mark.parametrize("signal", [0.5, 2.0])
def test_labels_in_another_order_are_noticed_though_some_are_right(caplog, signal):
    (note,) = notes(folder_order()[true_classes()], caplog, signal)
    assert "if its classes had another order: what is labelled 2 is mostly predicted as 10. Labels must be" in note
    if signal == 2.0:
        assert note.startswith("the model is right about 16.7 % of the labelled inputs, but about 100.0 % if its ")


def test_labels_that_are_right_are_not_remarked_on(caplog):
    for signal in (0.05, 0.5, 2.0):  # a weak model, too
        assert notes(true_classes(), caplog, signal) == []


def test_two_classes_that_changed_places_may_just_be_alike(caplog):
    swapped = torch.arange(CLASSES)
    swapped[:2] = torch.tensor([1, 0])
    assert notes(swapped[true_classes()], caplog) == []


def test_labels_of_several_classes_in_one_are_no_order(caplog):
    (note,) = notes(true_classes() // 4 + 8, caplog, signal=2.0)
    assert "where the most frequent class alone makes up 33.3 %" in note


def test_labels_that_have_nothing_to_do_with_the_inputs_are_a_guess(caplog):
    drawn = torch.randint(CLASSES, (1200,), generator=torch.Generator().manual_seed(3))
    assert all("another order" not in note for note in notes(drawn, caplog))


def test_a_model_that_always_says_the_same_knows_no_order(caplog):
    (note,) = notes(true_classes() % 4, caplog, signal=2.0, classes=torch.full((1200,), 5))
    assert note.startswith("the model is right about 0.0 % of the labelled inputs, where the most frequent class alone")


def test_one_class_alone_has_no_order(caplog):
    assert notes(torch.zeros(1200, dtype=torch.int64), caplog, signal=2.0, classes=torch.full((1200,), 5)) == []
