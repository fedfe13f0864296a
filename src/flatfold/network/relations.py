r"""Relations: how the logits of a model come out of its linear layers, and which features belong to them.

========  ==================================================  ==========================================
linear    z = W h + b                                         the input of the layer
averaged  z = a (W1 h1 + b1 + ... + Wk hk + bk), a = 1/k, 1   the inputs of the layers, one behind the other
selected  z = W h_t + b at one token t of each input          the input of the layer at that token
pooled    z = mean of W h_t + b over all positions t          the mean of the input of the layer
dense     z_t = W h_t + b at every position t                 the input of the layer at every position
========  ==================================================  ==========================================

With these features every relation is exactly z = W h + b, of which all methods start. A relation is found on the record
of a probe, read on the record of each later batch, and part of a graph. The last one has a module of its own,
:mod:`flatfold.network.dense`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ..core.bank import Head
from ..errors import UnsupportedHeadError
from .calls import Call, at_positions, one_row_each

# Error of an average, relative to the size of its terms.
ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

HALVES = (torch.float16, torch.bfloat16)
MOST_LAYERS = 10  # of which every combination is tried
FEW = 8  # inputs on which combinations are tried first


class Reading(NamedTuple):
    """Features ``(n, d)`` and the logits ``(n, c)`` that belong to them, as the layer takes and gives them."""

    features: Tensor
    logits: Tensor


class Record(NamedTuple):
    """What was seen of a batch of ``rows`` inputs."""

    layers: tuple[str, ...]
    """Names of the layers that were watched, in the order of the model."""
    calls: list[Call]
    """Their calls, in order."""
    outputs: list[Tensor]
    """What the model returned that may be the logits."""
    rows: int
    mask: Tensor | None = None
    """Which tokens are no padding, ``(n, tokens)``; None if unknown."""
    returned: Sequence[Call] = ()
    """Calls whose output is itself an output of the model; only known while a graph is traced."""

    def of(self, name: str) -> list[Reading]:
        """Return what was kept of each call of a layer."""
        return _kept([call for call in self.calls if call.name == name])


@dataclass(frozen=True)
class Relation(ABC):
    """How logits come out of some ``layers``, named as in the model; ``str()`` is a sentence about it."""

    kind: ClassVar[str]

    layers: tuple[str, ...]

    @staticmethod
    def keep(values: Tensor, axes: int, rows: int) -> Tensor | None:
        """Return what is kept of the input or output of a layer while the model runs."""
        return one_row_each(values, axes, rows)

    @classmethod
    @abstractmethod
    def find(cls, record: Record) -> list[Self]:
        """Return the relations of this kind that give one of the outputs of a model, in a record of ``keep``."""

    @abstractmethod
    def read(self, record: Record) -> Reading | None:
        """Return features and logits; None if the calls do not give what the model returned."""

    def read_in_graph(self, record: Record) -> Reading | None:
        """Read without branches on values; None if the layers were not called as this relation needs."""
        return self.read(record)

    @property
    def from_inputs(self) -> bool:
        """Whether ``join`` gives the features: each layer has one call, whose input is all that they depend on."""
        return True

    def head(self, heads: Sequence[Head]) -> Head:
        """Return W and b, given those of the layers."""
        (head,) = heads
        return head

    def join(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return features, differentiable, given the inputs of the layers with their channels last."""
        (features,) = inputs
        return features.flatten(1)

    def settings(self) -> dict[str, Any]:
        """Return the relation as plain values for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": self.kind} | {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Linear(Relation):
    """The logits are the output of one layer, with one row per input."""

    kind = "linear"

    @classmethod
    def find(cls, record: Record) -> list[Self]:  # noqa: D102
        given = _calls_that_give(record.calls, record.outputs)
        if len(given) > 1:  # a layer whose output is the input of another is not the head
            given = [call for call in given if not any(_feeds(call, other) for other in given)]
        return [cls((call.name,)) for call in given]

    def read(self, record: Record) -> Reading | None:  # noqa: D102
        calls = [call for call in record.calls if call.name in self.layers]
        return _first(_kept(_calls_that_give(calls, record.outputs)))

    def read_in_graph(self, record: Record) -> Reading | None:  # noqa: D102
        calls = _kept(record.returned)[:1] or record.of(self.layers[0])
        if len(calls) > 1:
            raise UnsupportedHeadError(
                f"the head {self.layers[0]!r} is called {len(calls)} times per batch, and the model returns a copy of "
                "one of its outputs: a graph cannot identify which. Return that output itself."
            )
        return _first(calls)

    def __str__(self) -> str:
        return f"the logits are the output of {quoted(self.layers[0])}"


@dataclass(frozen=True)
class Inner(Relation):
    """The user named a layer whose output the model does not return: its last call with one row per input counts."""

    kind = "inner"

    @classmethod
    def find(cls, record: Record) -> list[Self]:  # noqa: D102
        return [cls((name,)) for name in record.layers if record.of(name)][-1:]

    def read(self, record: Record) -> Reading | None:  # noqa: D102
        return _first(record.of(self.layers[0])[-1:])

    def __str__(self) -> str:
        return f"the features are the input of {quoted(self.layers[0])}"


@dataclass(frozen=True)
class Averaged(Relation):
    """The logits are the average or the sum of the outputs of several layers, or of several calls of a layer."""

    kind = "averaged"

    calls: tuple[int, ...]
    """The number of calls of each layer."""
    summed: bool = False
    output: int = 0
    """The position of the logits among the outputs of the model."""

    @classmethod
    def find(cls, record: Record) -> list[Self]:  # noqa: D102
        counts = {name: len(record.of(name)) for name in record.layers}
        widths = {call.name: call.outputs for call in record.calls}
        found = []
        for output, logits in enumerate(record.outputs):
            names = [name for name, count in counts.items() if count and widths[name] * record.rows == logits.numel()]
            few = names[-MOST_LAYERS:]
            groups = [group for size in range(1, len(few) + 1) for group in combinations(few, size)]
            for group in groups if few == names else [*groups, tuple(names)]:
                for summed in (False, True):
                    relation = cls(group, tuple(counts[name] for name in group), summed, output)
                    if relation._fits(record, FEW) and relation._fits(record):
                        found.append(relation)
        return found

    def _fits(self, record: Record, rows: int | None = None) -> bool:
        """Return whether the outputs of these calls, at least two, add up to the logits, on the first ``rows``."""
        terms, logits = self._terms(record)
        if logits is None or len(terms) < 2:
            return False
        parts = self._scale * torch.stack([as_double(term[:rows]) for term in terms])
        return is_close(parts.sum(dim=0), logits[:rows], parts.abs().sum(dim=0), terms[0].dtype)

    def _terms(self, record: Record) -> tuple[list[Tensor], Tensor | None]:
        """Return the outputs of all calls, and the logits; None if their shapes or numbers are others."""
        groups = [record.of(name) for name in self.layers]
        terms = [reading.logits for group in groups for reading in group]
        fit = tuple(map(len, groups)) == self.calls and all(term.shape[0] == record.rows for term in terms)
        return terms, logits_like(record, self.output, terms[0]) if fit else None

    @property
    def from_inputs(self) -> bool:  # noqa: D102
        return sum(self.calls) == len(self.calls)

    @property
    def _scale(self) -> float:
        return 1.0 if self.summed else 1 / sum(self.calls)

    def read(self, record: Record) -> Reading | None:  # noqa: D102
        terms, logits = self._terms(record)
        if logits is None:
            return None
        inputs = [[reading.features for reading in record.of(name)] for name in self.layers]
        return Reading(self.join([torch.stack(group).mean(dim=0) for group in inputs]), logits.to(terms[0].dtype))

    def head(self, heads: Sequence[Head]) -> Head:  # noqa: D102
        shares = [self._scale * count for count in self.calls]
        weight = torch.cat([share * head.weight for share, head in zip(shares, heads, strict=True)], dim=1)
        biases = [share * head.bias for share, head in zip(shares, heads, strict=True) if head.bias is not None]
        return Head(weight, torch.stack(biases).sum(dim=0) if biases else None)

    def join(self, inputs: Sequence[Tensor]) -> Tensor:  # noqa: D102
        return torch.cat([features.flatten(1) for features in inputs], dim=1)

    def __str__(self) -> str:
        outputs = [
            quoted(name) + (f" in {count} calls" if count > 1 else "")
            for name, count in zip(self.layers, self.calls, strict=True)
        ]
        joined = " and ".join([", ".join(outputs[:-1]), outputs[-1]] if len(outputs) > 1 else outputs)
        what = "output" if len(outputs) == 1 else "outputs"
        return f"the logits are the {'sum' if self.summed else 'average'} of the {what} of {joined}"


@dataclass(frozen=True)
class Selected(Relation):
    """The layer runs at every token; the logits are its output at one token of each input.

    The token is found in every batch, as that with the same logits. Of several, which in half precision happens for
    models with few classes, the last one counts that is no padding.
    """

    kind = "selected"

    output: int = 0

    @staticmethod
    def keep(values: Tensor, axes: int, rows: int) -> Tensor | None:  # noqa: D102
        return at_positions(values, axes, rows)

    @classmethod
    def find(cls, record: Record) -> list[Self]:  # noqa: D102
        relations = [cls((name,), output) for output in range(len(record.outputs)) for name in record.layers]
        return [relation for relation in relations if relation.read(record) is not None]

    def read(self, record: Record) -> Reading | None:  # noqa: D102
        return _first([reading for reading, found in self._readings(record) if found.all()])

    def read_in_graph(self, record: Record) -> Reading | None:  # noqa: D102
        # Without such a token the features become NaN, and the input an alarm.
        readings = self._readings(record)
        return _first([Reading(h.where(found[:, None], torch.nan), logits) for (h, logits), found in readings])

    @property
    def from_inputs(self) -> bool:  # noqa: D102
        return False

    def _readings(self, record: Record) -> list[tuple[Reading, Tensor]]:
        """Return what each call gives, the last one first, and for which inputs it has a token with these logits."""
        readings = []
        for features, outputs in reversed(record.of(self.layers[0])):
            logits = logits_like(record, self.output, outputs[:, 0])
            if logits is not None:
                place, found = find_token(outputs.to(logits.dtype), logits, record.mask)
                index = place[:, None, None].expand(-1, 1, features.shape[-1])
                readings.append((Reading(features.gather(1, index)[:, 0], logits.to(outputs.dtype)), found))
        return readings

    def __str__(self) -> str:
        return f"the logits are the output of {quoted(self.layers[0])} at one token of each input"


@dataclass(frozen=True)
class Pooled(Relation):
    """The layer runs at every position; the logits are the mean of its outputs."""

    kind = "pooled"

    output: int = 0

    @staticmethod
    def keep(values: Tensor, axes: int, rows: int) -> Tensor | None:  # noqa: D102
        every = at_positions(values, axes, rows)
        if every is None:
            return None
        return (every.float() if every.dtype in HALVES else every).mean(dim=1)

    @classmethod
    def find(cls, record: Record) -> list[Self]:
        """Find the relation in a record of all positions: the error of a mean is relative to what it is made of."""
        found = []
        for output in range(len(record.outputs)):
            for name in record.layers:
                for _, outputs in record.of(name)[-1:]:
                    logits, every = logits_like(record, output, outputs[:, 0]), as_double(outputs)
                    size = every.abs().mean(dim=1)
                    if logits is not None and is_close(every.mean(dim=1), logits, size, outputs.dtype):
                        found.append(cls((name,), output))
        return found

    def read(self, record: Record) -> Reading | None:  # noqa: D102
        for features, outputs in record.of(self.layers[0])[-1:]:
            logits = logits_like(record, self.output, outputs)
            return None if logits is None else Reading(features, logits)
        return None

    def join(self, inputs: Sequence[Tensor]) -> Tensor:  # noqa: D102
        (features,) = inputs
        return features.flatten(1, -2).mean(dim=1)

    def __str__(self) -> str:
        return f"the logits are the output of {quoted(self.layers[0])}, averaged over its positions"


RELATIONS: dict[str, type[Relation]] = {kind.kind: kind for kind in (Averaged, Selected, Pooled)}


def relation_of(settings: Mapping[str, Any]) -> Relation:
    """Return the relation with these ``settings()``; raise ValueError unless they are those of one."""
    values = dict(settings)
    kind = RELATIONS.get(str(values.pop("kind", None)))
    if kind is None or values.keys() != {field.name for field in fields(kind)}:
        raise ValueError("the relation between layers and logits is unknown")
    layers, output = values["layers"], values.get("output", 0)
    calls = values.get("calls", [1])
    valid = (
        isinstance(layers, list)
        and all(isinstance(name, str) for name in layers)
        and isinstance(calls, list)
        and all(type(count) is int and count > 0 for count in calls)
        and len(layers) == len(calls) > 0
        and type(output) is int
        and output >= 0
        and type(values.get("summed", False)) is bool
        and type(values.get("channels_last", False)) is bool
        and isinstance(values.get("resize", ""), str)
    )
    if not valid:
        raise ValueError("the relation between layers and logits is not valid")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def quoted(name: str) -> str:
    """Return a name of a module for a message."""
    return repr(name) if name else "the model itself"


def as_double(values: Tensor) -> Tensor:
    """Return values in float64 on the CPU, since not every device has it."""
    return values.detach().cpu().double()


def is_close(given: Tensor, wanted: Tensor, size: Tensor, dtype: torch.dtype) -> bool:
    """Return whether values in float64 equal others up to rounding of terms of this ``size`` and ``dtype``."""
    allowed = max(ROUNDING[dtype], ROUNDING[wanted.dtype]) * size.nan_to_num().norm()
    wanted = as_double(wanted)
    error = torch.where(given.isnan() & wanted.isnan(), 0.0, given - wanted)
    return bool(error.norm() <= allowed)


def logits_like(record: Record, output: int, like: Tensor) -> Tensor | None:
    """Return an output of the model in the shape and on the device of ``like``; None if it has another size."""
    values = record.outputs[output] if output < len(record.outputs) else None
    if values is None or not values.is_floating_point() or values.numel() != like.numel():
        return None
    return values.detach().reshape(like.shape).to(like.device)


def find_token(outputs: Tensor, logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the token of each input whose output ``(n, tokens, c)`` equals the logits ``(n, c)``, and if there is one.

    Of several, the last one that is no padding counts, or else the last one.
    """
    wanted = logits[:, None]
    same = ((outputs == wanted) | (outputs.isnan() & wanted.isnan())).all(dim=-1)
    tokens = same.shape[1]
    order = torch.arange(1, tokens + 1, dtype=torch.int32, device=same.device)  # ONNX runtimes have no argmax of int64
    if mask is not None and mask.shape == same.shape:
        order = order + tokens * (mask != 0).to(order)
    return (same * order).argmax(dim=1), same.any(dim=1)


