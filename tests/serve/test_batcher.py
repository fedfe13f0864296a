"""`serve.batcher`: together where possible, each answer to its own question, and no work for nobody."""

import asyncio
import threading
from collections import Counter

import pytest
import torch

from flatfold.serve.batcher import Batcher, Input
from flatfold.serve.refusal import Refusal


class Judge:
    """Answers with the value of each input; waits while it is held."""

    def __init__(self):
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)

    def __call__(self, inputs):
        self.batches.append([float(each.values.flatten()[0]) for each in inputs])
        assert len({(each.kind, each.values.shape) for each in inputs}) == 1
        self.begun.release()
        assert self.gate.wait(20)
        return [ValueError("thirteen") if value == 13 else {"value": value} for value in self.batches[-1]]


def row(value, kind="features", size=1):
    return Input(kind, torch.full((size,), float(value)), "it")


async def held(judge, batcher):
    """Let one input occupy the thread, and return its task."""
    judge.gate.clear()
    first = asyncio.create_task(batcher.rows([row(-1)]))
    await asyncio.to_thread(judge.begun.acquire)
    return first


def values(rows):
    return [each["value"] for each in rows]


def run(scenario, most=4, line=100, **options):
    async def main():
        judge = Judge()
        batcher = Batcher(judge, most, line, **options)
        try:
            await asyncio.wait_for(scenario(judge, batcher), 30)
        finally:
            judge.gate.set()
            batcher.close()

    asyncio.run(main())


def test_nobody_waits_for_company():
    async def scenario(judge, batcher):
        assert values(await batcher.rows([row(1)])) == [1]
        assert values(await batcher.rows([row(2)])) == [2]
        assert judge.batches == [[1], [2]]

    run(scenario)


def test_what_comes_meanwhile_goes_together_up_to_the_limit_and_in_order():
    sizes = []

    async def scenario(judge, batcher):
        first = await held(judge, batcher)
        others = [asyncio.create_task(batcher.rows([row(i)])) for i in range(10)]
        await asyncio.sleep(0)
        assert batcher.waiting == 10
        judge.gate.set()
        assert [values(await other) for other in others] == [[i] for i in range(10)]
        await first
        assert judge.batches == [[-1], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert batcher.waiting == 0

    run(scenario, note=sizes.append)
    assert sizes == [1, 4, 4, 2]


def test_a_limit_of_one_is_one_after_the_other():
    async def scenario(judge, batcher):
        assert values(await batcher.rows([row(i) for i in range(3)])) == [0, 1, 2]
        assert judge.batches == [[0], [1], [2]]

    run(scenario, most=1)


def test_kinds_and_shapes_are_kept_apart_and_answers_belong_to_their_questions():
    async def scenario(judge, batcher):
        first = await held(judge, batcher)
        asked = [row(i, ("features", "image")[i % 2], 1 + i % 3) for i in range(12)]
        one, two = (asyncio.create_task(batcher.rows(part)) for part in (asked[:7], asked[7:]))
        await asyncio.sleep(0)
        judge.gate.set()
        assert values(await one) + values(await two) == list(range(12))
        await first
        assert Counter(map(len, judge.batches[1:])) == {2: 6}

    run(scenario)


def test_the_error_of_one_input_is_not_that_of_another_request():
    async def scenario(judge, batcher):
        first = await held(judge, batcher)
        bad = asyncio.create_task(batcher.rows([row(1), row(13)]))
        good = asyncio.create_task(batcher.rows([row(2)]))
        await asyncio.sleep(0)
        judge.gate.set()
        with pytest.raises(ValueError, match="thirteen"):
            await bad
        assert values(await good) == [2]
        await first
        assert judge.batches == [[-1], [1, 13, 2]]

    run(scenario)


def test_a_judge_that_breaks_answers_everybody_and_the_next_ones_are_judged():
    async def scenario(judge, batcher):
        mixed = [row(1), Input("features", torch.empty(0), "it")]
        with pytest.raises(IndexError):
            await batcher.rows(mixed)
        assert values(await batcher.rows([row(2)])) == [2]

    run(scenario)


def test_what_was_given_up_is_never_judged_and_takes_no_place():
    async def scenario(judge, batcher):
        first = await held(judge, batcher)
        gone = [asyncio.create_task(batcher.rows([row(i), row(i)])) for i in range(5)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        stays = asyncio.create_task(batcher.rows([row(i) for i in range(7, 16) if i != 13]))
        await asyncio.sleep(0)
        assert batcher.waiting == 8
        judge.gate.set()
        await stays
        await first
        assert judge.batches == [[-1], [7, 8, 9, 10], [11, 12, 14, 15]]

    run(scenario, line=10)


def test_a_long_line_is_refused_for_now_and_leaves_the_others_alone():
    async def scenario(judge, batcher):
        first = await held(judge, batcher)
        waits = asyncio.create_task(batcher.rows([row(i) for i in range(3)]))
        await asyncio.sleep(0)
        with pytest.raises(
            Refusal, match="5 inputs may wait for the model, and with these it would be more"
        ) as refused:
            await batcher.rows([row(9)] * 3)
        assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
        fits = asyncio.create_task(batcher.rows([row(9)] * 2))
        await asyncio.sleep(0)
        judge.gate.set()
        assert values(await waits) + values(await fits) == [0, 1, 2, 9, 9]
        await first

    run(scenario, line=5)


def test_given_up_while_it_is_judged_harms_nobody():
    async def scenario(judge, batcher):
        first = await held(judge, batcher)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        judge.gate.set()
        assert values(await batcher.rows([row(3)])) == [3]

    run(scenario)


def test_a_line_of_nobody_is_not_judged():
    async def scenario(judge, batcher):
        first = await held(judge, batcher)
        gone = asyncio.create_task(batcher.rows([row(1), row(2)]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        judge.gate.set()
        await first
        await batcher._work
        assert judge.batches == [[-1]]

    run(scenario)
