"""Entries that are durable in the journal and not yet in an entry log.

Per ledger a list of runs, ascending and without overlap.  The fast path appends a run whose first
id is above everything there; a re-add or an entry that comes late takes the slow way, in which
older runs are cut and the last write wins.  Nothing here touches a single entry except a re-add
with holes.

``size_bytes`` is what the interpreter really holds, so a limit on it is a limit on memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun

#: The run object, its bytes object's head, ids beyond the small integers, places in two lists.
RUN_OVERHEAD_BYTES = 280
#: A number of its own in the list of sizes: the place and the object.
SIZE_OVERHEAD_BYTES = 36
LEDGER_OVERHEAD_BYTES = 450

#: Runs that a flush merges are at most this long.
STRETCH_SIZE_BYTES = 1024 * 1024
#: With sizes of their own, each entry costs four bytes of index row that a look-up fetches.
STRETCH_SPAN = 1024
#: Ids that may be missing between two runs that become one (the ensemble stripes).
_GAP = 16
#: The system takes 10 ms to take 64 MB of large entries back, on an idle machine.
_FREED_AT_ONCE_BYTES = 4 * 1024 * 1024


def held_bytes(run: EntryRun) -> int:
    """Return what a run costs in memory."""
    size = len(run.data) + RUN_OVERHEAD_BYTES
    if not isinstance(run.sizes, int):
        size += SIZE_OVERHEAD_BYTES * len(run.sizes)
    return size


class _Ledger:
    __slots__ = ("firsts", "runs")

    def __init__(self) -> None:
        self.firsts: list[EntryId] = []
        self.runs: list[EntryRun] = []


class WriteCache:
    """Runs by ledger; filled on the event loop, then handed to a flush that only reads."""

    def __init__(self) -> None:
        self._ledgers: dict[LedgerId, _Ledger] = {}
        self.size_bytes = 0
        self.data_bytes = 0
        self.run_count = 0

    def __bool__(self) -> bool:
        return self.run_count > 0

    def __len__(self) -> int:
        return self.run_count

    def add(self, run: EntryRun) -> None:
        """Take a run in; where ids are already here, the new entries win."""
        ledger = self._ledgers.get(run.ledger_id)
        if ledger is None:
            ledger = self._ledgers[run.ledger_id] = _Ledger()
            self.size_bytes += LEDGER_OVERHEAD_BYTES
        elif ledger.runs[-1].last_entry_id >= run.first_entry_id:
            self._insert(ledger, run)
            return
        ledger.firsts.append(run.first_entry_id)
        ledger.runs.append(run)
        size = len(run.data)
        self.data_bytes += size
        self.run_count += 1
        self.size_bytes += size + RUN_OVERHEAD_BYTES
        if not isinstance(run.sizes, int):
            self.size_bytes += SIZE_OVERHEAD_BYTES * len(run.sizes)

    def _count(self, run: EntryRun, sign: int) -> None:
        self.size_bytes += sign * held_bytes(run)
        self.data_bytes += sign * len(run.data)
        self.run_count += sign

    def _insert(self, ledger: _Ledger, run: EntryRun) -> None:
        """The slow way: cut what the run overlaps."""
        start = bisect_right(ledger.firsts, run.first_entry_id)
        if start and ledger.runs[start - 1].last_entry_id >= run.first_entry_id:
            start -= 1
        end = bisect_right(ledger.firsts, run.last_entry_id)
        older = ledger.runs[start:end]
        pieces = [run] if not older else _overlay(older, run)
        ledger.runs[start:end] = pieces
        ledger.firsts[start:end] = [piece.first_entry_id for piece in pieces]
        for old in older:
            self._count(old, -1)
        for piece in pieces:
            self._count(piece, 1)

    def take_apart(self, count: int) -> bool:
        """Free that many ledgers of a cache that nobody asks any more; tell whether some are left.

        They are fewer where they are large.  The sizes stay as they were.
        """
        ledgers, freed_bytes = self._ledgers, 0
        for _ in range(min(count, len(ledgers))):
            runs = next(reversed(ledgers.values())).runs
            while runs and freed_bytes < _FREED_AT_ONCE_BYTES:
                freed_bytes += len(runs.pop().data)
            if runs:
                break
            ledgers.popitem()
        return bool(ledgers)

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        """Return the run whose range covers the entry, which may be a hole in it."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return None
        run = ledger.runs[-1]
        if entry_id < run.first_entry_id:
            index = bisect_right(ledger.firsts, entry_id) - 1
            if index < 0:
                return None
            run = ledger.runs[index]
        return run if entry_id <= run.last_entry_id else None

    def first_above(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryId | None:
        """Return the first id of the next run that begins behind the entry."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.firsts[-1] <= entry_id:
            return None
        return ledger.firsts[bisect_right(ledger.firsts, entry_id)]

    def get(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Return an entry."""
        run = self.find(ledger_id, entry_id)
        return None if run is None else run.entry(entry_id)

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        """Return the highest id of a ledger, -1 if there is none."""
        ledger = self._ledgers.get(ledger_id)
        return INVALID_ENTRY_ID if ledger is None else ledger.runs[-1].last_entry_id

    def last_run(self, ledger_id: LedgerId) -> EntryRun | None:
        """Return the run with the highest id."""
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.runs[-1]

    def runs(self, ledger_id: LedgerId) -> Sequence[EntryRun]:
        """Return a ledger's runs, ascending."""
        ledger = self._ledgers.get(ledger_id)
        return () if ledger is None else tuple(ledger.runs)

    def ledger_ids(self) -> list[LedgerId]:
        """Return the ledgers, ascending."""
        return sorted(self._ledgers)

    def remove_ledger(self, ledger_id: LedgerId) -> None:
        """Drop a ledger's entries."""
        ledger = self._ledgers.pop(ledger_id, None)
        if ledger is not None:
            self.size_bytes -= LEDGER_OVERHEAD_BYTES
            for run in ledger.runs:
                self._count(run, -1)

    def stretches(self) -> Iterator[EntryRun]:
        """Yield all runs, ledgers ascending, neighbours joined up to about 1 MB."""
        for ledger_id in sorted(self._ledgers):
            yield from _merged(self._ledgers[ledger_id].runs)


def _merged(runs: Iterable[EntryRun]) -> Iterator[EntryRun]:
    """Join ascending runs of one ledger to stretches."""
    group: list[EntryRun] = []
    size = 0
    for run in runs:
        if group and not _fits(group, size, run):
            yield _joined(group)
            group, size = [], 0
        group.append(run)
        size += len(run.data)
    if group:
        yield _joined(group)


def _fits(group: list[EntryRun], size: int, run: EntryRun) -> bool:
    first, last = group[0], group[-1]
    if size + len(run.data) > STRETCH_SIZE_BYTES:
        return False
    gap = run.first_entry_id - last.last_entry_id - 1
    if gap >= _GAP:
        return False
    if gap == 0 and isinstance(run.sizes, int) and run.sizes == last.sizes == first.sizes:
        return True
    return run.last_entry_id - first.first_entry_id < STRETCH_SPAN


def _joined(group: list[EntryRun]) -> EntryRun:
    """Make one run of neighbours."""
    first = group[0]
    if len(group) == 1:
        return first
    data = b"".join([run.data for run in group])
    last_entry_id = group[-1].last_entry_id
    sizes: int | list[int] = first.sizes if isinstance(first.sizes, int) else 0
    expected = first.first_entry_id
    for run in group:
        if run.sizes != sizes or run.first_entry_id != expected:
            sizes = 0
            break
        expected = run.last_entry_id + 1
    if not sizes:
        sizes = []
        expected = first.first_entry_id
        for run in group:
            sizes.extend([0] * (run.first_entry_id - expected))
            if isinstance(run.sizes, int):
                sizes.extend([run.sizes] * run.count)
            else:
                sizes.extend(run.sizes)
            expected = run.last_entry_id + 1
    return EntryRun(first.ledger_id, first.first_entry_id, last_entry_id, sizes, data)


def _overlay(older: list[EntryRun], run: EntryRun) -> list[EntryRun]:
    """Lay a run over older ones; the result is ascending and without overlap."""
    holes = not isinstance(run.sizes, int) and 0 in run.sizes
    if holes or any(not isinstance(old.sizes, int) and 0 in old.sizes for old in older):
        return _overlay_by_entry(older, run)
    pieces = []
    first, last = older[0], older[-1]
    if first.first_entry_id < run.first_entry_id:
        pieces.append(first.slice(first.first_entry_id, run.first_entry_id - 1))
    pieces.append(run)
    if last.last_entry_id > run.last_entry_id:
        pieces.append(last.slice(run.last_entry_id + 1, last.last_entry_id))
    return pieces


def _overlay_by_entry(older: list[EntryRun], run: EntryRun) -> list[EntryRun]:
    entries: dict[EntryId, bytes] = {}
    for part in (*older, run):
        entries.update(part.entries())
    ids = sorted(entries)
    pieces: list[EntryRun] = []
    start = 0
    for index in range(1, len(ids) + 1):
        if index == len(ids) or ids[index] != ids[index - 1] + 1:
            bodies = [entries[entry_id] for entry_id in ids[start:index]]
            pieces.append(EntryRun.of(run.ledger_id, ids[start], bodies))
            start = index
    return list(_merged(pieces))
