"""`Journal`: whatever happens to the file, what it holds is either right or computed again."""

import json
from functools import partial
from zlib import crc32

import pytest

from flatfold.scoring.batch import JOURNAL_FORMAT as FORMAT
from flatfold.scoring.batch import JOURNAL_VERSION as VERSION
from flatfold.scoring.batch import Journal
from tests.refusals import assert_refused

JOB = {"guard": "ab", "data": "cd", "fpr": 0.05, "shard": "1/2"}
TEXTS = {0: '["a, b", 1.5]', 2: '{"é": [1, 2]}', 1: "[]"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scores.csv.journal"


def filled(path, texts=TEXTS):
    with Journal(path, JOB) as journal:
        for part, text in texts.items():
            journal.add(part, text)
            assert journal.read(part) == text
    return path.read_bytes()


def contents(path):
    with Journal(path, JOB) as journal:
        found = {part: journal.read(part) for part in range(9) if part in journal}
        assert len(journal) == len(found)
    return found


def test_parts_are_there_again_in_whatever_order_they_came(path):
    before = filled(path)
    assert contents(path) == TEXTS
    assert path.read_bytes() == before, "opening a whole journal changed it"
    with Journal(path, JOB) as journal:
        assert journal.read(0) == TEXTS[0]
        journal.add(5, "[5]")
    assert contents(path) == TEXTS | {5: "[5]"}


def test_a_part_that_comes_twice_counts_once_and_a_change_while_it_is_open_is_noticed(path):
    filled(path)
    with Journal(path, JOB) as journal:
        journal.add(2, "[7]")
        assert journal.read(2) == TEXTS[2]
        journal.add(5, "[5]")
        path.write_bytes(path.read_bytes().replace(b"[5, [5]]", b"[5, [6]]"))
        assert_refused(ValueError, "changed", partial(journal.read, 5))
        path.write_bytes(path.read_bytes().replace(b"[5, [6]]", b"[5, [5]]"))
    with path.open("ab") as file:
        file.write(b"%08x [2, [7]]\n" % crc32(b"[2, [7]]"))
    assert contents(path) == TEXTS | {5: "[5]"}


def test_a_journal_without_parts_becomes_that_of_the_next_job(path):
    """A run that failed before its first part, for a wrong model, must not stand in the way of the right one."""
    assert filled(path, {}).count(b"\n") == 1
    assert contents(path) == {}
    with Journal(path, JOB | {"fpr": 0.1}) as journal:
        journal.add(0, "[]")
    assert_refused(ValueError, "another fpr", partial(Journal, path, JOB))


def test_wherever_it_is_cut_off_the_whole_lines_before_are_kept(path):
    whole = filled(path)
    lines = whole.splitlines(keepends=True)
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        complete = whole[:length].count(b"\n")
        assert contents(path) == dict(list(TEXTS.items())[: max(complete - 1, 0)]), length
        assert path.read_bytes() == b"".join(lines[: max(complete, 1)]), length
        with Journal(path, JOB) as journal:  # and it goes on from there
            for part, text in TEXTS.items():
                journal.add(part, text)
        assert path.read_bytes() == whole, length


def test_a_flipped_bit_costs_its_line_and_those_behind_it(path):
    whole = filled(path)
    word = range(whole.index(FORMAT.encode()), whole.index(FORMAT.encode()) + len(FORMAT))
    for place in sorted(set(range(len(whole))) - set(word)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        complete = whole[:place].count(b"\n")
        assert contents(path) == dict(list(TEXTS.items())[: max(complete - 1, 0)]), place
    for place in word:  # nothing says any more that it is ours
        path.write_bytes(whole[:place] + b"?" + whole[place + 1 :])
        assert_refused(ValueError, "no journal", partial(contents, path), case=place)


def test_the_journal_of_another_job_or_version_is_refused_and_kept(path, monkeypatch):
    before = filled(path)
    for change, keyword in (
        *(({name: "other"}, f"another {name}") for name in JOB),
        ({"guard": "x", "shard": "2/2"}, "another guard and shard"),
    ):
        assert_refused(ValueError, keyword, partial(Journal, path, JOB | change))
        assert path.read_bytes() == before
        assert contents(path) == TEXTS  # no lock is left
    monkeypatch.setattr("flatfold.scoring.batch.JOURNAL_VERSION", VERSION + 1)
    assert_refused(ValueError, "another version", partial(Journal, path, JOB))


def test_a_file_of_somebody_else_is_never_overwritten(path):
    for content in (b"path,score\na.png,1\n", b"deadbeef hello\n", b"0", b"\0" * 500, b"\n"):
        for restart in (False, True):
            path.write_bytes(content)
            assert_refused(ValueError, "not overwritten", partial(Journal, path, JOB, restart), case=content)
            assert path.read_bytes() == content


def test_restarting_forgets_a_journal_of_any_job_but_not_one_in_use(path):
    for job in (JOB, JOB | {"guard": "other"}):
        filled(path)
        with Journal(path, job, restart=True) as journal:
            assert len(journal) == 0
            journal.add(4, "[4]")
            assert_refused(BlockingIOError, "another process", partial(Journal, path, job, restart=True))
            assert journal.read(4) == "[4]"
        with Journal(path, job) as journal:
            assert journal.read(4) == "[4]"
            assert json.loads(path.read_bytes().splitlines()[0][9:])["job"] == job
            journal.discard()
            assert not path.exists()
            journal.discard()
