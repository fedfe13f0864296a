"""What tests of reproductions share."""

import os

import pytest

from tests.evaluate.reproduce.toys import make_banks, make_suite


@pytest.fixture(scope="session", autouse=True)
def quick_files():
    """Do not wait for the disk: what happens when the machine stops is looked at with the files themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def banks():
    """Only to be looked at."""
    return make_banks()


@pytest.fixture
def suite():
    return make_suite()
