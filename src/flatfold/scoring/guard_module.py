"""GuardModule: model and calibrated detector as one module for compilers and exporters."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self, TypeVar

from torch import Tensor, nn

from ..core.validation import UnsupportedHead
from ..models.forward import COMPILED, evaluating, logits_of, one_row_each
from ..models.heads import FoundHead, module_named
from .calibrated import CalibratedDetector, Verdict

M = TypeVar("M", bound=nn.Module)


class GuardModule(nn.Module):
    """``x -> (logits, score, p_value, is_ood)`` in plain torch: no search for the head, no branch on a value.

    The model is a copy that shares the memory of the original: neither the hook on its head nor ``.to()`` reaches the
    original. It is always in evaluation mode, and its weights need no gradient, so that serving keeps no graph.
    If the head is called several times for a batch, the call whose output the model returns counts; for a layer that
    the user named, and whose output it does not return, the last call with one row per input. Give each thread its own
    module.

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
        self.model = _without_compilation(_copy_around_memory(model))
        self.calibrated = _copy_around_memory(calibrated)
        self._name, self._gives_logits = found.name, found.gives_logits
        self._calls: list[tuple[Tensor, Tensor, Tensor]] = []
        self._layer().register_forward_hook(self._record_call, with_kwargs=True)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Verdict:
        """Return the verdict on a batch; takes what the model takes."""
        self._calls.clear()  # an earlier batch may have failed half-way
        returned = logits_of(self.model(*args, **kwargs))
        # Not len(), which turns the size of a batch into a constant while a graph is traced.
        rows = next(value.shape[0] for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        features, logits = self._select_call(returned, rows)
        self._calls.clear()
        return Verdict(logits, *self.calibrated(features.to(self.calibrated.detector.fitted_weight.dtype), logits))

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever is asked for."""
        return super().train(False)

    def _layer(self) -> nn.Module:
        layer = module_named(self.model, self._name)
        assert layer is not None
        return layer

    def _record_call(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        features = args[0] if args else kwargs["input"]
        self._calls.append((output, features.detach().clone(), output.detach().clone()))  # they may change in place

    def _select_call(self, returned: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return input and output of the head in the call whose output was returned, or else in the last."""
        layer, flat = self._layer(), []
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
                "of its outputs: a graph cannot tell which. Return that output itself."
            )
        return flat[-1]


def _copy_around_memory(module: M) -> M:
    """Return a copy of a module in evaluation mode, whose tensors share the memory of the original."""

    def share(tensor: Tensor) -> Tensor:
        view = tensor.detach()
        return nn.Parameter(view, requires_grad=False) if isinstance(tensor, nn.Parameter) else view

    with evaluating(module):
        # A module with its own train() may change its weights there (LoRA merges them): its memory is copied too.
        own_train = any(type(part).train not in (nn.Module.train, GuardModule.train) for part in module.modules())
        tensors = (*module.parameters(), *module.buffers())
        shared: dict[int, Any] = {} if own_train else {id(tensor): share(tensor) for tensor in tensors}
        try:
            return deepcopy(module, shared).requires_grad_(False)
        except (RuntimeError, TypeError) as error:  # a lock, an open file, a tensor with a history of gradients
            raise ValueError(
                f"the structure of a model must be copied to guard it as one module, but this {type(module).__name__} "
                f"cannot be: {str(error).partition('. ')[0]}. Keep tensors as parameters or buffers, and locks and "
                "files outside of it."
            ) from error


def _without_compilation(model: nn.Module) -> nn.Module:
    """Undo ``torch.compile`` of a model and its parts: the whole is compiled, if at all."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if hasattr(child, COMPILED) and name != COMPILED:
                setattr(parent, name, getattr(child, COMPILED))
    plain: nn.Module = getattr(model, COMPILED, model)
    return plain
