"""A Ray cluster for one test file, in a process of its own that ends with the tests, however they end."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

# It waits for the end of its standard input, which comes when the tests close it, fail, or are killed.
CLUSTER = """
import sys
import ray

quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
context = ray.init(address="local", num_cpus=2, object_store_memory=100 * 2**20, **quiet)
print("address", context.address_info["address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""
# On a busy machine processes take long to start: Ray would give up after half a minute. Its workers are nice by default
# (15), so that they would stand still beside other work.
PATIENT = {
    "RAY_raylet_start_wait_time_s": "150",
    "RAY_worker_register_timeout_seconds": "150",
    "RAY_worker_niceness": "0",
    "OMP_NUM_THREADS": "1",
}


@contextmanager
def ray_cluster():
    """Start a cluster of two CPUs, join it, and leave no process behind."""
    import ray

    mark = uuid4().hex
    environment = {**os.environ, **PATIENT, "RAY_ADDRESS": "local", "FLATFOLD_TEST_CLUSTER": mark}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", CLUSTER], env=environment, **pipes)
    patch = pytest.MonkeyPatch()
    try:
        patch.delenv("RAY_ADDRESS", raising=False)
        for line in process.stdout:
            if line.startswith("address "):
                break
        else:
            raise RuntimeError(f"the cluster did not start: exit code {process.wait()}")
        ray.init(address=line.split()[1], log_to_driver=False, logging_level="error")
        yield ray
    finally:
        ray.shutdown()
        patch.undo()
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        end_marked(mark)
        process.stdout.close()
        process.wait()


def marked(mark, title=b""):
    """Return the processes that were started with a mark in their environment and have such a title."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (place / "environ").read_bytes() and title in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


def end_marked(mark, seconds=20):
    """Wait until all marked processes have ended, and kill those that have not."""
    deadline = time.monotonic() + seconds
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
