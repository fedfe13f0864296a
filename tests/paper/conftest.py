"""What tests of reproductions share."""

import pytest

from tests.cli.conftest import interrupt, terminal  # noqa: F401 - fixtures
from tests.paper.toys import make_banks
from tests.report.conftest import undrawn  # noqa: F401 - fixture


@pytest.fixture(scope="session")
def banks():
    """Read-only."""
    return make_banks()
