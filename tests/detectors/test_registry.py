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
    with pytest.raises(TypeError, match=r"mls has no hyper-parameter k. It takes: alpha only"):
        ff.create("mls", k=5)


def test_a_method_that_sees_inputs_has_no_features_to_normalise():
    with pytest.raises(TypeError, match="odin sees inputs, and alpha normalises features"):
        ff.create("odin", alpha=0.5)


def test_hyper_parameters_are_told_with_their_defaults():
    assert hyperparameters("fold-a", alpha=0.2) == {"alpha": 0.2, "percentile": 90, "score_norm": None}
    assert hyperparameters("mls") == {}
    assert hyperparameters("mls", alpha=0.5) == {"alpha": 0.5}
    assert hyperparameters("odin") == {"temperature": 1000, "epsilon": 0.0014, "std": 0.5}


def test_the_authors_preset_can_be_overridden():
    told = hyperparameters("autofold", preset="authors", max_classes=5)
    assert told["criterion"] == "one_vs_rest"
    assert (told["max_classes"], told["seed"], told["score_norm"]) == (5, 42, "weight")
    with pytest.raises(ValueError, match=r"preset 'authors' says nothing about msp. It has: fold, fold-r"):
        ff.create("msp", preset="authors")


def test_a_method_that_chooses_alpha_is_not_given_one():
    with pytest.raises(TypeError, match="autofold-r chooses alpha itself"):
        ff.create("autofold-r", alpha=0.3)


AUTHORS = {
    "fold": {"alpha": 0.1, "score_norm": "weight"},
    "fold-r": {"alpha": 0.1, "percentile": 90, "score_norm": None, "masked": True},
    "fold-a": {"alpha": 0.1, "percentile": 90, "score_norm": "weight"},
    "autofold": {"criterion": "one_vs_rest", "max_classes": 20, "seed": 42, "score_norm": "weight"},
    "autofold-r": {"criterion": "one_vs_rest", "max_classes": 20, "seed": 42, "score_norm": None, "percentile": 90},
    "autofold-a": {"criterion": "one_vs_rest", "max_classes": 20, "seed": 42, "score_norm": "weight", "percentile": 90},
}


@pytest.mark.parametrize("name", AUTHORS)
def test_the_authors_preset_is_what_their_code_starts_from(name):
    told = hyperparameters(name, preset="authors")
    assert {key: told[key] for key in AUTHORS[name]} == AUTHORS[name]
    assert ff.create(name, preset="authors").made_by == (name, told)


FITS_ON = {
    "val": {"fold-r", "autofold", "autofold-r", "autofold-a", "react", "tempscale", "klm", "ebo-c", "fold-c", "fold-t"},
    "train": {"openmax", "mds", "mdsens", "rmds", "vim", "knn", "she", "nnguide", "fdbd", "nci", "dice"},
}


@pytest.mark.parametrize("name", ff.methods())
def test_each_method_says_what_it_learns_from(name):
    expected = next((split for split, names in FITS_ON.items() if name in names), "nothing")
    assert METHODS[name].fits_on == expected


ALPHAS = tuple(i / 10 for i in range(1, 11))
ASH = (65, 70, 75, 80, 85, 90, 95)
GRIDS = {
    "odin": {"temperature": (1, 10, 100, 1000), "epsilon": (0.0014, 0.0028)},
    "mdsens": {"epsilon": (0.0014,)},
    "ebo": {"temperature": (1.0,)},
    "react": {"percentile": (85, 90, 95, 99)},
    "vim": {"dim": (256, 1000)},
    "knn": {"k": (50, 100, 200, 500, 1000)},
    "ash": {"percentile": ASH},
    "scale": {"percentile": ASH},
    "gen": {"gamma": (0.01, 0.1, 0.5, 1, 2, 5, 10), "top": (10, 50, 100, 200, 500, 1000)},
    "fdbd": {"relative_to": ("centre", "norm")},
    "nci": {"strength": (1e-4, 1e-3, 1e-2, 1e-1)},
    "fold": {"alpha": ALPHAS},
    "fold-r": {"percentile": (85, 90, 95, 99), "alpha": ALPHAS},
    "fold-a": {"percentile": ASH, "alpha": ALPHAS},
    "ebo-c": {"percentile": (25, 50, 75, 90)},
    "fold-c": {"percentile": (25, 50, 75, 90), "alpha": ALPHAS},
    "fold-t": {"times": (0.5, 1.0, 2.0, 3.0, 5.0), "alpha": ALPHAS},
}


@pytest.mark.parametrize("name", ff.methods())
def test_the_grids_are_openoods_the_papers_and_ours(name):
    assert METHODS[name].grid == GRIDS.get(name, {})
    assert list(METHODS[name].grid) == list(GRIDS.get(name, {}))  # the first varies fastest


def test_the_papers_fourteen_are_there():
    names = [
        "msp",
        "openmax",
        "tempscale",
        "odin",
        "mds",
        "mdsens",
        "rmds",
        "ebo",
        "react",
        "mls",
        "vim",
        "knn",
        "ash",
        "she",
    ]
    assert len(names) == 14
    assert set(names) <= set(ff.methods())


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match=r"no preset is called 'paper'. Known: authors"):
        ff.create("fold", preset="paper")


def test_a_method_that_forgets_the_head_is_told_so(make_world):
    class Forgetful(ff.Detector):
        def learn(self, bank, head):
            pass

        def score(self, h):
            return h.sum(-1)

    world = make_world()
    with pytest.raises(TypeError, match=r"Forgetful.learn must call self.register_head\(head\)"):
        Forgetful().fit(world.bank, world.head)


def test_the_arguments_of_fit_in_the_wrong_order_are_told_apart(make_world):
    world = make_world()
    with pytest.raises(TypeError, match="takes a FeatureBank and a Head, in this order, got Head and FeatureBank"):
        ff.Fold().fit(world.head, world.bank)


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


def test_hyper_parameters_without_a_default_must_be_given(monkeypatch):
    monkeypatch.setattr("flatfold.detectors.registry.METHODS", METHODS.copy())

    @ff.register("needs-two")
    class NeedsTwo(ff.Detector):
        """Nothing."""

        def __init__(self, first, *, second):
            super().__init__()
            self.both = (first, second)

        def score(self, h):
            return h.sum(-1)

    with pytest.raises(TypeError, match="needs-two needs a value for second, which has no default"):
        ff.create("needs-two", first=1)
    assert ff.create("needs-two", first=1, second=2).both == (1, 2)
