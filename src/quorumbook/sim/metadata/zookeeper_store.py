"""The project's own ZooKeeper driver on a simulated ZooKeeper, and a judge of what it tells.

Whoever is told that a write of theirs happened did it, and not a rival who wrote the same bytes;
whoever is told that it did not, did not do it.  The leader's log knows better.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
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
_Operations = tuple[Operation, ...]
#: What says for sure that nothing was carried out.
_REFUSALS = (
    LocalProtocolError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
)


@dataclass(slots=True)
class _Call:
    """Operations that were asked for, and in which of the store's sessions that began and ended.

    Where a session ends meanwhile the next one carries them out, as nothing says otherwise.
    """

    first: int
    last: int | None = None
    was_told: bool | None = None
    "True: they were carried out; False: they were not; None: nobody knows."

    def may_be_of(self, session: int) -> bool:
        """Tell whether it may have been carried out in a session, as far as it was told."""
        is_then = self.first <= session and (self.last is None or session <= self.last)
        return is_then and self.was_told is not False

    def is_of(self, session: int) -> bool:
        """Tell whether it was told as carried out in no other session than one."""
        return self.was_told is True and self.first == self.last == session


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
        self._sessions: list[int] = []
        self._calls: dict[_Operations, list[_Call]] = {}
        #: In which steps of several each operation went that was asked for alone.
        self._joint: dict[_Operations, set[_Operations]] = {}

    async def create_node(self, path: str, data: bytes) -> Node | None:
        """Create a persistent node and return it."""
        return await self._judged([Create(path, data)], super().create_node(path, data))

    async def _write_one(self, operation: Operation) -> str | int | None:
        return await self._judged([operation], super()._write_one(operation))

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """Carry out all operations or none."""
        return await self._judged(operations, super().multi(operations))

    async def _write_step(self, writes: Sequence[JoinedWrite]) -> None:
        step = _on_wire([each.operation for each in writes])
        for each in writes:
            self._joint.setdefault(_on_wire([each.operation]), set()).add(step)
        await super()._write_step(writes)

    def _session_place(self) -> int:
        """Return the place of the session in the order of the store's sessions."""
        if self.session_id not in self._sessions[-1:]:
            self._sessions.append(self.session_id)
        return len(self._sessions) - 1

    def _carried_out(self, operations: _Operations, session: int) -> int:
        log, session_id = self._ensemble.carried_out, self._sessions[session]
        steps = [operations, *self._joint.get(operations, ())]
        return sum(log[session_id, step] for step in steps)

    async def _judged(self, asked: Sequence[Operation], done: Awaitable[T]) -> T:
        operations = _on_wire(asked)
        calls = self._calls.setdefault(operations, [])
        call = _Call(self._session_place())
        calls.append(call)
        try:
            result = await done
            call.was_told = True
        except _REFUSALS as error:
            call.was_told = False
            for session in range(call.first, self._session_place() + 1):
                most = sum(each.may_be_of(session) for each in calls)
                if self._carried_out(operations, session) > most:
                    text = (
                        f"{self._who} was told that {operations} failed ({error}), and it did not"
                    )
                    self._history.violation(Invariant.DRIVERS_TELL_WHAT_HAPPENED, text)
            raise
        finally:
            call.last = self._session_place()
        # A deletion that returns says that the node is gone; and where nothing was compared,
        # that what was to be there is there.
        is_own = not any(
            isinstance(each, Delete) or (isinstance(each, Set) and each.version == ANY_VERSION)
            for each in operations
        )
        least = sum(each.is_of(call.last) for each in calls)
        if is_own and self._carried_out(operations, call.last) < least:
            text = f"{self._who} was told that {operations} was carried out, and it was not"
            self._history.violation(Invariant.DRIVERS_TELL_WHAT_HAPPENED, text)
        return result


def _on_wire(operations: Sequence[Operation]) -> _Operations:
    """Return operations as a server sees them: no creation is named, and bytes are bytes."""
    return tuple(map(_each_on_wire, operations))


def _each_on_wire(operation: Operation) -> Operation:
    if isinstance(operation, Create):
        return replace(operation, data=bytes(operation.data))
    if isinstance(operation, Set):
        return replace(operation, data=bytes(operation.data), creation_id=None)
    return replace(operation, creation_id=None)
