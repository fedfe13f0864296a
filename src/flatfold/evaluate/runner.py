"""Run a suite: extract every data set once, then fit and evaluate each method on the features."""

import logging
import os
import platform
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from .. import __version__
from ..core.shaping import row_norms
from ..data.sources import ImageSource
from ..data.transform import in_mode
from ..errors import MethodRefusedError, UnreadableInputError
from ..io.progress import track
from ..io.store import PartStore, read_manifest
from ..network.fingerprint import weights_hash
from ..passes.passes import session
from .banks import Banks, Settings, accuracy, accuracy_fits, extract_all
from .compare import tabulate
from .methods import FinishedMethods, MethodResult, Spec, describe_error, evaluate_method, own_traceback, parse_spec
from .pixels import (
    draw_overlays,
    draw_positions,
    fit_on_positions,
    histograms_of,
    pixel_store,
    score_pixels,
    tabulate_pixels,
    values_of,
)
from .plan import LONG, make_plan
from .results import ID, Results, WorstCase
from .suites.suite import Suite

WORST = 8  # worst cases shown per data set
SIDE = 64  # pixels of the longer side of a thumbnail

log = logging.getLogger(__name__)


def run(
    suite: Suite,
    methods: Sequence[str | Spec],
    out: Path | str,
    settings: Settings | None = None,
    previous: Results | None = None,
) -> Results:
    """Evaluate methods on a suite.

    A method that rejects the data, such as ASH with negative features, is reported in ``results.refused``. A method
    that fails in any other way is reported in ``results.failed`` with the line of user code that led to it, if any, and
    logged with the traceback from there on (the full one at level DEBUG); other methods continue. If no method is left,
    the reasons are raised. An OSError outside of user code, such as a full disk, ends the run.

    Args:
        suite: Network and data.
        methods: As on the command line: ``"knn"``, ``"knn:k=10"``, ``"knn@ood"``. Duplicates are ignored.
        out: Folder for the features, from which an interrupted run resumes.
        settings: Settings of the run.
        previous: Finished results of the same network and images to extend; methods that they already have are
            replaced.
    """
    settings = settings or Settings()
    specs = check_specs(methods, suite)
    if previous is not None:
        check_same(previous, suite, settings)
    if suite.masked:
        return _run_on_pixels(suite, specs, Path(out), settings)
    with session(settings.execution):
        return _run(suite, specs, Path(out), settings, previous)


def _run(suite: Suite, specs: Sequence[Spec], out: Path, settings: Settings, previous: Results | None) -> Results:
    start = perf_counter()
    tuning = any(spec.tune == "ood" for spec in specs)
    plan = make_plan(suite.sources_for(tuning), suite.model, specs, out / "banks", settings, suite.head)
    if plan is not None:
        plan.check(out)
        log.log(logging.INFO if plan.total < LONG else logging.WARNING, "this needs %s", plan)
    banks = extract_all(suite, out / "banks", settings, tuning)
    try:  # a warm-up, so that the first method's time does not include torch's start
        evaluate_method(Spec("fold"), suite, banks, out, settings)
    except OSError:  # such as a full disk: no method could continue
        raise
    except Exception:
        log.exception("the warm-up with fold failed with an unexpected error")
    evaluated: list[MethodResult] = []
    refused: dict[str, str] = {}
    failed: dict[str, str] = {}
    with closing(_finished_methods(suite, out, settings)) as finished:
        for spec in track(specs, "fitting and scoring"):
            before = banks.versions
            try:
                evaluated.append(_evaluate(spec, suite, banks, out / "scores", settings, finished))
            except (MethodRefusedError, UnreadableInputError) as error:
                refused[spec.label] = str(error)
            except (Exception, SystemExit) as error:  # a method that ends the process ends for itself only
                if isinstance(error, OSError) and own_traceback(error) is None:
                    raise  # such as a full disk: no method could continue
                failed[spec.label] = describe_error(error)
                _log_failure(spec.label, error)
            if banks.versions != before:
                raise ValueError(
                    f"{spec.label} changed the features, labels or head of the benchmark in place, so the results of "
                    "all methods after it would be wrong. Change a copy in the method: h * 2 instead of h.mul_(2)."
                )
    if not evaluated:
        raise ValueError("; ".join(f"{label}: {reason}" for label, reason in {**refused, **failed}.items()))
    scores = {f"{it.run.method}/{dataset}": values for it in evaluated for dataset, values in it.scores.items()}
    wrong, thumbnails = _worst_cases(evaluated, suite, banks)
    results = Results(
        suite=describe(suite, banks),
        methods=[result.run for result in evaluated],
        refused=refused,
        rows=[],
        averages=[],
        alpha_curves=[result.curve for result in evaluated if result.curve is not None],
        provenance={**provenance(suite, settings, perf_counter() - start), "runtime": banks.runtime},
        scores=scores,
        norms={name: row_norms(bank.features).squeeze(-1).float().numpy() for name, bank in banks.test_sets.items()},
        wrong=wrong,
        thumbnails=thumbnails,
        unreadable={
            name: {str(row): reason for row, reason in reasons.items()} for name, reasons in banks.unreadable.items()
        },
        failed=failed,
    )
    if previous is not None:
        results = _merge(previous, results)
    tuned_on = {run.method: run.tuned_on for run in results.methods}
    groups = {ood.name: ood.group for ood in suite.ood}
    start = perf_counter()
    rows, averages = tabulate(results.scores, tuned_on, groups, settings.replicates, suite.seed)
    seconds = round(results.provenance["seconds"] + perf_counter() - start, 2)  # including the intervals
    return replace(results, rows=rows, averages=averages, provenance={**results.provenance, "seconds": seconds})


