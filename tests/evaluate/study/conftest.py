"""What all tests of studies share: files that the disk need not have."""

import os

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_files():
    """Do not wait for the disk: what happens when the machine stops is looked at with the files themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield
