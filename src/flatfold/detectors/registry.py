"""Registry of detectors by name, with hyper-parameters: ``create("fold-r:alpha=0.3:percentile=90")``."""

import ast
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter, getdoc, signature
from typing import Any, Literal, NamedTuple, TypeVar

from .base import Detector, InputDetector, Sees
from .citations import Work
from .shaped import with_partial_normalisation

_ONE_VS_REST = {"criterion": "one_vs_rest", "max_classes": 20, "seed": 42}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "authors": {
        "fold": {"alpha": 0.1, "score_norm": "weight"},
        "fold-r": {"alpha": 0.1, "percentile": 90, "masked": True},
        "fold-a": {"alpha": 0.1, "percentile": 90, "score_norm": "weight"},
        "autofold": {**_ONE_VS_REST, "score_norm": "weight"},
        "autofold-r": {**_ONE_VS_REST, "percentile": 90, "masked": True},
        "autofold-a": {**_ONE_VS_REST, "percentile": 90, "score_norm": "weight"},
    }
}

FitsOn = Literal["nothing", "val", "train"]
TunedOn = Literal["nothing", "id"]
Grid = Mapping[str, Sequence[Any]]
Factory = TypeVar("Factory", bound=Callable[..., Detector | InputDetector])


class Method(NamedTuple):
    """An entry of the registry."""

    factory: Callable[..., Any]
    fits_on: FitsOn
    tuned_on: TunedOn
    grid: Grid
    sees: Sees
    needs_labels: bool
    printed: str
    full_name: str
    cite: tuple[Work, ...]

    @property
    def summary(self) -> str:
        """First line of the factory's docstring."""
        return (getdoc(self.factory) or "").partition("\n")[0]


LONGEST = 2000  # characters of a method

METHODS: dict[str, Method] = {}

ALIASES = {"mahalanobis": "mds", "energy": "ebo", "maxlogit": "mls"}
NOT_METHODS = {
    "residual": "The residual alone is not a method here, only the first part of the score of vim. Use vim, which also "
    "uses the logits."
}


def register(
    name: str,
    fits_on: FitsOn = "nothing",
    tuned_on: TunedOn = "nothing",
    grid: Grid | None = None,
    sees: Sees = "features",
    needs_labels: bool | None = None,
    printed: str = "",
    full_name: str = "",
    cite: Sequence[Work] = (),
) -> Callable[[Factory], Factory]:
    """Register a detector under a name for :func:`create`, the benchmark and the contract test.

    Args:
        name: Lower case, words joined by hyphens.
        fits_on: The in-distribution split it is fitted on. ``"nothing"`` means that only the head is used.
        tuned_on: ``"id"`` if ``fit`` chooses a hyper-parameter on that split.
        grid: Values of each hyper-parameter that :func:`~flatfold.evaluate.tuning.tune` tries by default; the first
            hyper-parameter varies fastest.
        sees: ``"features"`` for a :class:`Detector`; ``"logits"``, ``"layers"`` or ``"head"`` for an
            :class:`InputDetector`, which runs the network itself.
        needs_labels: False if ``fit`` works on features without labels. Default: False if ``fits_on`` is
            ``"nothing"``, True otherwise.
        printed: The name as papers print it, such as ``"ReAct"``, for tables in LaTeX. Default: ``name``.
        full_name: The expanded name, in a few words; reports and the documentation show it.
        cite: The works to cite for the method, its own first, then those it builds on.
    """

    def add(factory: Factory) -> Factory:
        if name in METHODS or name in ALIASES:
            raise ValueError(f"a method called {name!r} is registered already. Choose another name.")
        if not all(isinstance(work, Work) for work in cite):
            raise TypeError(f"cite of {name} must be a sequence of Work. Write cite=(Work(...),), with the comma.")
        labelled = fits_on != "nothing" if needs_labels is None else needs_labels
        METHODS[name] = Method(
            factory, fits_on, tuned_on, grid or {}, sees, labelled, printed or name, full_name, tuple(cite)
        )
        return factory

    return add


def methods() -> tuple[str, ...]:
    """Return the names of all registered methods, sorted."""
    return tuple(sorted(METHODS))


def method_name(name: str) -> str:
    """Return the registered name of a method, given that name or an alias.

    Example:
        >>> method_name("mahalanobis")
        'mds'
    """
    name = ALIASES.get(name, name)
    if name not in METHODS:
        near = get_close_matches(name, [*METHODS, *ALIASES], n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(methods())}."
        raise ValueError(f"no method is called {name!r:.80}. {NOT_METHODS.get(name, hint)}")
    return name


def get_method(name: str) -> Method:
    """Return the registry's entry for ``name``."""
    return METHODS[method_name(name)]


def full_name(method: str) -> str:
    """Return the full name of a method, or an empty string if it was registered without one.

    Example:
        >>> full_name("msp")
        'Maximum softmax probability'
    """
    return METHODS[method].full_name if method in METHODS else ""


def printed_name(method: str) -> str:
    """Return the name of a method as papers print it; that of an unknown method is itself.

    Example:
        >>> printed_name("react")
        'ReAct'
    """
    return METHODS[method].printed if method in METHODS else method


def cited_works(method: str) -> tuple[Work, ...]:
    """Return the works to cite for a method, its own first; empty if it was registered without works."""
    return METHODS[method].cite if method in METHODS else ()


