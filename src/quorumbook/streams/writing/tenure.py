"""While a writer has its stream: the lock, which is taken again if it is lost, and retention."""

from __future__ import annotations

import asyncio
import contextlib

from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import QuorumbookError
from quorumbook.streams.metadata.lock import StreamLock
from quorumbook.streams.retention.retention import Retention
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.writing.opening import WriterParts
from quorumbook.streams.writing.options import WriterOptions


class Tenure:
    """What goes on beside the appends of one writer, and is let go of with them."""

    def __init__(
        self, context: StreamContext, options: WriterOptions, lock: StreamLock, parts: WriterParts
    ) -> None:
        self._lock = lock
        self._pump = parts.pump
        self._quota = parts.quota
        self._loop = asyncio.get_running_loop()
        self._relocking: asyncio.Task[None] | None = None
        self._retaining: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        if options.retention_interval_s and parts.may_truncate:
            # Who was pushed out lets the stream alone.
            retaining = Retention(context).run(
                options.retention_interval_s, lambda: self._pump.error is not None
            )
            self._retaining = self._loop.create_task(retaining)
        lock.on_lost = self._on_lock_lost
        if not lock.is_held:  # it went with its session before anybody listened
            self._on_lock_lost()

    def _on_lock_lost(self) -> None:
        pump, before = self._pump, self._relocking
        if pump.error is None and not pump.is_closing and (before is None or before.done()):
            self._relocking = self._loop.create_task(pump.lock_again(self._lock))

    async def end(self) -> None:
        """Stop all of it, and give the lock back; it goes on without whoever is cancelled."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())
        await self.ended()

    async def ended(self) -> None:
        """Wait until what is being ended is over."""
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end(self) -> None:
        try:
            await self._pump.stop()
            if self._quota is not None:
                await self._quota.stop()
            await cancel_and_wait(
                [task for task in (self._relocking, self._retaining) if task is not None]
            )
            with contextlib.suppress(QuorumbookError):
                await self._pump.segments.let_go()
        finally:
            await self._lock.release()
