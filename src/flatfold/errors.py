"""All errors that this library raises on purpose and that a caller may want to catch, and its warnings.

Each error derives from :class:`FlatfoldError` and from the built-in type that fits it. Invalid arguments raise the
built-in ``ValueError`` and ``TypeError``, problems of files ``OSError``.
"""

import sys
import sysconfig
import warnings
from pathlib import Path

_LIBRARIES = (str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


class FlatfoldError(Exception):
    """Base class of the errors of this library."""


class MethodRefusedError(FlatfoldError, ValueError):
    """A method does not apply to this data, or not with these hyper-parameters; a benchmark leaves it out."""


class NotFittedError(FlatfoldError, RuntimeError):
    """A detector was asked for scores before it was fitted."""


class UnsupportedHeadError(FlatfoldError, ValueError):
    """The logits of the model are not z = W h + b for features that flatfold can find."""


class InsufficientResourcesError(FlatfoldError, OSError):
    """A run needs more memory or disk space than there is."""


class UnreadableInputError(FlatfoldError, ValueError):
    """An input of a data set could not be read; others may be fine."""


class UnreadableImageError(UnreadableInputError):
    """A file could not be decoded as an image."""


class UnreadableTextError(UnreadableInputError):
    """A row of a file does not hold a text."""


class TooManyPixelsError(UnreadableImageError):
    """An image has more pixels, or goes through them more often, than the limits allow; it was not decoded."""


class DamagedFileError(FlatfoldError, ValueError):
    """A file is not what flatfold has written: cut, altered, of another format or of another version."""


class DamagedBankError(DamagedFileError):
    """A bank on disk is incomplete, or its content does not match its checksums."""


class MismatchError(FlatfoldError, ValueError):
    """An exported graph does not give the answers of its guard."""


class NoDerivativeError(FlatfoldError, ValueError):
    """A step of the network cannot be differentiated as often as needed."""


def brief(error: BaseException, longest: int = 200) -> str:
    """Return what an error of a library says, on one line of limited length and without its last full stop."""
    words = " ".join(str(error).split()) or type(error).__name__
    return (words if len(words) <= longest else f"{words[:longest]} ...").rstrip(".")


def cause(error: BaseException, message: str) -> BaseException | None:
    """Return the error to raise ``message`` from: None if it contains all that ``error`` says."""
    text = str(error).strip()
    return None if text and text in message else error


def is_users_code(filename: str) -> bool:
    """Return whether code is the user's: not part of flatfold or of Python's libraries."""
    return not filename.startswith(("<frozen", *_LIBRARIES))


def warn(message: str) -> None:
    """Issue a ``UserWarning`` that points at the line of the user's code which led to it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_users_code(frame.f_code.co_filename):
        frame = frame.f_back
    module, registry = frame.f_globals.get("__name__"), frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)
