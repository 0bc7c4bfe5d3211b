"""Asks the bookies how busy they are while ledgers are healed, and lends the budget what is idle.

The question is a force: it is answered when everything that the bookie took before is durable,
so it waits for what a writer's add waits for, and it changes nothing.  When it goes faster, and
when not, is decided by ``pace``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from quorumbook.autorecovery.copying.pace import HealingPace
from quorumbook.client.context import Context
from quorumbook.env import patience
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import QuorumbookError
from quorumbook.ids import BookieId, LedgerId
from quorumbook.protocol.v3 import client as v3

_PERIOD_S = 0.5
_QUESTIONS = 12
#: Who has not answered by then counts with this time.
_PATIENCE_S = 2.0
#: Between two ledgers there may be nothing to heal for a moment; what was learnt is kept.
_IDLE_PERIODS = 20


class PaceKeeper:
    """Lends the budget of a process what its bookies can spare, while ledgers are healed.

    Args:
        context: The client's; the budget is that of its process.
        most_bytes: Bytes a second beyond the budget at most; 0: never any.
    """

    def __init__(self, context: Context, most_bytes: int) -> None:
        self._context = context
        self._budget = context.env.background
        self._most_bytes = most_bytes
        self._healing = 0
        self._ledger_id: LedgerId = 0
        self._bell = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._questions: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to watch for ledgers that are healed."""
        if self._most_bytes:
            self._runner = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End, and lend nothing any more."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await cancel_and_wait([runner])

    @contextlib.contextmanager
    def healing(self, ledger_id: LedgerId) -> Iterator[None]:
        """Lend what is idle for the length of a block, in which a ledger is healed."""
        self._ledger_id = ledger_id
        self._healing += 1
        self._bell.set()
        try:
            yield
        finally:
            self._healing -= 1

    async def _run(self) -> None:
        while True:
            # Without a limit there is nothing to lend.
            while not (self._healing and self._budget.rate_bytes):
                self._bell.clear()
                await self._bell.wait()
            pace, idle_periods = HealingPace(self._most_bytes), 0
            try:
                while idle_periods < _IDLE_PERIODS:
                    await self._period(pace)
                    idle_periods = 0 if self._healing else idle_periods + 1
            finally:
                self._budget.spare_bytes = 0
                await cancel_and_wait(list(self._questions))

    async def _period(self, pace: HealingPace) -> None:
        bookies = self._context.bookies
        there = sorted(await bookies.writable() - bookies.quarantined)
        is_wanted = False
        for _ in range(_QUESTIONS):
            if there:
                self._ask(pace, self._context.env.random.choice(there))
            await asyncio.sleep(_PERIOD_S / _QUESTIONS)
            is_wanted |= self._budget.waiting_bytes > 0
        pace.end_period(is_wanted=is_wanted)
        self._budget.spare_bytes = pace.spare_bytes

    def _ask(self, pace: HealingPace, bookie_id: BookieId) -> None:
        task = asyncio.get_running_loop().create_task(self._question(pace, bookie_id))
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _question(self, pace: HealingPace, bookie_id: BookieId) -> None:
        clock, ledger_id = self._context.env.clock, self._ledger_id
        began_ns = clock.now_ns()
        try:
            async with patience.timeout(_PATIENCE_S):
                await self._context.bookies.control(bookie_id).request(
                    "a force", lambda txn_id: v3.encode_force(txn_id, ledger_id)
                )
        except QuorumbookError:
            return  # one that is away is the auditor's business
        except TimeoutError:
            pass
        pace.observe((clock.now_ns() - began_ns) / 1e9)
