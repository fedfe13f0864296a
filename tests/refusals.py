"""Check that bad input is refused: by the type of the error and one keyword. A failure names the case of a table."""

import re
import warnings
from contextlib import contextmanager

import pytest

from flatfold.errors import FlatfoldError

SENTENCES = (ValueError, TypeError, FlatfoldError, FileNotFoundError, NotADirectoryError)


@contextmanager
def refused(case, keyword="", error=ValueError):
    """Expect an error of a type with a keyword in its message; anything else fails and names the case."""
    message = None
    try:
        yield
    except error as caught:
        message = str(caught)
    except Exception as other:
        raise AssertionError(f"case {case!r:.200} raised {other!r} instead of {error}") from other
    if message is None:
        pytest.fail(f"case {case!r:.200} was accepted")
    if not re.search(keyword, message):
        pytest.fail(f"no {keyword!r} in the message of case {case!r:.200}: {message}")


def assert_refused(error, keyword, function, *arguments, case=None, **options):
    """Call a function that must raise such an error."""
    with refused((function, arguments, options) if case is None else case, keyword, error):
        function(*arguments, **options)


def outcome(action, case, longest=1500):
    """Return what an action returns, or None if it is refused by a sentence of a documented type; else fail."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return action()
    except SENTENCES as error:
        message = str(error)
    except Exception as error:
        raise AssertionError(f"case {case!r:.300} raised {error!r:.300}") from error
    if " " not in message or len(message) > longest:
        pytest.fail(f"case {case!r:.300} has a message of {len(message)} characters: {message:.300}")
    return None
