"""Write the HTML pages of a folder: one self-contained file each, which works offline and without scripts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from markupsafe import Markup

from ..detectors import METHODS, cited_works, format_method, full_name
from ..display.figure import Drawing
from ..evaluate.results import ID, OPENOOD, PAPER, MethodRun, Results, in_family, load_results
from ..io.files import write_atomically
from .figures import FALSE_ALARMS, alarm_threshold, all_figures, guard_method
from .gallery import gallery
from .pixels import overlay_shelves, pixel_figures
from .templates import render, suite_title

SMALL = 128  # pixels: up to this size, images with scores are enlarged without smoothing
STUDY = "curvature.json"  # the file of a curvature study, which the report of the same network shows

AVERAGES = {
    "near": ("near", "mean", f"Mean over the near data sets, as {OPENOOD} averages."),
    "far": ("far", "mean", f"Mean over the far data sets, as {OPENOOD} averages."),
    "all": ("average", "mean", f"Mean over all data sets, as the {PAPER} averages."),
}


def write_report(folder: Path | str) -> Path:
    """Write ``report.html`` and its figures next to the result files in ``folder`` and return the path of the page.

    The figures are ``figures/NAME.svg`` and ``figures/NAME.pdf``. The same results give the same bytes. A curvature
    study of the same network in the folder is included; for any other study, the page states why it is not shown.
    """
    folder = Path(folder)
    results = load_results(folder)
    if not results.pixels:
        results.require_scores()
    figures = pixel_figures(results) if results.pixels else all_figures(results)
    for name, drawing in figures.items():
        if not name.endswith("-tall"):
            drawing.save(folder / "figures")
    path = folder / "report.html"
    write_atomically(path, render_report(results, figures, _study_part(results, folder)))
    return path


def write_curvature(folder: Path | str) -> Path:
    """Write ``curvature.html`` and its figures next to the files of a study in ``folder`` and return the page's path.

    If the folder also has the results of a benchmark, their ``report.html`` is rewritten with the study.
    """
    from ..evaluate.study_results import load_study
    from .curvature import curvature_figures, render_curvature

    folder = Path(folder)
    study = load_study(folder)
    figures = curvature_figures(study)
    for drawing in figures.values():
        drawing.save(folder / "figures")
    path = folder / "curvature.html"
    write_atomically(path, render_curvature(study, figures))
    if (folder / "results.json").exists():
        write_report(folder)
    return path


def render_report(
    results: Results, figures: dict[str, Drawing] | None = None, curvature: Mapping[str, object] | str = ""
) -> Markup:
    """Render the page of a run; ``figures`` are its :func:`all_figures` if already computed.

    ``curvature`` is the view of a curvature study, or the reason why there is none.
    """
    suite, ranked, cells = results.suite, results.ranked, results.cells
    hashes = {"images, sha256": suite["fingerprints"]} if suite.get("fingerprints") else {}
    labels = {"seconds": "seconds, without loading and drawing"}
    unreadable = {dataset: reasons for dataset, reasons in results.unreadable.items() if reasons}
    counted = {f"{len(reasons)} images of {dataset} could not be read" for dataset, reasons in unreadable.items()}
    figures = figures or (pixel_figures(results) if results.pixels else all_figures(results))
    own: dict[str, Any] = (
        _pixel_part(results) if results.pixels else {"advice": advise(results), "gallery": gallery(results)}
    )
    return render(
        "pixels.html" if results.pixels else "report.html",
        title=suite_title(suite),
        results=results,
        full_name=full_name,
        cited_works=cited_works,
        rivals=[run.method for run in ranked[1:] if (best := cells[run.method, "all"].certainty) and best.best],
        warnings=[text for text in suite.get("deviations", []) if text not in counted],
        unreadable=unreadable,
        notes=[f"{run.method}: {note}" for run in results.methods for note in run.warnings],
        marked=any(cell.certainty is not None for cell in cells.values()),
        columns=columns_of(results, results.columns),
        groups_of=groups_of,
        settings=settings,
        figures=figures,
        curvature=curvature,
        provenance={labels.get(name, name): value for name, value in results.provenance.items()} | hashes,
        **own,
    )


def _pixel_part(results: Results) -> dict[str, Any]:
    """Return the values of ``pixels.html`` that other reports do not have."""
    first = results.methods[0].method
    return {
        "shelves": overlay_shelves(results),
        "pixels": int(sum(counts.sum() for key, counts in results.pixels.items() if key.startswith(f"{first}/"))),
        "small": all(max(pixels.shape) <= SMALL for pixels in results.thumbnails.values()),
    }


def _study_part(results: Results, folder: Path) -> Mapping[str, object] | str:
    """Return the curvature study in a folder for its report: a view, the reason why it is not shown, or ``""``."""
    if not (folder / STUDY).exists():
        return ""
    from ..evaluate.study_results import load_study  # imports the curvature package, which a benchmark does not need
    from .curvature import curvature_view, mismatch

    try:
        study = load_study(folder)
    except ValueError as error:  # the results are valid and still get their report
        return f"The curvature study in this folder is not shown: {error}"
    return mismatch(results, study) or curvature_view(study, results)


class Advice(NamedTuple):
    """Recommended method for a guard, its specification, and the OOD images it detects at 5 % false alarms."""

    run: MethodRun
    spec: str  # as on the command line, with non-default hyper-parameters
    alarms: float  # share of the ID images
    found: dict[str, tuple[int, int]]  # by data set: the OOD images above the threshold, and all of them

    @property
    def total(self) -> tuple[int, int]:
        """The OOD images above the threshold and all of them, over all data sets."""
        found, images = (sum(counts) for counts in zip(*self.found.values(), strict=True))
        return found, images


def advise(results: Results) -> Advice:
    """Recommend the best method that a guard can use, with its detections at a threshold from the ID test images."""
    run = guard_method(results)
    threshold = alarm_threshold(results.scores[f"{run.method}/{ID}"])
    scores = {ood["name"]: results.scores[f"{run.method}/{ood['name']}"] for ood in results.suite["ood"]}
    found = {name: (int((values > threshold).sum()), len(values)) for name, values in scores.items()}
    return Advice(run, method_spec(run), FALSE_ALARMS, found)


def method_spec(run: MethodRun) -> str:
    """Return a method as an argument of ``flatfold fit --method``, with non-default hyper-parameters."""
    if run.name not in METHODS:
        return run.method
    return quote(format_method(run.name, run.hyper).replace(" ", ""))


def columns_of(results: Results, columns: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the column heads of data sets and averages: name, subtitle and tooltip."""
    ood = {ood["name"]: (ood["name"], ood["group"], ood["about"]) for ood in results.suite["ood"]}
    return [ood[name] if name in ood else AVERAGES[name] for name in columns]


def groups_of(run: MethodRun) -> str:
    """Return the groups of a method, named as in the buttons above a table."""
    return " ".join(["all"] + ["family"] * in_family(run.name) + ["untuned"] * (run.tuned_on == "nothing"))


def settings(values: Mapping[str, object]) -> str:
    """Format settings as text, without those that are None; lists of more than four values are abbreviated."""
    texts = []
    for key, value in values.items():
        if isinstance(value, list):
            value = f"{value[0]}..{value[-1]}" if len(value) > 4 else f"({', '.join(map(str, value))})"
        texts += [f"{key} = {value}"] if value is not None else []
    return ", ".join(texts)