def _kept(calls: Sequence[Call]) -> list[Reading]:
    return [Reading(features, logits) for *_, features, logits in calls if not (features is None or logits is None)]


def _first(readings: Sequence[Reading]) -> Reading | None:
    return readings[0] if readings else None  # torch 2.6 cannot compile next() with a default


def _feeds(call: Call, other: Call) -> bool:
    """Return whether the output of one layer is the input of another one."""
    if call is other or call.logits is None or other.features is None or call.logits.shape != other.features.shape:
        return False
    return torch.equal(call.logits, other.features)


def _calls_that_give(calls: list[Call], outputs: list[Tensor]) -> list[Call]:
    """Return the calls whose output a model returns, in the order of its outputs and one per layer."""
    given = (_last_that_gives(calls, output) for output in outputs)
    return list({call.name: call for call in reversed([call for call in given if call is not None])}.values())[::-1]


def _last_that_gives(calls: list[Call], logits: Tensor) -> Call | None:
    """Return the last call whose output equals ``logits``, up to dimensions of size 1 and the dtype."""
    shape, logits = [n for n in logits.shape if n != 1], logits.detach().flatten()
    for call in reversed(calls):
        if call.logits is not None and [n for n in call.logits.shape if n != 1] == shape:
            output = call.logits.to(logits.device, logits.dtype).flatten()
            # The second comparison, which is slower, is only needed for NaN.
            if torch.equal(output, logits) or torch.allclose(output, logits, rtol=0, atol=0, equal_nan=True):
                return call
    return None
