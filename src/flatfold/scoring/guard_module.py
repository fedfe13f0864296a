"""Model and calibrated as one graph, which compilers and exporters can take."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self, TypeVar

from torch import Tensor, nn

from ..core.validation import UnsupportedHead
from ..models.eval_mode import evaluating
from ..models.forward import COMPILED, logits_of, one_row_each
from ..models.heads import FoundHead, module_named
from .calibrated import CalibratedDetector, Verdict

M = TypeVar("M", bound=nn.Module)


class GuardModule(nn.Module):
    """``x -> (logits, score, p_value, is_ood)`` in plain torch: no search for the head, no look at a value.

    The model is a twin of the original around the same memory: neither the hook on its head nor ``.to()`` reaches the
    original. It is always in evaluation mode, and its weights need no gradient, so that serving keeps no graph.
    If the head is called several times for a batch, the call counts whose output the model returns; of a layer that the
    user named, and whose output it does not return, the last one with one row per input. A module answers one thread at
    a time; give each thread its own.

    Args:
        model: The classifier; it is never changed.
        found: Its head.
        calibrated: Of its features.

    Example:
        >>> import torch
        >>> from flatfold import Guard
        >>> model, x = nn.Linear(2, 3), torch.rand(60, 2)
        >>> guard = Guard.fit(model, [x], detector="msp", fpr=0.1)
        >>> torch.equal(torch.compile(guard.as_module(), backend="eager")(x).score, guard(x).score)
        True
    """

    def __init__(self, model: nn.Module, found: FoundHead, calibrated: CalibratedDetector) -> None:
        super().__init__()
        self.model = _uncompiled(_twin(model))
        self.calibrated = _twin(calibrated)
        self._name, self._gives_logits = found.name, found.gives_logits
        self._calls: list[tuple[Tensor, Tensor, Tensor]] = []
        layer = module_named(self.model, found.name)
        assert layer is not None
        layer.register_forward_hook(self._note, with_kwargs=True)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Verdict:
        """Return the verdict on a batch; takes what the model takes."""
        self._calls.clear()  # an earlier batch may have failed half-way
        returned = logits_of(self.model(*args, **kwargs))
        features, logits = self._last_call(returned, _rows(*args, *kwargs.values()))
        self._calls.clear()
        return Verdict(logits, *self.calibrated(features.to(self.calibrated.detector.fitted_weight.dtype), logits))

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever is asked for."""
        return super().train(False)

    def _note(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        features = args[0] if args else kwargs["input"]
        self._calls.append((output, features.detach().clone(), output.detach().clone()))  # they may change in place

    def _last_call(self, returned: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return what went into the head and came out, in the call whose output was returned, or else in the last."""
        layer = module_named(self.model, self._name)
        assert layer is not None
        flat = []
        for output, *call in self._calls:
            features, logits = (one_row_each(layer, values, rows) for values in call)
            if features is not None and logits is not None:
                if output is returned:
                    return features, logits
                flat.append((features, logits))
        if not flat:
            raise UnsupportedHead(
                f"the head {self._name!r} must be given one row of features per input, but in this batch it never was. "
                "Give inputs such as those that the guard was fitted on."
            )
        if len(flat) > 1 and self._gives_logits:
            raise UnsupportedHead(
                f"the head {self._name!r} is called {len(flat)} times for a batch, and the model returns a copy of one "
                "of its outputs: a graph cannot tell of which. Return that output itself."
            )
        return flat[-1]


def _rows(*values: Any) -> int:
    # Not len(), which turns the size of a batch into a constant while a graph is traced.
    return next(value.shape[0] for value in values if isinstance(value, Tensor))


def _twin(module: M) -> M:
    """Return a copy of a module in evaluation mode: tensors of its own around the same memory.

    A module with a ``train`` of its own may change its weights there (LoRA merges them), so its memory is copied too.
    """
    with evaluating(module):
        own_modes = any(type(part).train not in (nn.Module.train, GuardModule.train) for part in module.modules())
        tensors = (*module.parameters(), *module.buffers())
        shared: dict[int, Any] = {} if own_modes else {id(tensor): _around(tensor) for tensor in tensors}
        try:
            return deepcopy(module, shared).requires_grad_(False)
        except (RuntimeError, TypeError) as error:  # a lock, an open file, a tensor with a history of gradients
            raise ValueError(
                f"the structure of a model must be copied to guard it as one module, but this {type(module).__name__} "
                f"cannot be: {str(error).partition('. ')[0]}. Keep tensors as parameters or buffers, and locks and "
                "files outside of it."
            ) from error


def _around(tensor: Tensor) -> Tensor:
    view = tensor.detach()
    return nn.Parameter(view, requires_grad=False) if isinstance(tensor, nn.Parameter) else view


def _uncompiled(model: nn.Module) -> nn.Module:
    """Return a model without what ``torch.compile`` put around it or its parts: it is compiled as a whole if at all."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if hasattr(child, COMPILED) and name != COMPILED:
                setattr(parent, name, getattr(child, COMPILED))
    plain: nn.Module = getattr(model, COMPILED, model)
    return plain
