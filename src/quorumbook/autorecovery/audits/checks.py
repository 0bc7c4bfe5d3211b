"""The checks that an auditor runs from time to time, over all ledgers.

When a check ended last stands in the metadata, in the peer's nodes, so that it outlives auditors;
setting that to 0 has it run now, whatever its interval is, and once more if it is running.  One
check runs at a time, and audits for lost bookies don't wait for it.  What a check looks at is
``ledger_checks``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quorumbook.autorecovery.audits.cluster_view import ClusterView
from quorumbook.autorecovery.audits.ledger_checks import LedgerCheck
from quorumbook.autorecovery.ledger_walk import LedgerWalk, SwitchedOffError
from quorumbook.autorecovery.metrics import Numbers
from quorumbook.env import logger
from quorumbook.errors import LocalProtocolError, NoSuchLedgerInMetadataError, QuorumbookError
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.recovery.switches import LastCheck, PeriodicCheck
from quorumbook.metadata.store import MetadataStore

_log = logger("autorecovery.auditor")
_SECOND = 1_000_000_000
#: Ledgers that are looked at together; what they read shares the background budget.
_AT_ONCE = 8
#: So often is a ledger looked at again because its ensembles changed meanwhile.
_LOOKS = 3
_RETRY_FIRST_S = 1.0
_RETRY_LAST_S = 300.0


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """One check, and how often it runs."""

    check: PeriodicCheck
    #: In a log's words.
    title: str
    #: Among the auditor's times.
    time_name: str
    #: 0: only when it is asked for.
    interval_s: float
    #: Begins a run.
    begin: Callable[[], LedgerCheck]


class _Due(NamedTuple):
    """The check that comes first."""

    wait_s: float
    plan: CheckPlan
    before: LastCheck


def due_in_s(checked_at_ms: int | None, interval_s: float, wall_ms: int) -> float | None:
    """Return how long a check has to wait yet; None if nobody wants it.

    Wall clocks are set back and forth: a check never waits for longer than its interval.
    """
    if checked_at_ms == 0:
        return 0.0
    if not interval_s:
        return None
    if checked_at_ms is None:
        return 0.0
    left_s = interval_s - (wall_ms - checked_at_ms) / 1000
    return min(max(left_s, 0.0), interval_s)


class PeriodicChecks:
    """The checks of one term.

    Args:
        store: The metadata.
        queue: Where ledgers are marked.
        view: Followed by somebody else; ``on_view`` is called when it changes.
        numbers: The auditor's.
        plans: The checks.
    """

    def __init__(
        self,
        store: MetadataStore,
        queue: UnderreplicationQueue,
        view: ClusterView,
        numbers: Numbers,
        plans: Sequence[CheckPlan],
    ) -> None:
        self._store = store
        self._clock = store.env.clock
        self._ledgers = LedgerManager(store)
        self._queue = queue
        self._view = view
        self._numbers = numbers
        self._plans = plans
        self._news = asyncio.Event()
        self._watch = self._news.set

    def on_view(self) -> None:
        """The view was read anew."""
        self._news.set()

    async def run(self) -> None:
        """Check whatever is due, until this is cancelled."""
        pause_s = _RETRY_FIRST_S
        try:
            while True:
                try:
                    await self._run_next()
                    pause_s = _RETRY_FIRST_S
                except SwitchedOffError:
                    self._numbers.add("NUM_SKIPPING_CHECK_TASK_TIMES")
                except LocalProtocolError:
                    raise  # the store was closed
                except QuorumbookError as error:
                    _log.warning("a check ended early, it starts again in %g s: %s", pause_s, error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _RETRY_LAST_S)
        finally:
            self._store.unwatch(self._watch)

    async def _run_next(self) -> None:
        """Run the check that is due first, or wait until something changes."""
        self._news.clear()
        await self._view.fresh()
        first = await self._first() if self._view.is_enabled else None
        wait_s = None if first is None else first.wait_s
        if first is not None and wait_s == 0:
            await self._check(first.plan, first.before)
            return
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _first(self) -> _Due | None:
        self._store.unwatch(self._watch)
        first: _Due | None = None
        for plan in self._plans:
            before = await self._queue.last_check(plan.check, self._watch)
            wait_s = due_in_s(before.ended_at_ms, plan.interval_s, self._clock.wall_ms())
            if wait_s is not None and (first is None or wait_s < first.wait_s):
                first = _Due(wait_s, plan, before)
        return first

    async def _check(self, plan: CheckPlan, before: LastCheck) -> None:
        check, began_ns = plan.begin(), self._clock.now_ns()
        marked = 0

        async def look(metadata: LedgerMetadata, version: int) -> None:
            nonlocal marked
            marked += await self._look(check, metadata, version)
            self._numbers.add("NUM_LEDGERS_CHECKED")

        walk = LedgerWalk(self._ledgers, look)
        _log.info("%s begins", plan.title)
        is_good = False
        try:
            await walk.run(at_once=_AT_ONCE)
            # Who asked meanwhile wants all ledgers looked at as they are by now.
            await self._queue.end_check(plan.check, self._clock.wall_ms(), before)
            is_good = True
        finally:
            seconds = (self._clock.now_ns() - began_ns) / _SECOND
            self._numbers.took(plan.time_name, seconds, is_good=is_good)
            self._numbers.add("NUM_LEDGERS_UNREADABLE", walk.unreadable)
        for name, value in check.gauges().items():
            self._numbers.set(name, value)
        silent = f", {check.silent} questions without an answer" if check.silent else ""
        _log.log(
            30 if marked else 20, "%s: %d of %d ledgers are marked to be repaired%s (%.1f s)",
            plan.title, marked, walk.seen, silent, seconds,
        )  # fmt: skip

    async def _look(self, check: LedgerCheck, metadata: LedgerMetadata, version: int) -> bool:
        """Look at a ledger, and mark it if copies are missing; tell whether it was."""
        ledger_id = metadata.ledger_id
        for _ in range(_LOOKS):
            await self._view.fresh()
            if not self._view.is_enabled:
                raise SwitchedOffError
            lacking = await check.look(metadata)
            if lacking is None:
                return False
            # While bookies were asked the ledger may have moved to others, or been deleted.
            try:
                metadata, now = await self._ledgers.read(ledger_id)
            except NoSuchLedgerInMetadataError:
                return False
            if now == version:
                await self._queue.mark(ledger_id, sorted(lacking), self._clock.wall_ms())
                self._numbers.add("NUM_LEDGERS_MARKED")
                return True
            version = now
        return False
