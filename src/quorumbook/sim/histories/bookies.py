"""What bookies answered and hold, and whether it can all be right.

    I8   a bookie that has answered a fence takes no add of a writer that arrives behind it, be it
         in another life
    I9   a bookie that the metadata names for an entry, and that has acknowledged it, never says
         that it has none; one whose disk was lost or damaged may
    I10  a bookie collects a ledger only when its metadata are gone; one that it has deleted is not
         there again unless somebody adds to it
    I12  when nobody asks for anything any more, a bookie holds nothing for anybody: no request is
         under way, no budget is in use, no file is open more often
         than by four; and its tasks and connections are few

It listens where adds and fences come in and are answered, and where the storage is told what to
forget: what is below that may be wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.bookie.requests.operations import Operations
from quorumbook.bookie.server import Bookie
from quorumbook.errors import StorageError
from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.protocol.requests import AddRun, BatchRead, Read
from quorumbook.protocol.status import Status
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import History, holders
from quorumbook.storage.store import LedgerStorage

#: A bookie that nobody asks has five or six tasks, and now and then one for a moment.
_TASKS_MAX = 16
#: A client has one for each of the two protocols, and the next one before that is gone.
_CONNECTIONS_EACH_MAX = 4
#: Who writes it, reads for clients, copies and looks for damage has a handle of his own.
_HANDLES_MAX = 4
_NEGATIVE = (Status.NO_ENTRY, Status.NO_LEDGER)


@dataclass(frozen=True)
class Around:
    """What is there of a bookie's process, beside the bookie."""

    tasks: int
    connections: int
    #: Of the file that is open most often, how often it is.
    handles: int
    #: How many there are of files that are gone.
    handles_of_nothing: int


