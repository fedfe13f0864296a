"""Warnings and errors as a user meets them: a line of her own code, and no traceback that only repeats the message."""

import inspect
import re
import traceback
import warnings
from pathlib import Path

import pytest
from torch import nn

import flatfold as ff
from tests.four_classes import known, make_model


def warnings_of(action):
    """Return the warnings of a call, with the names of the file and the function that they point at."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = inspect.getsourcelines(action)[1]
        action()
    return [(warning.filename, warning.lineno - line) for warning in caught]


def test_a_warning_points_at_the_line_of_the_caller_however_deep_it_comes_from():
    model, (x, y) = make_model().eval(), known(200)
    bank, head = ff.extract(model, x)
    rare = ff.FeatureBank(bank.features[y != 3], y[y != 3])
    calls = {
        "a method": lambda: ff.create("fourfold").fit(bank, head),
        "a method in a method": lambda: ff.create("fourfold", alpha=0.5).fit(bank, head),
        "a guard": lambda: ff.Guard.fit(model, x),
        "a guard of few samples": lambda: ff.Guard.fit(model, (x[:60], y[:60])),
        "a search": lambda: ff.tune("knn", head, ff.FeatureBank(bank.features, y), train=rare, grid={"k": [5]}),
        "a network": lambda: ff.extract(model, x, execution=ff.Execution(head="0")),
    }
    for name, call in calls.items():
        assert set(warnings_of(call)) == {(__file__, 0)}, name


def test_there_is_one_way_to_warn():
    places = {path.name for path in Path(ff.__file__).parent.rglob("*.py") if "stacklevel" in path.read_text("utf8")}
    calls = {path.name for path in Path(ff.__file__).parent.rglob("*.py") if "warnings.warn" in path.read_text("utf8")}
    assert (places, calls) == (set(), {"errors.py"}), "use flatfold.errors.warn, which finds the line of the user"


def test_errors_of_a_network_do_not_repeat_the_traceback_that_their_message_contains():
    def traceback_of(error):
        return re.findall("^Traceback", "".join(traceback.format_exception(error)), re.MULTILINE)

    def fails(text):
        class Fails(nn.Module):
            def forward(self, x):
                raise RuntimeError(text)

        return nn.Sequential(Fails(), nn.Linear(8, 4))

    (x, _), model = known(4), make_model()
    for action, text, hidden in (
        (lambda: ff.extract(model, x[:, :5]), "mat1 and mat2", True),
        (lambda: ff.extract(fails("one line."), x), "one line", True),
        (lambda: ff.extract(fails("the first line\nand a second"), x), "the first line", False),
        (lambda: ff.extract(fails(""), x), "RuntimeError", False),
    ):
        with pytest.raises(ValueError, match=text) as caught:
            action()
        assert (caught.value.__cause__ is None) == hidden == (len(traceback_of(caught.value)) == 1), text
