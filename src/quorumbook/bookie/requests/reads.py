"""Reads: cached entries in the same step, the others as one job of the storage.

Every connection has a queue of reads and a window in bytes: nothing of it is begun while its peer
does not take answers away, or while what is under way is believed to fill the window (the belief
follows the sizes that really come).  Without this a few kilobytes of requests could demand
gigabytes of answers.  All connections share the bookie's budget (``answer_budget.py``), and a job
that finds larger entries than was believed ends early.  Questions for the last add confirmed and
for lists of entries stand in the same queue (``lookups.py``).

Entries found in a cache are answered on the spot and leave as one write; what is missing goes to
the storage as one job.

A read that finds nothing waits for adds of its ledger on their way (``arrivals.py``), without its
share of the window, and looks once more.

A fencing read first makes its fence durable and only then reads (R10).  Its read, and those of
high priority, go to the front of the queue (R12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from quorumbook.bookie.connections.connection import READS, BookieConnection, WaitingRead
from quorumbook.bookie.metrics import BookieMetrics, OperationMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.requests.access import LedgerAccess
from quorumbook.bookie.requests.arrivals import Arrivals
from quorumbook.bookie.requests.cached_entries import PIECE_BYTES, CachedEntries, last_confirmed
from quorumbook.bookie.requests.lookups import Lookups
from quorumbook.bookie.slow_operations import Asked
from quorumbook.env import Env, SparseLines, logger
from quorumbook.errors import NoSuchEntryError, NoSuchLedgerError, UnknownLedgerStateError
from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.protocol import answers
from quorumbook.protocol.requests import BatchRead, ListEntries, Read, ReadLAC, ReadRun
from quorumbook.protocol.status import Status, status_for
from quorumbook.storage.store import LedgerStorage
from quorumbook.storage.times import JobTimes

_log = logger("bookie.reads")
#: What a batch read's answer needs around the entries, its frame length included.
_BATCH_HEADER_BYTES = 36
#: Reads of one job, and bytes after which it ends, or after what they were believed to be.
_MISSING_MAX = 1024
_JOB_BYTES = 1024 * 1024
_NEGATIVE = (Status.NO_ENTRY, Status.NO_LEDGER)


def _is_denied(result: object) -> bool:
    return isinstance(result, NoSuchEntryError | NoSuchLedgerError)


def _count_of(waiting: WaitingRead) -> int:
    """Return how many reads an item of a queue stands for."""
    request = waiting[0]
    return len(request.entry_ids) if isinstance(request, ReadRun) else 1


class ReadRequests:
    """Carries out reads.

    Args:
        env: The outside world.
        options: Limits.
        storage: Where the entries are.
        metrics: What is counted.
        arrivals: Adds on their way, which may bring what a read does not find.
        on_fenced: Called with a ledger when its fence is durable.
        lookups: Carries out what is no read and has large answers.
        access: Opens ledgers that are to be fenced.
    """

    def __init__(
        self,
        env: Env,
        options: BookieOptions,
        storage: LedgerStorage,
        metrics: BookieMetrics,
        arrivals: Arrivals,
        on_fenced: Callable[[LedgerId], None],
        lookups: Lookups,
        access: LedgerAccess,
    ) -> None:
        self._lookups = lookups
        self._access = access
        self._arrivals = arrivals
        self._clock = env.clock
        self._storage = storage
        self._metrics = metrics
        self._on_fenced = on_fenced
        self._fences_log = SparseLines(_log)
        self._window = options.max_read_bytes
        self._batch_bytes_max = min(options.max_batch_read_bytes, options.max_frame_bytes)

    def enqueue(self, connection: BookieConnection, waiting: WaitingRead) -> None:
        """Put a read into its connection's queue; ``pump`` follows."""
        self._metrics.reads_in_progress += _count_of(waiting)
        request = waiting[0]
        if isinstance(request, Read | BatchRead) and (
            request.is_high_priority or request.is_fencing
        ):
            connection.reads.appendleft(waiting)
        else:
            connection.reads.append(waiting)

    def fence(self, connection: BookieConnection, request: Read | BatchRead, now_ns: int) -> None:
        """Fence the ledger, and read when that is durable."""
        # An unknown ledger is fenced too: its writer's first add may still be on its way.
        handle = self._access.open(request.ledger_id, request.master_key, connection.peer)
        if isinstance(handle, Status):
            self._refuse(connection, request, handle, now_ns)
            return
        if not handle.is_fenced:
            said = ("ledger %d is fenced by %s", request.ledger_id, connection.peer)
            self._fences_log.say(now_ns, *said)
        # A record in the journal, as an add is.
        connection.hold_adds(0)

        def fenced(error: BaseException | None) -> None:
            connection.release_adds(0)
            if error is not None:
                self._refuse(connection, request, Status.IO_ERROR, now_ns)
                return
            self._on_fenced(request.ledger_id)
            if connection.is_open:
                self.enqueue(connection, (request, now_ns, None, False))
                self.pump(connection)

        self._storage.fence(handle, fenced)

    def pump(self, connection: BookieConnection) -> None:
        """Begin as many waiting reads as the connection's window and its peer allow."""
        queue = connection.reads
        if connection.is_pumping or not queue:
            return
        connection.is_pumping = True
        try:
            while queue and connection.takes_answers and connection.is_open:
                weight = self._weight(connection, queue[0][0])
                if connection.read_bytes and connection.read_bytes + weight > self._window:
                    break
                if not connection.answer_budget.admits(connection, weight):
                    connection.pause(READS)
                    return
                self._begin(connection, weight)
        finally:
            connection.is_pumping = False
        if queue:
            connection.pause(READS)
            if not connection.read_bytes and connection.is_open and not connection.waits_for_peer:
                # The answers so far go out first; then it is this connection's turn again.
                asyncio.get_running_loop().call_soon(self.pump, connection)
        else:
            connection.resume(READS)

    def _begin(self, connection: BookieConnection, weight: int) -> None:
        queue = connection.reads
        request, arrived_ns, _, has_waited = queue[0]
        if isinstance(request, BatchRead):
            self._read_batch(connection, queue.popleft(), weight)
        elif isinstance(request, Read | ReadRun):
            self._read_entries(connection)
        else:
            waiting = queue.popleft()
            connection.answer_budget.reserve(connection, weight)

            def ended() -> None:
                connection.answer_budget.release(connection, weight)
                self._metrics.reads_in_progress -= 1
                self.pump(connection)

            def waits() -> bool:
                again = partial(self._again, connection, [waiting])
                if has_waited or not self._arrivals.wait(request.ledger_id, again):
                    return False
                connection.answer_budget.release(connection, weight)
                self.pump(connection)
                return True

            self._lookups.begin(connection, request, arrived_ns, waits, ended)

    def forget(self, connection: BookieConnection) -> None:
        """Drop the queue of a connection that is gone."""
        self._metrics.reads_in_progress -= sum(map(_count_of, connection.reads))
        connection.reads.clear()

    # Single entries

    def _read_row(self, connection: BookieConnection, allowed: int) -> bool:
        """Answer the row of reads at the head of the queue from the caches.

        What they lack is left at the head of the queue, read by read.  Returns whether there may
        be more answers now.
        """
        run, arrived_ns, _, _ = connection.reads.popleft()
        assert isinstance(run, ReadRun)
        first = run.ledger_id, run.entry_ids[0]
        cached = CachedEntries(self._storage)
        max_lac = last_confirmed(self._storage, run.ledger_id)
        while run.entry_ids and connection.takes_answers and cached.size_bytes <= allowed:
            entries = cached.row(run.ledger_id, run.entry_ids)
            if not entries:
                break
            part, run = run.cut(len(entries))
            connection.answer(answers.found_answers(part, entries, max_lac))
            if run.entry_ids:
                connection.flush_above(PIECE_BYTES)
        self._count_hits(connection, cached, first, arrived_ns)
        is_full = cached.size_bytes > allowed or not connection.takes_answers
        is_waiting = run.entry_ids and is_full
        rest = [run] if is_waiting else reversed(run.reads())
        connection.reads.extendleft((read, arrived_ns, None, False) for read in rest)
        return not is_full

    def _weight(
        self,
        connection: BookieConnection,
        request: Read | BatchRead | ReadRun | ReadLAC | ListEntries,
    ) -> int:
        if isinstance(request, BatchRead):
            return self._batch_limit(request)
        if isinstance(request, ReadLAC | ListEntries):
            # How large they get is not known before.
            return self._batch_bytes_max
        return connection.read_size_estimate

    def _read_entries(self, connection: BookieConnection) -> None:
        """Answer the single reads at the head of the queue; one job for those not cached."""
        queue = connection.reads
        missing: list[WaitingRead] = []
        wanted: list[tuple[LedgerId, EntryId]] = []
        head, arrived_ns, woken, _ = queue[0]
        if woken is not None:  # a long poll; the reads behind it did not wait with it
            arrived_ns = self._clock.now_ns()
        assert isinstance(head, Read | ReadRun)
        first = head.ledger_id, head.entry_ids[0] if isinstance(head, ReadRun) else head.entry_id
        estimate = connection.read_size_estimate
        room = min(self._window - connection.read_bytes, connection.answer_budget.room(estimate))
        cached = CachedEntries(self._storage)
        allowed = max(0, connection.answer_budget.room(estimate) - connection.unflushed_bytes)
        while queue and connection.takes_answers and cached.may_go_on(allowed):
            request, _, woken, _ = waiting = queue[0]
            if not isinstance(request, Read | ReadRun) or (
                missing and (len(missing) * estimate >= room or len(missing) == _MISSING_MAX)
            ):
                break
            if isinstance(request, ReadRun):
                if not self._read_row(connection, allowed):
                    break
                continue
            queue.popleft()
            entry_id = request.entry_id
            if woken is None and entry_id != INVALID_ENTRY_ID and not request.is_fencing:
                answer = cached.answer(request)
                if answer is not None:
                    connection.answer(answer)
                    continue
            entry = None
            if woken is not None:
                assert request.previous_lac is not None
                entry_id = request.previous_lac + 1
                entry = cached.entry(request.ledger_id, entry_id)
            # The last entry's id is the storage's to know.
            if entry_id == INVALID_ENTRY_ID and self._is_in_limbo(request.ledger_id):
                # The last entry here may not be the last one there was: a recovery that took
                # its word would close the ledger too early.
                self._answer_one(connection, waiting, UnknownLedgerStateError())
            elif entry is None:
                missing.append(waiting)
                wanted.append((request.ledger_id, entry_id))
            else:
                self._answer_one(connection, waiting, entry)
        self._count_hits(connection, cached, first, arrived_ns)
        if missing:
            self._read_missing(connection, missing, wanted)

    def _count_hits(
        self,
        connection: BookieConnection,
        cached: CachedEntries,
        first: tuple[LedgerId, EntryId],
        arrived_ns: int,
    ) -> None:
        if cached.hits:
            self._metrics.read_bytes += cached.size_bytes
            self._metrics.reads_in_progress -= cached.hits
            now_ns = self._clock.now_ns()
            self._metrics.read.record(True, now_ns - arrived_ns, cached.hits, now_ns)
            if now_ns - arrived_ns > self._metrics.slow.reads.floor_ns:
                self._metrics.slow.note_read(
                    Asked(connection.peer, *first), (arrived_ns, now_ns, now_ns), None,
                    entries=cached.hits, size_bytes=cached.size_bytes,
                )  # fmt: skip

    def _is_in_limbo(self, ledger_id: LedgerId) -> bool:
        handle = self._storage.handle(ledger_id)
        return handle is not None and handle.is_in_limbo

    def _read_missing(
        self,
        connection: BookieConnection,
        missing: list[WaitingRead],
        wanted: list[tuple[LedgerId, EntryId]],
    ) -> None:
        weight = len(missing) * connection.read_size_estimate
        connection.answer_budget.reserve(connection, weight)
        begun_ns = self._clock.now_ns()

        def done(results: list[bytes | BaseException]) -> None:
            job = self._storage.last_read
            connection.answer_budget.release(connection, weight)
            # Where the entries were larger than believed, the last ones were not read.
            not_read = missing[len(results) :]
            connection.reads.extendleft(reversed(not_read))
            largest = 1024
            denied: list[tuple[WaitingRead, BaseException]] = []
            for waiting, result in zip(missing, results, strict=False):
                if not isinstance(result, BaseException):
                    largest = max(largest, len(result))
                elif _is_denied(result) and waiting[2] is None and not waiting[3]:
                    denied.append((waiting, result))
                    continue
                self._answer_one(connection, waiting, result)
            if denied:
                self._answer_denied(connection, denied)
            if len(denied) < len(results):
                self._note_slow(connection, missing[0], results, begun_ns, job)
            # It forgets slowly that entries were large, so that one small one fools nobody.
            connection.read_size_estimate = max(largest, connection.read_size_estimate // 2)
            self.pump(connection)

        self._storage.read(wanted, done, max_size_bytes=max(weight, _JOB_BYTES))

    def _note_slow(
        self,
        connection: BookieConnection,
        first: WaitingRead,
        results: list[bytes | BaseException],
        begun_ns: int,
        job: JobTimes | None,
    ) -> None:
        """Keep where the time of reads went that one job answered; a long poll waits by design."""
        request, arrived_ns, woken, _ = first
        now_ns = self._clock.now_ns()
        if woken is not None or now_ns - arrived_ns <= self._metrics.slow.reads.floor_ns:
            return
        assert isinstance(request, Read)
        failed = next((each for each in results if isinstance(each, BaseException)), None)
        outcome = Status.OK if failed is None else status_for(failed)
        self._metrics.slow.note_read(
            Asked(connection.peer, request.ledger_id, request.entry_id, outcome.name),
            (arrived_ns, begun_ns, now_ns), job, entries=len(results),
            size_bytes=sum([len(each) for each in results if isinstance(each, bytes)]),
        )  # fmt: skip

    def _answer_denied(
        self, connection: BookieConnection, denied: list[tuple[WaitingRead, BaseException]]
    ) -> None:
        """Have reads wait for what may bring their entries; answer those that need not wait."""
        by_ledger: dict[LedgerId, list[WaitingRead]] = {}
        for waiting, _ in denied:
            by_ledger.setdefault(waiting[0].ledger_id, []).append(waiting)
        waits = {
            ledger_id
            for ledger_id, reads in by_ledger.items()
            if self._arrivals.wait(ledger_id, partial(self._again, connection, reads), len(reads))
        }
        for waiting, error in denied:
            if waiting[0].ledger_id not in waits:
                self._answer_one(connection, waiting, error)

    def _again(self, connection: BookieConnection, reads: list[WaitingRead]) -> None:
        """Look for the last time: what was on its way has come, or takes too long."""
        if not connection.is_open:
            self._metrics.reads_in_progress -= len(reads)
            return
        again = [(request, arrived_ns, woken, True) for request, arrived_ns, woken, _ in reads]
        connection.reads.extendleft(reversed(again))
        self.pump(connection)

    def _answer_one(
        self, connection: BookieConnection, waiting: WaitingRead, result: bytes | BaseException
    ) -> None:
        request, arrived_ns, woken, _ = waiting
        assert isinstance(request, Read)
        status = status_for(result) if isinstance(result, BaseException) else Status.OK
        if woken is not None:
            answer = self._poll_answer(request, result, status, woken)
        elif isinstance(result, BaseException):
            if status in _NEGATIVE and request.entry_id == INVALID_ENTRY_ID:
                self._metrics.last_entry_misses += 1
            answer = answers.read_answer(request, status)
        else:
            answer = self._found(request, result)
            self._metrics.read_bytes += len(result)
        self._count(request, woken, status, arrived_ns)
        if connection.is_open:
            connection.answer(answer)

    def _found(self, request: Read, entry: bytes) -> bytes:
        max_lac = None if request.is_fencing else last_confirmed(self._storage, request.ledger_id)
        return answers.found_answer(request, entry, max_lac)

    def _poll_answer(
        self, request: Read, result: bytes | BaseException, status: Status, woken: bool
    ) -> bytes:
        """Answer a long poll whose wait is over and that wants the next entry along."""
        handle = self._storage.handle(request.ledger_id)
        if handle is None:
            return answers.read_answer(request, Status.NO_LEDGER)
        max_lac = handle.last_add_confirmed
        if not isinstance(result, BaseException):
            assert request.previous_lac is not None
            return answers.read_answer(
                request,
                Status.OK,
                result,
                max_lac,
                request.previous_lac + 1,
                handle.lac_update_ms if woken and handle.lac_update_ms else None,
            )
        if status in _NEGATIVE:
            # The entry is striped to other bookies; the news is worth an answer all the same.
            return answers.read_answer(request, Status.OK, None, max_lac, INVALID_ENTRY_ID)
        return answers.read_answer(request, status)

    # Batches

    def _batch_limit(self, request: BatchRead) -> int:
        wanted = request.max_size_bytes
        return min(wanted, self._batch_bytes_max) if wanted > 0 else self._batch_bytes_max

    def _read_batch(self, connection: BookieConnection, waiting: WaitingRead, weight: int) -> None:
        request, arrived_ns, _, has_waited = waiting
        assert isinstance(request, BatchRead)
        connection.answer_budget.reserve(connection, weight)
        begun_ns = self._clock.now_ns()

        def done(pieces: list[bytes], count: int, error: BaseException | None) -> None:
            job = self._storage.last_read
            connection.answer_budget.release(connection, weight)
            if _is_denied(error) and not has_waited:
                again = partial(self._again, connection, [waiting])
                if self._arrivals.wait(request.ledger_id, again):
                    self.pump(connection)
                    return
            status = Status.OK if error is None else status_for(error)
            if connection.is_open:
                connection.answer_pieces(answers.batch_read_answer(request, status, pieces))
            if error is None:
                self._metrics.read_bytes += sum(map(len, pieces))
            self._count(request, None, status, arrived_ns)
            now_ns = self._clock.now_ns()
            if now_ns - arrived_ns > self._metrics.slow.reads.floor_ns:
                asked = request.ledger_id, request.first_entry_id, status.name
                self._metrics.slow.note_read(
                    Asked(connection.peer, *asked), (arrived_ns, begun_ns, now_ns), job,
                    entries=count, size_bytes=sum(map(len, pieces)),
                )  # fmt: skip
            self.pump(connection)

        self._storage.read_batch(
            request.ledger_id,
            request.first_entry_id,
            max(request.max_count, 0),
            # One byte is less than any entry: only the first one comes, as it always does.
            max(self._batch_limit(request) - _BATCH_HEADER_BYTES, 1),
            done,
        )

    # Common

    def _refuse(
        self,
        connection: BookieConnection,
        request: Read | BatchRead,
        status: Status,
        arrived_ns: int,
    ) -> None:
        self._metrics.reads_in_progress += 1
        self._count(request, None, status, arrived_ns)
        connection.answer(answers.error_answer(request, status))

    def _count(
        self, request: Read | BatchRead, woken: bool | None, status: Status, arrived_ns: int
    ) -> None:
        metrics = self._metrics
        metrics.reads_in_progress -= 1
        operation: OperationMetrics
        if woken is not None:
            operation = metrics.operations["long_poll"]
        elif request.is_fencing:
            operation = metrics.operations["fence"]
        else:
            operation = metrics.batch_read if isinstance(request, BatchRead) else metrics.read
        now_ns = self._clock.now_ns()
        operation.record(status is Status.OK, now_ns - arrived_ns, 1, now_ns)