class BookieHistory:
    """All bookies of a run.

    Args:
        history: Gets what is wrong.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        #: Who has answered a fence of which ledger.
        self._fenced: set[tuple[str, LedgerId]] = set()
        #: When a bookie acknowledged which entries of which ledger, be it only the last time.
        self._taken: dict[tuple[str, LedgerId], dict[EntryId, int]] = {}
        #: Tells which bookie may have lost what was durable.
        self.victim: Callable[[], str | None] = lambda: None

    def begins_anew(self, name: str) -> None:
        """A bookie lost its disk for good, and its fences with it."""
        self._fenced = {each for each in self._fenced if each[0] != name}
        self._taken = {at: taken for at, taken in self._taken.items() if at[0] != name}

    def fenced(self, name: str, ledger_id: LedgerId) -> None:
        """A bookie is about to answer a fence."""
        self._fenced.add((name, ledger_id))

    def watch(self, name: str, operations: Operations) -> None:
        """Listen to one life of a bookie, which serves nobody yet."""
        # Their methods are exchanged, which no type allows.
        adds: Any = operations.adds
        reads: Any = operations.reads
        begin, answer, tell = adds.run, adds._finish_chunk, reads._on_fenced  # noqa: SLF001
        count = reads._count  # noqa: SLF001
        #: By identity: what came behind a fence, until it is answered.
        late: dict[int, AddRun] = {}
        deleted = self._watch_deletions(name, adds._storage)  # noqa: SLF001

        def run(connection: BookieConnection, group: Sequence[AddRun], now_ns: int) -> None:
            for add in group:
                deleted.discard(add.run.ledger_id)
                if not add.is_recovery and (name, add.run.ledger_id) in self._fenced:
                    late[id(add)] = add
            begin(connection, group, now_ns)

        def finish(
            connection: BookieConnection,
            group: Sequence[AddRun],
            status: Status,
            arrived_ns: int,
            now_ns: int,
        ) -> None:
            for add in group:
                if late.pop(id(add), None) is not None and status is Status.OK:
                    self._took_late(name, add)
                if status is Status.OK and not add.is_deferred_sync:
                    self._took(name, add, now_ns)
            answer(connection, group, status, arrived_ns, now_ns)

        def on_fenced(ledger_id: LedgerId) -> None:
            self.fenced(name, ledger_id)
            tell(ledger_id)

        def counted(
            request: Read | BatchRead, woken: bool | None, status: Status, arrived_ns: int
        ) -> None:
            # A long poll is about news, and what is denied there is denied to a read as well.
            if status in _NEGATIVE and woken is None:
                self._denied(name, request, arrived_ns)
            count(request, woken, status, arrived_ns)

        adds.run, adds._finish_chunk = run, finish  # noqa: SLF001
        reads._on_fenced, reads._count = on_fenced, counted  # noqa: SLF001

    def watch_garbage(self, name: str, storage: LedgerStorage) -> None:
        """Listen to what one life of a bookie collects."""
        gc: Any = storage.gc
        forget = gc._forget  # noqa: SLF001

        def forgets(ledger_ids: Iterable[LedgerId]) -> None:
            forgotten = list(ledger_ids)
            for ledger_id in forgotten:
                self._forgets(name, ledger_id)
            forget(forgotten)

        gc._forget = forgets  # noqa: SLF001

    def _forgets(self, name: str, ledger_id: LedgerId) -> None:
        ledger = self._history.ledgers.get(ledger_id)
        if ledger is not None and ledger.metadata is not None:
            text = f"{name} collects a ledger that nobody deleted"
            self._history.violation(Invariant.NO_LIVE_LEDGER_IS_DELETED, text, ledger_id)

    def _watch_deletions(self, name: str, storage: Any) -> set[LedgerId]:
        """Return the ledgers that a storage has deleted, for those to be left out that come back.

        They are looked at behind each flush.
        """
        deleted: set[LedgerId] = set()
        forget, flush = storage.gc.forget_ledgers, storage.flush

        def forgotten(ledger_ids: Sequence[LedgerId], checkpoints: int) -> list[LedgerId]:
            gone: list[LedgerId] = forget(ledger_ids, checkpoints)
            deleted.update(gone)
            return gone

        async def flushed() -> None:
            due = set(deleted)
            await flush()
            for ledger_id in sorted(due & deleted):
                with contextlib.suppress(StorageError):
                    if storage.last_entry_id(ledger_id) >= 0:
                        text = f"{name} has ledger {ledger_id} again, which it has deleted"
                        self._history.violation(Invariant.WHAT_IS_DELETED_STAYS_SO, text)

        storage.gc.forget_ledgers, storage.flush = forgotten, flushed
        return deleted

    def _took(self, name: str, add: AddRun, now_ns: int) -> None:
        taken = self._taken.setdefault((name, add.run.ledger_id), {})
        for entry_id in add.run.entry_ids():
            taken[entry_id] = now_ns

    def _denied(self, name: str, request: Read | BatchRead, arrived_ns: int) -> None:
        """A bookie says that it has no such entry, or ledger."""
        taken = self._taken.get((name, request.ledger_id))
        ledger = self._history.ledgers.get(request.ledger_id)
        if not taken or ledger is None or ledger.is_doomed or name == self.victim():
            return
        metadata = ledger.metadata
        asked = request.first_entry_id if isinstance(request, BatchRead) else request.entry_id
        for entry_id in taken if asked == INVALID_ENTRY_ID else (asked,):
            # What the metadata does not name it for any more, it may have collected.
            if (
                metadata is not None
                and taken.get(entry_id, arrived_ns) < arrived_ns
                and name in holders(metadata, entry_id)
            ):
                text = f"{name} acknowledged entry {entry_id}, and denies it"
                broken = Invariant.NO_BOOKIE_DENIES_WHAT_IT_ACKED
                self._history.violation(broken, text, request.ledger_id)
                return

    def _took_late(self, name: str, add: AddRun) -> None:
        ledger = self._history.ledgers.get(add.run.ledger_id)
        # The id of one that was deleted may be another ledger's.
        if ledger is not None and not ledger.is_doomed:
            text = f"{name} has answered a fence, and takes entry {add.run.first_entry_id}"
            broken = Invariant.FENCED_BOOKIES_TAKE_NO_ADDS
            self._history.violation(broken, text, add.run.ledger_id)

    @staticmethod
    def held(bookie: Bookie, around: Around, clients: int) -> dict[str, int]:
        """Return by its name what a bookie holds too much of.

        Args:
            bookie: One that serves.
            around: What is there beside it.
            clients: How many processes may have connections.
        """
        metrics, connections = bookie.metrics, bookie.connections
        held = {
            "adds under way": metrics.adds_in_progress,
            "adds without room": metrics.adds_delayed,
            "reads under way": metrics.reads_in_progress,
            "bytes of adds": connections.adds.used_bytes,
            "bytes of answers to come": connections.answer_budget.reserved_bytes,
            "bytes of begun frames": connections.partial_bytes,
            "tasks": around.tasks if around.tasks > _TASKS_MAX else 0,
        }
        if around.connections > _CONNECTIONS_EACH_MAX * clients:
            held["connections"] = around.connections
        if around.handles > _HANDLES_MAX:
            held["handles of a file"] = around.handles
        if around.handles_of_nothing:
            held["handles of what is gone"] = around.handles_of_nothing
        return {name: count for name, count in held.items() if count}
