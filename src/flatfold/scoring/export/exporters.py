"""What exporters say: nothing while they work, one sentence when they fail."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO

LOUD = ("torch.onnx", "torch.export", "torch.fx", "torch._dynamo", "onnxscript", "onnx_ir")


@contextmanager
def explained(what: str, advice: str = "") -> Iterator[None]:
    """Turn any error of an exporter into a sentence with its first cause."""
    try:
        yield
    except Exception as error:  # exporters raise errors of every class, of theirs and of Python's
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), "no reason given")
        raise ValueError(
            f"{what} cannot be exported: {type(cause).__name__}: {reason.rstrip('.')}. "
            f"{advice or 'Its graph must be the same for all inputs and every batch size.'}"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep an exporter from talking: what it has to say of importance it raises."""
    loggers = [logging.getLogger(name) for name in LOUD]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # torch prints the graph of what it cannot export
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
