"""A run that is killed again and again, at any moment: in the end the bytes of one that nobody disturbed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatfold.scoring.batch.summary import summary_of, unreadable_of
from tests.scoring.batch.small_run import broken, make_task

# One process loads torch once; what it kills are copies of itself.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from flatfold.scoring.batch import score_images, shard
from tests.scoring.batch.small_run import make_task

torch.set_num_threads(1)
shard.PART_ROWS = 4
folder, suffix = Path(sys.argv[1]), sys.argv[2]
task, out = make_task(folder), folder / f"killed{suffix}"
random.seed(sys.argv[3])

def start(out):
    child = os.fork()
    if child == 0:
        score_images(task, out)
        os._exit(0)
    return child

def lines():
    try:
        return journal.read_bytes().count(b"\\n")
    except FileNotFoundError:  # not yet there, or done
        return 0

assert os.waitpid(start(folder / f"whole{suffix}"), 0)[1] == 0
resumed, journal = -1, Path(f"{out}.journal")
while resumed < 5:
    resumed += 1
    child, wanted = start(out), lines() + random.randint(2, 6)
    while lines() < wanted and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        pass
    time.sleep(random.uniform(0, 0.01))
    os.kill(child, signal.SIGKILL)
    if os.waitpid(child, 0)[1] == 0:  # it was faster, so all of it begins again
        resumed = -1
        for path in folder.glob("killed*"):
            path.unlink()
assert lines() > resumed
assert os.waitpid(start(out), 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are copied by fork, which is not here")
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_run_that_is_killed_often_ends_with_the_same_bytes(tmp_path, suffix):
    make_task(tmp_path, images=300)
    for row in (7, 100, 199):
        broken("cut off", tmp_path / "images" / f"{row:04d}.png")
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", KILLER, str(tmp_path), suffix, suffix]
    subprocess.run(command, cwd=root, check=True)
    whole, killed = tmp_path / f"whole{suffix}", tmp_path / f"killed{suffix}"
    for of in (Path, summary_of, unreadable_of):
        assert of(killed).read_bytes() == of(whole).read_bytes()
    assert len(list(tmp_path.glob("killed*"))) == 3
