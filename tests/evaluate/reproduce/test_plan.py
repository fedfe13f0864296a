"""`evaluate.reproduce.plan`: the paper's methods, tuned where the data allow it."""

from dataclasses import replace

import pytest

from flatfold.detectors import get_method
from flatfold.evaluate.paper_tables.benchmarks import TUNED
from flatfold.evaluate.reproduce.plan import Plan, paper_methods
from flatfold.evaluate.spec import Spec
from tests.evaluate.reproduce.toys import make_banks

FOLD = ["fold", "fold-r", "fold-a", "autofold", "autofold-r", "autofold-a"]


def test_there_are_fourteen_baselines_and_the_six_of_the_fold_family():
    names = paper_methods()
    assert names[14:] == FOLD
    assert sorted(names[:7]) == ["ebo", "mds", "msp", "odin", "openmax", "rmds", "tempscale"]
    assert sorted(names[7:14]) == ["ash", "knn", "mdsens", "mls", "react", "she", "vim"]
    assert all(get_method(name) for name in names)


def test_methods_with_a_choice_are_tuned_as_in_the_paper_where_there_are_unknown_validation_images():
    banks = make_banks(classes=5, width=12, per_class=16)
    tuned = {spec.name for spec in Plan().specs(banks) if spec.tune == "ood"}
    assert tuned == TUNED - {"vim"}  # which would keep more dimensions than there are
    assert [spec.name for spec in Plan().specs(banks)] == paper_methods()
    wide = make_banks(classes=8, width=300, per_class=4)
    assert {spec.name for spec in Plan().specs(wide) if spec.tune == "ood"} == TUNED


def test_without_unknown_validation_images_nothing_is_tuned(banks):
    specs = Plan().specs(replace(banks, ood_val=None))
    assert specs == [Spec(name) for name in paper_methods()]


def test_without_training_data_the_benchmark_is_left_to_say_so(banks):
    labels = [spec.label for spec in Plan().specs(replace(banks, train=None))]
    assert "knn@ood" in labels


def test_methods_that_are_given_take_the_place_of_the_papers(banks):
    specs = Plan(methods=("knn:k=3", Spec("msp"))).specs(banks)
    assert specs == [Spec("knn", {"k": 3}), Spec("msp")]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"samples": 1}, r"samples must be a whole number of at least 2, got 1\."),
        ({"samples": 2.5}, r"samples must be a whole number of at least 2, got 2\.5\."),
        ({"batch_size": 0}, r"batch_size must be a whole number of at least 1, got 0\."),
        ({"rounds": True}, r"rounds must be a whole number of at least 1, got True\."),
        ({"methods": ()}, r"at least one method, got none\. Leave methods out for the paper's\."),
        ({"alpha": 2}, r"alpha must be a number between 0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        Plan(**asked)
