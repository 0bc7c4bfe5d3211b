"""The project's own ZooKeeper driver on a simulated ZooKeeper, and a judge of what it tells.

Whoever is told that a write of theirs happened did it, and not a rival who wrote the same bytes;
whoever is told that it did not, did not do it.  The leader's log knows better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TypeVar

from quorumbook.errors import (
    LocalProtocolError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
)
from quorumbook.metadata.store import (
    ANY_VERSION,
    Create,
    Delete,
    MetadataStore,
    Node,
    Operation,
    Set,
)
from quorumbook.metadata.zookeeper.joined_writes import JoinedWrite
from quorumbook.metadata.zookeeper.store import ZooKeeperOptions, ZooKeeperStore
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import History
from quorumbook.sim.metadata.zookeeper import PORT, ZooKeeper
from quorumbook.sim.metadata.zookeeper_state import Ensemble
from quorumbook.sim.process import Process

T = TypeVar("T")
_Step = tuple[int, tuple[Operation, ...]]
#: What says for sure that nothing was carried out.
_REFUSALS = (
    LocalProtocolError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
)


async def open_store(
    zookeeper: ZooKeeper, history: History, process: Process, session_timeout_s: float
) -> MetadataStore:
    """Connect to the servers and begin a session; raises as the driver does."""
    options = ZooKeeperOptions([(each.name, PORT) for each in zookeeper.servers])
    store = await JudgedStore.open(
        options, process.env, uri="zk://simulated/ledgers", session_timeout_s=session_timeout_s
    )
    assert isinstance(store, JudgedStore)
    store.judge(zookeeper.ensemble, history, process.name)
    return store


class JudgedStore(ZooKeeperStore):
    """The driver, whose answers are compared with the log."""

    def judge(self, ensemble: Ensemble, history: History, who: str) -> None:
        """Begin to judge."""
        self._ensemble = ensemble
        self._history = history
        self._who = who
        #: How often a step was asked for, without being told that it was not carried out.
        self._maybe: Counter[_Step] = Counter()
        self._told: Counter[_Step] = Counter()
        #: In which steps of several each operation went that was asked for alone.
        self._joint: dict[_Step, set[_Step]] = {}

    async def create_node(self, path: str, data: bytes) -> Node | None:
        """Create a persistent node and return it."""
        step = self._step([Create(path, data)])
        return await self._judged(step, super().create_node(path, data))

    async def _write_one(self, operation: Operation) -> str | int | None:
        return await self._judged(self._step([operation]), super()._write_one(operation))

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """Carry out all operations or none."""
        return await self._judged(self._step(operations), super().multi(operations))

    async def _write_step(self, writes: Sequence[JoinedWrite]) -> None:
        step = self._step([each.operation for each in writes])
        for each in writes:
            self._joint.setdefault(self._step([each.operation]), set()).add(step)
        await super()._write_step(writes)

    def _carried_out(self, step: _Step) -> int:
        log = self._ensemble.carried_out
        return log[step] + sum(log[each] for each in self._joint.get(step, ()))

    def _step(self, operations: Sequence[Operation]) -> _Step:
        """Return a step as it looks on the wire."""
        return self.session_id, tuple(map(_on_wire, operations))

    async def _judged(self, step: _Step, done: Awaitable[T]) -> T:
        self._maybe[step] += 1
        try:
            result = await done
        except _REFUSALS as error:
            self._maybe[step] -= 1
            if self._carried_out(step) > self._maybe[step]:
                text = f"{self._who} was told that {step[1]} failed ({error}), and it did not"
                self._history.violation(Invariant.DRIVERS_TELL_WHAT_HAPPENED, text)
            raise
        self._told[step] += 1
        # A deletion that returns says that the node is gone; and where nothing was compared,
        # that what was to be there is there.
        is_own = not any(
            isinstance(each, Delete) or (isinstance(each, Set) and each.version == ANY_VERSION)
            for each in step[1]
        )
        if is_own and self._carried_out(step) < self._told[step]:
            text = f"{self._who} was told that {step[1]} was carried out, and it was not"
            self._history.violation(Invariant.DRIVERS_TELL_WHAT_HAPPENED, text)
        return result


def _on_wire(operation: Operation) -> Operation:
    """Return an operation as a server sees it: no creation is named, and bytes are bytes."""
    if isinstance(operation, Create):
        return replace(operation, data=bytes(operation.data))
    if isinstance(operation, Set):
        return replace(operation, data=bytes(operation.data), creation_id=None)
    return replace(operation, creation_id=None)
