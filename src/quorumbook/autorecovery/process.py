"""Auditor and worker of one process, and what they share: a client, a budget, a name.

It lives in a process of its own or beside a bookie.  What an auditor does and what a worker does
is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Protocol

from prometheus_client.core import Metric

from quorumbook.autorecovery.audits.auditor import Auditor
from quorumbook.autorecovery.audits.checks import CheckPlan
from quorumbook.autorecovery.audits.ledger_checks import (
    LedgerVerification,
    PlacementCheck,
    ReplicaCount,
)
from quorumbook.autorecovery.audits.stream_retention import StreamRetention
from quorumbook.autorecovery.copying.worker import ReplicationWorker
from quorumbook.autorecovery.metrics import worker_families
from quorumbook.autorecovery.options import RecoveryOptions
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context, client_store
from quorumbook.ids import BookieId
from quorumbook.metadata.recovery.switches import PeriodicCheck


class RecoveryPart(Protocol):
    """What runs until it is stopped, whatever the metadata store does meanwhile."""

    def start(self) -> None:
        """Begin."""
        ...

    async def stop(self) -> None:
        """End, and leave nothing behind."""
        ...


class AutoRecovery:
    """The auto-recovery of one process; the client is started and closed by the caller."""

    def __init__(self, client: BookKeeper, options: RecoveryOptions) -> None:
        self.name = options.name
        self._context = client_context(client)
        self._options = options
        self.auditor = Auditor(
            client_store(client),
            options.name,
            options.auditor,
            plans=self._plans,
            chores=lambda: [self._streams.run()],
        )
        self._streams = StreamRetention(
            client,
            options.auditor.stream_namespaces,
            options.auditor.stream_retention_interval_s,
        )
        self.worker = ReplicationWorker(client, options.name, options.worker)
        self._parts: list[RecoveryPart] = [self.auditor, self.worker]

    def start(self) -> None:
        """Stand for auditor, and take work."""
        for part in self._parts:
            part.start()

    async def stop(self) -> None:
        """Give work back, resign, and end."""
        for part in reversed(self._parts):
            await part.stop()

    @property
    def is_ready(self) -> bool:
        """Tell whether this process can be elected: the metadata store has its vote."""
        return self.auditor.is_standing

    def families(self) -> Iterable[Metric]:
        """Yield all numbers, under the peer's names where it has them."""
        yield from self.auditor.numbers.families()
        yield from self._streams.found.families()
        yield from worker_families(asdict(self.worker.statistics))

    def _plans(self, registered: Callable[[], Collection[BookieId]]) -> Sequence[CheckPlan]:
        context, auditor = self._context, self._options.auditor
        return (
            CheckPlan(
                PeriodicCheck.REPLICAS,
                "counting copies",
                "REPLICAS_CHECK_TIME",
                auditor.replica_check_interval_s,
                lambda: ReplicaCount(context, registered),
            ),
            CheckPlan(
                PeriodicCheck.ALL_LEDGERS,
                "reading all copies",
                "CHECK_ALL_LEDGERS_TIME",
                auditor.ledger_check_interval_s,
                lambda: LedgerVerification(context, registered),
            ),
            CheckPlan(
                PeriodicCheck.PLACEMENT,
                "judging ensembles",
                "PLACEMENT_POLICY_CHECK_TIME",
                auditor.placement_check_interval_s,
                lambda: PlacementCheck(context, registered, repairs=auditor.repair_placement),
            ),
        )
