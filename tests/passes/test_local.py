"""`run_local` with several processes: the table of one process, and no process that outlives the run."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from flatfold import Execution
from flatfold.passes import local
from flatfold.passes.local import run_local
from flatfold.scoring.shards import parts_path, score_images
from tests.scoring.shards.small_run import make_network, make_task, read_csv

pytestmark = pytest.mark.slow  # a process takes seconds to start

TWO = partial(run_local, processes=2)


@pytest.fixture(autouse=True)
def one_thread():
    """Compare what one thread computes, in every process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def slow_network():
    """A network that takes its time, so that both processes get some parts."""
    model = make_network()
    model.register_forward_pre_hook(lambda *_: time.sleep(0.05))
    return model


def noting_network():
    """A network that notes who loads it."""
    with Path("loads").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return slow_network()


def deadly_network():
    """A network that ends every process but the first."""
    if Path("parent").read_text() != str(os.getpid()):
        os._exit(9)
    return slow_network()


def refusing_network():
    """A network that only the first process can load."""
    if Path("parent").read_text() != str(os.getpid()):
        raise ValueError("the weights are not there")
    return slow_network()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("parent").write_text(str(os.getpid()))
    return tmp_path


def test_two_processes_share_the_parts_and_write_the_table_of_one(here):
    whole = make_task(here, images=400, model=make_network)
    score_images(whole, here / "whole.csv")
    summary = score_images(make_task(here, model=noting_network), here / "shared.csv", executor=TWO)
    assert (here / "shared.csv").read_bytes() == (here / "whole.csv").read_bytes()
    loads = set(Path("loads").read_text().split())
    assert len(loads) == 2
    assert "2 processes of 1 thread" in summary.runtime


def test_a_process_that_dies_or_cannot_load_the_model_ends_the_run_which_resumes(here):
    for model, error, keyword in (
        (deadly_network, RuntimeError, "fewer processes"),
        (refusing_network, ValueError, "the weights are not there"),
    ):
        out = here / f"{model.__name__}.csv"
        with pytest.raises(error, match=keyword):
            score_images(make_task(here, images=800, model=model), out, executor=TWO)
        done = len(list(parts_path(out).glob("*.safetensors")))
        assert done > 0, "what was done is lost"
        assert score_images(make_task(here, model=make_network), out).scored == 800


PROGRAM = """
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from flatfold.passes.local import run_local
from flatfold.scoring.shards import parts_path, score_images
from tests.scoring.shards.small_run import make_task
from tests.passes.test_local import noting_network

if __name__ == "__main__":
    task = make_task(Path.cwd(), images=4000, model=noting_network)
    score_images(task, "a.csv", executor=partial(run_local, processes=2))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are those of POSIX")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_a_run_that_is_stopped(here, how):
    (here / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen([sys.executable, "program.py"], env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not Path("loads").exists() or len(set(Path("loads").read_text().split())) < 2:
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    other = next(int(number) for number in Path("loads").read_text().split() if int(number) != run.pid)
    run.send_signal(how)
    _, errors = run.communicate(timeout=60)
    while _alive(other):
        assert time.monotonic() < deadline, "the other process is still there"
        time.sleep(0.05)
    assert errors.count("Traceback") == (0 if how == signal.SIGKILL else 1), errors  # that of this program alone
    done = score_images(make_task(here, model=make_network), here / "a.csv")
    assert done.scored == len(read_csv(here / "a.csv")) == 4000


def _alive(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{number}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True


def test_the_number_of_processes_depends_on_the_job_the_cores_and_the_memory(here, monkeypatch):
    network = make_task(here).load(rows=10).network
    monkeypatch.setattr(local, "own_memory", lambda: 10**9)
    for seconds, free, most, expected in (
        (1, 10**12, 4, 1),
        (100, 10**12, 4, 4),
        (100, 4 * 10**9, 4, 3),
        (100, 10**8, 4, 1),
        (100, None, 4, 4),
    ):
        monkeypatch.setattr(local, "free_memory", lambda free=free: free)
        assert local._useful_processes(network, seconds, most) == expected, (seconds, free)


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_onnxruntime_scores_parts_on_all_cores_and_writes_the_table_of_one_thread(here, monkeypatch):
    monkeypatch.setattr(local, "usable_cores", lambda: 3)
    task = make_task(here, images=300, execution=Execution(runtime="onnx"))
    score_images(task, here / "one.csv", executor=partial(run_local, workers=0))
    summary = score_images(task, here / "three.csv")
    assert (here / "three.csv").read_bytes() == (here / "one.csv").read_bytes()
    assert summary.runtime.startswith("onnx (asked for")
    assert summary.runtime.endswith("3 threads")
    assert (here / "guard.safetensors.graph").exists()
    names = [line["path"] for line in read_csv(here / "three.csv")]
    assert names == sorted(names)