def bibtex(method: str) -> str:
    """Return the BibTeX entries of the works to cite for a method.

    Args:
        method: One of :func:`methods`, or an alias.

    Raises:
        ValueError: No method has this name, or it was registered without works.
    """
    works = get_method(method).cite
    if not works:
        raise ValueError(
            f"{method} has no citation: it was registered outside of this library, without cite=. Cite the work "
            "its author names."
        )
    return "\n\n".join(work.bibtex for work in works)


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """Parse a method written as one string into its name and hyper-parameters.

    Example:
        >>> parse_method("knn:k=10"), parse_method("energy")
        (('knn', {'k': 10}), ('ebo', {}))
    """
    if len(text) > LONGEST:
        raise ValueError(f"a method has at most {LONGEST} characters, got {len(text)}: {text[:60]!r} ...")
    name, *settings = (part.strip() for part in text.split(":"))
    name = method_name(name)
    hyper: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or key in hyper:
            raise ValueError(
                f"{text!r} is not a method. Write name=value after colons, as in knn:k=10, each name once."
            )
        hyper[key] = _parse_value(value)
    hyperparameters(name, **hyper)  # raises for names that do not exist
    return name, hyper


def format_method(name: str, hyper: Mapping[str, Any]) -> str:
    """Return the string that :func:`parse_method` reads, without hyper-parameters at their default.

    Example:
        >>> format_method("knn", {"k": 10}), format_method("knn", hyperparameters("knn"))
        ('knn:k=10', 'knn')
    """
    usual = {key: _as_list(parameter.default) for key, parameter in _parameters(name).items()}
    given = {key: _as_list(value) for key, value in hyper.items()}
    changed = (f":{key}={value}" for key, value in given.items() if key not in usual or usual[key] != value)
    return method_name(name) + "".join(changed)


def _as_plain(value: Any) -> Any:
    """Return a number or list of numbers of numpy or torch as one of Python."""
    return value.tolist() if hasattr(value, "tolist") else value


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value  # files have no tuples


def _parameters(name: str) -> dict[str, Parameter]:
    named = signature(get_method(name).factory).parameters.values()
    return {p.name: p for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _parse_value(text: str) -> Any:
    if text.lower() in ("true", "false", "none"):
        return ast.literal_eval(text.capitalize())
    try:
        return ast.literal_eval(text)
    except (MemoryError, RecursionError, SyntaxError, ValueError):  # the first two for a hundred brackets
        return text


def create(name: str, *, preset: str | None = None, **hyper: Any) -> Detector:
    """Build an unfitted detector by name.

    For a method that runs the network this is an :class:`InputDetector`, which a type checker cannot infer from a name;
    use its class (``detectors.Odin()``) where types matter.

    Args:
        name: One of :func:`methods` or an alias (mahalanobis, energy, maxlogit), with or without hyper-parameters after
            colons, as in ``"mds:alpha=1"``.
        preset: ``"authors"`` starts from the settings of the authors' code instead of those of the paper.
        **hyper: Hyper-parameters of that method. ``alpha`` for a method without that hyper-parameter applies partial
            normalisation before its score.

    Example:
        >>> create("mahalanobis:alpha=1")
        create('mds:alpha=1')
    """
    name, written = parse_method(name) if ":" in name else (method_name(name), {})
    twice = sorted(written.keys() & hyper.keys())
    if twice:
        raise TypeError(f"{name} got {', '.join(twice)} twice, in the name and as an argument. Remove one of them.")
    hyper = written | hyper
    full = hyperparameters(name, preset=preset, **hyper)
    factory = get_method(name).factory
    own = {key: value for key, value in full.items() if key in signature(factory).parameters}
    detector: Detector = factory(**own)
    if own.keys() != full.keys():
        detector = with_partial_normalisation(detector, full["alpha"])
    detector.made_by = (name, full)
    detector.method_text = format_method(name, full)
    return detector


def hyperparameters(name: str, *, preset: str | None = None, **hyper: Any) -> dict[str, Any]:
    """Return every hyper-parameter that :func:`create` would use with these arguments, defaults included."""
    name = method_name(name)
    parameters = _parameters(name)
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"no preset is called {preset!r}. Known: {', '.join(PRESETS)}.")
    if preset is not None and name not in PRESETS[preset]:
        raise ValueError(f"preset {preset!r} has no {name}. It has: {', '.join(PRESETS[preset])}.")
    asked = {**(PRESETS[preset][name] if preset else {}), **{key: _as_plain(value) for key, value in hyper.items()}}
    if "alpha" in asked and get_method(name).tuned_on == "id":
        raise TypeError(f"{name} chooses alpha itself. Use fold, or grid=[{asked['alpha']}].")
    if "alpha" in asked and get_method(name).sees != "features":
        raise TypeError(f"{name} has no alpha: it uses inputs, and alpha normalises features. Remove it.")
    unknown = sorted(set(asked) - {*parameters, "alpha"})
    if unknown:
        takes = ", ".join(parameters) or "alpha only"
        raise TypeError(f"{name} has no hyper-parameter {', '.join(unknown)}. It accepts: {takes}.")
    missing = [key for key, value in parameters.items() if value.default is value.empty and key not in asked]
    if missing:
        raise TypeError(f"{name} needs a value for {', '.join(missing)}, which has no default.")
    return {key: parameter.default for key, parameter in parameters.items()} | asked
