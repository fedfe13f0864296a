"""Detectors by name."""

import torch

import flatfold as ff
from flatfold.detectors import METHODS, hyperparameters
from flatfold.evaluate.methods import parse_spec
from tests.refusals import assert_refused

PAPER = {"msp", "openmax", "tempscale", "odin", "mds", "mdsens", "rmds"}
PAPER |= {"ebo", "react", "mls", "vim", "knn", "ash", "she"}
PAPER |= {"fold", "fold-r", "fold-a", "autofold", "autofold-r", "autofold-a"}


def test_methods_are_listed_in_order_with_those_of_the_paper():
    assert list(ff.methods()) == sorted(METHODS)
    assert set(ff.methods()) >= PAPER


def test_unknown_names_and_hyperparameters_are_refused_with_a_suggestion():
    for error, keyword, name, hyper in (
        (ValueError, "Did you mean autofold", "autofould", {}),
        (ValueError, "Known: adascale-a, ", "xyzzy", {}),
        (TypeError, "no hyper-parameter k.*alpha, percentile", "fold-r", {"k": 5}),
        (TypeError, "no hyper-parameter k", "mls", {"k": 5}),
        (TypeError, "inputs", "odin", {"alpha": 0.5}),
        (TypeError, "chooses alpha itself", "autofold-r", {"alpha": 0.3}),
        (ValueError, "preset.*'paper'", "fold", {"preset": "paper"}),
        (ValueError, "preset.*msp", "msp", {"preset": "authors"}),
        (ValueError, "vim", "residual", {}), (ValueError, "mahalanobis", "mahalanobi", {}),
        (TypeError, "k twice", "knn:k=10", {"k": 5}), (ValueError, "is not a method", "knn:k", {}),
    ):  # fmt: skip
        assert_refused(error, keyword, ff.create, name, **hyper)


def test_a_method_is_written_the_same_way_everywhere(make_world):
    world = make_world()
    for text, same, hyper, written in (
        ("mds:alpha=1", "mds", {"alpha": 1}, "mds:alpha=1"),
        ("mahalanobis : alpha=1", "mds", {"alpha": 1}, "mds:alpha=1"),
        ("energy", "ebo", {}, "ebo"), ("maxlogit:alpha=0.5", "mls", {"alpha": 0.5}, "mls:alpha=0.5"),
        ("knn:k=50", "knn", {}, "knn"),
        ("fold-r:percentile=95:alpha=0.3", "fold-r", {"alpha": 0.3, "percentile": 95}, None),
        ("autofold:grid=[0.1, 0.3]", "autofold", {"grid": [0.1, 0.3]}, "autofold:grid=[0.1, 0.3]"),
    ):  # fmt: skip
        detector, expected = ff.create(text), ff.create(same, **hyper)
        assert detector.made_by == expected.made_by == parse_spec_made_by(text), text
        assert repr(detector) == repr(expected), text
        assert written is None or repr(detector) == f"create({written!r})"
        assert eval(repr(detector), {"create": ff.create}).made_by == detector.made_by, text
    assert repr(ff.Fold()).startswith("Fold(")  # made by hand
    assert torch.equal(
        ff.create("energy").fit(world.bank, world.head)(world.bank.features),
        ff.create("ebo").fit(world.bank, world.head)(world.bank.features),
    )


def parse_spec_made_by(text):
    """Return what the benchmark makes of a word of --methods."""
    spec = parse_spec(text)
    return ff.create(spec.name, **spec.hyper).made_by


def test_hyperparameters_come_with_their_defaults():
    assert hyperparameters("fold-a", alpha=0.2) == {"alpha": 0.2, "percentile": 90, "score_norm": None}
    assert hyperparameters("mls") == {}
    assert hyperparameters("mls", alpha=0.5) == {"alpha": 0.5}
    assert hyperparameters("odin") == {"temperature": 1000, "epsilon": 0.0014, "std": 0.5}


def test_the_authors_preset_can_be_overridden():
    told = hyperparameters("autofold", preset="authors", max_classes=5)
    assert told["criterion"] == "one_vs_rest"
    assert (told["max_classes"], told["seed"], told["score_norm"]) == (5, 42, "weight")


AUTHORS = {
    "fold": {"alpha": 0.1, "score_norm": "weight"},
    "fold-r": {"alpha": 0.1, "percentile": 90, "score_norm": None, "masked": True},
    "fold-a": {"alpha": 0.1, "percentile": 90, "score_norm": "weight"},
    "autofold": {"criterion": "one_vs_rest", "max_classes": 20, "seed": 42, "score_norm": "weight"},
    "autofold-r": {"criterion": "one_vs_rest", "max_classes": 20, "seed": 42, "percentile": 90, "masked": True},
    "autofold-a": {"criterion": "one_vs_rest", "max_classes": 20, "seed": 42, "score_norm": "weight", "percentile": 90},
}


def test_the_authors_preset_is_what_their_code_starts_from():
    for name, expected in AUTHORS.items():
        told = hyperparameters(name, preset="authors")
        assert {key: told[key] for key in expected} == expected, name
        assert ff.create(name, preset="authors").made_by == (name, told), name


def test_a_grid_lists_hyperparameters_of_its_method():
    for name, method in METHODS.items():
        assert method.grid.keys() <= hyperparameters(name).keys(), name
        assert all(method.grid.values()), name


def test_fit_registers_the_head_before_it_learns_and_refuses_swapped_arguments(make_world):
    class Learns(ff.Detector):
        def learn(self, bank, head):
            assert self.weight.equal(head.weight)

        def score(self, h):
            return self.logits(h).sum(-1)

    world = make_world()
    assert Learns().fit(world.bank, world.head).is_fitted
    assert_refused(TypeError, "order", ff.Fold().fit, world.head, world.bank)


def test_a_name_can_be_registered_once_and_needs_values_for_what_has_no_default(monkeypatch):
    monkeypatch.setattr("flatfold.detectors.registry.METHODS", METHODS.copy())

    @ff.register("needs-two")
    class NeedsTwo(ff.Detector):
        """Nothing."""

        def __init__(self, first, *, second):
            super().__init__()
            self.both = (first, second)

        def score(self, h):
            return h.sum(-1)

    assert ff.create("needs-two", first=1, second=2).both == (1, 2)
    assert_refused(TypeError, "second", ff.create, "needs-two", first=1)
    assert_refused(ValueError, "registered already", ff.register("needs-two"), NeedsTwo)
