"""Batches of several requests, the line in front of the model, and the memory that requests share."""

import http.client
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from starlette.exceptions import HTTPException

from flatfold.serve.scorer import Input
from flatfold.serve.service import Batcher, MemoryLimit
from tests.serve.small_service import TRANSFORM, WIDTH, encoded, form, held, make_guard, pixels, until

GOOD = encoded(pixels(1)[0][0])


def score_of(guard, array):
    return float(guard(TRANSFORM(array)[None]).score)


def test_every_answer_belongs_to_its_own_request(start):
    guard = make_guard()
    service = start(guard)
    arrays = pixels(120, seed=8)[0]
    wanted = [score_of(guard, array) for array in arrays]

    def ask(i):
        if i % 4 == 0:  # some send several inputs, some send features
            x = np.full((3, WIDTH), i / 100, np.float32)
            return service.features(x).json["rows"], guard.calibrated(torch.from_numpy(x))[0].tolist()
        if i % 4 == 1:
            rows = service.score(*form([("a", encoded(arrays[i])), ("b", encoded(arrays[i - 1]))])).json["rows"]
            return rows, [wanted[i], wanted[i - 1]]
        return service.score(encoded(arrays[i])).json["rows"], [wanted[i]]

    with ThreadPoolExecutor(24) as pool:
        for rows, scores in pool.map(ask, range(120)):
            assert [row["score"] for row in rows] == pytest.approx(scores, rel=1e-5)
    assert service.get("/stream").json["seen"] == 30 * 3 + 30 * 2 + 60


def test_requests_that_wait_go_through_the_model_together_and_a_bad_one_harms_no_other(start):
    guard = make_guard()
    service = start(guard, max_batch=8)
    arrays = pixels(20, seed=8)[0].copy()
    arrays[13, 0, 0] = 255  # the network raises an error
    guard.model.sizes.clear()
    sent = [partial(service.score, *form([(f"{i}.png", encoded(array))])) for i, array in enumerate(arrays)]
    sent.insert(1, partial(service.features, [[1.0] * WIDTH]))  # of another kind, so in a batch of its own
    with held(guard.model, *sent) as answers:
        until(lambda: service.service.batcher.waiting == 20)
        guard.model.held.release()
        try:
            answers = [answer.result() for answer in answers]
        finally:
            guard.model.held.acquire()
    assert guard.model.sizes[:2] == [1, 8]
    assert answers.pop(1).status == 200
    assert [answer.status for answer in answers] == [422 if i == 13 else 200 for i in range(20)]
    assert ("13.png" in answers[13].error, "secret" in answers[13].error) == (True, False)
    for i, (answer, array) in enumerate(zip(answers, arrays, strict=True)):
        if i != 13:
            assert answer.json["rows"][0]["score"] == pytest.approx(score_of(guard, array), rel=1e-5), i


def test_images_of_sizes_that_the_guard_does_not_know_never_reach_the_network(start):
    guard = make_guard()
    guard.transform = replace(guard.transform, resize=None, crop=None)
    service, calls = start(guard), guard.model.calls
    for shape in ((5, 4), (4, 1500)):
        refused = service.score(encoded(np.zeros(shape, np.uint8)))
        assert (refused.status, f"{shape[0]} x {shape[1]}" in refused.error) == (422, True)
        assert re.search("calibrated on 4 x 4.*allow_sizes", refused.error)
    assert guard.model.calls == calls
    wide = start(guard, allow_sizes=True)
    assert wide.score(encoded(np.zeros((2, 8), np.uint8))).status == 200
    assert wide.score(encoded(np.zeros((5, 4), np.uint8))).status == 422  # this network itself takes 16 pixels only


def test_a_batch_of_large_images_has_the_pixels_of_a_batch_of_known_ones():
    batcher = Batcher(None, max_batch=8, max_waiting=99, count_batch=None, largest=16)
    sizes = [(16, "image", 8), (4, "image", 8), (32, "image", 4), (999, "image", 1), (999, "features", 8)]
    for numbers, kind, rows in sizes:
        entries = [Input(kind, torch.zeros(numbers), "x") for _ in range(9)]
        batcher._queue = [(entry, Mock(done=lambda: False)) for entry in entries]
        assert len(batcher._next_batch()) == rows, (numbers, kind)
    batcher.close()


def test_too_many_waiting_inputs_are_refused_for_now(start):
    guard = make_guard()
    service = start(guard, max_waiting=2, timeout=100)
    two = form([("a", GOOD)] * 2)
    with held(guard.model, partial(service.score, GOOD), partial(service.score, *two)) as answers:
        until(lambda: service.service.batcher.waiting == 2)
        refused = service.score(GOOD)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        guard.model.held.release()
        try:
            assert [answer.result().status for answer in answers] == [200, 200]
        finally:
            guard.model.held.acquire()
    assert service.score(*form([("a", GOOD)] * 3)).status == 413  # more than could ever wait


def test_a_request_that_is_not_answered_in_time_is_refused_for_now(start):
    guard = make_guard()
    service = start(guard, timeout=0.3)
    with held(guard.model, partial(service.score, GOOD)) as (late,):
        assert (late.result().status, late.result().headers["retry-after"]) == (503, "1")
        assert "0.3 seconds" in late.result().error


def test_a_client_that_leaves_costs_nothing(start):
    guard = make_guard()
    service = start(guard)
    guard.model.sizes.clear()
    with held(guard.model, partial(service.score, GOOD)):
        connections = [http.client.HTTPConnection("127.0.0.1", service.port) for _ in range(5)]
        for connection in connections:
            connection.request("POST", "/score", GOOD, {"Content-Type": "image/png"})
        until(lambda: service.service.batcher.waiting == 5)
        for connection in connections:
            connection.close()
        until(lambda: service.service.memory.used <= len(GOOD) + 64)
    assert service.score(GOOD).status == 200
    assert guard.model.sizes == [1, 1]
    until(lambda: service.service.memory.used == 0)
    until(lambda: b'status="499"} 5.0' in service.get("/metrics").body)


def test_memory_is_taken_to_the_byte_refused_for_good_or_for_now_and_given_back(start):
    memory = MemoryLimit(3_000_000)
    with memory.reserve() as take, memory.reserve() as take_too:
        take(2_000_000)
        with pytest.raises(HTTPException, match="memory") as refused:
            take(1_000_001)
        assert refused.value.status_code == 413
        with pytest.raises(HTTPException, match="memory") as refused:
            take_too(1_000_001)
        assert (refused.value.status_code, refused.value.headers) == (503, {"Retry-After": "1"})
        take_too(1_000_000)
        assert memory.used == 3_000_000
    assert memory.used == 0
    service = start(make_guard())
    service.service.memory.limit = len(GOOD) + 4 * 16  # the body, and its pixels as float32
    assert service.score(GOOD).status == 200
    service.service.memory.limit -= 1
    assert (service.score(GOOD).status, service.service.memory.used) == (413, 0)
