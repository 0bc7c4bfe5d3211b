"""What is ended is over, and says nothing of its own any more."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from quorumbook.env.tasks import AT_ONCE, cancel_and_wait, gather_bounded


async def test_ended_tasks_are_over_and_their_errors_are_nobodys() -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def fails() -> None:
        raise ValueError

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)

    tasks = [asyncio.create_task(fails()), asyncio.create_task(cleans_up())]
    await asyncio.sleep(0)
    await cancel_and_wait(tasks)
    assert [task.done() for task in tasks] == [True, True]
    await cancel_and_wait(())
    tasks.clear()
    gc.collect()
    assert reported == []


async def test_who_is_cancelled_while_ending_hears_of_it_when_all_is_over() -> None:
    may_end = asyncio.Event()

    async def takes_its_time() -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    task = asyncio.create_task(takes_its_time())
    ending = asyncio.create_task(cancel_and_wait([task]))
    for _ in range(3):
        await asyncio.sleep(0)
    ending.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not ending.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert task.done()


async def test_what_is_gathered_keeps_its_order_and_so_many_are_under_way() -> None:
    under_way, most = 0, 0

    async def work(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(200 - number):
            await asyncio.sleep(0)
        under_way -= 1
        return -number

    assert await gather_bounded(work, range(200)) == [-number for number in range(200)]
    assert most == AT_ONCE


async def test_once_one_fails_the_others_are_over() -> None:
    over = []

    async def work(number: int) -> None:
        try:
            if number == 1:
                raise ValueError(number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            over.append(number)

    with pytest.raises(ValueError, match="1"):
        await gather_bounded(work, range(AT_ONCE + 1))
    assert sorted(over) == list(range(AT_ONCE))
