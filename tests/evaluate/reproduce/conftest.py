"""What tests of reproductions share."""

import pytest

from tests.evaluate.reproduce.toys import make_banks


@pytest.fixture(scope="session")
def banks():
    """Read-only."""
    return make_banks()
