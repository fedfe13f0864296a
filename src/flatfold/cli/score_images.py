"""Images to a table: which of them a classifier does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from .image_options import opened
from .model import open_model
from .preparation import prepared_by
from .run_summary import Stopwatch, print_summary

if TYPE_CHECKING:
    from torch import nn

    from ..models.sources import ImageSource
    from ..scoring.batch import Shard
    from ..scoring.batch.engine import Engine


class Images(NamedTuple):
    """Where images come from, and how they are prepared.

    Args:
        place: As in ``open_images``.
        root: Of a list.
        column: Of the images in a table or an array file, None for the default.
        batch_size: Images in a batch.
        preparation: Options of the preparation.
    """

    place: Path
    root: Path | None
    column: str | None
    batch_size: int
    preparation: Mapping[str, int | str | None]

    def source(self, guard: Path) -> ImageSource:
        """Return the images, prepared as the file of a guard says, or else as the options do."""
        from ..scoring.artefact import load_judge

        transform = prepared_by(load_judge(guard)[1], self.preparation, guard)
        return opened(self.place, transform, self.batch_size, self.root, self.column)


class Network(NamedTuple):
    """How a model is opened, in whatever process.

    Args:
        model: Its function or name.
        weights: File of its weights.
        pretrained: Which published weights of a library.
        device: Where it runs.
    """

    model: str
    weights: Path | None
    pretrained: str | None
    device: str | None

    def maker(self) -> Callable[[], nn.Module]:
        """Return what opens it, and can be sent to another process."""
        return partial(open_model, self.model, self.weights, self.pretrained)


def score_images(
    images: Images,
    network: Network,
    guard: Path,
    out: Path,
    fpr: float | None,
    shard: Shard,
    engine: Engine,
    restart: bool,
) -> None:
    """Write a row for each image, and print on stderr what it has come to.

    Args:
        images: What to score.
        network: The model of the guard.
        guard: File of the guard.
        out: File of the table.
        fpr: The false-alarm rate, unless that of the guard.
        shard: Which share of the images to score.
        engine: What computes.
        restart: Whether to forget what an earlier run has done.

    Raises:
        OSError: The machine had no memory left, or lost a process.
        typer.Exit: With code 3 if an image could not be scored, 130 when interrupted.
    """
    from ..scoring.batch import Task
    from ..scoring.batch import score_images as scored

    watch = Stopwatch(engine)
    try:
        task = Task(guard, network.maker(), images.source(guard), fpr, network.device)
        summary = scored(task, out, shard=shard, engine=watch, restart=restart)
    except KeyboardInterrupt:
        same = "the same command without --restart" if restart else "the same command"
        typer.echo(f"flatfold: interrupted; {same} goes on where it stopped", err=True)
        raise typer.Exit(130) from None
    except (RuntimeError, MemoryError) as error:  # no memory is left, or a process that reads ahead was killed
        reason = str(error).strip().partition("\n")[0].rstrip(". ") or "there was no memory left"
        raise OSError(f"{reason}. The same command goes on where it stopped.") from error
    print_summary(summary, out, watch)


def engine_of(name: str | None, workers: int, actors: int | None, gpus: float) -> Engine:
    """Return what computes: this process, or Ray.

    Args:
        name: ``"ray"``, or else this process.
        workers: Processes that read images ahead for this one.
        actors: Workers on Ray, None for as many as fit.
        gpus: Of each of these.
    """
    if name == "ray":
        from ..scoring.batch.on_ray import score_on_ray  # late: Ray is an extra

        return partial(score_on_ray, actors=actors, gpus=gpus)
    from ..scoring.batch.local import score_here

    return partial(score_here, workers=workers)
