"""Check that bad input is refused: by the type of the error and one keyword. A failure names the case of a table."""

import re
from contextlib import contextmanager

import pytest


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
