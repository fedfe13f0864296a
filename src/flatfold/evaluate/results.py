"""Result files: ``results.json`` (everything), ``results.csv`` (the rows), ``scores.safetensors`` (every score)."""

import csv
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ..files import write_atomically
from .rows import Average, MethodRun, Row, column_names

FORMAT, VERSION = "flatfold-results", 2
ID = "id"  # the name of the in-distribution test data among the scores


@dataclass(frozen=True)
class AlphaCurve:
    """AutoFold's criterion over its grid, and what each exponent would really have given."""

    method: str
    grid: list[float]
    curve: list[float]
    stderr: list[float]
    chosen: float
    auroc: dict[str, list[float]]
    """True AUROC per data set and on average (``all``); no method ever sees it."""


@dataclass(frozen=True)
class Results:
    """The outcome of a benchmark."""

    suite: dict[str, Any]
    methods: list[MethodRun]
    refused: dict[str, str]
    """Methods that could not be run on this data, and why."""
    rows: list[Row]
    averages: list[Average]
    alpha_curves: list[AlphaCurve]
    provenance: dict[str, Any]
    scores: dict[str, NDArray[np.float32]]
    """Keyed by ``method/dataset``, with ``id`` for the in-distribution test data."""

    @property
    def columns(self) -> list[str]:
        """What a table shows for each method: every data set, then the averages that exist."""
        return [ood["name"] for ood in self.suite["ood"]] + self.groups

    @property
    def groups(self) -> list[str]:
        """The averages worth showing: ``near``, ``far`` and ``all``, or ``all`` alone where it repeats another."""
        here = {mean.over for mean in self.averages}
        return ["near", "far", "all"] if {"near", "far"} <= here else ["all"]

    @property
    def cells(self) -> dict[tuple[str, str], Row | Average]:
        """The figures by method and column."""
        cells: dict[tuple[str, str], Row | Average] = {(row.method, row.dataset): row for row in self.rows}
        return cells | {(mean.method, mean.over): mean for mean in self.averages}

    @property
    def ranked(self) -> list[MethodRun]:
        """The methods, best average AUROC first."""
        average = {mean.method: mean.auroc for mean in self.averages if mean.over == "all"}
        return sorted(self.methods, key=lambda run: -average[run.method])

    def save(self, folder: Path) -> None:
        """Write the three files, each of them at once or not at all."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        del content["scores"]
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"  # which may refuse, before anything is written
        write_atomically(folder / "scores.safetensors", save(self.scores))
        write_atomically(folder / "results.csv", self._csv())
        write_atomically(folder / "results.json", text)

    def _csv(self) -> str:
        text = io.StringIO()
        runs = {run.method: run for run in self.methods}
        extra = ["hyper", "learnt", "fits_on", "fit_seconds", "microseconds_per_sample"]
        table = csv.writer(text, lineterminator="\n")
        table.writerow(column_names() + extra)
        for row in self.rows:
            run = asdict(runs[row.method])
            table.writerow([*asdict(row).values(), *(_cell(run[name]) for name in extra)])
        return text.getvalue()


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def load_results(folder: Path) -> Results:
    """Read the files that :meth:`Results.save` wrote."""
    path = folder / "results.json"
    if not path.exists():
        raise ValueError(f"there is no results.json in {folder}. Run `flatfold bench` first, or name its --out folder.")
    try:
        content = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON ({error}). Run `flatfold bench` again.") from error
    if (
        not isinstance(content, dict)
        or content.pop("format", None) != FORMAT
        or content.pop("version", None) != VERSION
    ):
        raise ValueError(f"{path} is not a {FORMAT} file of version {VERSION}. Run `flatfold bench` again.")
    try:
        return _from_json(content, load_file(folder / "scores.safetensors"))
    except (AttributeError, KeyError, OSError, SafetensorError, TypeError) as error:
        raise ValueError(f"the results in {folder} are damaged: {error}. Run `flatfold bench` again.") from error


def _from_json(content: dict[str, Any], scores: dict[str, NDArray[np.float32]]) -> Results:
    return Results(
        methods=[MethodRun(**run) for run in content.pop("methods")],
        rows=[Row(**row) for row in content.pop("rows")],
        averages=[Average(**mean) for mean in content.pop("averages")],
        alpha_curves=[AlphaCurve(**curve) for curve in content.pop("alpha_curves")],
        scores=scores,
        **content,
    )
