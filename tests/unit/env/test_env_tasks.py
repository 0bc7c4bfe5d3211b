"""What is ended is over, and says nothing of its own any more."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from quorumbook.env.tasks import cancel_and_wait


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
