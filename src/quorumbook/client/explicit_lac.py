"""Publishes a writer's last add confirmed when no entry is there to carry it.

Every entry tells the bookies what was confirmed when it was sent, so the confirmation of the last
one travels with nothing.  A writer that was idle for ``lac_delay_s`` sends it by itself: the last
line typed in one process appears in another.

Few writers of a client do so at a time.  A thousand ledgers that are each written now and then
would otherwise send more numbers than entries; whoever appends again before its turn has
published by that, and drops out.
"""

from __future__ import annotations

import asyncio

from quorumbook.client.context import Context
from quorumbook.env import logger
from quorumbook.ids import INVALID_ENTRY_ID, EntryId
from quorumbook.ledger.append import AppendState
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.protocol import v3
from quorumbook.protocol.digest import Digester
from quorumbook.protocol.status import Status, error_for

_log = logger("client.writer")
_NS = 1_000_000_000
#: A failed attempt is repeated four times as late, but never later than this.
_LONGEST_DELAY_S = 10.0


class LacPublisher:
    """Watches one writer for being idle."""

    def __init__(
        self,
        context: Context,
        state: AppendState,
        digester: Digester,
        master_key: bytes,
        delay_s: float,
    ) -> None:
        self._context = context
        self._state = state
        self._digester = digester
        self._master_key = master_key
        self._delay_s = delay_s
        self._retry_s = delay_s
        self._published: EntryId = state.last_add_confirmed
        self._last_append_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_waiting = False
        self._is_stopped = False

    @property
    def published(self) -> EntryId:
        """Return what the bookies were told so far."""
        return self._published

    def on_sent(self, last_add_confirmed: EntryId, now_ns: int) -> None:
        """Note that entries left which carry this number."""
        self._published = last_add_confirmed
        self._last_append_ns = now_ns

    def on_confirmed(self) -> None:
        """Note that the last add confirmed grew."""
        is_idle = self._timer is None and self._task is None and not self._is_waiting
        if is_idle and self._delay_s and not self._is_stopped:
            self._arm(self._delay_s)

    async def publish(self) -> None:
        """Have the bookies know everything that is confirmed now, however long that takes."""
        wanted = self._state.last_add_confirmed
        while self._published < wanted and self._state.error is None and not self._is_stopped:
            if self._task is None:
                self._task = self._context.spawn(self._publish())
            await asyncio.wait([self._task])
            if self._published < wanted:
                await asyncio.sleep(self._retry_s)

    def stop(self) -> None:
        """Publish nothing any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        state = self._state
        if state.error is not None or state.last_add_confirmed <= self._published:
            return
        idle_ns = self._context.env.clock.now_ns() - self._last_append_ns
        missing_s = self._delay_s - idle_ns / _NS
        if missing_s > 0:
            self._arm(missing_s)
            return
        self._is_waiting = True
        self._context.lac_turns.enter(self)

    def begin(self) -> bool:
        """Publish now; False if there is nothing to publish any more."""
        self._is_waiting = False
        state = self._state
        if self._is_stopped or state.error is not None:
            return False
        if state.last_add_confirmed <= self._published:
            return False
        self._task = self._context.spawn(self._publish())
        self._task.add_done_callback(lambda _: self._context.lac_turns.leave())
        return True

    async def _publish(self) -> None:
        lac = self._state.last_add_confirmed
        try:
            acknowledged = await self._send(lac)
        finally:
            self._task = None
        if acknowledged >= self._state.metadata.ack_quorum_size:
            self._published = max(self._published, lac)
            self._retry_s = self._delay_s
        else:
            self._retry_s = min(self._retry_s * 4, _LONGEST_DELAY_S)
        if self._state.last_add_confirmed > self._published and not self._is_stopped:
            self._arm(self._retry_s)

    async def _send(self, lac: EntryId) -> int:
        """Send to the write set; return how many bookies have it."""
        if lac == INVALID_ENTRY_ID:
            return self._state.metadata.write_quorum_size
        metadata = self._state.metadata
        packet = self._digester.lac_packet(metadata.ledger_id, lac)

        def encode(txn_id: int) -> bytes:
            return v3.encode_write_lac(txn_id, metadata.ledger_id, lac, self._master_key, packet)

        positions = write_set(lac, metadata.ensemble_size, metadata.write_quorum_size)
        failed = self._state.failed
        waiting = {
            self._context.bookies.control(self._state.ensemble[index]).request(
                "an explicit last add confirmed", encode
            )
            for index in positions
            if index not in failed
        }
        acknowledged = 0
        try:
            # A silent bookie must not hold the next number back.
            while waiting and acknowledged < metadata.ack_quorum_size:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    problem = future.exception()
                    if problem is None and future.result().status is not Status.OK:
                        problem = error_for(future.result().status, ledger_id=metadata.ledger_id)
                    if problem is None:
                        acknowledged += 1
                    else:
                        _log.debug("ledger %d: %s", metadata.ledger_id, problem)
        finally:
            for future in waiting:
                future.cancel()
        return acknowledged
