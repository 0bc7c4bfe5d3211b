"""Adds: from decoded runs to the journal, and their answers.

All adds of a chunk go into one ``storage.append``; its one ``done`` answers them all.  Between
the check of fence and key and that call there is no await (R11): a fence that arrives later in
the same chunk, or on another connection, comes behind them in the journal, and everything behind
the fence is refused.

An add that finds no room in the write cache waits, in order of arrival and for a bounded time,
then gets "too many requests"; whoever waited is checked again when its turn comes, because a
fence may have come meanwhile.  Recovery and high-priority adds have a queue and a reserve of
their own and never stand behind normal ones (R12).

Which ledgers a bookie with an empty past may take (R26), and whether one that was deleted here is
in use again (S14), is decided in ``ledger_gate.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import compress, groupby
from operator import itemgetter
from typing import TypeAlias

from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.bookie.disks import Writability
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.requests.access import LedgerAccess
from quorumbook.bookie.requests.ledger_gate import LedgerGate
from quorumbook.bookie.slow_operations import Asked
from quorumbook.env import Env, logger, patience
from quorumbook.protocol import answers
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.requests import AddRun
from quorumbook.protocol.status import Status, status_for
from quorumbook.storage.states.ledgers import LedgerHandle
from quorumbook.storage.store import LedgerStorage

_log = logger("bookie.adds")

#: Who wants an add, the add, and when it arrived.
Pending: TypeAlias = tuple[BookieConnection, AddRun, int]
#: Adds that are alike in these came in one chunk.
_ORIGIN = itemgetter(0, 2)
#: Adds that have waited for room are appended in pieces of about this size, as a journal writes
#: and syncs one in one go.
_PIECE_BYTES = 1024 * 1024


class Adds:
    """Carries out adds."""

    def __init__(
        self,
        env: Env,
        options: BookieOptions,
        storage: LedgerStorage,
        metrics: BookieMetrics,
        writability: Writability,
        access: LedgerAccess,
    ) -> None:
        self._access = access
        self._clock = env.clock
        self._delay_ns_max = int(options.max_add_delay_s * 1e9)
        self._storage = storage
        self._metrics = metrics
        self._writability = writability
        #: Set while first adds of ledgers have to be looked up.
        self.gate: LedgerGate | None = None
        #: Looks up ledgers that were deleted here; set when the bookie knows its id.
        self.deleted: LedgerGate | None = None
        # Adds that found no room: urgent ones (recovery, high priority) and normal ones.
        self._urgent: deque[Pending] = deque()
        self._normal: deque[Pending] = deque()
        self._timer: patience.Timer | None = None
        self._waits_for_room = False
        self._is_stopped = False
        #: Called when there may be much room again.
        self._on_much_room: Callable[[], None] | None = None

    def run(self, connection: BookieConnection, adds: Sequence[AddRun], now_ns: int) -> None:
        """Begin the adds of one chunk."""
        size = 0
        count = 0
        pending: list[Pending] = []
        for add in adds:
            size += len(add.run.data)
            count += add.run.count
            pending.append((connection, add, now_ns))
        connection.hold_adds(size, len(pending))
        self._metrics.adds_in_progress += count
        self._begin(pending)

    def has_much_room(self, on_room: Callable[[], None]) -> bool:
        """Tell whether adds of somebody who sends much may come; if not, call back later."""
        # A read-only bookie refuses plain adds at once, and takes recovery's as long as it can.
        if self._storage.has_much_room or self._writability.is_read_only:
            return True
        if self._on_much_room is None:
            self._storage.on_room(self._much_room)
        self._on_much_room = on_room
        return False

    def writability_changed(self) -> None:
        """Have those who wait for room ask again: a read-only bookie refuses their adds at once."""
        self._much_room()

    def _much_room(self) -> None:
        callback, self._on_much_room = self._on_much_room, None
        if callback is not None:
            callback()

    @property
    def delayed_count(self) -> int:
        """How many adds wait for room."""
        return len(self._urgent) + len(self._normal)

    def stop(self) -> None:
        """Refuse whatever still waits, for room or for the metadata."""
        self._is_stopped = True
        for gate in (self.gate, self.deleted):
            if gate is not None:
                gate.stop()
        for queue in (self._urgent, self._normal):
            while queue:
                self._finish([queue.popleft()], Status.TOO_MANY_REQUESTS)
        self._note_delayed()

    def _begin(self, pending: Sequence[Pending]) -> None:
        """Check, then append what may pass; the rest is refused or waits."""
        items: list[tuple[LedgerHandle, EntryRun]] = []
        taken: list[Pending] = []
        size = 0
        total = sum([len(one[1].run.data) for one in pending])
        is_free = not self._urgent and not self._normal and self._storage.has_room(total)
        for one in pending:
            add = one[1]
            checked = self._check(one)
            if checked is None:
                continue
            if not isinstance(checked, LedgerHandle):
                self._finish([one], checked)
                continue
            if not is_free:
                urgent = add.is_recovery or add.is_high_priority
                queue = self._urgent if urgent else self._normal
                run_size = len(add.run.data)
                if queue or not self._storage.has_room(size + run_size, reserve=urgent):
                    queue.append(one)
                    continue
                size += run_size
            items.append((checked, add.run))
            taken.append(one)
        if items:
            self._append(items, taken)
        if self._urgent or self._normal:
            self._wait_for_room()

    def _check(self, one: Pending) -> LedgerHandle | Status | None:
        """Return the ledger's handle, the refusal, or None if the gate keeps the add for now."""
        add = one[1]
        writability = self._writability
        if writability.is_read_only and not (
            (add.is_high_priority or add.is_recovery) and writability.takes_high_priority
        ):
            return Status.READ_ONLY
        ledger_id = add.run.ledger_id
        if add.run.first_entry_id < 0:
            # The journal knows its own records by such ids.
            return Status.BAD_REQUEST
        if self.gate is not None and not add.is_recovery:
            passed = self.gate.verdict(ledger_id)
            if passed is None:
                self.gate.ask(ledger_id, lambda: self._begin([one]))
                return None
            if passed is not Status.OK:
                return passed
        handle = self._access.open(ledger_id, add.master_key, one[0].peer)
        if isinstance(handle, LedgerHandle) and not add.is_recovery:
            if handle.is_fenced:
                return Status.FENCED
            if handle.was_deleted:
                return self._check_deleted(one, handle)
        return handle

    def _check_deleted(self, one: Pending, handle: LedgerHandle) -> LedgerHandle | Status | None:
        """Return the handle only if the metadata says that the ledger is in use again."""
        assert self.deleted is not None, "nobody is served before the start is over"
        ledger_id = handle.ledger_id
        passed = self.deleted.verdict(ledger_id)
        if passed is Status.OK:
            handle.forget_deletion()
            return handle
        # Whose key it is that the next one offers is not known either.
        handle.forget_offered_key()
        if passed is None:
            self.deleted.ask(ledger_id, lambda: self._begin([one]))
        return passed

    def _append(
        self, items: Sequence[tuple[LedgerHandle, EntryRun]], taken: Sequence[Pending]
    ) -> None:
        deferred = [one[1].is_deferred_sync for one in taken]
        if True not in deferred:
            self._storage.append(items, self._answer_later(taken))
            return
        for flag in (False, True):
            chosen = [is_deferred is flag for is_deferred in deferred]
            group = list(compress(taken, chosen))
            if group:
                part = list(compress(items, chosen))
                self._storage.append(part, self._answer_later(group), deferred_sync=flag)

    def _answer_later(self, group: Sequence[Pending]) -> Callable[[BaseException | None], None]:
        admitted_ns = self._clock.now_ns()

        def done(error: BaseException | None) -> None:
            self._finish(group, Status.OK if error is None else status_for(error), admitted_ns)

        return done

    def _finish(
        self, group: Sequence[Pending], status: Status, admitted_ns: int | None = None
    ) -> None:
        """Answer adds, count them, and give their budget back; all at once what came together."""
        now_ns = self._clock.now_ns()
        floor_ns = self._metrics.slow.adds.floor_ns
        for (connection, arrived_ns), pending in groupby(group, key=_ORIGIN):
            adds = [add for _, add, _ in pending]
            self._finish_chunk(connection, adds, status, arrived_ns, now_ns)
            if now_ns - arrived_ns > floor_ns:
                first = adds[0].run
                self._metrics.slow.note_add(
                    Asked(connection.peer, first.ledger_id, first.first_entry_id, status.name),
                    (arrived_ns, admitted_ns, now_ns, self._clock.now_ns()),
                    entries=sum([add.run.count for add in adds]),
                    size_bytes=sum([len(add.run.data) for add in adds]),
                )

    def _finish_chunk(
        self,
        connection: BookieConnection,
        adds: Sequence[AddRun],
        status: Status,
        arrived_ns: int,
        now_ns: int,
    ) -> None:
        metrics = self._metrics
        count = sum([add.run.count for add in adds])
        size = sum([len(add.run.data) for add in adds])
        if connection.is_open:
            encode = answers.add_answers
            connection.answer(b"".join([encode(add, status) for add in adds]))
        metrics.add.record(status is Status.OK, now_ns - arrived_ns, count, now_ns)
        metrics.adds_in_progress -= count
        if status is Status.OK:
            metrics.write_bytes += size
            metrics.recovery_adds += sum([add.run.count for add in adds if add.is_recovery])
        connection.release_adds(size, len(adds))

    # Waiting for room

    def _wait_for_room(self) -> None:
        self._note_delayed()
        if self._is_stopped:
            self.stop()
            return
        if not self._waits_for_room:
            self._waits_for_room = True
            self._storage.on_room(self._room)
        if self._timer is None:
            oldest = min(queue[0][2] for queue in (self._urgent, self._normal) if queue)
            wait_ns = max(0, oldest + self._delay_ns_max - self._clock.now_ns())
            self._timer = patience.Timer(wait_ns / 1e9, self._too_late)

    def _room(self) -> None:
        """Room may have appeared: let in who fits, in order of arrival."""
        self._waits_for_room = False
        released: list[Pending] = []
        size = 0
        for queue, urgent in ((self._urgent, True), (self._normal, False)):
            while queue:
                run_size = len(queue[0][1].run.data)
                if queue[0][0].is_open:
                    if not self._storage.has_room(size + run_size, reserve=urgent):
                        break
                    size += run_size
                    released.append(queue.popleft())
                else:
                    # Nobody is there to hear the answer, and nothing was promised.
                    self._finish([queue.popleft()], Status.TOO_MANY_REQUESTS)
        self._readmit(released)
        self._rearm()

    def _readmit(self, released: list[Pending]) -> None:
        """Check again (a fence may have come) and append, past the queues."""
        items: list[tuple[LedgerHandle, EntryRun]] = []
        taken: list[Pending] = []
        size = 0
        for one in released:
            checked = self._check(one)
            if isinstance(checked, LedgerHandle):
                items.append((checked, one[1].run))
                taken.append(one)
                size += len(one[1].run.data)
            elif checked is not None:
                self._finish([one], checked)
            if size >= _PIECE_BYTES:
                self._append(items, taken)
                items, taken, size = [], [], 0
        if items:
            self._append(items, taken)

    def _too_late(self) -> None:
        """Refuse the adds that have waited long enough."""
        self._timer = None
        now_ns = self._clock.now_ns()
        for queue in (self._urgent, self._normal):
            while queue and queue[0][2] + self._delay_ns_max <= now_ns:
                one = queue.popleft()
                self._metrics.adds_rejected += one[1].run.count
                self._finish([one], Status.TOO_MANY_REQUESTS)
        self._rearm()

    def _rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._urgent or self._normal:
            self._wait_for_room()
        self._note_delayed()

    def _note_delayed(self) -> None:
        count = self.delayed_count
        if count > self._metrics.adds_delayed:
            self._metrics.adds_delayed_total += count - self._metrics.adds_delayed
        self._metrics.adds_delayed = count
