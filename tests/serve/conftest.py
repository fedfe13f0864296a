"""A guard, and services around it."""

from contextlib import ExitStack

import pytest

from tests.browser import browser, visit  # noqa: F401 - fixtures
from tests.serve.small_service import make_guard, running


@pytest.fixture(scope="session")
def guard():
    """A guard that no test changes."""
    return make_guard()


@pytest.fixture
def start():
    """Start services that end with the test."""
    with ExitStack() as ends:
        yield lambda served, **settings: ends.enter_context(running(served, **settings))


@pytest.fixture(scope="module")
def shared(guard):
    """A service for tests that change nothing but its counts."""
    with running(guard, names=("ant", "bee", "cat")) as service:
        yield service
