"""Reading entries: caches on the event loop, then one job on the read worker.

    single read     write caches, read cache, what the operating system has in memory
                    (``peeking``), one index look-up, one read of that entry
    adjacent read   the same, but the whole run is read and kept: read-ahead starts at the second
                    request in a row
    batch read      slices of whole runs, as they are; nothing touches a single entry

A run that is read as a whole is compared with its checksum, a single entry with the size and the
ids that the index knows.  What does not fit is an I/O error and a repair mark, never "no such
entry" (R9): that is said only where caches and index prove it.

An entry is always in a write cache until the index has it, so caches are asked first, in the
loop step of the request, and the index later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from quorumbook.env import Worker
from quorumbook.errors import (
    BookieIOError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    UnknownLedgerStateError,
)
from quorumbook.ids import (
    FRAME_OVERHEAD_BYTES,
    INVALID_ENTRY_ID,
    MAX_FRAME_SIZE_BYTES,
    EntryId,
    LedgerId,
)
from quorumbook.protocol.entry_run import SIZE, EntryRun
from quorumbook.storage.cache.layers import Caches, ranges_of
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.options import MIB, Damage
from quorumbook.storage.reading.loading import STRIDE, Loaded, Loader, LogReader, ReadStatistics
from quorumbook.storage.reading.peeking import Peeks
from quorumbook.storage.states.ledgers import LedgerHandle
from quorumbook.storage.times import JobTimes

T = TypeVar("T")
BatchDone: TypeAlias = Callable[[list[bytes], int, BaseException | None], None]
#: Gives a run that has the entry, and up to which id its entries are the newest.
LookUp: TypeAlias = Callable[[EntryId], tuple[EntryRun, EntryId] | None]

_BATCH_SIZE_BYTES = MAX_FRAME_SIZE_BYTES - FRAME_OVERHEAD_BYTES
_AHEAD_MARKS = 1000


class StorageReads:
    """The read path.

    Args:
        worker: Runs the jobs, one after the other.
        index: A connection of that worker's own.
        read_log: Reads bytes of an entry log.
        now_ns: The clock.
        peeks: Reads what needs no worker.
        caches: Where entries are found in memory.
        handle: Gives the handle of a ledger.
        on_damage: Told about entries that cannot be given back.
        read_ahead_size_bytes: Most that is read ahead at a time.
    """

    def __init__(
        self,
        worker: Worker,
        index: IndexReader,
        read_log: LogReader,
        *,
        now_ns: Callable[[], int],
        peeks: Peeks,
        caches: Caches,
        handle: Callable[[LedgerId], LedgerHandle | None],
        on_damage: Callable[[Damage], None],
        read_ahead_size_bytes: int,
    ) -> None:
        self.statistics = ReadStatistics()
        self._worker = worker
        self._index = index
        self._loader = Loader(index, read_log, self.statistics, now_ns)
        #: Of the read that is being answered; None if memory had all of it.
        self.last_job: JobTimes | None = None
        self._peeks = peeks
        self._caches = caches
        self._handle = handle
        self._on_damage = on_damage
        self._ahead_limit = read_ahead_size_bytes // MIB
        #: Runs read ahead that nobody has asked for yet; the first who does triggers the next.
        self._ahead: set[tuple[LedgerId, EntryId]] = set()
        #: Ledgers being read ahead: from which entry, and who waits for it.
        self._ahead_in_flight: dict[LedgerId, tuple[EntryId, list[Callable[[], None]]]] = {}
        #: Changes when replaced entries left the cache: older jobs' runs are not kept.
        self._generation = 0
        #: Why nothing can be denied any more.
        self._doubt: BaseException | None = None

    def forget_places(self) -> None:
        """Entries lie elsewhere, or nowhere, from now on; the write caches know of none of them."""
        self._generation += 1
        self._peeks.forget()

    def doubt(self, error: BaseException) -> None:
        """What was accepted last may be stored or not: from now on nothing is denied."""
        self._doubt = error

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        """Return the newest run in memory that has the entry."""
        run = self._caches.find_unflushed(ledger_id, entry_id)
        if run is not None:
            return run
        run = self._caches.read.find(ledger_id, entry_id)
        if run is not None and self._ahead:
            key = (ledger_id, run.first_entry_id)
            if key in self._ahead:
                self._ahead.discard(key)
                self._read_ahead(ledger_id, run.last_entry_id + 1)
        return run

    def cached_run(self, ledger_id: LedgerId, entry_id: EntryId) -> tuple[EntryRun, EntryId] | None:
        """Return a run in memory that has the entry, and up to which id it is the newest."""
        run = self.find(ledger_id, entry_id)
        if run is None:
            return None
        return run, min(run.last_entry_id, self._caches.newest_until(ledger_id, entry_id, run))

    def entry(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Return an entry that is in memory."""
        run = self.find(ledger_id, entry_id)
        return None if run is None else run.entry(entry_id)

    def read(
        self,
        requests: Sequence[tuple[LedgerId, EntryId]],
        done: Callable[[list[bytes | BaseException]], None],
        max_size_bytes: int = sys.maxsize,
    ) -> None:
        """Read entries; see ``LedgerStorage.read``."""
        again = partial(self.read, requests, done, max_size_bytes)
        if requests and self._awaits_ahead(requests[0], again):
            return
        size = 0
        results: list[bytes | BaseException] = []
        missing: list[tuple[int, LedgerId, EntryId, bool]] = []
        for place, (ledger_id, entry_id) in enumerate(requests):
            if size > max_size_bytes:
                break
            found = self._from_memory(ledger_id, entry_id)
            if isinstance(found, LedgerHandle):
                wanted = found.last_entry_id if entry_id == INVALID_ENTRY_ID else entry_id
                is_adjacent = self._is_adjacent(found, wanted)
                peeked = None if is_adjacent else self._peeks.entry(ledger_id, wanted)
                if peeked is None:
                    missing.append((place, ledger_id, wanted, is_adjacent))
                    found = BookieIOError("not read")
                else:
                    self.statistics.page_cache_reads += 1
                    found = peeked
            else:
                self.statistics.cache_hits += 1
            if isinstance(found, bytes):
                size += len(found)
            results.append(found)
        if not missing:
            self.last_job = None
            done(results)
            return
        generation = self._generation

        def finish(answer: Loaded | BaseException) -> None:
            loaded = self._take(answer, generation)
            for index, (place, ledger_id, entry_id, _) in enumerate(missing):
                if loaded.error is None and index == len(loaded.results):
                    # Those before it were large.
                    del results[place:]
                    break
                result = loaded.error or loaded.results[index]
                if isinstance(result, NoSuchEntryError):
                    # While the index was looked through it may have come.
                    result = self.entry(ledger_id, entry_id) or self._absent(ledger_id, entry_id)
                results[place] = result
            for run in loaded.runs[-1:]:
                self._read_ahead(run.ledger_id, run.last_entry_id + 1)
            done(results)

        loader = self._loader
        self._worker.submit(
            lambda: loader.timed(lambda: loader.load_entries(missing, max_size_bytes)), finish
        )

    def read_batch(
        self,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        max_count: int,
        max_size_bytes: int,
        done: BatchDone,
    ) -> None:
        """Read consecutive entries; see ``LedgerStorage.read_batch``."""

        def again() -> None:
            self.read_batch(ledger_id, first_entry_id, max_count, max_size_bytes, done)

        if self._awaits_ahead((ledger_id, first_entry_id), again):
            return
        max_count = max_count if max_count > 0 else _BATCH_SIZE_BYTES
        limit = min(max_size_bytes, _BATCH_SIZE_BYTES) if max_size_bytes > 0 else _BATCH_SIZE_BYTES
        self.last_job = None
        found = self._from_memory(ledger_id, first_entry_id)
        if first_entry_id == INVALID_ENTRY_ID:
            first_entry_id = self._last_entry_id(ledger_id)
        if isinstance(found, bytes):
            pieces, count = collect(self._newest(ledger_id, []), first_entry_id, max_count, limit)
            self.statistics.cache_hits += count
            done(pieces, count, None)
            return
        if not isinstance(found, LedgerHandle):
            done([], 0, found)
            return
        if max_count == 1:
            self._read_batch_of_one(ledger_id, first_entry_id, done)
            return
        generation = self._generation

        def finish(answer: Loaded | BaseException) -> None:
            loaded = self._take(answer, generation)
            look_up = self._newest(ledger_id, loaded.runs)
            pieces, count = collect(look_up, first_entry_id, max_count, limit)
            if count:
                for run in loaded.runs[-1:]:
                    self._read_ahead(ledger_id, run.last_entry_id + 1)
                done(pieces, count, None)
            else:
                done([], 0, loaded.error or self._absent(ledger_id, first_entry_id))

        loader = self._loader
        self._worker.submit(
            lambda: loader.timed(
                lambda: loader.load_runs(ledger_id, first_entry_id, max_count, limit)
            ),
            finish,
        )

    def _read_batch_of_one(self, ledger_id: LedgerId, entry_id: EntryId, done: BatchDone) -> None:
        """Read one entry that is not in memory; who reads at random is not read ahead for."""

        def finish(results: list[bytes | BaseException]) -> None:
            body = results[0]
            if isinstance(body, BaseException):
                done([], 0, body)
            else:
                done([SIZE.pack(len(body)), body], 1, None)

        self.read([(ledger_id, entry_id)], finish)

    def _newest(self, ledger_id: LedgerId, loaded: list[EntryRun]) -> LookUp:
        """Return a look-up over all memory and runs that were just loaded."""

        def look_up(entry_id: EntryId) -> tuple[EntryRun, EntryId] | None:
            run = self._caches.find_unflushed(ledger_id, entry_id)
            if run is None:
                run = next((run for run in loaded if run.has(entry_id)), None)
            if run is None:
                run = self.find(ledger_id, entry_id)
            if run is None:
                return None
            return run, self._caches.newest_until(ledger_id, entry_id, run)

        return look_up

    def _last_entry_id(self, ledger_id: LedgerId) -> EntryId:
        handle = self._handle(ledger_id)
        return INVALID_ENTRY_ID if handle is None else handle.last_entry_id

    def entry_ids(
        self, ledger_id: LedgerId, done: Callable[[list[range] | BaseException], None]
    ) -> None:
        """Give the ids of all entries that can be read as ascending ranges, or an error."""
        self.list_entries(ledger_id, lambda ids: ids, done)

    def list_entries(
        self,
        ledger_id: LedgerId,
        shape: Callable[[list[range]], T],
        done: Callable[[T | BaseException], None],
    ) -> None:
        """Give what the worker makes of the ids; see ``LedgerStorage.list_entries``."""
        unflushed = self._caches.unflushed_runs(ledger_id)

        def job() -> T:
            runs = self._index.runs(ledger_id)
            stored = [ids for run in runs if not run.is_damaged for ids in run.ranges()]
            return shape(merge_ranges([*stored, *ranges_of(unflushed)]))

        def finish(answer: T | BaseException) -> None:
            doubt = answer if isinstance(answer, StorageError) else self._doubt
            done(answer if doubt is None else BookieIOError(str(doubt), ledger_id=ledger_id))

        self._worker.submit(job, finish)

    def _from_memory(
        self, ledger_id: LedgerId, entry_id: EntryId
    ) -> bytes | LedgerHandle | BaseException:
        """Return the entry, a proof of absence, or the handle of a ledger to look on disk for."""
        if entry_id >= 0:
            body = self.entry(ledger_id, entry_id)
            if body is not None:
                return body
        try:
            handle = self._handle(ledger_id)
        except StorageError as error:
            return BookieIOError(str(error), ledger_id=ledger_id, entry_id=entry_id)
        if handle is None:
            return self._absent(ledger_id, entry_id)
        wanted = handle.last_entry_id if entry_id == INVALID_ENTRY_ID else entry_id
        if not 0 <= wanted <= handle.last_entry_id:
            return self._absent(ledger_id, entry_id)
        if entry_id == INVALID_ENTRY_ID:
            body = self.entry(ledger_id, wanted)
            if body is not None:
                return body
        return handle

    def _absent(self, ledger_id: LedgerId, entry_id: EntryId) -> BaseException:
        """Say that an entry is not here, unless the ledger is in limbo."""
        try:
            handle = self._handle(ledger_id)
        except StorageError as error:
            return BookieIOError(str(error), ledger_id=ledger_id, entry_id=entry_id)
        if self._doubt is not None:
            return BookieIOError(
                f"whether it is here is unknown: {self._doubt}",
                ledger_id=ledger_id,
                entry_id=entry_id,
            )
        if handle is not None and handle.is_in_limbo:
            return UnknownLedgerStateError(
                "entries of this ledger may be missing here", ledger_id=ledger_id, entry_id=entry_id
            )
        if handle is None or not handle.is_stored:
            return NoSuchLedgerError(
                f"nothing of ledger {ledger_id} is here", ledger_id=ledger_id, entry_id=entry_id
            )
        return NoSuchEntryError(
            f"entry {entry_id} of ledger {ledger_id} is not here",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )

    @staticmethod
    def _is_adjacent(handle: LedgerHandle, entry_id: EntryId) -> bool:
        expected = handle.next_read_entry_id
        handle.next_read_entry_id = entry_id + 1
        return expected > 0 and expected <= entry_id < expected + STRIDE

    def _take(self, answer: Loaded | BaseException, generation: int) -> Loaded:
        """Keep what a job has read."""
        self.last_job = None if isinstance(answer, BaseException) else answer.times
        if isinstance(answer, BaseException):
            return Loaded(error=BookieIOError(f"the read failed: {answer}"))
        for damage in answer.damages:
            self.statistics.damaged += 1
            self._on_damage(damage)
        if generation == self._generation:
            for run in answer.runs:
                self._caches.read.put(run)
            self._peeks.keep(answer.rows)
        return answer

    def _awaits_ahead(self, wanted: tuple[LedgerId, EntryId], again: Callable[[], None]) -> bool:
        """Have a read wait for the read-ahead that is bringing what it wants."""
        ledger_id, entry_id = wanted
        coming = self._ahead_in_flight.get(ledger_id)
        if coming is None or not coming[0] <= entry_id < coming[0] + STRIDE:
            return False
        coming[1].append(again)
        return True

    def _read_ahead(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """Read the run behind one that is being read, unless enough is on its way."""
        in_flight = self._ahead_in_flight
        if len(in_flight) >= self._ahead_limit or ledger_id in in_flight:
            return
        try:
            handle = self._handle(ledger_id)
        except StorageError:
            # Whoever wants it will hear of that; who is being answered now has what he wants.
            return
        if handle is None or entry_id > handle.last_entry_id:
            return
        if self._caches.find_unflushed(ledger_id, entry_id) or self._caches.read.find(
            ledger_id, entry_id
        ):
            return
        # A reader that gets there by single reads is known to read in a row.
        handle.next_read_entry_id = max(handle.next_read_entry_id, entry_id)
        waiting: list[Callable[[], None]] = []
        in_flight[ledger_id] = (entry_id, waiting)
        generation = self._generation

        def finish(answer: Loaded | BaseException) -> None:
            del in_flight[ledger_id]
            loaded = self._take(answer, generation)
            self.statistics.read_ahead_runs += len(loaded.runs)
            if len(self._ahead) > _AHEAD_MARKS:
                self._ahead.clear()
            self._ahead.update((ledger_id, run.first_entry_id) for run in loaded.runs)
            for again in waiting:
                again()

        self._worker.submit(lambda: self._loader.load_runs(ledger_id, entry_id, 1, 1), finish)


def collect(
    look_up: LookUp, first_entry_id: EntryId, max_count: int, max_size_bytes: int
) -> tuple[list[bytes], int]:
    """Slice consecutive entries out of runs, at least one however large.

    Returns:
        The pieces, (int32 size, entry) one behind the other, and how many entries they hold.
    """
    pieces: list[bytes] = []
    count, room, entry_id = 0, max_size_bytes, first_entry_id
    while count < max_count:
        found = look_up(entry_id)
        if found is None:
            break
        run, until = found
        wanted = min(max_count - count, until - entry_id + 1)
        last, is_full = _last_that_fits(run, entry_id, wanted, room)
        if last < entry_id:
            if count:
                break
            last = entry_id
        piece = run.slice(entry_id, last).data
        pieces.append(piece)
        room -= len(piece)
        count += last - entry_id + 1
        entry_id = last + 1
        if is_full:
            break
    return pieces, count


def _last_that_fits(
    run: EntryRun, entry_id: EntryId, count: int, room: int
) -> tuple[EntryId, bool]:
    """Return the last id without a hole before it for which there is room.

    The second value tells whether room, and not the end of the run, was what ended it.
    """
    sizes = run.sizes
    if isinstance(sizes, int):
        end = min(entry_id + count - 1, run.last_entry_id)
        fits = entry_id + max(room, 0) // (sizes + 4) - 1
        return min(end, fits), fits < end
    index = entry_id - run.first_entry_id
    try:
        hole = sizes.index(0, index)
    except ValueError:
        hole = len(sizes)
    low, end = entry_id - 1, entry_id + min(count, hole - index) - 1
    high = end
    start = run.bounds(entry_id)[0] - 4
    while low < high:
        middle = (low + high + 1) // 2
        if run.bounds(middle)[1] - start <= room:
            low = middle
        else:
            high = middle - 1
    return low, low < end


def merge_ranges(ranges: list[range]) -> list[range]:
    """Return the union of ranges, ascending and joined."""
    merged: list[range] = []
    for ids in sorted(ranges, key=lambda ids: ids.start):
        if merged and ids.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, ids.stop))
        else:
            merged.append(ids)
    return merged
