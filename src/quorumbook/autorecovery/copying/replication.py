"""Drives the copy machine: reads runs of entries, writes them as recovery adds, reads them back.

The unit is a batch of about a megabyte: one task, one read, and one write to each bookie that
lacks it.  The adds go over the v2 connection as the writer's did, so that an entry that was small
enough for a frame once is so again (S74), and all of them carry the recovery flag: the ledger may
be fenced, the bookie read-only (S12).  What to read, where to write it and when it counts is
decided by ``ledger.replication``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorumbook.autorecovery.copying.verified_reads import read_verified
from quorumbook.client.context import Context
from quorumbook.client.transport.connection import Channel
from quorumbook.env import Budget
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    InternalError,
    QuorumbookError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.machines.copy import (
    CheckEntries,
    Copied,
    CopyFailed,
    CopyState,
    ReadEntries,
    ReleaseBatch,
    WriteEntries,
)
from quorumbook.protocol.digest import Digester
from quorumbook.protocol.status import error_for, status_of_v2
from quorumbook.protocol.v2 import packets as v2

_NS = 1_000_000_000
_MOST_ENTRIES = 10_000
_GUESSED_ENTRY_BYTES = 1024
#: A bookie that sheds load gets the refused entries again after this.
_SHED_RETRY_S = 0.1
#: Nobody waits for a copy: a bookie may take so many times as long as for a writer's adds.
_PATIENCE = 4


@dataclass(slots=True)
class _Held:
    """A batch that was read."""

    bodies: list[bytes]
    frames: list[bytes]


@dataclass(slots=True)
class _Write:
    """Adds of a batch that a bookie has not all acknowledged."""

    effect: WriteEntries
    left: int
    deadline_ns: int = field(default=0)


class Copier:
    """One copy under way; it listens to the channels of the bookies it writes to."""

    def __init__(
        self,
        context: Context,
        budget: Budget,
        ledger_id: LedgerId,
        digester: Digester,
        master_key: bytes,
        state: CopyState,
    ) -> None:
        self._context = context
        self._budget = budget
        self._ledger_id = ledger_id
        self._digester = digester
        self._master_key = master_key
        self._state = state
        self._entry_bytes = _GUESSED_ENTRY_BYTES
        self._held: dict[int, _Held] = {}
        self._writes: dict[BookieId, list[_Write]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Bytes of entries that were sent to bookies.
        self.copied_bytes = 0

    async def run(self) -> None:
        """Copy.

        Raises:
            QuorumbookError: not everything is copied; the machine says whose failure it was.
        """
        try:
            self._act()
            await self._done
        finally:
            for bookie_id in self._writes:
                self._context.bookies.fast(bookie_id).detach(self._ledger_id, self)
            self._writes.clear()
            await cancel_and_wait(list(self._tasks))

    def _act(self) -> None:
        for effect in self._state.poll():
            if isinstance(effect, ReadEntries):
                self._spawn(self._read(effect))
            elif isinstance(effect, WriteEntries):
                self._spawn(self._write(effect))
            elif isinstance(effect, CheckEntries):
                self._spawn(self._check(effect))
            elif isinstance(effect, ReleaseBatch):
                del self._held[effect.batch]
            elif isinstance(effect, Copied) and not self._done.done():
                self._done.set_result(None)
            elif isinstance(effect, CopyFailed) and not self._done.done():
                self._done.set_exception(effect.error)

    def _spawn(self, step: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await step
            except Exception as error:
                failure = InternalError(f"a copy failed: {error!r}")
                failure.__cause__ = error
                self._state.fail(failure)
            self._act()

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Reading -------------------------------------------------------------------------------

    async def _read(self, effect: ReadEntries) -> None:
        await self._budget.take(len(effect.entry_ids) * self._entry_bytes)
        try:
            bodies = await self._read_some(effect.bookie_id, effect.entry_ids)
        except QuorumbookError as error:
            self._state.on_read_error(effect.batch, error)
            return
        self._entry_bytes = max(1, sum(map(len, bodies)) // len(bodies))
        fitting = max(1, self._context.options.read_batch_bytes // max(map(len, bodies)))
        self._state.batch_entries = min(fitting, _MOST_ENTRIES)
        frames = v2.encode_adds(self._master_key, v2.RECOVERY_ADD, bodies)
        self._held[effect.batch] = _Held(bodies, frames)
        self._state.on_entries(effect.batch, len(bodies))

    async def _check(self, effect: CheckEntries) -> None:
        """Compare what a bookie gives back with what it was sent (R30)."""
        sent = self._held[effect.batch].bodies
        at = 0
        try:
            while at < len(sent):
                await self._budget.take(sum(map(len, sent[at:])))
                found = await self._read_some(effect.bookie_id, effect.entry_ids[at:])
                if found != sent[at : at + len(found)]:
                    raise DigestMismatchError(
                        f"bookie {effect.bookie_id} gives back other entries of ledger "
                        f"{self._ledger_id} than were copied there",
                        ledger_id=self._ledger_id,
                        bookie_id=effect.bookie_id,
                    )
                at += len(found)
        except QuorumbookError as error:
            self._state.on_target_error(effect.batch, effect.position, error)
        else:
            self._state.on_checked(effect.batch, effect.position)

    async def _read_some(self, bookie_id: BookieId, entry_ids: range) -> list[bytes]:
        deadline_ns = self._context.env.clock.now_ns() + self._patience_ns
        while True:
            try:
                return await read_verified(
                    self._context, self._digester, self._ledger_id, bookie_id, entry_ids
                )
            except TooManyRequestsError:
                if self._context.env.clock.now_ns() > deadline_ns:
                    raise
                await asyncio.sleep(_SHED_RETRY_S)

    # Writing -------------------------------------------------------------------------------

    async def _write(self, effect: WriteEntries) -> None:
        frames = self._held[effect.batch].frames
        size = sum(map(len, frames))
        await self._budget.take(size)
        self.copied_bytes += size
        channel = self._context.bookies.fast(effect.bookie_id)
        if effect.bookie_id not in self._writes:
            self._writes[effect.bookie_id] = []
            channel.attach(self._ledger_id, self)
        write = _Write(effect, len(frames))
        self._writes[effect.bookie_id].append(write)
        self._send(write, frames)

    def _send(self, write: _Write, frames: Sequence[bytes]) -> None:
        write.deadline_ns = self._context.env.clock.now_ns() + self._patience_ns
        self._context.ticker.watch(self._look_at_time)
        self._context.bookies.fast(write.effect.bookie_id).write(b"".join(frames))

    @property
    def _patience_ns(self) -> int:
        return int(self._context.options.add_timeout_s * _PATIENCE * _NS)

    def on_add_answers(self, channel: Channel, answers: v2.AddAnswers) -> None:
        """Take a run of answers; ``on_answers_end`` follows."""
        _, first, last, code = answers
        for write in list(self._writes.get(channel.bookie_id, ())):
            ids = write.effect.entry_ids
            # Which of the batch's ids lie in the run; ids may be at a distance from each other.
            low = max(0, -(-(first - ids.start) // ids.step))
            high = min(len(ids), (last - ids.start) // ids.step + 1)
            if high > low:
                self._answered(write, code, low, high)

    def _answered(self, write: _Write, code: int, low: int, high: int) -> None:
        """Take the answer to the entries from ``low`` to below ``high`` of a batch."""
        effect = write.effect
        if code:
            error = error_for(
                status_of_v2(code),
                ledger_id=self._ledger_id,
                entry_id=effect.entry_ids[low],
                bookie_id=effect.bookie_id,
            )
            if isinstance(error, TooManyRequestsError):
                self._spawn(self._send_again(write, low, high))
            else:
                self._state.on_target_error(effect.batch, effect.position, error)
            return
        write.left -= high - low
        write.deadline_ns = self._context.env.clock.now_ns() + self._patience_ns
        if write.left <= 0:
            self._writes[effect.bookie_id].remove(write)
            self._state.on_written(effect.batch, effect.position)

    async def _send_again(self, write: _Write, low: int, high: int) -> None:
        await asyncio.sleep(_SHED_RETRY_S)
        held = self._held.get(write.effect.batch)
        if held is not None and self._state.error is None:
            deadline_ns = write.deadline_ns
            self._send(write, held.frames[low:high])
            write.deadline_ns = deadline_ns  # only what is taken counts as progress

    def on_answers_end(self) -> None:
        """Act on everything a packet brought, once."""
        self._act()

    def on_channel_lost(self, channel: Channel, error: BookieUnavailableError) -> None:
        """What was sent on the channel and not answered will never be answered."""
        for write in list(self._writes.get(channel.bookie_id, ())):
            self._state.on_target_error(write.effect.batch, write.effect.position, error)
        self._act()

    def on_channel_drained(self) -> None:
        """What is on its way is bounded by the batches under way, whatever the channel holds."""

    def _look_at_time(self, now_ns: int) -> bool:
        late = [w for writes in self._writes.values() for w in writes if w.deadline_ns <= now_ns]
        for write in late:
            bookie_id = write.effect.bookie_id
            error = RequestTimeoutError(
                f"bookie {bookie_id} did not take copies within {self._patience_ns / _NS:g} s",
                bookie_id=bookie_id,
            )
            self._state.on_target_error(write.effect.batch, write.effect.position, error)
        if late:
            self._act()
        return any(self._writes.values())
