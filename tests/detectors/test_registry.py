"""Detectors by name."""

import pytest

import flatfold as ff
from flatfold.detectors import METHODS, hyperparameters


def test_methods_are_listed_in_order():
    assert list(ff.methods()) == sorted(METHODS)
    assert {"fold", "fold-r", "fold-a", "autofold", "autofold-r", "autofold-a", "msp", "ebo", "mls"} <= set(
        ff.methods()
    )


def test_a_misspelt_name_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"no method is called 'autofould'. Did you mean autofold"):
        ff.create("autofould")


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(ValueError, match="Known: ash, autofold"):
        ff.create("xyzzy")


def test_an_unknown_hyper_parameter_gets_the_known_ones():
    with pytest.raises(TypeError, match=r"fold-r has no hyper-parameter k. It takes: alpha, percentile"):
        ff.create("fold-r", k=5)
    with pytest.raises(TypeError, match=r"msp has no hyper-parameter k. It takes: alpha only"):
        ff.create("msp", k=5)


def test_hyper_parameters_are_told_with_their_defaults():
    assert hyperparameters("fold-a", alpha=0.2) == {"alpha": 0.2, "percentile": 90, "score_norm": None}
    assert hyperparameters("msp") == {}
    assert hyperparameters("msp", alpha=0.5) == {"alpha": 0.5}


def test_the_authors_preset_can_be_overridden():
    told = hyperparameters("autofold", preset="authors", max_classes=5)
    assert told["criterion"] == "one_vs_rest"
    assert (told["max_classes"], told["seed"], told["score_norm"]) == (5, 42, "weight")
    assert hyperparameters("msp", preset="authors") == {}


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match=r"no preset is called 'paper'. Known: authors"):
        ff.create("fold", preset="paper")


def test_a_name_can_be_registered_once():
    @ff.register("registered-by-a-test")
    class Constant(ff.Detector):
        """Nothing."""

        def score(self, h):
            return h.sum(-1) * 0

    try:
        assert isinstance(ff.create("registered-by-a-test"), Constant)
        with pytest.raises(ValueError, match="registered already"):
            ff.register("registered-by-a-test")(Constant)
    finally:
        del METHODS["registered-by-a-test"]
