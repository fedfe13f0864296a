"""The syntax of ``--methods``."""

import pytest

from flatfold.evaluate.methods import Spec, parse_spec, split_methods


def test_words_become_methods_and_are_separated_by_commas_that_are_not_inside_of_brackets():
    for text, spec in {
        "knn": Spec("knn"), " knn:k=10 ": Spec("knn", {"k": 10}),
        "react:percentile=95:alpha=0.5": Spec("react", {"percentile": 95, "alpha": 0.5}),
        "fold:score_norm=weight": Spec("fold", {"score_norm": "weight"}),
        "autofold-r:percentile=[80, 90]": Spec("autofold-r", {"percentile": [80, 90]}),
        "vim@ood": Spec("vim", {}, "ood"), "msp:logarithm=true": Spec("msp", {"logarithm": True}),
        "fold:score_norm=none": Spec("fold", {"score_norm": None}), "gen:top=10@id": Spec("gen", {"top": 10}, "id"),
        "odin@ood": Spec("odin", {}, "ood"),
    }.items():  # fmt: skip
        assert parse_spec(text) == spec, text
    for text in ("knn", "react:percentile=95:alpha=0.5", "vim@ood", "gen:top=10@id"):
        assert parse_spec(text).label == text
    specs = [parse_spec(word) for word in split_methods("msp, autofold-r:percentile=[80,90]:grid=[0.1,0.2],knn@id,")]
    assert [spec.name for spec in specs] == ["msp", "autofold-r", "knn"]
    assert specs[1].hyper == {"percentile": [80, 90], "grid": [0.1, 0.2]}
    (word,) = split_methods("mdsens:layers=['a','b']:weights=[(1),(2,3)]")
    assert parse_spec(word).hyper == {"layers": ["a", "b"], "weights": [1, (2, 3)]}
    assert set(parse_spec("gen:top=10@id").grid) == {"gamma"}
    assert parse_spec("fold-r@ood").grid["percentile"] == (85, 90, 95, 99)
    tuned_on = {"knn": "nothing", "knn@id": "id", "knn@ood": "ood", "autofold": "id"}
    assert {text: parse_spec(text).tuned_on for text in tuned_on} == tuned_on


def test_words_that_name_no_method_are_refused():
    for text, error, keyword in (
        ("knnn", ValueError, "Did you mean knn"), ("knn:10", ValueError, "name=value"),
        ("knn:k=5:k=6", ValueError, "each name once"), ("knn@", ValueError, "knn@"), ("knn:q=3", TypeError, "q"),
        ("knn@all", ValueError, "@id or @ood"), ("msp@ood", ValueError, "cannot be tuned"),
        ("autofold@ood", ValueError, "cannot be tuned"), ("knn:k=5@id", ValueError, "cannot be tuned"),
        ("odin@id", ValueError, "@ood"),
    ):  # fmt: skip
        with pytest.raises(error, match=keyword):
            pytest.fail(f"{text}: {parse_spec(text)}")
