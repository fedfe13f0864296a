"""Commands on a system that works against them.

Little memory, small files, a read-only disk, two writers at once, a clock that goes backwards, and narrow terminals.
"""

import errno
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import flatfold as ff
from flatfold.data.images import ArrayImages
from tests.cli.images import TRANSFORM, network, pixels
from tests.cli.running import succeed
from tests.command import flatfold
from tests.hostile.forked import UNCAUGHT, Fault, run
from tests.hostile.test_stopped import COMMANDS, whole, world, written  # noqa: F401 - fixtures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the limits of Linux"),
]


@pytest.fixture
def here(world, tmp_path):  # noqa: F811 - fixture
    """A copy of all inputs, which a trial may change."""
    return shutil.copytree(world, tmp_path / "here")


def assert_whole_or_absent(folder, wanted, done):
    """No file of the output folder may be half written, and none of the temporary ones may stay."""
    for path, text in written(folder).items():
        assert ".flatfold" not in path, (path, done)
        if path in wanted and path.count("/") == 1 and isinstance(text, bytes):
            assert text == wanted[path], (path, done)


@pytest.mark.parametrize("name", ["score", "fit"])
def test_with_little_memory_a_command_ends_in_one_line_or_well(here, whole, name):  # noqa: F811 - fixture
    wanted, _ = whole(name)
    codes = []
    for megabytes in (1, 2, 8, 1000):
        done = run(*COMMANDS[name], cwd=here, memory=megabytes * 2**20)
        codes.append(done.returncode)
        if done.returncode < 0 or "SystemError" in done.stderr:  # of libraries in C and Rust
            shutil.rmtree(here / "out", ignore_errors=True)
            continue
        assert done.returncode in (0, 1), (megabytes, done)
        assert "Traceback" not in done.stderr, (megabytes, done)
        assert not done.returncode or done.stderr.splitlines()[-1].startswith("flatfold: "), (megabytes, done)
        assert_whole_or_absent(here, wanted, done)
        shutil.rmtree(here / "out", ignore_errors=True)
    assert codes[-1] == 0, codes


@pytest.mark.parametrize("name", ["score", "fit", "score to parquet"])
def test_files_that_may_not_grow_are_refused_by_the_system_as_on_a_full_disk(here, whole, name):  # noqa: F811
    """Python, safetensors and pyarrow get an error from the system in the middle of a file."""
    wanted, _ = whole(name)
    sizes = sorted(len(text) for text in wanted.values() if isinstance(text, bytes))
    for size in (1, sizes[0] - 1, sizes[-1] - 1):
        done = run(*COMMANDS[name], "--quiet", cwd=here, file_size=max(size, 1))
        assert done.returncode in (1, 2, UNCAUGHT), (size, done)  # standard error is a file, too
        assert "Traceback" not in done.stderr, (size, done)
        assert_whole_or_absent(here, wanted, done)
        shutil.rmtree(here / "out", ignore_errors=True)


@pytest.mark.parametrize("name", ["score", "score-features", "fit", "join"])
@pytest.mark.parametrize("option", ["", "--json"])
def test_a_read_only_disk_is_one_line_or_one_document_and_nothing_is_computed(here, name, option):
    done = run(*COMMANDS[name], *filter(None, [option]), cwd=here, fault=Fault(1, error=errno.EROFS))
    assert done.returncode in (1, 2), done
    assert "Read-only file system" in " ".join(done.stderr.split()), done
    assert "Traceback" not in done.stderr
    assert not (here / "out").exists() or written(here) == {}
    if option:
        document = json.loads(done.stdout)
        assert set(document) == {"error", "exit_code"}
        assert document["exit_code"] == done.returncode


@pytest.mark.parametrize("name", ["score"])
def test_two_writers_of_one_output_leave_the_output_of_one(here, whole, name):  # noqa: F811 - fixture
    """One of them may be refused, and then says why; the files are those of a single run."""
    wanted, _ = whole(name)
    for number in range(2):
        folders = [here, here.with_name(f"link{number}")]  # both are one folder, and have their own streams
        folders[1].mkdir()
        for path in here.iterdir():
            if not path.name.startswith((".std", "out")):
                (folders[1] / path.name).symlink_to(path)
        (here / "out").mkdir()
        (folders[1] / "out").symlink_to(here / "out")
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda folder: run(*COMMANDS[name], cwd=folder), folders))
        codes = sorted(done.returncode for done in both)
        assert codes in ([0, 0], [0, 1]), both
        for done in both:
            assert "Traceback" not in done.stderr, done
            assert not done.returncode or "another process" in done.stderr, done
        assert written(here) == wanted, both
        shutil.rmtree(here / "out")


def test_guards_are_saved_and_loaded_by_threads_at_once(here, monkeypatch):
    """Whoever reads gets one of the guards that were written, and never a part of one."""
    monkeypatch.chdir(here)
    images = ArrayImages(*pixels(60), TRANSFORM)
    model = network()
    guards = [ff.Guard.fit(model, images, method=method, fpr=0.1) for method in ("fold", "msp", "ebo")]
    known = {float(guard.calibration.threshold) for guard in guards}
    guards[0].save("shared.safetensors")

    def work(number):
        if number % 3 == 0:
            guards[number // 3 % len(guards)].save("shared.safetensors")
            return None
        return float(ff.Guard.load("shared.safetensors", network()).calibration.threshold)

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(work, range(90)))
    assert found - {None} <= known


@pytest.mark.parametrize("name", ["score"])
def test_a_clock_that_goes_backwards_changes_nothing(here, whole, monkeypatch, name):  # noqa: F811 - fixture
    wanted, _ = whole(name)
    start = time.time()
    ticks = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: start - 3600.0 * next(ticks))
    monkeypatch.setattr(time, "time_ns", lambda: int((start - 3600.0 * next(ticks)) * 1e9))
    succeed(*COMMANDS[name], cwd=here)
    assert written(here) == wanted


@pytest.mark.parametrize("columns", [20])
def test_narrow_terminals_get_all_that_there_is(here, columns, monkeypatch):
    for name, value in {"FORCE_COLOR": "1", "TERM": "dumb", "LINES": "2"}.items():
        monkeypatch.setenv(name, value)
    shown = flatfold("methods", cwd=here, columns=columns)
    assert (shown.returncode, "fourfold" in shown.stdout) == (0, True)
    for words in (("--help",), ("bench", "--help"), ("score", "--help"), ("paper", "--table", "cifar10")):
        assert flatfold(*words, cwd=here, columns=columns).returncode == 0, words
    done = flatfold(*COMMANDS["bench"], cwd=here, columns=columns)
    assert done.returncode == 0, done
    assert all(word in done.stdout for word in ("autofold", "msp")), done.stdout
    refused = flatfold("score", "--no-such-option", cwd=here, columns=columns)
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)


def test_processes_that_are_killed_at_random_moments_leave_work_that_goes_on(here, whole):  # noqa: F811 - fixture
    """Twenty times in a row on one output: in the end it has the bytes of an undisturbed run."""
    wanted, _ = whole("score")
    rng = np.random.default_rng(0)
    for _ in range(20):
        done = run(*COMMANDS["score"], cwd=here, kill_after=float(rng.uniform(0.05, 0.6)))
        assert done.returncode in (0, -9), done
        assert "Traceback" not in done.stderr
    assert run(*COMMANDS["score"], cwd=here).returncode == 0
    assert written(here) == wanted
