"""The file of a network's ablations and costs, ``ablations.json``, and beside it the scores behind its scatters."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ...files import write_atomically
from .rows import Cost, Effect, Sensitivity, Separation

FORMAT, VERSION = "flatfold-ablations", 2
JSON, ARRAYS = "ablations.json", "ablations.safetensors"
STORED = ("scores", "logits", "norms")  # in the arrays
AGAIN = "Run `flatfold reproduce` again."


@dataclass(frozen=True)
class Ablations:
    """What a reproduction measures of one network beyond its benchmark and its curvature study.

    Attributes:
        alphas: The exponents by name: ``none`` 0, ``partial`` AutoFold's choice, ``full`` 1.
        effects: Normalisation in front of seven methods, by data set and on average.
        sensitivities: Every exponent for ``fold``, ``fold-r`` and ``fold-a``.
        separations: Cohen's d of FOLD's scores.
        costs: What every method costs, and ``forward``.
        scores: FOLD's, ``(n,)``, keyed by ``normalisation/dataset`` with ``id`` for the known test images.
        logits: Traces of the logit Hessian under partial normalisation, ``(n,)``, by data set.
        norms: Of the features, ``(n,)``, by data set.
        refused: Methods that could not be measured, and why.
        provenance: Where the numbers come from; ``weights, sha256`` among it.
    """

    alphas: dict[str, float]
    effects: list[Effect]
    sensitivities: list[Sensitivity]
    separations: list[Separation]
    costs: list[Cost]
    scores: dict[str, NDArray[np.float32]]
    logits: dict[str, NDArray[np.float32]]
    norms: dict[str, NDArray[np.float32]]
    refused: dict[str, str]
    provenance: dict[str, Any]

    def effect(self, method: str, normalisation: str, dataset: str = "all") -> Effect | None:
        """Return one cell of the table of normalisations, or None where the method could not be measured."""
        wanted = (method, normalisation, dataset)
        return next((e for e in self.effects if (e.method, e.normalisation, e.dataset) == wanted), None)

    def save(self, folder: Path) -> None:
        """Write the files, ``ablations.json`` last: it knows the arrays by their sha256, so a mixture is found."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        arrays = {f"{name}/{key}": values for name in STORED for key, values in content.pop(name).items()}
        data = save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
        content["sha256"] = hashlib.sha256(data).hexdigest()
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"  # which may refuse, before anything is written
        write_atomically(folder / ARRAYS, data)
        write_atomically(folder / JSON, text)


def load_ablations(folder: Path) -> Ablations:
    """Read the files that :meth:`Ablations.save` wrote."""
    path = folder / JSON
    if not path.exists():
        raise ValueError(f"there is no {JSON} in {folder}. Run `flatfold reproduce` first, or name its --out.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content.pop("format"), content.pop("version")) != (FORMAT, VERSION):
            raise ValueError(f"it is not a {FORMAT} file of version {VERSION}")
        return _from_json(content, _arrays(folder, content.pop("sha256")))
    except (AttributeError, KeyError, OSError, RecursionError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"the ablations in {folder} cannot be read: {error}. {AGAIN}") from error


def _arrays(folder: Path, checksum: str) -> Mapping[str, NDArray[np.float32]]:
    data = (folder / ARRAYS).read_bytes()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise ValueError(f"{ARRAYS} is not the one that was written with {JSON}")
    arrays: dict[str, NDArray[np.float32]] = load(data)
    return arrays


def _from_json(content: dict[str, Any], arrays: Mapping[str, NDArray[np.float32]]) -> Ablations:
    stored: dict[str, Any] = {
        name: {key.removeprefix(f"{name}/"): values for key, values in arrays.items() if key.startswith(f"{name}/")}
        for name in STORED
    }
    return Ablations(
        effects=[Effect(**each) for each in content.pop("effects")],
        sensitivities=[Sensitivity(**each) for each in content.pop("sensitivities")],
        separations=[Separation(**each) for each in content.pop("separations")],
        costs=[Cost(**each) for each in content.pop("costs")],
        **stored,
        **content,
    )
