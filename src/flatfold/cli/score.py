"""``flatfold score``, ``join`` and ``score-features``: OOD scores of images or features as a table."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from .options import (
    DEFAULT_METHOD,
    FPR,
    IMAGES,
    METHOD,
    TEXTS,
    AnySize,
    EngineOptions,
    ImageOptions,
    ModelOptions,
    PerClass,
    Rate,
    Resume,
    TextOptions,
    TransformOptions,
    With,
    Workers,
    check_folder,
    check_no_images,
    check_table,
    count_option,
    invalid_usage,
    load_plugins,
    make_detector,
    name_options,
)
from .output import captured_warnings, count, get_output, note, print_json, printable, say

if TYPE_CHECKING:
    from ..data.sources import NamedSource
    from ..detectors.base import Detector
    from ..io.store import Part
    from ..passes.passes import Parts
    from ..scoring.calibrated import Calibration
    from ..scoring.shards import ScoringJob, Summary
    from ..scoring.tables import Columns

SHOWN = 3  # images without a score to print

INCOMPLETE = 3  # exit code when some images have no score

Processes = Annotated[
    int | None,
    count_option(1, "Number of processes; auto: one, or one per core for long jobs with torch on a CPU."),
]


def score(
    images: Annotated[Path, Argument(help=f"Images to score: {IMAGES}; or {TEXTS}.")],
    guard: Annotated[Path, Option(help="Guard file, from `flatfold fit` or Guard.save.")],
    model: ModelOptions,
    out: Annotated[Path, Option(help="Table to write: *.csv, *.jsonl or *.parquet.")],
    fpr: Rate = None,
    allow_sizes: AnySize = False,
    masks: Annotated[
        Path | None,
        Option(
            help="Folder for a PNG of each image, 255 where there is an alarm and else 0, of the size of the image, or "
            "of the logits if the transform crops. For guards of segmentation networks."
        ),
    ] = None,
    shard: Annotated[str | None, Option(help="Part of the images, as i/n; `flatfold join` merges the tables.")] = None,
    resume: Resume = True,
    workers: Workers = None,
    processes: Processes = None,
    explain: Annotated[
        bool, Option("--explain", help="Add the column explanation: what is unusual, in words.")
    ] = False,
    tokens: Annotated[
        bool, Option("--tokens", help="As --explain, and for texts with an alarm, name the words behind it.")
    ] = False,
    *,
    execution: EngineOptions,
    options: ImageOptions,
    texts: TextOptions,
    transform: TransformOptions,
    own: With = None,
) -> None:
    """Score images or texts with a guard and its model.

    Writes a table with one row per input. Columns: path, predicted (the most likely class), score (higher = more
    out-of-distribution), p_value and is_ood. At most a fraction --fpr of ID inputs raises an alarm.

    For a segmentation network, columns are path, share_ood (the share of pixels with an alarm), image_score,
    image_p_value and image_is_ood (about the image as a whole), and --masks writes the pixels, in the folders and with
    the names of the images. Images of several sizes need --batch-size 1.

    Images are prepared with the transform stored in the guard file, else with --resize, --crop, --mean, --std, --mode
    and --interpolation. Memory use does not grow with the number of images. An interrupted run resumes when the same
    command is run again. Images that cannot be read or scored, or whose size was not seen during calibration, are
    listed in OUT.unreadable.csv; OUT.summary.json has the counts. Use `flatfold score-features` for features.

    Texts are prepared with the tokeniser of the guard, from the folder of --tokenizer, of --model transformers/FOLDER,
    or of the fit; its tokens must be those of the fit. The column truncated says which texts were too long for it.

    Exit codes: 0 all images are scored; 1 invalid input; 2 invalid usage; 3 done, but some images have no score; 130
    interrupted.

    Example: flatfold score photos/ --guard guard.safetensors --model nets:resnet20 --weights resnet20.pt --out
    scores.csv

    Example: flatfold score photos.parquet --guard guard.safetensors --model torchvision/resnet50 --pretrained DEFAULT
    --device cuda --workers 8 --shard 1/4 --out scores-1.parquet

    Example: flatfold score frames/ --guard guard.safetensors --model nets:segmentation --weights net.pt --masks alarms/
    --out scores.csv
    """
    from ..scoring.guard_file import read_guard
    from ..scoring.shards import ScoringJob, Shard, compute_parts, score_images

    load_plugins(own)
    check_table(out, images)
    with invalid_usage("--shard"):
        part = Shard() if shard is None else Shard.parse(shard)
    running = execution.execution(workers)
    if masks is not None:
        check_folder(masks, "--masks")
    if running.distributed and processes is not None:
        raise typer.BadParameter("on Ray, every actor is a process. Use --actors.", param_hint="--processes")
    if running.distributed and own:
        message = "Ray actors cannot load local files. Install the method there as a package, and import it in the "
        raise typer.BadParameter(f"{message}module of --model.", param_hint="--with")
    if own and (processes or 1) > 1:
        message = "other processes cannot load local files. Use one process, or install the method as a package."
        raise typer.BadParameter(message, param_hint="--with")
    file = read_guard(guard)
    tokeniser = texts.stored(model, file.loading)
    source: NamedSource
    if tokeniser is not None:
        check_no_images(transform, options)
        source = texts.open(images, tokeniser, options.batch_size)
    else:
        source = options.open(images, transform.transform(guard, file.transform))
    if tokens and tokeniser is None:
        raise typer.BadParameter(
            "it names the words of texts, but the guard was fitted on images.", param_hint="--tokens"
        )
    job = ScoringJob(file, model.open, source, fpr, running, allow_sizes, explain, tokens, masks)
    now, start = 0, perf_counter()  # now: images not scored by an earlier run

    def counted(job: ScoringJob, parts: Parts) -> Iterator[tuple[int, Part]]:
        nonlocal now
        now = sum(map(len, parts.values()))
        return compute_parts(job, parts, workers, 1 if own else processes)

    try:
        summary = score_images(job, out, shard=part, executor=counted, restart=not resume)
    except (RuntimeError, MemoryError) as error:  # out of memory, or a reader process was killed
        reason = str(error).strip().partition("\n")[0].rstrip(". ") or "out of memory"
        raise OSError(f"{reason}. Run the same command again to resume.") from error
    seconds, earlier = perf_counter() - start, summary.scored + summary.unreadable - now
    speed = f"{seconds:.1f} s, {now / seconds:.0f} {source.noun}s per second"
    speed = f"{earlier:,} scored before, {now:,} now: {speed}" if earlier else speed
    print_summary(summary, out, speed if now else f"nothing to do: all {source.noun}s were already scored")


def print_summary(summary: Summary, out: Path, speed: str = "") -> None:
    """Print the counts of a table to stderr, and exit with code 3 if some images have no score."""
    from ..scoring.shards import unreadable_path

    total = summary.scored + summary.unreadable
    shard = "" if summary.shard.of == 1 else f"shard {summary.shard}: "
    scored = f"{summary.scored:,} scored" if summary.unreadable else "all scored" if total else "nothing to score"
    say(f"{shard}{count(total, summary.noun)}, {scored} -> {out}", err=True)
    if summary.scored:
        say(str(summary.monitor), err=True)
    if speed and total:
        say(speed, err=True)
    if summary.runtime:
        say(f"runtime: {summary.runtime}", err=True)
    path, monitor = unreadable_path(out), summary.monitor
    print_json(
        table=out,
        shard=str(summary.shard),
        **{f"{summary.noun}s": total},
        scored=summary.scored,
        unreadable=summary.unreadable,
        alarms=monitor.alarms,
        **({} if monitor.share_ood is None else {"share_ood": monitor.share_ood}),
        **{name: getattr(monitor, name) for name in ("alarm_rate", "alarm_p_value", "drift", "drift_p_value")},
        runtime=summary.runtime,
    )
    if not summary.unreadable:
        return
    typer.echo(f"{count(summary.unreadable, summary.noun)} could not be scored -> {path}", err=True)
    with path.open(encoding="utf-8", newline="") as file:
        for row in islice(csv.DictReader(file), SHOWN):
            line = row["reason"] if row["path"] in row["reason"] else f"{row['path']}: {row['reason']}"
            line = " ".join(line.split())  # a file name may have a line break
            typer.echo(f"  {printable(name_options(line))}", err=True)
    if summary.unreadable > SHOWN:
        typer.echo(f"  and {summary.unreadable - SHOWN:,} more", err=True)
    raise typer.Exit(INCOMPLETE)


def join(
    tables: Annotated[list[Path], Argument(help="Tables of all shards, in any order.")],
    out: Annotated[Path, Option(help="Table to write, with the same suffix as the inputs.")],
) -> None:
    """Merge the tables of `flatfold score --shard`.

    Every table needs its .summary.json next to it. Every shard must be given exactly once, with the same images, guard,
    --fpr and --batch-size. Writes OUT.summary.json, and OUT.unreadable.csv if some images have no score.

    Exit codes: 0 all images are scored; 1 invalid input; 2 invalid usage; 3 done, but some images have no score.

    Example: flatfold join scores-1.csv scores-2.csv scores-3.csv --out scores.csv
    """
    from ..scoring.shards import join_tables, unreadable_path

    check_table(out)
    skipped = {unreadable_path(table) for table in tables}  # scores-*.csv includes scores-1.csv.unreadable.csv
    print_summary(join_tables([table for table in tables if table not in skipped], out), out)


def score_features(
    features: Annotated[
        Path,
        Argument(
            help="Features to score: safetensors, .npy, .npz or a saved feature bank with an array `features` (n, d) "
            "and optionally `labels`."
        ),
    ],
    guard: Annotated[Path | None, Option(help="Guard file. Required unless --head is given.")] = None,
    head: Annotated[
        Path | None,
        Option(
            help="Last linear layer of the model: safetensors file with `weight` (c, d) and `bias` (c,). Required "
            "unless --guard is given."
        ),
    ] = None,
    method: Annotated[
        str | None, Option(help=f"Method to fit to --head: a {METHOD}. Default: {DEFAULT_METHOD}.")
    ] = None,
    fit: Annotated[Path | None, Option(help="ID features to fit the method on, if it learns from data.")] = None,
    calibration: Annotated[Path | None, Option(help="Other ID features, for p-values and alarms.")] = None,
    per_class: PerClass = False,
    fpr: Rate = None,
    out: Annotated[Path | None, Option(help="Table (*.csv, *.jsonl, *.parquet). Default: CSV to stdout.")] = None,
    own: With = None,
) -> None:
    """Score features with a guard, or with a fitted method.

    Writes a table with one row per feature vector. Columns: row, predicted (the most likely class), score (higher =
    more out-of-distribution), p_value and is_ood, and label if the file has labels. With --head, the default method
    learns from ID features of --fit, and p_value and is_ood need --calibration.

    Exit codes: 0 done; 1 invalid input; 2 invalid usage; 130 interrupted.

    Example: flatfold score-features f.safetensors --guard guard.safetensors --out scores.csv

    Example: flatfold score-features f.npy --head head.safetensors --fit val.safetensors --calibration
    more_val.safetensors --fpr 0.01 --out scores.parquet

    Example: flatfold score-features f.safetensors --head head.safetensors --method fold:alpha=0.5 > scores.csv
    """
    if (guard is None) == (head is None):
        raise typer.BadParameter("pass either --guard or --head.")
    if guard is not None and (method or fit or calibration or per_class):
        raise typer.BadParameter(
            "a guard is already fitted: --method, --fit, --calibration and --per-class need --head."
        )
    if head is not None and calibration is None and (per_class or fpr is not None):
        raise typer.BadParameter("--fpr and --per-class need held-out ID features. Pass them as --calibration.")
    if out is None and get_output().json:
        raise typer.BadParameter("without --out, the table is written to stdout. Pass --out too.", param_hint="--json")
    load_plugins(own)
    if out is not None:
        check_table(out, features, fit, calibration)

    from ..data.feature_files import open_features, read_head
    from ..scoring.calibrated import CalibratedDetector
    from ..scoring.fitting import learns
    from ..scoring.tables import fit_on_files
    from ..scoring.tables import score_features as score_rows

    detector: Detector
    calibrated: Calibration | None
    if guard is not None:
        loaded = CalibratedDetector.load(guard)
        file = open_features(features)
        detector, calibrated = loaded.detector, loaded.calibration if fpr is None else loaded.calibration.at(fpr)
    else:
        assert head is not None
        detector = make_detector(method or DEFAULT_METHOD, fit, calibration)
        file = open_features(features)
        if fit is not None and not learns(detector):
            assert detector.made_by is not None
            note(f"{detector.made_by[0]} learns only from the head: --fit is ignored")
            fit = None
        fit_file, calibration_file = (None if path is None else open_features(path) for path in (fit, calibration))
        rate = FPR if fpr is None else fpr
        with captured_warnings():
            result = fit_on_files(detector, read_head(head), file, fit_file, calibration_file, rate, per_class)
        calibrated = result.calibration
    alarms, start = 0, perf_counter()

    def counted(chunks: Iterable[Columns]) -> Iterator[Columns]:
        nonlocal alarms
        for columns in chunks:
            alarms += int(columns["is_ood"].sum()) if "is_ood" in columns else 0
            yield columns

    _write(counted(score_rows(file, detector, calibrated)), file.rows, out)
    seconds, text = perf_counter() - start, count(file.rows, "row")
    if calibrated is not None:
        share = 100 * alarms / file.rows
        text += f", {count(alarms, 'alarm')} ({share:.2f} %) at a false-alarm rate of {calibrated.fpr:g}"
    speed = f"{seconds:.1f} s, {file.rows / seconds:.0f} rows per second"
    say(f"{text}; {speed}{'' if out is None else f' -> {out}'}", err=True)
    fpr, raised = (None, None) if calibrated is None else (calibrated.fpr, alarms)
    print_json(table=out, rows=file.rows, alarms=raised, fpr=fpr)


def _write(chunks: Iterator[Columns], rows: int, out: Path | None) -> None:
    """Write rows as they are computed, with a progress bar on stderr unless the rows go to the same terminal."""
    from ..detectors.base import ROWS_AT_ONCE
    from ..io.progress import track
    from ..scoring.tables import csv_text, write_rows

    if out is not None or not sys.stdout.isatty():
        chunks = track(chunks, "scoring", -(-rows // ROWS_AT_ONCE))
    if out is not None:
        write_rows(chunks, out)
        return
    try:
        sys.stdout.writelines(csv_text(chunks))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails again on exit
        raise typer.Exit(0) from None
