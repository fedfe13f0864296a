"""What ``--methods`` understands."""

import pytest

from flatfold.evaluate.spec import Spec, parse_spec, parse_specs

GOOD = {
    "knn": Spec("knn"),
    " knn:k=10 ": Spec("knn", {"k": 10}),
    "react:percentile=95:alpha=0.5": Spec("react", {"percentile": 95, "alpha": 0.5}),
    "fold:score_norm=weight": Spec("fold", {"score_norm": "weight"}),
    "autofold-r:percentile=[80, 90]": Spec("autofold-r", {"percentile": [80, 90]}),
    "vim@ood": Spec("vim", {}, "ood"),
    "msp:logarithm=true": Spec("msp", {"logarithm": True}),
    "fold:score_norm=none": Spec("fold", {"score_norm": None}),
    "gen:top=10@id": Spec("gen", {"top": 10}, "id"),
    "odin@ood": Spec("odin", {}, "ood"),
}


@pytest.mark.parametrize("text", GOOD)
def test_a_word_becomes_a_method(text):
    assert parse_spec(text) == GOOD[text]


@pytest.mark.parametrize(
    "text",
    ["knn", "react:percentile=95:alpha=0.5", "vim@ood", "gen:top=10@id"],
)
def test_a_method_is_called_by_its_word(text):
    assert parse_spec(text).label == text


def test_words_are_separated_by_commas_that_are_not_inside_of_brackets():
    specs = parse_specs("msp, autofold-r:percentile=[80,90]:grid=[0.1,0.2],knn@id,")
    assert [spec.name for spec in specs] == ["msp", "autofold-r", "knn"]
    assert specs[1].hyper == {"percentile": [80, 90], "grid": [0.1, 0.2]}


def test_brackets_inside_of_brackets_keep_their_commas():
    (spec,) = parse_specs("mdsens:layers=['a','b']:weights=[(1),(2,3)]")
    assert spec.hyper == {"layers": ["a", "b"], "weights": [1, (2, 3)]}


def test_what_is_given_is_not_searched():
    assert set(parse_spec("gen:top=10@id").grid) == {"gamma"}
    assert parse_spec("fold-r@ood").grid["percentile"] == (85, 90, 95, 99)


def test_what_a_method_was_tuned_on_is_known():
    assert [parse_spec(text).tuned_on for text in ("knn", "knn@id", "knn@ood", "autofold")] == [
        "nothing",
        "id",
        "ood",
        "id",
    ]


BAD = {
    "knnn": (ValueError, "no method is called 'knnn'. Did you mean knn"),
    "knn:10": (ValueError, r"'knn:10' is not a method: after a colon comes name=value, as in knn:k=10, each name once"),
    "knn:k=5:k=6": (ValueError, "is not a method"),
    "knn@": (ValueError, "knn@ says nothing"),
    "knn:q=3": (TypeError, "knn has no hyper-parameter q"),
    "knn@all": (ValueError, r"knn@all says nothing: a method is tuned @id or @ood"),
    "msp@ood": (ValueError, "msp@ood cannot be tuned: it has no hyper-parameter to choose"),
    "autofold@ood": (ValueError, "autofold@ood cannot be tuned: it chooses for itself"),
    "knn:k=5@id": (ValueError, "knn:k=5@id cannot be tuned: it has no hyper-parameter to choose"),
    "odin@id": (ValueError, "odin@id cannot be: odin sees inputs, not features. Tune it @ood"),
}


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_is_told(text):
    error, message = BAD[text]
    with pytest.raises(error, match=message):
        parse_spec(text)
