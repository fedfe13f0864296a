"""Result files of a curvature study: ``curvature.json``, ``curvature.csv`` and ``curvature.safetensors``.

The first has all figures and where they come from, the second the table, the third everything about single inputs and
the spectra.
"""

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
from ..results import ID, as_csv
from .rows import Detection as Detection
from .rows import Name as Name
from .rows import Space as Space
from .rows import Statistic as Statistic
from .rows import mean_statistic
from .whole import check_whole

FORMAT, VERSION = "flatfold-curvature", 1
JSON, CSV, ARRAYS = "curvature.json", "curvature.csv", "curvature.safetensors"
STORED = ("traces", "trace_stderr", "nodes", "weights", "eigenvalues")  # fields that are arrays
AGAIN = "Run `flatfold curvature` again."


@dataclass(frozen=True)
class Study:
    """The outcome of a curvature study.

    Attributes:
        suite: As in :class:`~flatfold.evaluate.results.Results`: name, network, about, n_classes, n_features, accuracy,
            n_test, ood (name, group, n, about), deviations, ...; and ``n_parameters``.
        statistics: The table.
        detections: Traces as detectors.
        alphas: The exponents of the top eigenvalues by name: ``none`` 0, ``partial`` AutoFold's choice, ``full`` 1.
        traces: Of single inputs, ``(n,)``, keyed by ``space/dataset`` for parameter, feature and logit.
        trace_stderr: Their standard errors by the same keys, where they are not exact.
        nodes, weights: Spectra, ``(probes, m)``, keyed by ``space/dataset`` for parameter and feature.
        sizes: Number of eigenvalues by space.
        eigenvalues: Largest feature eigenvalues of single inputs, largest first, ``(n, k)``, keyed by ``alpha/dataset``
            with the names of ``alphas``.
        provenance: Where the numbers come from; ``loss``, ``matrix``, ``probes``, ``steps``, ``samples`` among it.

    A ``dataset`` below may also be ``near`` or ``far``, for the unweighted mean over the data sets of the group.
    """

    suite: dict[str, Any]
    statistics: list[Statistic]
    detections: list[Detection]
    alphas: dict[str, float]
    traces: dict[str, NDArray[np.float64]]
    trace_stderr: dict[str, NDArray[np.float64]]
    nodes: dict[str, NDArray[np.float64]]
    weights: dict[str, NDArray[np.float64]]
    sizes: dict[str, int]
    eigenvalues: dict[str, NDArray[np.float64]]
    provenance: dict[str, Any]

    @property
    def datasets(self) -> list[str]:
        """The known test images, then every unknown data set."""
        return [ID, *(ood["name"] for ood in self.suite["ood"])]

    @property
    def groups(self) -> list[str]:
        """Those of ``near`` and ``far`` that there are."""
        return [group for group in ("near", "far") if any(ood["group"] == group for ood in self.suite["ood"])]

    @property
    def columns(self) -> list[tuple[Space, Name]]:
        """What a table shows of each data set."""
        return list(dict.fromkeys((each.space, each.name) for each in self.statistics))

    @property
    def means(self) -> dict[tuple[str, Space, Name], Statistic]:
        """The unweighted means over the data sets of each group, as the paper takes them."""
        return {
            (group, space, name): mean_statistic(
                [s for s in self.statistics if (s.group, s.space, s.name) == (group, space, name)]
            )
            for group in self.groups
            for space, name in self.columns
        }

    @property
    def cells(self) -> dict[tuple[str, Space, Name], Statistic]:
        """Every figure by data set or group, space and name."""
        return {(each.dataset, each.space, each.name): each for each in self.statistics} | self.means

    def cell(self, dataset: str, space: Space, name: Name) -> Statistic:
        """Return one figure of the table."""
        found = self.cells.get((dataset, space, name))
        if found is None:
            have = f"{', '.join(self.datasets + self.groups)}; {', '.join(' '.join(column) for column in self.columns)}"
            raise ValueError(f"there is no {space} {name} of {dataset} in this study. It has {have}.")
        return found

    def factor(self, dataset: str, space: Space, name: Name) -> float | None:
        """Return how many times the figure of the known images one figure is; None unless both are above 0."""
        figure, known = self.cell(dataset, space, name).value, self.cell(ID, space, name).value
        return figure / known if figure > 0 and known > 0 else None

    def save(self, folder: Path) -> None:
        """Write the files, ``curvature.json`` last: it knows the arrays by their sha256, so a mixture is found."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        arrays = {f"{name}/{key}": values for name in STORED for key, values in content.pop(name).items()}
        data = save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
        content["sha256"] = hashlib.sha256(data).hexdigest()
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"  # which may refuse, before anything is written
        lines = ({**asdict(s), "factor": self.factor(s.dataset, s.space, s.name)} for s in self.statistics)
        write_atomically(folder / ARRAYS, data)
        write_atomically(folder / CSV, as_csv(lines))
        write_atomically(folder / JSON, text)


def load_study(folder: Path) -> Study:
    """Read the files that :meth:`Study.save` wrote."""
    path = folder / JSON
    if not path.exists():
        inside = ", ".join(str(place.parent) for place in sorted(folder.glob(f"*/{JSON}")))
        what = (
            f"It holds several studies: name one of {inside}"
            if inside
            else "Run `flatfold curvature` first, or name its --out"
        )
        raise ValueError(f"there is no {JSON} in {folder}. {what}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of the encoding too
        raise ValueError(f"{path} is not valid JSON ({error}). {AGAIN}") from error
    if (
        not isinstance(content, dict)
        or content.pop("format", None) != FORMAT
        or content.pop("version", None) != VERSION
    ):
        raise ValueError(f"{path} is not a {FORMAT} file of version {VERSION}. {AGAIN}")
    try:
        study = _from_json(content, _arrays(folder, content.pop("sha256")))
        check_whole(study)
        return study
    except (AttributeError, IndexError, KeyError, OSError, SafetensorError, TypeError, _Mixed) as error:
        raise ValueError(f"the study in {folder} is damaged: {error}. {AGAIN}") from error


class _Mixed(Exception):  # noqa: N818
    """Two files are not of one study."""


def _arrays(folder: Path, checksum: str) -> Mapping[str, NDArray[np.float64]]:
    data = (folder / ARRAYS).read_bytes()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise _Mixed(f"{ARRAYS} is not the one that was written with {JSON}")
    arrays: dict[str, NDArray[np.float64]] = load(data)
    return arrays


def _from_json(content: dict[str, Any], arrays: Mapping[str, NDArray[np.float64]]) -> Study:
    stored: dict[str, Any] = {
        name: {key.removeprefix(f"{name}/"): values for key, values in arrays.items() if key.startswith(f"{name}/")}
        for name in STORED
    }
    return Study(
        statistics=[Statistic(**each) for each in content.pop("statistics")],
        detections=[Detection(**each) for each in content.pop("detections")],
        **stored,
        **content,
    )
