"""A validated curvature problem: a model, some of its parameters, a loss and batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import is_autocast_available
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ..core.validation import check_choice
from ..data.batch import Batch, split_batch
from ..io.progress import track
from ..network.calls import evaluating, forward, logits_of
from .estimate import LOSSES, MATRICES, Estimate, Level, Loss, Matrix
from .per_sample import Parameters, record_calls

ALONE = 1e-2  # relative change of logits with the rest of the batch that rounding may cause


def logits_per_input(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of a batch, ``(n, c)`` with at least two classes."""
    logits = logits_of(forward(model, batch))
    if logits.ndim != 2 or len(logits) != batch.rows or logits.shape[1] < 2:
        raise ValueError(
            f"the model must return one row of at least two logits per input, ({batch.rows}, c), "
            f"got {tuple(logits.shape)}."
        )
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating-point numbers, got {logits.dtype}. Return them before the argmax.")
    return logits


def check_batch_norm(model: nn.Module) -> None:
    """Raise if a batch normalisation layer would mix the inputs of a batch."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            what = "is in training mode" if module.running_mean is not None else "has no running statistics"
            raise ValueError(
                f"{name or 'the model'} is a batch normalisation that {what}, so the loss of an input depends on the "
                "others in its batch. Call model.eval(), with track_running_stats=True in that layer."
            )


def check_alone(model: nn.Module, parameters: Parameters, batch: Batch) -> None:
    """Raise if logits depend on the rest of the batch, are random, or have no graph to the parameters."""
    half = max(1, batch.rows // 2)
    with torch.no_grad():
        together = logits_per_input(model, batch)[:half]
    with record_calls(model, parameters):
        apart = logits_per_input(model, batch.part(0, half))
    if not apart.requires_grad:
        raise ValueError(
            "none of the chosen parameters reaches the logits, so there is no curvature. Choose others, or remove "
            ".detach() and torch.no_grad() from the forward pass."
        )
    change, size = float((together - apart.detach()).abs().max()), float(together.abs().max())
    if change > ALONE * size:  # False for NaN, which raises where the loss is computed
        raise ValueError(
            f"the logits of an input must depend on it alone, but with other inputs they change by {change:.2g}, at a "
            f"scale of {size:.2g}. Check for a normalisation over the batch, for dropout that is always on, or for an "
            "argument with one entry per input that does not belong to the inputs."
        )


def targets(loss: Loss, logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """Return the target class of each row, ``(n,)``, or None for the energy."""
    if loss == "energy":
        return None
    if loss == "ce_pred":
        return logits.detach().argmax(dim=-1)
    if labels is None:
        raise ValueError(
            "loss='ce' needs labels, but these batches have none. Pass pairs (inputs, labels), or use "
            "loss='ce_pred' or loss='energy'."
        )
    n_classes = logits.shape[-1]
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
        raise ValueError(
            f"labels must be in 0..{n_classes - 1}, because the model has {n_classes} outputs, "
            f"got {int(labels.min())}..{int(labels.max())}."
        )
    return labels.to(logits.device)


def losses(logits: Tensor, target: Tensor | None) -> Tensor:
    r"""Return the loss of each row of logits: the energy, or the cross-entropy of ``target``.

    .. math:: \log\sum_c e^{z_c} = z_t + \log\Big(1 + \sum_{c \ne t} e^{z_c - z_t}\Big), \qquad t = \arg\max_c z_c

    Its first and second derivatives, by autograd, have full precision for every input, however confident.
    """
    top = logits.detach().argmax(dim=-1, keepdim=True)
    largest = logits.gather(-1, top)
    gaps = (logits - largest).scatter(-1, top, 0.0)  # avoids the gradient 1 - 1 of the largest logit minus itself
    others = gaps.exp().scatter(-1, top, 0.0).sum(dim=-1).log1p()
    return others + largest.squeeze(-1) if target is None else others - gaps.gather(-1, target[:, None]).squeeze(-1)


def logit_hessian_product(probs: Tensor, vectors: Tensor) -> Tensor:
    """Return ``(diag p - p p') v`` for rows of probabilities ``(n, c)`` and vectors ``(..., n, c)``."""
    top = probs.argmax(dim=-1, keepdim=True).expand(*vectors.shape[:-1], 1)
    vectors = vectors - vectors.gather(-1, top)  # a common shift changes only rounding
    return probs * (vectors - (vectors * probs).sum(dim=-1, keepdim=True))


SAME = 1e-4  # relative change of the mean loss between two passes that rounding may cause
ROUNDING = 100  # change that rounding may cause in a loss near 0, in units of the precision of the logits


@dataclass
class Problem:
    """A model in evaluation mode on ``device``, the parameters to differentiate by, a loss, and repeatable batches.

    ``rows`` is the number of inputs of one pass over the data, 0 before the first pass.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    batches: Iterable[Any]
    loss: Loss
    level: Level
    matrix: Matrix
    device: torch.device
    rows: int = field(default=0, init=False)
    _mean: float | None = field(default=None, init=False)
    _checked: int = field(default=0, init=False)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        return next(iter(self.parameters.values())).dtype

    def each(self, title: str) -> Iterator[Batch]:
        """Yield the batches on the device, with a progress bar; the first pass counts the inputs."""
        rows = 0
        for batch in track(self.batches, title):
            inputs = split_batch(batch)
            if not inputs.rows:
                continue
            rows += inputs.rows
            inputs = inputs.to(self.device).with_each(_recordable)._replace(labels=_recordable(inputs.labels))
            if self._checked < min(inputs.rows, 2):  # the first batch, and the first with several inputs
                check_alone(self.model, self.parameters, inputs)
                self._checked = min(inputs.rows, 2)
            yield inputs
        if not rows:
            raise ValueError("batches must yield at least one input, as x or (x, labels), got none.")
        if self.rows and rows != self.rows:
            raise ValueError(
                f"batches yielded {self.rows} inputs at first and {rows} later. Every pass must yield the same inputs."
            )
        self.rows = rows

    def check_same(self, mean: float, size: float) -> None:
        """Raise if the mean loss differs from that of the first pass, given the mean ``size`` of the largest logits."""
        if self._mean is None:
            self._mean = mean
        if abs(mean - self._mean) > SAME * abs(self._mean) + ROUNDING * torch.finfo(self.dtype).eps * size:
            raise ValueError(
                f"the batches change: the mean loss was {self._mean:.6g} in one pass and {mean:.6g} in another. "
                "Turn random augmentation and sampling off, or pass a list of batches."
            )

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits ``(n, c)`` of a batch and its losses ``(n,)``."""
        logits = logits_per_input(self.model, batch)
        values = losses(logits, targets(self.loss, logits, batch.labels))
        bad = int((~values.isfinite()).sum())
        if bad:
            raise ValueError(
                f"the loss must be finite, but it is NaN or infinite for {bad} of {batch.rows} inputs of a batch. "
                "Check for NaN in inputs and weights; half precision overflows."
            )
        return logits, values

    def estimate(
        self, value: float | Tensor, stderr: float | Tensor | None, method: str, matvecs: int, seed: int | None
    ) -> Estimate:
        """Return an ``Estimate`` with the settings of this problem."""
        return Estimate(value, stderr, method, self.matrix, self.loss, matvecs, seed, self.rows)


def _recordable(value: Any) -> Any:
    """Copy a tensor created in ``torch.inference_mode``, which cannot be part of a graph; return others unchanged."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def single_inputs(batch: Batch) -> Iterator[Batch]:
    """Yield batches of one input each."""
    return (batch.part(row, row + 1) for row in range(batch.rows))


@contextmanager
def open_problem(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = "energy",
    params: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    level: Level = "dataset",
    matrix: Matrix = "hessian",
) -> Iterator[Problem]:
    """Yield a problem; restore the model's modes, device and ``requires_grad`` on exit.

    Gradients are recorded in full precision in any context: under ``torch.inference_mode`` every curvature would be 0;
    under ``torch.autocast`` it would have two digits.
    """
    check_choice("level", level, ("dataset", "sample"))
    check_choice("matrix", matrix, MATRICES)
    check_choice("loss", loss, LOSSES)
    check_batch_norm(model)
    chosen = _select_parameters(model, params)
    with torch.inference_mode(False), evaluating(model, device) as place, torch.enable_grad(), ExitStack() as undo:
        if is_autocast_available(place.type):
            undo.enter_context(torch.autocast(place.type, enabled=False))
        undo.enter_context(sdpa_kernel(SDPBackend.MATH))  # the fast kernels have no second derivative
        for parameter in chosen.values():
            undo.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(True)
        yield Problem(model, chosen, _repeatable(batches), loss, level, matrix, place)


def _select_parameters(model: nn.Module, params: Sequence[str] | None) -> dict[str, nn.Parameter]:
    every = dict(model.named_parameters())
    if params is None:
        chosen = {name: parameter for name, parameter in every.items() if parameter.requires_grad}
        if not chosen:
            raise ValueError(
                "the model has no parameter that requires a gradient. Name the ones to differentiate by: params=[...]."
            )
    else:
        names = [params] if isinstance(params, str) else list(params)
        matches = [{full for full in every if full == name or full.startswith(f"{name}.")} for name in names]
        if not names or not all(matches):
            some = ", ".join(list(every)[:5])
            raise ValueError(f"params must name parameters or modules with parameters, such as {some}, got {params!r}.")
        wanted = set.union(*matches)
        chosen = {name: parameter for name, parameter in every.items() if name in wanted}
    bad = [name for name, parameter in chosen.items() if is_lazy(parameter) or parameter.is_inference()]
    if bad:
        raise ValueError(
            f"{bad[0]} is not initialised, or was created where no gradients are recorded. "
            "Call a lazy module once; create and load the model outside of torch.inference_mode()."
        )
    kinds = {parameter.dtype for parameter in chosen.values()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        raise ValueError(
            f"parameters must be all float32 or all float64, got {', '.join(sorted(map(str, kinds)))}. "
            "Second derivatives in half precision have no correct digits: call model.float()."
        )
    return chosen


def _repeatable(batches: Iterable[Any]) -> Iterable[Any]:
    """Return batches that can be iterated more than once."""
    bare = isinstance(batches, (Tensor, Mapping)) or (
        isinstance(batches, tuple) and len(batches) == 2 and isinstance(batches[1], Tensor) and batches[1].ndim == 1
    )
    if bare or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches must be an iterable of batches, such as a data loader, got {type(batches).__name__} by itself. "
            "For a single batch pass a list: [x] or [(x, labels)]."
        )
    return list(batches) if isinstance(batches, Iterator) else batches