def _run_on_pixels(suite: Suite, specs: Sequence[Spec], out: Path, settings: Settings) -> Results:
    """Evaluate methods on the pixels of a suite with masks."""
    start = perf_counter()
    refused: dict[str, str] = {}
    failed: dict[str, str] = {}
    with closing(_pixel_parts(suite, out, settings)) as store:
        positions = draw_positions(suite, settings)
        fitted = {}
        for spec in track(specs, "fitting"):
            try:
                fitted[spec.label] = fit_on_positions(spec, positions)
            except MethodRefusedError as error:
                refused[spec.label] = str(error)
            except Exception as error:
                failed[spec.label] = describe_error(error)
                _log_failure(spec.label, error)
        evaluated, errors = score_pixels(suite, positions, fitted, settings, store) if fitted else ([], {})
    for label, reason in errors.items():
        failed[label] = describe_error(reason)
        _log_failure(label, reason)
    if not evaluated:
        raise ValueError("; ".join(f"{label}: {why}" for label, why in {**refused, **failed}.items()))
    rows, averages, bounds = tabulate_pixels(evaluated, suite, settings.replicates)
    overlays, pictures = draw_overlays(suite, positions, evaluated, averages, settings)
    about = describe(suite, positions.banks)
    about["n_test"] = suite.test.rows - len(positions.unreadable.get("test", ()))
    for ood in about["ood"]:
        ood["n"] = suite.sources[ood["name"]].rows - len(positions.unreadable.get(ood["name"], ()))
    facts = {"runtime": positions.banks.runtime, "positions": {"train": about["n_train"], "val": about["n_val"]}}
    return Results(
        suite=about,
        methods=[result.run for result in evaluated],
        refused=refused,
        rows=rows,
        averages=averages,
        alpha_curves=[],
        provenance={
            **provenance(suite, settings, perf_counter() - start),
            **facts,
            "largest error of the histograms": {name: float(f"{bound:.2g}") for name, bound in bounds.items()},
        },
        scores={},
        thumbnails=pictures,
        unreadable={
            name: {str(row): reason for row, reason in reasons.items()}
            for name, reasons in positions.unreadable.items()
            if reasons
        },
        failed=failed,
        pixels=histograms_of(evaluated),
        overlays=overlays,
    )


def _pixel_parts(suite: Suite, out: Path, settings: Settings) -> PartStore:
    """Return the store of the parts that a run on pixels with this network, data and settings has finished."""
    return pixel_store(out / "scores", _run_key(suite, settings) | {"values": values_of(suite)})


def run_and_save(
    suite: Suite,
    methods: Sequence[str | Spec],
    out: Path | str,
    settings: Settings | None = None,
    previous: Results | None = None,
) -> Results:
    """Run as :func:`run` does and save the results in ``out``, after which the run cannot be resumed any more."""
    results = run(suite, methods, out, settings, previous)
    results.save(out)
    stored = _pixel_parts if suite.masked else _finished_methods
    stored(suite, Path(out), settings or Settings()).remove()
    return results


def _finished_methods(suite: Suite, out: Path, settings: Settings) -> FinishedMethods:
    """Return the store of the methods that a run with this network, data and settings has finished."""
    return FinishedMethods(out / "scores", _run_key(suite, settings))


