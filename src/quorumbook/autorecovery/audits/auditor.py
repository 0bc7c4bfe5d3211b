"""The auditor of a cluster: stands for election, and audits while it leads.

What it does in its terms is in ``bookie_audits`` and ``checks``.  A term ends with its session, at
once: what was under way is given up in the step in which the end of the session becomes known,
before anything else is written (S77).  The candidate stands again; the process goes on.  While the
store merely does not answer, the term goes on without a decision (R31).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from quorumbook.autorecovery.audits.bookie_audits import BookieAudits
from quorumbook.autorecovery.audits.checks import CheckPlan, PeriodicChecks
from quorumbook.autorecovery.audits.cluster_view import ClusterView
from quorumbook.autorecovery.ledger_walk import run_together
from quorumbook.autorecovery.metrics import auditor_numbers
from quorumbook.autorecovery.options import AuditorOptions
from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import LocalProtocolError, MetadataError
from quorumbook.ids import BookieId
from quorumbook.metadata.election import Election
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.store import MetadataStore

_log = logger("autorecovery.auditor")
#: A term that an unexpected error ended goes on after this.
_PAUSE_S = 10.0

#: Makes checks that can tell who is registered.
Plans = Callable[[Callable[[], Collection[BookieId]]], Sequence[CheckPlan]]
#: Makes what runs beside the checks.
Chores = Callable[[], Iterable[Coroutine[Any, Any, None]]]


class Auditor:
    """A candidate for auditor.

    Args:
        store: The metadata; stays the caller's to close.
        name: By which it stands.
        options: What it was told.
        plans: Makes the periodic checks of a term; they get to know who is registered.
        chores: What else runs for the length of a term.
        settle_s: For so long after its election no bookie is lost; a session's timeout if not
            given, since bookies whose sessions ended with its predecessor's need that to be back.
    """

    def __init__(
        self,
        store: MetadataStore,
        name: str,
        options: AuditorOptions,
        *,
        plans: Plans = lambda _: (),
        chores: Chores = lambda: (),
        settle_s: float | None = None,
    ) -> None:
        self._store = store
        self._settle_s = store.session_timeout_s if settle_s is None else settle_s
        self._options = options
        self._plans = plans
        self._chores = chores
        self._queue = UnderreplicationQueue(store, name)
        self._election = Election(store, TreePaths(store.ledgers_root).auditor_election, name)
        self._election.on_changed = self._on_changed
        self._name = name
        self._term: asyncio.Task[None] | None = None
        self.numbers = auditor_numbers()

    @property
    def is_leading(self) -> bool:
        """Tell whether this is the auditor, as far as this process knows."""
        return self._election.is_leader

    @property
    def is_standing(self) -> bool:
        """Tell whether its vote is cast, so that it leads or will be asked to."""
        return self._election.has_vote

    def start(self) -> None:
        """Stand for auditor."""
        self.numbers.add("ELECTION_ATTEMPTS")
        self._election.stand()

    async def stop(self) -> None:
        """Give up what is under way, and resign."""
        await self._end_term()
        await self._election.resign()
        await self._end_term()
        self._queue.close()

    def _on_changed(self, is_leader: bool) -> None:
        self.numbers.set("IS_AUDITOR", float(is_leader))
        if is_leader:
            _log.info("%s is auditor now", self._name)
            self._term = asyncio.get_running_loop().create_task(self._lead(self._term))
            return
        _log.warning("%s is not auditor any more", self._name)
        self.numbers.add("ELECTION_ATTEMPTS")
        if self._term is not None:
            self._term.cancel()

    async def _end_term(self) -> None:
        task, self._term = self._term, None
        if task is not None:
            await cancel_and_wait([task])

    async def _lead(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        while True:
            try:
                await self._serve_term()
            except LocalProtocolError:
                return  # the store was closed
            except MetadataError as error:
                _log.warning("auditing goes on in %g s: %s", _PAUSE_S, error)
            except Exception:
                _log.exception("auditing failed and starts again in %g s", _PAUSE_S)
            await asyncio.sleep(_PAUSE_S)

    async def _serve_term(self) -> None:
        options = self._options
        await self._queue.propose_lost_bookie_delay_s(int(options.lost_bookie_delay_s))
        view = ClusterView(self._store, self._queue)
        audits = BookieAudits(
            self._store,
            self._queue,
            view,
            self.numbers,
            delay_s=options.lost_bookie_delay_s,
            interval_s=options.bookie_check_interval_s,
            settle_s=self._settle_s,
        )
        checks = PeriodicChecks(
            self._store, self._queue, view, self.numbers, self._plans(lambda: view.registered)
        )
        view.listeners += [audits.on_view, checks.on_view]
        await run_together(view.follow(), audits.run(), checks.run(), *self._chores())
