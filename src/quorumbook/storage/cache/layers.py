"""The layers in which an entry is found before the disk: two write caches and the read cache.

The newest layer wins: an entry added again lies in a younger layer than its older version.  A
slice of an older layer's run therefore ends where a younger layer has something to say
(``newest_until``).
"""

from __future__ import annotations

from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.cache.read import ReadCache
from quorumbook.storage.cache.write import WriteCache

_NO_LIMIT = 2**63 - 1


class Caches:
    """All entries in memory; used on the event loop."""

    def __init__(self, *, read_cache_size_bytes: int) -> None:
        self.active = WriteCache()
        self.flushing: WriteCache | None = None
        self.read = ReadCache(limit_bytes=read_cache_size_bytes)

    @property
    def unflushed_bytes(self) -> int:
        """Memory held by entries that are not in an entry log yet."""
        flushing = self.flushing
        return self.active.size_bytes + (flushing.size_bytes if flushing is not None else 0)

    def swap(self) -> WriteCache:
        """Begin a new write cache; the full one stays readable until ``drop_flushed``."""
        assert self.flushing is None
        full, self.active = self.active, WriteCache()
        self.flushing = full
        return full

    def drop_flushed(self) -> None:
        """Let go of a write cache whose entries the index has."""
        self.flushing = None

    def find_unflushed(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        """Return the run of the youngest write cache that has the entry."""
        run = self.active.find(ledger_id, entry_id)
        if run is not None and run.has(entry_id):
            return run
        if self.flushing is not None:
            run = self.flushing.find(ledger_id, entry_id)
            if run is not None and run.has(entry_id):
                return run
        return None

    def newest_until(self, ledger_id: LedgerId, entry_id: EntryId, run: EntryRun) -> EntryId:
        """Return up to which id, from one that ``run`` has, no younger layer has another say."""
        limit = _NO_LIMIT
        for cache in (self.active, self.flushing):
            if cache is None:
                continue
            found = cache.find(ledger_id, entry_id)
            if found is run:
                break
            if found is not None:
                # A hole of that run; what comes behind it is asked for one by one.
                return entry_id
            above = cache.first_above(ledger_id, entry_id)
            if above is not None:
                limit = min(limit, above - 1)
        return limit

    def last_unflushed(self, ledger_id: LedgerId) -> tuple[EntryId, EntryId]:
        """Return the highest unflushed entry id and the last add confirmed known from it."""
        last = lac = INVALID_ENTRY_ID
        for cache in (self.active, self.flushing):
            run = cache.last_run(ledger_id) if cache is not None else None
            if run is not None:
                last = max(last, run.last_entry_id)
                lac = max(lac, run.last_add_confirmed())
        return last, lac

    def unflushed_ranges(self, ledger_id: LedgerId) -> list[range]:
        """Return the ids in the write caches as ranges, in no order."""
        return ranges_of(self.unflushed_runs(ledger_id))

    def unflushed_runs(self, ledger_id: LedgerId) -> list[EntryRun]:
        """Return the runs in the write caches, in no order."""
        caches = (self.active, self.flushing)
        return [run for cache in caches if cache is not None for run in cache.runs(ledger_id)]


def ranges_of(runs: list[EntryRun]) -> list[range]:
    """Return the ids of runs as ranges, in no order."""
    ranges: list[range] = []
    for run in runs:
        ids = run.entry_ids()
        if isinstance(ids, range):
            ranges.append(ids)
        else:
            ranges.extend(range(entry_id, entry_id + 1) for entry_id in ids)
    return ranges