def _run_key(suite: Suite, settings: Settings) -> dict[str, str]:
    """Return what stored scores are computed from."""
    key = {"flatfold": __version__, "weights": weights_hash(suite.model), "precision": _precision(settings)}
    sources = {name: source.fingerprint for name, source in suite.sources.items()}
    return key | {"device": settings.device} | sources


def _evaluate(
    spec: Spec, suite: Suite, banks: Banks, folder: Path, settings: Settings, finished: FinishedMethods
) -> MethodResult:
    """Return the result of a method, stored by a run that was stopped or computed now."""
    result = finished.get(spec)
    if result is None:
        start = perf_counter()
        result = evaluate_method(spec, suite, banks, folder, settings)
        finished.add(spec, result, perf_counter() - start)
    return result


def check_same(previous: Results, suite: Suite, settings: Settings) -> None:
    """Raise unless finished results have the same network, images and settings as a run."""
    previous.require_scores()
    facts, prints = previous.provenance, previous.suite.get("fingerprints", {})
    now = {name: source.fingerprint for name, source in suite.sources.items()}
    images = [name for name in {**prints, **now} if prints.get(name) != now.get(name)]
    differences = {
        "the suite": (previous.suite["name"], previous.suite.get("network")) != (suite.name, suite.network),
        "the weights of the network": facts.get("weights, sha256") != weights_hash(suite.model),
        "the seed": facts.get("seed") != suite.seed,
        "the precision (dtype)": facts.get("mixed precision", "") != _precision(settings),
        f"the images of {', '.join(images)}": bool(images),
    }
    if any(differences.values()):
        what = "; ".join(difference for difference, found in differences.items() if found)
        command = f" They were computed by: {facts['command']}" if facts.get("command") else ""
        raise ValueError(
            f"methods can only be added to results of the same network, images and settings, but these differ: {what}. "
            f"Use the options of the finished run, or another output folder.{command}"
        )


def _merge(previous: Results, new: Results) -> Results:
    """Merge results, without rows; methods of ``new`` replace those with the same label."""
    if previous.unreadable.keys() != new.unreadable.keys() or any(
        previous.unreadable[name].keys() != rows.keys() for name, rows in new.unreadable.items()
    ):
        raise ValueError("the unreadable images differ from those of the finished run. Run all methods again.")
    attempted = {run.method for run in new.methods} | new.left_out.keys()
    finished = {run.method for run in new.methods}
    runs = {run.method: run for run in (*previous.methods, *new.methods)}
    old_wrong = [case for case in previous.wrong if case.method not in finished]
    wrong = sorted([*old_wrong, *new.wrong], key=lambda case: list(runs).index(case.method))
    thumbnails = {**previous.thumbnails, **new.thumbnails}
    commands = dict.fromkeys(run.provenance.get("command", "") for run in (previous, new))
    seconds = round(previous.provenance.get("seconds", 0.0) + new.provenance["seconds"], 2)
    return replace(
        new,
        methods=list(runs.values()),
        refused={name: why for name, why in previous.refused.items() if name not in attempted} | new.refused,
        failed={name: why for name, why in previous.failed.items() if name not in attempted} | new.failed,
        alpha_curves=[c for c in previous.alpha_curves if c.method not in finished] + new.alpha_curves,
        provenance={**new.provenance, "command": " && ".join(filter(None, commands)), "seconds": seconds},
        scores={**previous.scores, **new.scores},
        wrong=wrong,
        thumbnails={key: thumbnails[key] for key in dict.fromkeys(f"{case.dataset}/{case.row}" for case in wrong)},
    )


def _log_failure(label: str, error: Exception | SystemExit) -> None:
    """Log an unexpected error with the user's part of its traceback; messages of our own checks need none."""
    own = own_traceback(error)
    if log.isEnabledFor(logging.DEBUG) or (own is None and not isinstance(error, (TypeError, ValueError))):
        log.error("%s failed with an unexpected error", label, exc_info=error)
    elif own is not None:
        log.error("%s failed with an unexpected error", label, exc_info=(type(error), error, own))
    else:
        log.error("%s failed: %s", label, error)


def check_specs(methods: Sequence[str | Spec], suite: Suite | None = None) -> list[Spec]:
    """Parse and validate methods before any network runs; drop duplicates."""
    specs = {spec.label: spec for spec in (parse_spec(m) if isinstance(m, str) else m for m in methods)}
    if not specs:
        raise ValueError("a benchmark needs at least one method, got none. List them with `flatfold methods`.")
    for spec in specs.values():
        if spec.tune == "ood" and suite is not None and suite.ood_val is None:
            raise ValueError(
                f"{spec.label} needs OOD validation images, but the suite {suite.name} has none. Add [ood_val] to "
                "its file, or tune on ID images, @id."
            )
    return list(specs.values())


