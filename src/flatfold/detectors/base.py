"""Base classes of detectors, for methods that use features and for methods that run the network.

Hyper-parameters go into the constructor, which only stores them. ``fit(bank, head)`` learns from in-distribution
features and returns ``self``; fitted state is stored in buffers, so ``.to()``, ``state_dict()`` and export work. A call
scores features ``(n, d)`` with one number each. **A higher score means more out-of-distribution**, for every method.

To add a method, implement :meth:`Detector.score`, and :meth:`Detector.learn` to fit or to validate hyper-parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..core.bank import FeatureBank, Head, without_class
from ..core.hessian import row_chunks
from ..core.pairs import Pairs
from ..core.validation import check_features, check_finite, check_fit, check_scores
from ..errors import MethodRefusedError, NotFittedError

ROWS_AT_ONCE = 4096
PASS = 20  # multiplications that take as long as reading one feature
LOGITS_AT_ONCE = 2**24  # 64 MB in float32: fewer rows at once for more than 4096 classes


class Costs(NamedTuple):
    """Estimated costs of a method on float32 features, from the size of its data; see :meth:`Detector.costs`."""

    memory: int = 0
    """Bytes held while it is fitted and scores, beyond the features."""
    fit: int = 0
    """Multiplications of the fit in float64."""
    score: int = 0
    """Multiplications per scored row, in the type of the features."""


class Fittable(nn.Module):
    """A module whose buffers are created when it is fitted or a fitted state is loaded."""

    made_by: tuple[str, dict[str, Any]] | None = None
    """Name and hyper-parameters of a detector built by ``create``, from which a file can rebuild it."""
    method_text: str | None = None
    """The same as a string such as ``"knn:k=10"``, without defaults."""

    def register_buffers(self, **buffers: Tensor) -> None:
        """Register fitted tensors as buffers under their names."""
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def _checked(self, scores: Tensor, n: int) -> Tensor:
        """Return scores; unless there is one number per row, raise an error that names the code that computed them."""
        scorer: Any = getattr(self, "innermost", self)
        code = type(scorer).score.__code__
        name = type(self).__name__ if self.made_by is None else self.made_by[0]
        check_scores(scores, n, f"{name} ({code.co_filename}, line {code.co_firstlineno})")
        return scores

    def __repr__(self) -> str:
        """Return the ``create`` call that builds this detector, or torch's default for other detectors."""
        return super().__repr__() if self.method_text is None else f"create({self.method_text!r})"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert every buffer, to float32 if the target device has no float64 (MPS)."""

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
    """Restore every buffer if the block fails."""
    before = {part: dict(part._buffers) for part in module.modules()}
    try:
        yield
    except BaseException:
        for part, buffers in before.items():
            part._buffers.clear()
            part._buffers.update(buffers)
        raise


class Detector(Fittable, ABC):
    """A score for features, fitted once on in-distribution data."""

    weight: Tensor
    bias: Tensor | None
    needs_all_features = False
    """Whether the fit needs the features of the bank at once; of a large shaped bank, this takes a copy."""

    def fit(self, bank: FeatureBank, head: Head) -> Self:
        """Learn from in-distribution data.

        Args:
            bank: In-distribution features ``(n, d)``, with labels for the methods that need them.
            head: The last layer of the model that computed the features.

        Returns:
            The detector itself, ready to be called.
        """
        check_fit(bank, head)
        with all_or_nothing(self):
            if self.inner is None:
                self.register_head(head)
            self.learn(bank, head)
        return self.to(head.weight.device)

    def fit_without(self, bank: FeatureBank, head: Head, label: int) -> Self:
        """Fit with one class left out: its row of the head and its samples."""
        return self.fit(*without_class(bank, head, label))

    @property
    def inner(self) -> "Detector | None":
        """The detector that this one wraps, if any."""
        return None

    def inner_features(self, h: Tensor) -> Tensor:
        """Return the features that the inner detector scores."""
        return h

    @property
    def innermost(self) -> "Detector":
        """The innermost wrapped detector, which stores the head."""
        return self if self.inner is None else self.inner.innermost

    @property
    def is_fitted(self) -> bool:
        """Whether the detector can be called."""
        return "weight" in self.innermost._buffers

    def forward(self, h: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return one score per row of features ``(n, d)``, higher for more out-of-distribution.

        Rows are scored in chunks, so memory use does not grow with their number.

        Args:
            h: Features, ``(n, d)``.
            logits: The logits of the features, ``(n, c)``, if known: this saves some methods a matrix product.
        """
        check_features(h, self.fitted_weight)
        score: Callable[..., Tensor] = self.score if logits is None else self.score_given
        inputs = (h,) if logits is None else (h, logits)
        size = min(ROWS_AT_ONCE, max(1, LOGITS_AT_ONCE // len(self.fitted_weight)))
        if torch.compiler.is_compiling():
            return score(*inputs)
        if len(h) <= size:
            return self._checked(score(*inputs), len(h))
        parts = zip(*(torch.split(rows, size) for rows in inputs), strict=True)
        scores = h.new_empty(len(h))
        for rows, part in zip(row_chunks(len(h), size), parts, strict=True):
            # Not concatenated at the end: small tensors kept in between would fragment the memory of the next logits.
            scores[rows] = self._checked(score(*part), len(part[0]))
        return scores

    def learn(self, bank: FeatureBank, head: Head) -> None:
        """Learn from ``bank`` and ``head`` and register buffers; the head itself is already registered."""

    @abstractmethod
    def score(self, h: Tensor) -> Tensor:
        """Return one score per row of ``h``, in pure torch; a score must not depend on other rows."""

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        """Return the largest costs for a bank and a head of this size, so that long runs are announced beforehand.

        By default those of a method that reads the bank at most once and scores by the logits.
        """
        return Costs(fit=PASS * rows * width, score=width * classes)

    def signs(self, h: Tensor) -> dict[str, Tensor]:
        """Return the standardised signs ``(n,)`` whose weighted sum is the score, by name; empty for other scores.

        Args:
            h: Features, ``(n, d)``.
        """
        return {} if self.inner is None else self.inner.signs(self.inner_features(h))

    def pairs(self, h: Tensor, k: int) -> Pairs | None:
        """Return the k pairs of classes that contribute most to the curvature of each row; None without curvature.

        Args:
            h: Features, ``(n, d)``.
            k: Number of pairs; if there are fewer, all are returned.
        """
        check_features(h, self.fitted_weight)
        return None if self.inner is None else self.inner.pairs(self.inner_features(h), k)

    def score_range(self) -> tuple[float, float]:
        """Return the smallest and the largest possible score for any features, including rounding."""
        return (-torch.inf, torch.inf) if self.inner is None else self.inner.score_range()

    def score_given(self, h: Tensor, logits: Tensor) -> Tensor:
        """Return the scores of rows with known logits ``(n, c)``; by default the logits are not used."""
        return self.score(h)

    def register_head(self, head: Head) -> None:
        """Register copies of the head's weight and bias as buffers."""
        self.register_buffer("weight", head.weight.clone())
        self.register_buffer("bias", None if head.bias is None else head.bias.clone())

    @property
    def fitted_weight(self) -> Tensor:
        """Weight of the head this detector was fitted with."""
        if not self.is_fitted:
            raise NotFittedError(f"this {type(self).__name__} is not fitted. Call .fit(bank, head) first.")
        return self.innermost.weight

    def logits(self, h: Tensor) -> Tensor:
        """Return the logits ``(n, c)`` of features ``(n, d)``."""
        return nn.functional.linear(h, self.weight, self._buffers.get("bias"))


Network = Callable[[Tensor], Any]
Batches = Iterable[tuple[Tensor, Tensor | None]]

Sees = Literal["features", "logits", "layers", "head"]


class InputDetector(Fittable, ABC):
    """A score for inputs, computed from a network and its gradient."""

    sees: Sees
    """Required output of the network: ``"logits"``, ``"layers"``, or ``"head"`` (layers, features last, and head)."""
    layers: Literal["stem", "stages"] | Sequence[str]
    """The layers to return, for a method with ``sees`` ``"layers"`` or ``"head"``."""
    network: Network | None = None

    def fit(self, network: Network, batches: Batches = ()) -> Self:
        """Store the network and, for methods that learn, learn from in-distribution inputs.

        Args:
            network: A differentiable function of a batch of inputs, in evaluation mode.
            batches: Pairs ``(x, labels)``; labels may be None for methods that learn without them.

        Returns:
            The detector itself, ready to be called.
        """
        before = self.network
        try:
            with all_or_nothing(self), torch.inference_mode(False):  # inference mode has no gradients
                self._buffers.clear()  # from an earlier fit
                self.attach(network).learn(batches)
        except BaseException:
            object.__setattr__(self, "network", before)
            raise
        return self

    def attach(self, network: Network) -> Self:
        """Set the network without fitting: enough for a detector with a loaded state, or one that learns nothing."""
        if isinstance(network, nn.Module) and network.training:
            raise ValueError("the network must be in evaluation mode, got training mode. Call .eval() on it first.")
        object.__setattr__(self, "network", network)  # not as a submodule
        return self

    def learn(self, batches: Batches) -> None:
        """Learn from the inputs and register buffers; by default there is nothing to learn."""

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per input, higher for more out-of-distribution."""
        if self.network is None or not self.is_fitted:
            raise NotFittedError(f"this {type(self).__name__} is not fitted. Call .fit(network, batches) first.")
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"inputs must be a floating-point tensor, preprocessed for the network, not {kind}.")
        check_finite(x, "inputs")
        with torch.inference_mode(False):  # inference mode has no gradients
            return self._checked(self.score(x.detach().clone()), len(x))

    @property
    def is_fitted(self) -> bool:
        """Whether the detector can be called."""
        return True

    @abstractmethod
    def score(self, x: Tensor) -> Tensor:
        """Return one score per row of ``x``."""

    def run(self, x: Tensor) -> Any:
        """Return the output of the network for a batch."""
        assert self.network is not None
        return self.network(x)


def perturb(
    x: Tensor,
    loss: Callable[[Tensor], Tensor],
    epsilon: float,
    std: Sequence[float] | float,
    largest_only: bool = False,
) -> Tensor:
    r"""Return the inputs ``(n, channels, ...)`` after one small step that decreases the loss.

    .. math:: x' = x - \epsilon\, \operatorname{sign}(\nabla_x L) / \sigma

    with the sign +1 where the gradient is 0, as in OpenOOD. ``loss`` returns one number per row, ``epsilon`` is on the
    scale before normalisation, and ``std`` is one number, or one per channel. ``largest_only`` moves only the entry
    with the largest absolute gradient of each input.
    """
    with torch.enable_grad():
        moving = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(moving).sum(), moving)
    sigma = torch.as_tensor(std, dtype=x.dtype, device=x.device)
    if sigma.ndim:
        if len(sigma) != x.shape[1]:
            raise MethodRefusedError(f"std has {len(sigma)} numbers, but the inputs have {x.shape[1]} channels.")
        sigma = sigma.view(-1, *[1] * (x.ndim - 2))
    step = epsilon * torch.where(gradient >= 0, 1.0, -1.0).to(x) / sigma
    if largest_only:
        largest = gradient.flatten(1).abs().argmax(dim=1, keepdim=True)
        step = step * torch.zeros_like(x).flatten(1).scatter(1, largest, 1.0).view_as(x)
    return x - step
