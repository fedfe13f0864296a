"""What the library remarks while it works, as lines on stderr."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def noted() -> Iterator[None]:
    """Print what is logged at once, and at the end what was warned of, each sentence once and as a note."""
    log, handler = logging.getLogger("flatfold"), _Notes(logging.WARNING)
    log.addHandler(handler)
    propagated, log.propagate = log.propagate, False  # or a root that prints too would say everything twice
    try:
        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("ignore")  # what libraries say to programmers
            warnings.simplefilter("always", UserWarning)
            yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated
        for sentence in dict.fromkeys(str(remark.message) for remark in remarks):
            typer.echo(f"note: {sentence}", err=True)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"note: {record.getMessage()}", err=True)