def describe(suite: Suite, banks: Banks) -> dict[str, Any]:
    """Describe the suite for results and pages: data sets, sizes, the network's accuracy."""
    share = accuracy(banks.test, banks.head)
    deviations = list(suite.deviations)
    if suite.accuracy is not None and not accuracy_fits(share, suite.accuracy, len(banks.test)):  # another network?
        deviations.append(
            f"the accuracy of the network is {100 * share:.2f} % on the test images, expected {suite.accuracy:g} %"
        )
    deviations += [f"{len(rows)} images of {name} could not be read" for name, rows in banks.unreadable.items()]
    return {
        "name": suite.name,
        "network": suite.network,
        "about": suite.about,
        "n_classes": banks.head.n_classes,
        "n_features": banks.head.width,
        "family": suite.family,
        "architecture": suite.architecture,
        "protocol": suite.protocol,
        "classes": list(suite.classes),
        "deviations": deviations,
        "accuracy": share,
        "n_train": 0 if banks.train is None else len(banks.train),
        "n_val": 0 if banks.val is None else len(banks.val),
        "n_test": len(banks.test),
        "n_ood_val": 0 if suite.ood_val is None else suite.ood_val.rows,
        "ood": [
            {"name": ood.name, "group": ood.group, "n": len(banks.ood[ood.name]), "about": ood.about}
            | ({"printed": ood.printed} if ood.printed else {})
            for ood in suite.ood
        ],
        "fingerprints": {name: source.fingerprint for name, source in suite.sources.items()},
    }


def provenance(suite: Suite, settings: Settings, seconds: float) -> dict[str, Any]:
    """Return the provenance of results: versions, machine, weights, command."""
    return {
        "flatfold": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "threads": torch.get_num_threads(),
        "device": settings.device,
        "seed": suite.seed,
        "bootstrap": settings.replicates,
        "weights, sha256": weights_hash(suite.model),
        "command": settings.command,
        **({"mixed precision": _precision(settings)} if settings.execution.dtype is not None else {}),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
    }


def _precision(settings: Settings) -> str:
    dtype = settings.execution.dtype
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def forget(out: Path | str) -> None:
    """Remove the features and scores stored by earlier runs in a folder, and no other files."""
    for manifest in (path for kind in ("banks", "scores") for path in Path(out).glob(f"{kind}/*/manifest.json")):
        if "data" in read_manifest(manifest.parent).key:  # banks of users have no such key
            PartStore(manifest.parent, {}, restart=True).remove()


def _worst_cases(
    evaluated: Sequence[MethodResult], suite: Suite, banks: Banks
) -> tuple[list[WorstCase], dict[str, NDArray[np.uint8]]]:
    """Return the images with the most misleading scores by method and data set, worst first, and their thumbnails."""
    sources = {ID: suite.test} | {ood.name: ood.images for ood in suite.ood}
    cases, thumbnails, names = [], {}, {}
    for result in evaluated:
        for dataset, scores in result.scores.items():
            source = sources[dataset]
            if not isinstance(source, ImageSource):
                continue  # features have no images to show
            unreadable = banks.unreadable.get("test" if dataset == ID else dataset, {})
            rows = np.delete(np.arange(source.rows), list(unreadable)).tolist()
            order = np.argsort(-scores if dataset == ID else scores, kind="stable")
            for position in order[:WORST].tolist():
                row, key = rows[position], f"{dataset}/{rows[position]}"
                if key not in thumbnails:
                    names[key], pixels = source.picture(row)
                    image = in_mode(pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels), "RGB")
                    image.thumbnail((SIDE, SIDE))
                    thumbnails[key] = np.asarray(image)
                logits = banks.head(banks.test_sets[dataset].features[position : position + 1])
                score, label = scores[position], None
                if dataset == ID and source.labels is not None:
                    label = int(source.labels[row])
                cases.append(
                    WorstCase(
                        method=result.run.method,
                        dataset=dataset,
                        row=row,
                        name=names[key],
                        score=float(score),
                        share=float((result.scores[ID] < score).mean()),
                        predicted=int(logits.argmax()),
                        label=label,
                    )
                )
    return cases, thumbnails
