"""Places for files that are being sent: who stops or drips keeps nobody out."""

from __future__ import annotations

import asyncio

import pytest

from quorumbook.admin.files import uploads
from quorumbook.admin.files.uploads import Uploads
from quorumbook.admin.http.problems import ApiError


@pytest.fixture
def two_places(monkeypatch):
    monkeypatch.setattr(uploads, "_AT_ONCE", 2)
    return Uploads()


async def _send(places: Uploads, sent, has_begun: asyncio.Event | None = None) -> bytes:
    async with places.place():
        if has_begun is not None:
            has_begun.set()
        return b"".join([piece async for piece in places.pieces(sent)])


async def _dripping():
    while True:
        await asyncio.sleep(0.002)
        yield b"x"


async def _at_once():
    yield b"whole"


async def _both_places_taken(places: Uploads) -> list[asyncio.Task[bytes]]:
    has_begun = [asyncio.Event(), asyncio.Event()]
    tasks = [asyncio.create_task(_send(places, _dripping(), each)) for each in has_begun]
    for each in has_begun:
        await each.wait()
    return tasks


async def test_one_that_stops_is_given_up(two_places, monkeypatch):
    monkeypatch.setattr(uploads, "_PIECE_S", 0.01)

    async def stopping():
        yield b"x"
        await asyncio.Event().wait()

    with pytest.raises(ApiError, match="nothing of the file came") as caught:
        await _send(two_places, stopping())
    assert (caught.value.status, caught.value.code) == (408, "body-timeout")
    assert await _send(two_places, _at_once()) == b"whole"


async def test_one_that_drips_is_given_up_when_others_wait(two_places, monkeypatch):
    monkeypatch.setattr(uploads, "_GRACE_S", 0.01)
    dripping = await _both_places_taken(two_places)
    assert await _send(two_places, _at_once()) == b"whole"
    ended, _ = await asyncio.wait(dripping, return_when=asyncio.FIRST_COMPLETED)
    for each in ended:
        error = each.exception()
        assert isinstance(error, ApiError)
        assert "others wait to send" in str(error)
    for each in dripping:
        each.cancel()
    await asyncio.wait(dripping)


async def test_one_that_drips_is_left_alone_while_nobody_waits(two_places, monkeypatch):
    monkeypatch.setattr(uploads, "_GRACE_S", 0.0)

    async def slow():
        for _ in range(20):
            await asyncio.sleep(0.002)
            yield b"x"

    assert await _send(two_places, slow()) == b"x" * 20


async def test_who_finds_no_place_is_told(two_places, monkeypatch):
    monkeypatch.setattr(uploads, "_PLACE_S", 0.01)
    dripping = await _both_places_taken(two_places)
    with pytest.raises(ApiError, match="2 other files are being sent") as caught:
        await _send(two_places, _at_once())
    assert (caught.value.status, caught.value.code) == (503, "busy")
    for each in dripping:
        each.cancel()
    await asyncio.wait(dripping)
