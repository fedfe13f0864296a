"""`Journal`: whatever happens to the file, what it holds is either right or computed again."""

import json
import os
import subprocess
import sys
from zlib import crc32

import pytest

from flatfold.scoring.batch.journal import FORMAT, VERSION, Journal
from tests.uncovered import environment

JOB = {"guard": "ab", "data": "cd", "fpr": 0.05, "shard": "1/2"}
TEXTS = {0: '["a, b", 1.5]', 2: '{"é": [1, 2]}', 1: "[]"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scores.csv.journal"


def filled(path, texts=TEXTS):
    with Journal(path, JOB) as journal:
        for part, text in texts.items():
            journal.add(part, text)
    return path.read_bytes()


def contents(path):
    with Journal(path, JOB) as journal:
        return {part: journal.read(part) for part in range(9) if part in journal}


def test_parts_are_there_again_in_whatever_order_they_came(path):
    filled(path)
    assert contents(path) == TEXTS
    with Journal(path, JOB) as journal:
        assert len(journal) == 3
        assert 2 in journal
        assert 3 not in journal


def test_a_journal_without_parts_is_empty_and_stays_so(path):
    filled(path, {})
    before = path.read_bytes()
    assert contents(path) == {}
    assert path.read_bytes() == before
    assert before.count(b"\n") == 1


def test_a_journal_without_parts_becomes_that_of_the_next_job(path):
    """A run that failed before its first part, for a wrong model, must not stand in the way of the right one."""
    filled(path, {})
    with Journal(path, JOB | {"fpr": 0.1}) as journal:
        journal.add(0, "[]")
    with pytest.raises(ValueError, match="another fpr"):
        Journal(path, JOB)


def test_opening_a_whole_journal_changes_nothing(path):
    before = filled(path)
    contents(path)
    assert path.read_bytes() == before


def test_a_part_that_comes_twice_counts_once(path):
    filled(path)
    with Journal(path, JOB) as journal:
        journal.add(2, "[7]")
        assert journal.read(2) == TEXTS[2]
    with path.open("ab") as file:
        file.write(b"%08x [2, [7]]\n" % crc32(b"[2, [7]]"))
    assert contents(path) == TEXTS


def test_parts_can_be_added_after_reading(path):
    with Journal(path, JOB) as journal:
        for part, text in TEXTS.items():
            journal.add(part, text)
            assert journal.read(part) == text
        assert journal.read(0) == TEXTS[0]
        journal.add(5, "[5]")
    assert contents(path) == TEXTS | {5: "[5]"}


def test_wherever_it_is_cut_off_the_whole_lines_before_are_kept(path):
    whole = filled(path)
    lines = whole.splitlines(keepends=True)
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        complete = whole[:length].count(b"\n")
        expected = dict(list(TEXTS.items())[: max(complete - 1, 0)])
        assert contents(path) == expected
        assert path.read_bytes() == b"".join(lines[: max(complete, 1)])
        with Journal(path, JOB) as journal:  # and it goes on from there
            for part, text in TEXTS.items():
                journal.add(part, text)
        assert path.read_bytes() == whole


def test_a_flipped_bit_costs_its_line_and_those_behind_it(path):
    whole = filled(path)
    items = list(TEXTS.items())
    word = range(whole.index(FORMAT.encode()), whole.index(FORMAT.encode()) + len(FORMAT))
    for place in set(range(len(whole))) - set(word):
        for bit in range(8):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            complete = whole[:place].count(b"\n")
            assert contents(path) == dict(items[: max(complete - 1, 0)])
    for place in word:  # nothing says any more that it is ours
        path.write_bytes(whole[:place] + b"?" + whole[place + 1 :])
        with pytest.raises(ValueError, match="is no journal of flatfold, and is not overwritten"):
            contents(path)


@pytest.mark.parametrize("name", JOB)
def test_the_journal_of_another_job_is_refused_and_kept(path, name):
    before = filled(path)
    message = rf"journal belongs to a run that was stopped and had another {name}\. Choose another --out, or give --res"
    with pytest.raises(ValueError, match=message):
        Journal(path, JOB | {name: "other"})
    assert path.read_bytes() == before
    assert contents(path) == TEXTS  # no lock is left


def test_all_that_is_different_is_named(path):
    filled(path)
    with pytest.raises(ValueError, match=r"had another guard and shard\."):
        Journal(path, JOB | {"guard": "x", "shard": "2/2"})


def test_a_journal_of_another_version_is_refused(path, monkeypatch):
    filled(path)
    monkeypatch.setattr("flatfold.scoring.batch.journal.VERSION", VERSION + 1)
    with pytest.raises(ValueError, match=r"had another version of flatfold\. Choose another"):
        Journal(path, JOB)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("content", [b"path,score\na.png,1\n", b"deadbeef hello\n", b"0", b"\0" * 500, b"\n"])
def test_a_file_of_somebody_else_is_never_overwritten(path, content, restart):
    path.write_bytes(content)
    message = r"journal is no journal of flatfold, and is not overwritten\. Choose another --out, or remove it"
    with pytest.raises(ValueError, match=message):
        Journal(path, JOB, restart)
    assert path.read_bytes() == content


@pytest.mark.parametrize("job", [JOB, JOB | {"guard": "other"}])
def test_restarting_forgets_a_journal_of_any_job(path, job):
    filled(path)
    with Journal(path, job, restart=True) as journal:
        assert len(journal) == 0
        journal.add(4, "[4]")
    with Journal(path, job) as journal:
        assert journal.read(4) == "[4]"
    assert json.loads(path.read_bytes().splitlines()[0][9:])["job"] == job


def test_restarting_leaves_a_journal_alone_that_is_in_use(path):
    with Journal(path, JOB) as journal:
        journal.add(0, "[1]")
        with pytest.raises(BlockingIOError):
            Journal(path, JOB, restart=True)
        assert journal.read(0) == "[1]"


LOCKED = """
import sys
from pathlib import Path
from flatfold.scoring.batch.journal import Journal
with Journal(Path(sys.argv[1]), {"x": 1}) as journal:
    journal.add(0, "[1]")
    print("open", flush=True)
    sys.stdin.read()
"""


def test_two_processes_cannot_have_it_open(path):
    command = [sys.executable, "-c", LOCKED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"open\n"
        before = path.read_bytes()
        with pytest.raises(BlockingIOError, match=r"journal is being written by another process\. Wait for it to end"):
            Journal(path, {"x": 1})
        assert path.read_bytes() == before
        other.kill()
        other.wait()
        with Journal(path, {"x": 1}) as journal:  # a lock dies with its process
            assert journal.read(0) == "[1]"


def test_a_change_under_its_feet_is_noticed(path):
    with Journal(path, JOB) as journal:
        journal.add(0, "[1]")
        path.write_bytes(path.read_bytes().replace(b"[0, [1]]", b"[0, [2]]"))
        with pytest.raises(ValueError, match=r"journal was changed while it was in use\. Run the same command again"):
            journal.read(0)


FULL = """
import resource, sys
from pathlib import Path
from flatfold.scoring.batch.journal import Journal
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    with Journal(Path(sys.argv[1]), {"guard": "ab"}) as journal:
        for part in range(9):
            journal.add(part, '"' + 9_000 * "a" + '"')
except OSError as error:
    sys.exit(str(error))
"""


@pytest.mark.skipif(os.name == "nt", reason="limits are those of POSIX")
def test_a_full_disk_names_the_file_and_costs_one_part(path):
    command = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"[Errno 27] File too large: '{path}'\n")
    with Journal(path, {"guard": "ab"}) as journal:
        assert [part for part in range(9) if part in journal] == [0, 1]
        assert journal.read(1) == '"' + 9_000 * "a" + '"'


def test_what_cannot_be_closed_is_told_unless_something_else_was(path, monkeypatch):
    class Full:
        def __init__(self, file):
            self.file = file

        def close(self):
            self.file.close()
            raise OSError("full")

    def closed(error=None):
        with Journal(path, JOB) as journal:
            journal._file = Full(journal._file)
            if error is not None:
                raise error

    with pytest.raises(OSError, match="full"):
        closed()
    with pytest.raises(ValueError, match="first"):
        closed(ValueError("first"))


def test_a_discarded_journal_is_gone(path):
    with Journal(path, JOB) as journal:
        journal.add(0, "[1]")
        journal.discard()
        assert not path.exists()
        journal.discard()
