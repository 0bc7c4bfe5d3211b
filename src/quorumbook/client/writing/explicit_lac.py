"""Publishes a writer's last add confirmed when no entry is there to carry it.

Every entry tells the bookies what was confirmed when it was sent, so the confirmation of the last
one travels with nothing.  A writer that was idle for ``lac_delay_s`` sends it by itself: the last
line typed in one process appears in another.

Few writers of a client do so at a time.  A thousand ledgers that are each written now and then
would otherwise send more numbers than entries; whoever appends again before its turn has
published by that, and drops out.  The next one begins behind all writers with entries to send.

Bookies that refuse the number cost a longer wait before the next attempt.  Whether one that takes
no writes is replaced because of that is the business of ``ensemble``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from quorumbook.client.context import Context
from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.env import logger, patience
from quorumbook.errors import QuorumbookError, WriteFailedError
from quorumbook.ids import BookieId, EntryId, LedgerId
from quorumbook.ledger.machines.append import AppendState
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.protocol.digest import Digester
from quorumbook.protocol.status import Status, error_for
from quorumbook.protocol.v3 import client as v3

_log = logger("client.writer")
_NS = 1_000_000_000
#: A failed attempt is repeated four times as late, but never later than this.
_LONGEST_DELAY_S = 10.0
#: After which time at first, where ``lac_delay_s`` says nothing.
_FIRST_RETRY_S = 0.1
#: Gets the bookies that refused a number, and why.
OnRefused = Callable[[Mapping[BookieId, QuorumbookError]], Awaitable[None]]


class LacPublisher:
    """Watches one writer for being idle."""

    def __init__(
        self,
        context: Context,
        state: AppendState,
        digester: Digester,
        master_key: bytes,
        delay_s: float,
        timeout_s: float,
        on_refused: OnRefused,
    ) -> None:
        self._context = context
        self._state = state
        self._digester = digester
        self._master_key = master_key
        self._delay_s = delay_s
        self._retry_s = delay_s or _FIRST_RETRY_S
        self._timeout_s = timeout_s
        self._on_refused = on_refused
        #: What the bookies said that did not take the number in the last attempt.
        self._refusals: dict[BookieId, QuorumbookError] = {}
        self._published: EntryId = state.last_add_confirmed
        self._last_append_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        #: The number under way.
        self._attempt: _Publication | None = None
        self._is_waiting = False
        self._stopped = asyncio.Event()

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
        is_idle = self._timer is None and self._attempt is None and not self._is_waiting
        if is_idle and self._delay_s and not self._stopped.is_set():
            self._arm(self._delay_s)

    async def publish(self) -> None:
        """Have the bookies know everything that is confirmed now, or the ledger be closed.

        Raises:
            WriteFailedError: too few bookies took it in time; what is confirmed is safe.
            LedgerError: the writer failed meanwhile.
        """
        wanted = self._state.last_add_confirmed
        try:
            async with patience.timeout(self._timeout_s):
                while self._published < wanted and not self._stopped.is_set():
                    await asyncio.wait([(self._attempt or self._begin()).ended])
                    if self._published < wanted and not self._stopped.is_set():
                        await self._on_refused(self._refusals)
                        await self._pause()
        except TimeoutError as error:
            causes = "; ".join(str(refusal) for refusal in self._refusals.values())
            raise WriteFailedError(
                f"entry {wanted} of ledger {self._state.metadata.ledger_id} is safe, but too few "
                f"bookies were told so within {self._timeout_s:g} s for readers to see it "
                f"({causes or 'they do not answer'})",
                ledger_id=self._state.metadata.ledger_id,
            ) from error
        if self._state.error is not None:
            raise copy_error(self._state.error)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._retry_s):
                await self._stopped.wait()

    def stop(self) -> None:
        """Publish nothing any more."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._attempt is not None:
            self._attempt.end()

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
        self._context.lac_limit.enter(self)

    def begin(self) -> bool:
        """Publish now; False if there is nothing to publish, or somebody does so already."""
        self._is_waiting = False
        state = self._state
        if self._stopped.is_set() or state.error is not None or self._attempt is not None:
            return False
        if state.last_add_confirmed <= self._published:
            return False
        turns, leave = self._context.send_turns, self._context.lac_limit.leave
        self._begin().ended.add_done_callback(lambda _: turns.call(leave))
        return True

    def _begin(self) -> _Publication:
        lac = self._state.last_add_confirmed
        attempt = self._attempt = _Publication(lac, self._state.metadata, self._ended)
        attempt.wait_for(self._ask(lac))
        return attempt

    def _ask(self, lac: EntryId) -> dict[asyncio.Future[v3.V3Response], BookieId]:
        """Send to the write set."""
        metadata = self._state.metadata
        packet = self._digester.lac_packet(metadata.ledger_id, lac)

        def encode(txn_id: int) -> bytes:
            return v3.encode_write_lac(txn_id, metadata.ledger_id, lac, self._master_key, packet)

        ensemble, failed = self._state.ensemble, self._state.failed
        return {
            self._context.bookies.control(ensemble[index]).request(
                "an explicit last add confirmed", encode
            ): ensemble[index]
            for index in write_set(lac, metadata.ensemble_size, metadata.write_quorum_size)
            if index not in failed
        }

    def _ended(self, attempt: _Publication) -> None:
        self._attempt = None
        self._refusals = attempt.refusals
        if attempt.has_quorum:
            self._published = max(self._published, attempt.lac)
            self._retry_s = self._delay_s or _FIRST_RETRY_S
        else:
            self._retry_s = min(self._retry_s * 4, _LONGEST_DELAY_S)
        if self._stopped.is_set() or not self._delay_s:
            return
        if self._state.last_add_confirmed > self._published and self._timer is None:
            self._arm(self._retry_s)


