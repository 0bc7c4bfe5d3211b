"""Reading a whole entry log: for rebuilding an index, for scrubbing, for adopting a directory.

A log with run records is read run by run: the size fields lead to the record behind the run,
and the run counts only if its checksum is good.  Where the size fields lead nowhere, the next
record that proves itself is searched; it says where its run begins, so damage costs the runs it
touched and no more.  Each lost stretch is reported, never skipped in silence.

A log of the peer has no run records.  Its entries are taken as they come (``is_verified`` is
false: only their digests can prove them), a size that is not positive is stepped over byte by
byte as the peer does, and an impossible one ends the log with a report.

No size field makes the scan allocate more than one run may have, and every step moves forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from struct import Struct
from typing import NamedTuple, TypeAlias

from google_crc32c import value

from quorumbook.env import Env, File
from quorumbook.errors import CorruptEntryLogError
from quorumbook.ids import MAX_FRAME_SIZE_BYTES, EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.entrylog.format import (
    HEADER_SIZE,
    INVALID_LEDGER_ID,
    MAP_ENTRY_ID,
    RUN_ENTRY_ID,
    RUN_PATTERN,
    RUN_RECORD_SIZE,
    RUN_SIZE_LIMIT_BYTES,
    EntryLogHeader,
    RunRecord,
    decode_header,
    decode_run_record,
    entry_log_name,
)

WINDOW_BYTES = 4 * 1024 * 1024
#: The peer's entries are handed over in runs of about this size.
PLAIN_RUN_BYTES = 1024 * 1024
_GAP_LIMIT = 16
_SPAN_LIMIT = 1 << 24

_HEAD = Struct(">iqq")
_INT32 = Struct(">i")


class ScannedRun(NamedTuple):
    """A run and the offset of its first size field."""

    run: EntryRun
    position: int
    is_verified: bool


class DamagedStretch(NamedTuple):
    """Bytes that hold no run that can be believed.

    ``is_tail`` is true behind the last run: there a crash before a sync explains it, and
    nothing points there unless the index does.  Ledger and entries are given where the run's
    record survived.
    """

    path: str
    position: int
    size_bytes: int
    reason: str
    is_tail: bool = False
    ledger_id: LedgerId | None = None
    first_entry_id: EntryId | None = None
    last_entry_id: EntryId | None = None


Found: TypeAlias = ScannedRun | DamagedStretch


def scan_entry_log(
    env: Env,
    directory: str,
    entry_log_id: int,
    *,
    entry_size_max: int = MAX_FRAME_SIZE_BYTES,
) -> Iterator[Found]:
    """Yield every run of a log and every stretch that is damaged, in the order of the file."""
    path = f"{directory}/{entry_log_name(entry_log_id)}"
    file = env.disk.open(path, read_only=True)
    try:
        scan = _Scan(file, entry_log_id, entry_size_max)
        data = file.read(0, HEADER_SIZE)
        try:
            header = decode_header(data, entry_log_id, path)
        except CorruptEntryLogError as error:
            yield DamagedStretch(path, 0, min(HEADER_SIZE, len(data)), str(error))
            header = EntryLogHeader(0, 0, scan.next_record(HEADER_SIZE) is not None)
        if header.is_checked or scan.next_record(HEADER_SIZE) is not None:
            yield from scan.checked()
        else:
            yield from scan.plain()
    finally:
        file.close()


class _Walk(NamedTuple):
    """Entries that the size fields led through, up to what follows them."""

    ids: list[EntryId]
    sizes: list[int]
    ledger_ids: set[LedgerId]
    end: int
    next_entry_id: int


class _Scan:
    """One log being read."""

    def __init__(self, file: File, entry_log_id: int, entry_size_max: int) -> None:
        self.file = file
        self.size = file.size_bytes()
        self.entry_log_id = entry_log_id
        self.entry_size_max = entry_size_max
        self.base = 0
        self.data = b""

    def load(self, position: int, size_bytes: int) -> None:
        """Have ``size_bytes`` from a position at hand, or up to the end of the file."""
        end = min(position + size_bytes, self.size)
        if position < self.base or end > self.base + len(self.data):
            self.base = position
            self.data = self.file.read(position, max(size_bytes, WINDOW_BYTES))

    def damage(
        self, position: int, end: int, reason: str, *, record: RunRecord | None = None
    ) -> DamagedStretch:
        """Describe a stretch."""
        ids = record[:3] if record else (None, None, None)
        return DamagedStretch(
            self.file.path, position, end - position, reason, record is None and end >= self.size,
            *ids,
        )  # fmt: skip

    # --- with run records ---

    def checked(self) -> Iterator[Found]:
        """Yield runs that their records prove."""
        position = HEADER_SIZE
        while position < self.size:
            walk = self._walk(position)
            if walk is not None and walk.next_entry_id == MAP_ENTRY_ID and not walk.ids:
                return
            at = walk.end if walk is not None and walk.next_entry_id == RUN_ENTRY_ID else None
            record = self._record(at) if at is not None else None
            if walk is None or at is None or record is None or at - record.size_bytes != position:
                found = self._resume(position)
                if found is None:
                    yield self._tail(position)
                    return
                start, position = found
                yield start
                continue
            yield self._verified(position, at, record, walk)
            position = at + RUN_RECORD_SIZE

    def _tail(self, position: int) -> DamagedStretch:
        return self.damage(position, self.size, "no run record proves the end of the log")

    def _record(self, position: int) -> RunRecord | None:
        self.load(position, RUN_RECORD_SIZE)
        return decode_run_record(self.entry_log_id, position, self.data, position - self.base)

    def _walk(self, position: int) -> _Walk | None:
        """Follow the size fields from a run's start to the record behind it."""
        window = WINDOW_BYTES
        self.load(position, _HEAD.size)
        while True:
            walk = self._walk_window(position)
            if walk is not None or self.base + len(self.data) >= self.size:
                return walk if walk is not None and walk.end >= 0 else None
            if window > RUN_SIZE_LIMIT_BYTES:
                return None
            if self.base == position:
                window *= 4
            self.base, self.data = position, self.file.read(position, window)

    def _walk_window(self, position: int) -> _Walk | None:
        """Walk within the window; None if it is too small, an end of -1 if it leads nowhere."""
        data, limit = self.data, len(self.data) - _HEAD.size
        index = position - self.base
        unpack, entry_size_max = _HEAD.unpack_from, self.entry_size_max
        ids: list[EntryId] = []
        sizes: list[int] = []
        ledger_ids: set[LedgerId] = set()
        while index <= limit:
            size, ledger_id, entry_id = unpack(data, index)
            if ledger_id == INVALID_LEDGER_ID:
                return _Walk(ids, sizes, ledger_ids, self.base + index, entry_id)
            if size < 16 or size > entry_size_max or ledger_id < 0 or entry_id < 0:
                return _Walk(ids, sizes, ledger_ids, -1, 0)
            ledger_ids.add(ledger_id)
            ids.append(entry_id)
            sizes.append(size)
            index += 4 + size
        return None

    def _resume(self, position: int) -> tuple[DamagedStretch, int] | None:
        """Find the next run that can be read; return what is lost and where to go on.

        The record found may itself belong to the damaged run, and then says what is lost.
        """
        found = self.next_record(position)
        if found is None:
            return None
        at, record = found
        start = at - record.size_bytes
        if start > position:
            return self.damage(position, start, "no run record proves this stretch"), start
        end = at + RUN_RECORD_SIZE
        return self.damage(position, end, "the run's size fields are damaged", record=record), end

    def next_record(self, position: int) -> tuple[int, RunRecord] | None:
        """Return the first run record at or behind ``position`` that proves itself."""
        overlap = RUN_RECORD_SIZE
        while position < self.size:
            data = self.file.read(position, WINDOW_BYTES + overlap)
            found = data.find(RUN_PATTERN, 4)
            while found >= 0:
                at = position + found - 4
                record = decode_run_record(self.entry_log_id, at, data, found - 4)
                if record is not None and 0 < record.size_bytes <= at - HEADER_SIZE:
                    return at, record
                found = data.find(RUN_PATTERN, found + 1)
            position += WINDOW_BYTES
        return None

    def _verified(self, position: int, end: int, record: RunRecord, walk: _Walk) -> Found:
        self.load(position, end - position)
        data = self.data[position - self.base : end - self.base]
        whole = end + RUN_RECORD_SIZE
        if value(data) != record.crc:
            return self.damage(position, whole, "the run's checksum is wrong", record=record)
        ids, sizes = walk.ids, walk.sizes
        first, last = record.first_entry_id, record.last_entry_id
        span = last - first + 1
        is_other = walk.ledger_ids != {record.ledger_id}
        if is_other or (ids[0], ids[-1], len(ids)) != (first, last, record.entries):
            return self.damage(position, whole, "the run holds other entries", record=record)
        if span == len(ids):
            uniform = sizes.count(sizes[0]) == len(sizes)
            run = EntryRun(record.ledger_id, first, last, sizes[0] if uniform else sizes, data)
            return ScannedRun(run, position, is_verified=True)
        if not 0 < span <= _SPAN_LIMIT or any(a >= b for a, b in pairwise(ids)):
            return self.damage(position, whole, "the run's entries are out of order", record=record)
        spread = [0] * span
        for entry_id, size in zip(ids, sizes, strict=True):
            spread[entry_id - first] = size
        return ScannedRun(
            EntryRun(record.ledger_id, first, last, spread, data), position, is_verified=True
        )

    # --- the peer's ---

    def plain(self) -> Iterator[Found]:
        """Yield the entries of a log without run records."""
        position = HEADER_SIZE
        while position + _HEAD.size <= self.size:
            self.load(position, _HEAD.size)
            size, ledger_id, entry_id = _HEAD.unpack_from(self.data, position - self.base)
            if size <= 0:
                position = self._step(position)
                continue
            if size < 16 or size > self._plain_limit(ledger_id) or position + 4 + size > self.size:
                yield self.damage(position, self.size, f"a record claims {size} bytes")
                return
            if ledger_id < 0 or entry_id < 0:
                position += 4 + size
                continue
            run = self._plain_run(position)
            yield ScannedRun(run, position, is_verified=False)
            position += len(run.data)
        if any(self.file.read(position, _HEAD.size)):
            yield self.damage(position, self.size, "the last record is cut")

    def _plain_limit(self, ledger_id: LedgerId) -> int:
        # A part of the ledgers map is a record of ledger -1 and has its own bound.
        return max(self.entry_size_max, 20 + 16 * 10_000) if ledger_id < 0 else self.entry_size_max

    def _step(self, position: int) -> int:
        """Return the next position, behind ``position``, whose size field is positive."""
        while position + 4 <= self.size:
            index = position - self.base
            if index + 4 > len(self.data):
                self.load(position, _HEAD.size)
                index = 0
            data = self.data
            if data[index : index + 4] == b"\0\0\0\0":
                # Over zeros in one step: the size field may begin with up to three of them.
                rest = data[index : index + 65536]
                zeros = len(rest) - len(rest.lstrip(b"\0"))
                position += max(zeros - 3, 1)
            elif _INT32.unpack_from(data, index)[0] <= 0:
                position += 1
            else:
                break
        return position

    def _plain_run(self, position: int) -> EntryRun:
        """Collect the entries of one ledger, ascending, that start at ``position``."""
        self.load(position, PLAIN_RUN_BYTES)
        first_size = _INT32.unpack_from(self.data, position - self.base)[0]
        self.load(position, max(PLAIN_RUN_BYTES, 4 + first_size))
        data, start = self.data, position - self.base
        limit = min(len(data), start + max(PLAIN_RUN_BYTES, 4 + first_size))
        _, ledger_id, first = _HEAD.unpack_from(data, start)
        sizes: list[int] = []
        index, last = start, first - 1
        while index + _HEAD.size <= limit:
            size, next_ledger, entry_id = _HEAD.unpack_from(data, index)
            if (
                next_ledger != ledger_id
                or not 16 <= size <= self.entry_size_max
                or not last < entry_id <= last + _GAP_LIMIT
                or index + 4 + size > limit
            ):
                break
            sizes.extend([0] * (entry_id - last - 1))
            sizes.append(size)
            last = entry_id
            index += 4 + size
        uniform = sizes.count(sizes[0]) == len(sizes)
        return EntryRun(ledger_id, first, last, sizes[0] if uniform else sizes, data[start:index])
