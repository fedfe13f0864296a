"""The contract of every detector that sees features; ``detectors/inputs.py`` has that of the two that see images.

Hyper-parameters go into the constructor, which only stores them. ``fit(bank, head)`` learns from in-distribution
features and returns ``self``; what it learns becomes buffers, so ``.to()``, ``state_dict()`` and export come for
free. A call scores features ``(n, d)`` with one number each. **A higher score means more out-of-distribution**, for
every method.

To add a method, write :meth:`Detector.score`, and :meth:`Detector.learn` if there is something to learn.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from numbers import Real
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from ..core.bank import FeatureBank, Head, without_class
from ..core.pairs import Pairs
from ..core.validation import MethodRefused, NotFittedError, check_features, check_finite, check_fit

ROWS_AT_ONCE = 4096


class Fittable(nn.Module):
    """A module whose buffers appear when it is fitted, and also when a fitted state is loaded into it."""

    made_by: tuple[str, dict[str, Any]] | None = None
    """Name and hyper-parameters, when the detector was made by ``create``: what a file needs to make it again."""

    def register_buffers(self, **buffers: Tensor) -> None:
        """Keep what was learnt, each tensor under its name."""
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert every buffer, in float32 where the device it goes to has no float64 (MPS)."""

        def convert(tensor: Tensor) -> Tensor:
            try:
                return fn(tensor)
            except TypeError:
                if tensor.dtype != torch.float64:
                    raise
                return fn(tensor.float())

        super()._apply(convert, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key, value in state_dict.items():
            name = key.removeprefix(prefix)
            if key.startswith(prefix) and "." not in name and name not in self._parameters:
                self.register_buffer(name, torch.empty_like(value))
        super()._load_from_state_dict(state_dict, prefix, *args)


@contextmanager
def all_or_nothing(module: nn.Module) -> Iterator[None]:
    """Give every buffer back that it had before, should the block fail: no detector is half old and half new."""
    before = {part: dict(part._buffers) for part in module.modules()}
    try:
        yield
    except BaseException:
        for part, buffers in before.items():
            part._buffers.clear()
            part._buffers.update(buffers)
        raise


class Detector(Fittable, ABC):
    """A score for features: fitted once on in-distribution data, higher for inputs unlike it."""

    weight: Tensor
    bias: Tensor | None

    def fit(self, bank: FeatureBank, head: Head) -> Self:
        """Learn from in-distribution data.

        Args:
            bank: In-distribution features ``(n, d)``, with labels for the methods that need them.
            head: The last layer of the model that made the features.

        Returns:
            The detector itself, ready to be called.
        """
        check_fit(bank, head)
        with all_or_nothing(self):
            self.learn(bank, head)
            if not self.is_fitted:
                raise TypeError(
                    f"{type(self).__name__}.learn must call self.register_head(head), so that it can be called."
                )
        return self.to(head.weight.device)

    def fit_without(self, bank: FeatureBank, head: Head, label: int) -> Self:
        """Learn as if the network had never met a class: without its row of the head and without its samples."""
        return self.fit(*without_class(bank, head, label))

    @property
    def innermost(self) -> "Detector":
        """The detector that keeps the head: this one, or the one that it was built around."""
        return self

    @property
    def is_fitted(self) -> bool:
        """Whether the detector can be called."""
        return "weight" in self.innermost._buffers

    def forward(self, h: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return one score per row of features ``(n, d)``, higher for more out-of-distribution.

        Many rows are scored a part at a time, so that no method needs memory in proportion to them.

        Args:
            h: Features, ``(n, d)``.
            logits: What the head gives for them, ``(n, c)``, if the model has said so already: a method may then do
                without a product of its own.
        """
        check_features(h, self.fitted_weight)
        if torch.compiler.is_compiling() or len(h) <= ROWS_AT_ONCE:
            return self._score_of(h, logits)
        known = repeat(None) if logits is None else torch.split(logits, ROWS_AT_ONCE)
        parts = zip(torch.split(h, ROWS_AT_ONCE), known, strict=False)
        return torch.cat([self._score_of(*part) for part in parts])

    def _score_of(self, h: Tensor, logits: Tensor | None) -> Tensor:
        return self.score(h) if logits is None else self.score_given(h, logits)

    def learn(self, bank: FeatureBank, head: Head) -> None:
        """Turn what ``bank`` and ``head`` teach into buffers; by default remember the head."""
        self.register_head(head)

    @abstractmethod
    def score(self, h: Tensor) -> Tensor:
        """Return one score per row of ``h``; pure torch, and no row may depend on another."""

    def pairs(self, h: Tensor, k: int) -> Pairs:
        """Return the k pairs of classes that carry most of each score; only FOLD's score is a sum over them.

        Args:
            h: Features, ``(n, d)``.
            k: How many pairs; where there are fewer, all of them are returned.
        """
        name = self.made_by[0] if self.made_by else type(self).__name__
        raise ValueError(
            f"the score of {name} is no sum over pairs of classes, so none of them can be named. "
            "Use fold, autofold, or one of their variants."
        )

    def score_range(self) -> tuple[float, float]:
        """Return what a score can be at least and at most, for any features, rounding included; by default anything."""
        return -torch.inf, torch.inf

    def score_given(self, h: Tensor, logits: Tensor) -> Tensor:
        """Return the scores of rows whose logits ``(n, c)`` are known; by default that is of no use."""
        return self.score(h)

    def register_head(self, head: Head) -> None:
        """Keep a copy of the head's weight and bias as buffers: a model that is trained on does not reach them."""
        self.register_buffer("weight", head.weight.clone())
        self.register_buffer("bias", None if head.bias is None else head.bias.clone())

    @property
    def fitted_weight(self) -> Tensor:
        """Weight of the head this detector was fitted with."""
        if not self.is_fitted:
            raise NotFittedError(
                f"this {type(self).__name__} has not been fitted. Call .fit(bank, head) first, or load a fitted state."
            )
        return self.innermost.weight

    def logits(self, h: Tensor) -> Tensor:
        """Return the logits ``(n, c)`` of features ``(n, d)``."""
        return nn.functional.linear(h, self.weight, self._buffers.get("bias"))


Network = Callable[[Tensor], Any]

Sees = Literal["features", "logits", "layers"]


class InputDetector(Fittable, ABC):
    """A score for inputs, by a network and its gradient."""

    sees: Sees
    """What the network must return: ``"logits"`` or ``"layers"``."""
    network: Network | None = None

    def fit(self, network: Network, batches: Iterable[tuple[Tensor, Tensor]] = ()) -> Self:
        """Remember the network and learn from labelled in-distribution inputs, for methods that learn.

        Args:
            network: A differentiable function of a batch of inputs, in evaluation mode.
            batches: Pairs ``(x, labels)``.

        Returns:
            The detector itself, ready to be called.
        """
        before = self.network
        with all_or_nothing(self):
            self._buffers.clear()  # what an earlier fit left
            try:
                self.attach(network).learn(batches)
            except BaseException:
                object.__setattr__(self, "network", before)
                raise
        return self

    def attach(self, network: Network) -> Self:
        """Remember the network only: enough for a detector whose state was loaded, or that learns nothing."""
        if isinstance(network, nn.Module) and network.training:
            raise ValueError("the network is in training mode, where scores are random. Call .eval() on it first.")
        object.__setattr__(self, "network", network)  # past torch, which would take a model for a part of this one
        return self

    def learn(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Turn what the inputs teach into buffers; by default there is nothing to learn."""

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per input, higher for more out-of-distribution."""
        if self.network is None or not self.is_fitted:
            raise NotFittedError(f"this {type(self).__name__} is not fitted. Call .fit(network, batches) first.")
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"inputs must be a floating-point tensor, prepared as for the network, not {kind}.")
        check_finite(x, "inputs")
        with torch.inference_mode(False):  # where there would be no gradient
            return self.score(x.detach().clone())

    @property
    def is_fitted(self) -> bool:
        """Whether all that was to be learnt has been."""
        return True

    @abstractmethod
    def score(self, x: Tensor) -> Tensor:
        """Return one score per row of ``x``."""

    def run(self, x: Tensor) -> Any:
        """Return what the network says of a batch."""
        assert self.network is not None
        return self.network(x)


def perturb(x: Tensor, loss: Callable[[Tensor], Tensor], epsilon: float, std: Sequence[float] | float) -> Tensor:
    r"""Return the inputs after one small step that makes the loss smaller.

    .. math:: x' = x - \epsilon\, \operatorname{sign}(\nabla_x L) / \sigma

    with a step in the direction of +1 where the gradient is 0, as in OpenOOD. Gradients of parameters are not touched.

    Args:
        x: Normalised inputs, ``(n, channels, ...)``.
        loss: One number per row: they are added up, so no row's gradient depends on the others.
        epsilon: Length of the step in each value, on the scale before normalisation.
        std: What the channels were divided by in normalisation, one number for all or one per channel.
    """
    with torch.enable_grad():
        moving = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(moving).sum(), moving)
    sigma = torch.as_tensor(std, dtype=x.dtype, device=x.device)
    if sigma.ndim:
        if len(sigma) != x.shape[1]:
            raise MethodRefused(f"std has {len(sigma)} numbers, but the inputs have {x.shape[1]} channels.")
        sigma = sigma.view(-1, *[1] * (x.ndim - 2))
    return x - epsilon * torch.where(gradient >= 0, 1.0, -1.0).to(x) / sigma


def check_epsilon(epsilon: float) -> None:
    """Raise unless the length of a step is a number from 0 on."""
    if not isinstance(epsilon, Real) or not 0 <= epsilon < float("inf"):
        raise MethodRefused(f"epsilon must be a number from 0 on, got {epsilon!r}. 0.0014 is customary.")
