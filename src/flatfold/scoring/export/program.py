"""Guards as ``.pt2`` files, which torch alone can run: ``torch.export.load(path).module()(x)``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...files import written
from .exporters import explained, quiet
from .facts import facts
from .graph import gathered, traced
from .parity import Parity, Runtime, compare

if TYPE_CHECKING:
    from ...models.batches import Batch
    from ..guard import Guard

FACTS = "flatfold.json"  # name of the extra file inside


def export_program(guard: Guard, path: Path | str, inputs: Iterable[Any]) -> Parity:
    """Write a guard as a program of ``torch.export``; see :func:`flatfold.scoring.export.export`.

    Its extra file ``flatfold.json`` says where its decisions come from::

        extra = {"flatfold.json": ""}
        program = torch.export.load("model.pt2", extra_files=extra)
        logits, score, p_value, is_ood = program.module()(x)
    """
    batch = gathered(guard, inputs)
    program = traced(guard, batch)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with written(target) as partial:
        with quiet(), explained("the graph"), partial.open("wb") as file:
            torch.export.save(program, file, extra_files={FACTS: json.dumps(facts(guard))})
        return compare(guard, _runtime(partial), batch)


def _runtime(path: Path) -> Runtime:
    with quiet(), path.open("rb") as file:
        module = torch.export.load(file).module()

    @torch.no_grad()
    def run(batch: Batch) -> tuple[Any, ...]:
        answer: tuple[Any, ...] = module(*batch.args, **batch.kwargs)
        return answer

    return run