class _Publication:
    """One number under way to the write set.

    It is over when an ack quorum has it, as a silent bookie must not hold the next number back, or
    when all have answered.  There may be a thousand a second, so it is no task.
    """

    __slots__ = ("_metadata", "_on_ended", "_waiting", "acks", "ended", "lac", "refusals")

    def __init__(
        self, lac: EntryId, metadata: LedgerMetadata, on_ended: Callable[[_Publication], None]
    ) -> None:
        self.lac = lac
        self._metadata = metadata
        self._on_ended = on_ended
        self._waiting: dict[asyncio.Future[v3.V3Response], BookieId] = {}
        self.acks = 0
        #: What the bookies said that did not take the number.
        self.refusals: dict[BookieId, QuorumbookError] = {}
        #: Done when it is over.
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_quorum(self) -> bool:
        """Tell whether enough bookies have the number."""
        return self.acks >= self._metadata.ack_quorum_size

    def wait_for(self, asked: dict[asyncio.Future[v3.V3Response], BookieId]) -> None:
        """Wait for the answers of those who were sent the number."""
        self._waiting = asked
        for future in asked:
            future.add_done_callback(self._answered)
        if not asked:
            self.end()

    def end(self) -> None:
        """Wait for nothing any more."""
        if self.ended.done():
            return
        self.ended.set_result(None)
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            future.cancel()
        self._on_ended(self)

    def _answered(self, future: asyncio.Future[v3.V3Response]) -> None:
        bookie_id = self._waiting.pop(future, None)
        if bookie_id is None:
            return
        ledger_id = self._metadata.ledger_id
        refusal = _refusal_of(future, ledger_id, bookie_id)
        if refusal is None:
            self.acks += 1
        else:
            _log.debug("ledger %d: %s", ledger_id, refusal)
            self.refusals[bookie_id] = refusal
        if self.has_quorum or not self._waiting:
            self.end()


def _refusal_of(
    answered: asyncio.Future[v3.V3Response], ledger_id: LedgerId, bookie_id: BookieId
) -> QuorumbookError | None:
    problem = answered.exception()
    if problem is None and answered.result().status is not Status.OK:
        problem = error_for(answered.result().status, ledger_id=ledger_id, bookie_id=bookie_id)
    assert problem is None or isinstance(problem, QuorumbookError)
    return problem
