"""Pages that many ask for at once begin one after another, each in a turn of its own."""

from __future__ import annotations

import asyncio

from quorumbook.bookie.http.access import HttpAccess
from quorumbook.bookie.http.server import HttpServer
from quorumbook.env import Env


def server() -> HttpServer:
    return HttpServer(
        Env(), "127.0.0.1", 0, is_ready=lambda: True, metrics=lambda: b"", pages={},
        access=HttpAccess((), None),
    )  # fmt: skip


async def test_pages_that_are_asked_for_at_once_begin_one_in_a_turn_and_in_order() -> None:
    turn, began = 0, []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async def page(_method: str, target: str, _body: object) -> tuple[int, object]:
        began.append((turn, target))
        return 200, target

    http = server()
    asked = [f"/{'ab'[number % 2]}?{number}" for number in range(60)]
    counting = asyncio.create_task(count_turns())
    answers = await asyncio.gather(*[http.answer(page, "GET", target, {}) for target in asked])
    counting.cancel()
    assert answers == [(200, target) for target in asked]
    assert [target for _, target in began] == asked
    assert len({number for number, _ in began}) == len(asked)


async def test_a_page_that_takes_long_or_is_given_up_keeps_no_other_from_its_turn() -> None:
    forever = asyncio.Event()

    async def slow(*_: object) -> tuple[int, object]:
        await forever.wait()
        return 200, None

    async def quick(*_: object) -> tuple[int, object]:
        return 200, "quick"

    http = server()
    waiting = [asyncio.create_task(http.answer(slow, "GET", "/slow", {})) for _ in range(3)]
    waiting[1].cancel()
    async with asyncio.timeout(10):
        assert await http.answer(quick, "GET", "/quick", {}) == (200, "quick")
    assert not waiting[0].done()
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
