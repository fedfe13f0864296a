"""`Shard`: every row once, in whole batches, however many processes there are."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatfold.scoring.batch import Shard
from flatfold.scoring.batch.shard import PART_ROWS


def parts_of_all(rows, batch_size, of):
    return [Shard(number, of).parts(rows, batch_size) for number in range(1, of + 1)]


@given(rows=st.integers(0, 5000), batch_size=st.integers(1, 3000), of=st.integers(1, 40))
def test_the_parts_of_all_shards_hold_every_row_once_and_in_order(rows, batch_size, of):
    parts = [part for shard in parts_of_all(rows, batch_size, of) for part in shard]
    assert [row for part in parts for row in part] == list(range(rows))
    assert all(parts)


@given(rows=st.integers(1, 5000), batch_size=st.integers(1, 3000), of=st.integers(1, 40))
def test_parts_are_whole_batches_and_only_the_very_last_row_may_cut_one(rows, batch_size, of):
    parts = [part for shard in parts_of_all(rows, batch_size, of) for part in shard]
    assert all(part.start % batch_size == 0 for part in parts)
    assert all(part.stop % batch_size == 0 or part.stop == rows for part in parts)
    assert all(len(part) <= max(PART_ROWS, batch_size) for part in parts)


@given(rows=st.integers(1, 100_000), batch_size=st.integers(1, 300), of=st.integers(1, 40))
def test_shards_differ_by_a_batch_at_most(rows, batch_size, of):
    batches = [sum(-(-len(part) // batch_size) for part in shard) for shard in parts_of_all(rows, batch_size, of)]
    assert max(batches) - min(batches) <= 1


def test_a_part_has_as_many_batches_as_fit():
    assert Shard().parts(5000, 100) == [range(a, min(b, 5000)) for a, b in pairwise(range(0, 6000, 1000))]
    assert Shard().parts(5000, 2000) == [range(2000), range(2000, 4000), range(4000, 5000)]


def test_of_more_shards_than_batches_some_are_empty():
    shards = parts_of_all(5, 3, 4)
    assert sorted(map(len, shards)) == [0, 0, 1, 1]
    assert Shard(2, 3).parts(0, 8) == []


@pytest.mark.parametrize("text", ["1/1", "3/4", "7/1000"])
def test_a_shard_is_written_as_it_is_read(text):
    assert str(Shard.parsed(text)) == text


@pytest.mark.parametrize("text", ["", "1", "a/b", "1/", "-1/4", "1/4 ", "1/4/5", "1.0/2", "1/99999999999"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ValueError, match=r"a shard is written i/n, the i-th of n, such as 1/4, got"):
        Shard.parsed(text)


@pytest.mark.parametrize(("text", "example"), [("0/4", "1/4"), ("5/4", "1/4"), ("0/0", "1/1"), ("1/0", "1/1")])
def test_shards_are_counted_from_one(text, example):
    message = rf"counted from 1, as in {example}, got {text}\. A scheduler that counts from 0 needs a 1 added"
    with pytest.raises(ValueError, match=message):
        Shard.parsed(text)
