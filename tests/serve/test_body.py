"""`serve.body`: parts of a body are added up, in length and in memory."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from flatfold.serve.body import read_body
from flatfold.serve.budget import Budget
from flatfold.serve.refusal import Refusal
from flatfold.serve.settings import Settings


def read(parts, budget, most=10, ends=True, **headers):
    """Read a body that comes in parts; one that does not end is one whose client has left."""
    last = {"type": "http.request", "body": b""} if ends else {"type": "http.disconnect"}
    messages = iter([*({"type": "http.request", "body": part, "more_body": True} for part in parts), last])

    async def receive():
        return next(messages)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    with budget.share() as share:
        body = asyncio.run(
            read_body(Request({"type": "http", "headers": raw}, receive), Settings(max_body=most), share)
        )
        assert budget.used == len(body)
        return body


def test_parts_are_joined_and_their_memory_is_counted():
    budget = Budget()
    assert read([b"abc", b"", b"defghij"], budget) == b"abcdefghij"
    assert budget.used == 0


def test_parts_that_are_short_can_be_too_long_together():
    with pytest.raises(
        Refusal, match=r"but this one has more. Send fewer inputs at once, or a smaller image"
    ) as refused:
        read([b"abcde"] * 3, Budget())
    assert refused.value.status == 413


def test_a_length_that_is_too_long_is_refused_before_anything_is_read():
    with pytest.raises(Refusal, match=r"may have 1e-05 MB, but this one has more"):
        read([], Budget(), content_length="11")


def test_a_body_that_others_left_no_memory_for_is_refused():
    with pytest.raises(Refusal, match=r"may take 0 MB of memory"):
        read([b"abcde"] * 2, Budget(9))


def test_half_a_body_is_none():
    with pytest.raises(ClientDisconnect):
        read([b"abc"], Budget(), ends=False)
