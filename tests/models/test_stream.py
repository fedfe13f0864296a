"""The first inputs of a source, without a look at the others."""

import tracemalloc

import torch

from flatfold.models.sources import Source
from flatfold.models.stream import a_few


class Endless(Source):
    """Many rows, of which the first ones cannot be read."""

    fingerprint = "endless"

    def __init__(self, rows, first):
        super().__init__(batch_size=64)
        self.number, self.first, self.asked = rows, first, []

    @property
    def rows(self):
        return self.number

    def read(self, rows):
        return torch.tensor([[float(row)] for row in rows])

    def attempt(self, rows):
        self.asked.append(rows)
        good = [row for row in rows if row >= self.first]
        return (self.read(good) if good else None), {row: f"{row} is broken" for row in rows if row < self.first}


def test_the_first_inputs_that_can_be_read_come_with_their_rows():
    for first, rows in [(0, [0, 1]), (3, [3]), (4, [4, 5])]:
        opening = a_few(Endless(100, first))
        assert list(opening.rows) == rows
        assert opening.batch.args[0].flatten().tolist() == rows


def test_they_may_be_wanted_from_another_row_on():
    assert list(a_few(Endless(100, 0), 7).rows) == [7, 8]
    assert list(a_few(Endless(8, 0), 7).rows) == [7]


def test_nothing_is_made_of_the_rows_behind_them():
    source = Endless(1_000_000, 3)
    tracemalloc.start()
    a_few(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert source.asked == [range(2), range(2, 4)]
    assert peak < 200_000  # a list of the ranges takes 48 MB
