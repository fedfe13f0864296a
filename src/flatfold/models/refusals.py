"""Sentences about models without a head that can be used: what was needed, what was seen, what to try."""

from __future__ import annotations

from difflib import get_close_matches

from torch import Tensor, nn

from .forward import Call

_NEED = "flatfold needs logits that come straight out of one linear layer, z = W h + b."
_SHOWN = 8  # a transformer has hundreds of linear layers


def quoted(name: str) -> str:
    """Return a layer's name for a message."""
    return repr(name) if name else "the model itself"


def no_such_layer(name: str, module: nn.Module | None, layers: list[str]) -> str:
    """Say that ``head=`` names no linear layer, and which there are."""
    if module is not None:
        came = f"{quoted(name)} is a {type(module).__name__}."
    else:
        near = get_close_matches(name, layers, n=1, cutoff=0.4)
        came = f"the model has no module {name!r}." + (f" Did you mean {near[0]!r}?" if near else "")
    return f"head= must name a linear layer or a 1x1 convolution; {came} The model has {_listed(layers)}."


def not_a_head(calls: list[Call], logits: Tensor, name: str | None) -> str:
    """Say why none of the linear layers that were called is the head."""
    if name is not None and not calls:
        return f"{_NEED} {quoted(name)} was never called. Name a layer that the model uses."
    likely = [call for call in calls if name is not None or call.outputs in (logits.shape[1:] or logits.shape)]
    names = list(dict.fromkeys(call.name for call in likely))
    spread = next((call for call in likely if call.features is None), None)
    if not likely:
        return f"{_NEED} {_nothing(calls, logits)}"
    if spread is not None:
        return (
            f"{_NEED} {quoted(spread.name)} runs at every token or pixel of an input: its output is {spread.shape}, "
            f"the logits are {tuple(logits.shape)}. Wrap the model so that it selects or pools before that layer, or "
            "name another layer with head='module.name'."
        )
    if len(names) > 1:
        return (
            f"{_NEED} {_listed(names)} have as many outputs as there are logits, but none gives them alone: are they "
            f"averaged or added? To use one of them, name it: head={names[-1]!r}."
        )
    return (
        f"{_NEED} {quoted(names[0])} has as many outputs as there are logits, but the model changes them before it "
        f"returns (a softmax, a scale, a second branch?). To use it as it is, name it: head={names[0]!r}."
    )


def other_logits(name: str) -> str:
    """Say that a later batch took another way through the model."""
    return (
        f"{quoted(name)} gave the logits of the first batch but not those of a later one. Does the model choose its "
        "way by the input? Wrap it so that all inputs go through one head, or name a layer with head='module.name'."
    )


def _nothing(calls: list[Call], logits: Tensor) -> str:
    seen = list(dict.fromkeys(call.name for call in calls))
    came = f"The model called {_listed(seen)}, but none with as many outputs as its logits {tuple(logits.shape)} have."
    if not seen:
        came = "The model called no linear layer."
    return f"{came} Put the last product into an nn.Linear, or name a layer with head='module.name'."


def _listed(names: list[str]) -> str:
    if not names:
        return "no linear layers"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the linear layer{'s' if len(names) > 1 else ''} " + ", ".join(map(quoted, names[-_SHOWN:])) + more
