"""Watches that tests can wait for."""

from __future__ import annotations

import asyncio


class Bell:
    """A watch that can be waited for and counts its calls."""

    def __init__(self):
        self.count = 0
        self._rung = asyncio.Event()

    def __call__(self):
        self.count += 1
        self._rung.set()

    async def wait(self):
        await asyncio.wait_for(self._rung.wait(), 20)


async def settle(driver, *stores):
    """Return when whatever could ring has rung: a later change was seen by every store."""
    bells = []
    for store in stores:
        bell = Bell()
        await store.exists("/settled", bell)
        bells.append(bell)
    writer = await driver.open()
    if await writer.exists("/settled") is None:
        await writer.create("/settled")
    else:
        await writer.set("/settled", b"")
    for bell in bells:
        await bell.wait()
