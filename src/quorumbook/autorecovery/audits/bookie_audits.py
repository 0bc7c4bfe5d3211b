"""Looks through the ledgers for lost bookies, and puts what they held into the queue.

When and for whom is decided by ``lost_bookies``; here is what it takes: the ledgers' metadata,
one after the other, and a mark for each that names a lost bookie.  Before every decision the view
of the cluster is fresh, so a bookie that has come back costs no mark (S67), and a store that does
not answer stops everything (R31).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from quorumbook.autorecovery.audits.cluster_view import ClusterView
from quorumbook.autorecovery.audits.lost_bookies import LostBookies
from quorumbook.autorecovery.ledger_walk import LedgerWalk, SwitchedOffError
from quorumbook.autorecovery.metrics import Numbers
from quorumbook.env import logger
from quorumbook.errors import LocalProtocolError, QuorumbookError
from quorumbook.ids import BookieId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.recovery.switches import LostBookieDelay
from quorumbook.metadata.store import MetadataStore

_log = logger("autorecovery.auditor")
_SECOND = 1_000_000_000
_AT_ONCE = 32
_RETRY_FIRST_S = 1.0
_RETRY_LAST_S = 60.0
_NAMED_IN_LOG = 5


class BookieAudits:
    """The audits of one term.

    Args:
        store: The metadata.
        queue: Where ledgers are marked.
        view: Followed by somebody else; ``on_view`` is called when it changes.
        numbers: The auditor's.
        delay_s: How long a bookie may be away where the metadata does not say it.
        interval_s: Longest time between two audits; 0: only when there is reason for one.
        settle_s: For so long after the term's beginning no bookie is lost.
    """

    def __init__(
        self,
        store: MetadataStore,
        queue: UnderreplicationQueue,
        view: ClusterView,
        numbers: Numbers,
        *,
        delay_s: float,
        interval_s: float,
        settle_s: float,
    ) -> None:
        self._clock = store.env.clock
        self._ledgers = LedgerManager(store)
        self._queue = queue
        self._view = view
        self._numbers = numbers
        self._delay_s = delay_s
        self._interval_s = interval_s
        self._settle_s = settle_s
        self._delay: LostBookieDelay | None = None
        self._is_enabled = True
        self._machine: LostBookies | None = None
        self._news = asyncio.Event()
        self._marked = 0
        self._marked_bytes = 0

    def on_view(self) -> None:
        """The view was read anew."""
        machine, view, now_ns = self._machine, self._view, self._clock.now_ns()
        if machine is None:
            return
        before = machine.waiting
        machine.on_registered(view.registered, now_ns)
        self._on_delay(machine, view.delay, now_ns)
        if view.is_enabled is not self._is_enabled:
            _log.info("auditing is switched %s", "on" if view.is_enabled else "off")
        self._is_enabled = view.is_enabled
        gone, back = machine.waiting - before, before - machine.waiting
        if gone:
            self._numbers.add("NUM_BOOKIE_AUDITS_DELAYED", len(gone))
            _log.warning(
                "%s away; counting as lost in %g s", _named(gone, "is", "are"), machine.delay_s
            )
        if back:
            self._numbers.add("NUM_DELAYED_BOOKIE_AUDITS_DELAYES_CANCELLED", len(back))
            _log.info("%s back in time", _named(back, "is", "are"))
        self._numbers.set("NUM_AWAY_BOOKIES", len(machine.waiting))
        self._news.set()

    def _on_delay(self, machine: LostBookies, delay: LostBookieDelay | None, now_ns: int) -> None:
        before, self._delay = self._delay, delay
        machine.delay_s = self._delay_s if delay is None else delay.seconds
        if before is None or delay is None or before.revision == delay.revision:
            return
        if before.seconds == delay.seconds:
            _log.info("an operator wants an audit now")
            machine.want_audit(now_ns, ignore_delay=True)
        else:
            _log.info("bookies count as lost after %d s, not %d", delay.seconds, before.seconds)

    async def run(self) -> None:
        """Audit whenever there is reason to, until this is cancelled."""
        await self._view.fresh()
        view, pause_s = self._view, _RETRY_FIRST_S
        self._delay, self._is_enabled = view.delay, view.is_enabled
        self._machine = LostBookies(
            view.registered,
            self._clock.now_ns(),
            delay_s=self._delay_s if view.delay is None else view.delay.seconds,
            settle_s=self._settle_s,
            interval_s=self._interval_s,
        )
        while True:
            await self._due(self._machine)
            try:
                await self._audit(self._machine)
                pause_s = _RETRY_FIRST_S
            except SwitchedOffError:
                continue
            except LocalProtocolError:
                raise  # the store was closed
            except QuorumbookError as error:
                _log.warning("the audit ended early, it starts again in %g s: %s", pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _RETRY_LAST_S)

    async def _due(self, machine: LostBookies) -> None:
        """Return when an audit is due, allowed, and based on a fresh view."""
        while True:
            self._news.clear()
            await self._view.fresh()
            due_ns = machine.next_audit_ns() if self._view.is_enabled else None
            wait_s = None if due_ns is None else (due_ns - self._clock.now_ns()) / _SECOND
            if wait_s is not None and wait_s <= 0:
                return
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _audit(self, machine: LostBookies) -> None:
        began_ns = self._clock.now_ns()
        self._marked = self._marked_bytes = 0
        lost: set[BookieId] = set()

        async def look(metadata: LedgerMetadata, _version: int) -> None:
            await self._look(machine, metadata, lost)

        walk = LedgerWalk(self._ledgers, look)
        machine.begin_audit(began_ns)
        is_good = False
        try:
            await walk.run(at_once=_AT_ONCE)
            await self._view.fresh()
            is_good = True
        finally:
            if not is_good:
                machine.abort_audit()
            seconds = (self._clock.now_ns() - began_ns) / _SECOND
            self._numbers.took("AUDIT_BOOKIES_TIME", seconds, is_good=is_good)
            self._numbers.add("NUM_LEDGERS_UNREADABLE", walk.unreadable)
        machine.end_audit(self._clock.now_ns())
        self._numbers.set("NUM_LOST_BOOKIES", len(lost))
        self._numbers.set("NUM_AWAY_BOOKIES", len(machine.waiting))
        self._numbers.set("NUM_UNDER_REPLICATED_LEDGERS", self._marked)
        self._numbers.set("UNDER_REPLICATED_LEDGERS_TOTAL_SIZE", self._marked_bytes)
        if lost:
            _log.warning(
                "%s lost: %d of %d ledgers are marked to be copied (%.1f s)",
                _named(lost, "is", "are"), self._marked, walk.seen, seconds,
            )  # fmt: skip
        else:
            _log.info("no bookie is lost that %d ledgers name (%.1f s)", walk.seen, seconds)
        if away := machine.waiting:
            _log.info("%s away, and may come back", _named(away, "is", "are"))

    async def _look(
        self, machine: LostBookies, metadata: LedgerMetadata, all_lost: set[BookieId]
    ) -> None:
        await self._view.fresh()
        if not self._view.is_enabled:
            raise SwitchedOffError
        named = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        lost = machine.look(named, self._clock.now_ns())
        if not lost:
            return
        await self._queue.mark(metadata.ledger_id, sorted(lost), self._clock.wall_ms())
        all_lost |= lost
        self._marked += 1
        self._marked_bytes += metadata.length
        self._numbers.add("NUM_LEDGERS_MARKED")


def _named(bookie_ids: Iterable[BookieId], one: str, many: str) -> str:
    """Say who, with the verb that goes with it."""
    names = sorted(bookie_ids)
    shown = ", ".join(names[:_NAMED_IN_LOG])
    if len(names) > _NAMED_IN_LOG:
        shown += f" and {len(names) - _NAMED_IN_LOG} more"
    return f"bookie {shown} {one}" if len(names) == 1 else f"bookies {shown} {many}"
