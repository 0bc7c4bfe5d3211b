"""Cuts what is to be read into tasks; pure.

    plan(pieces, target_bytes=..., max_records=..., min_tasks=...) -> list of tasks
    cuts_of(tasks) -> where they begin; cut(pieces, cuts) -> the same tasks again

A piece is consecutive entries of one ledger, a task a list of pieces.  Large pieces are split,
small ones packed together in order, so that one task reads consecutive ranges of a stream; every
entry is in exactly one task.  A task costs Spark 60 to 100 ms whatever it does, so one that reads
10,000 small ledgers is worth more than 10,000 tasks.

How tasks are planned follows from sizes, which are known better later, and from options.  Where a
batch may be done again only what its cuts say is followed: entries are counted from the end of what
is read of a stream or ledger, which neither merging nor truncation changes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from quorumbook.streams.partitions.partitioning import bare_name

#: By stream, or by ledger as text: how many entries of it are left where a task begins, descending.
Cuts: TypeAlias = Mapping[str, tuple[int, ...]]


class Piece(NamedTuple):
    """Consecutive entries of one ledger, which may be a segment of a stream."""

    #: The stream's name; "" of a ledger by itself.
    name: str
    ledger_id: int
    first_entry: int
    #: The last one, included.
    last_entry: int
    #: About how many bytes of payload; and how many records, which of a ledger are its entries.
    size_bytes: int
    records: int
    segment: int = 0
    #: The sequence id of the segment's first record; below 0 if that is not known.
    segment_sequence_id: int = -1
    is_enveloped: bool = True
    #: Of a stream: records before this slot of the first entry are not wanted …
    start_slot: int = 0
    #: … and none from this slot on of the entry behind the last one; 0: nothing of that entry.
    end_slot: int = 0
    #: Which one of a partitioned stream; below 0: the stream has no partitions.
    partition: int = -1
    #: Entries at which other bookies begin: where a cut costs least.
    fragment_starts: tuple[int, ...] = ()

    @property
    def source(self) -> str:
        """The stream's name, or the ledger's id as text."""
        return self.name or str(self.ledger_id)

    @property
    def entries(self) -> int:
        """How many there are."""
        return self.last_entry - self.first_entry + 1

    @property
    def title(self) -> str:
        """What the stream is called in rows: a partition as its stream."""
        return bare_name(self.name, self.partition)

    def part(self, first_entry: int, last_entry: int) -> Piece:
        """Return some of the entries, with their share of bytes and records."""
        count, part = self.last_entry - self.first_entry + 1, last_entry - first_entry + 1
        return self._replace(
            first_entry=first_entry,
            last_entry=last_entry,
            size_bytes=self.size_bytes * part // count,
            records=self.records * part // count,
            start_slot=self.start_slot if first_entry == self.first_entry else 0,
            end_slot=self.end_slot if last_entry == self.last_entry else 0,
        )


def plan(
    pieces: Sequence[Piece],
    *,
    target_bytes: int,
    max_records: int = 0,
    min_tasks: int = 1,
) -> list[list[Piece]]:
    """Return tasks.

    Args:
        pieces: What is to be read, in the order in which it should be.
        target_bytes: A task reads about so much at most, one entry at least.
        max_records: And so many records, about; 0: any number.
        min_tasks: Make so many at least, if there are as many entries.
    """
    total_bytes = total_entries = 0
    for piece in pieces:
        total_bytes += piece[4]
        total_entries += piece[3] - piece[2] + 1
    if not total_entries:
        return []
    # Every entry weighs something, or empty ones would never fill a task.
    overhead = max(1, target_bytes >> 20)
    limit = target_bytes
    if min_tasks > 1:
        # Rounded up, or what is left over would be a task of its own.
        limit = max(1, min(limit, -(-(total_bytes + total_entries * overhead) // min_tasks)))
    tasks = _pack(pieces, limit, max_records, overhead)
    while len(tasks) < min(min_tasks, total_entries):
        # Entries that are large beside the limit leave fewer tasks than were asked for.
        limit = limit // 2
        if not limit:
            return [[single] for piece in pieces for single in _singles(piece)]
        tasks = _pack(pieces, limit, max_records, overhead)
    return tasks


def cuts_of(tasks: Sequence[Sequence[Piece]]) -> Cuts:
    """Return where tasks begin, but the first."""
    left: dict[str, int] = {}
    cuts: dict[str, list[int]] = {}
    for task in reversed(tasks):
        for piece in reversed(task):
            left[piece.source] = left.get(piece.source, 0) + piece.entries
        cuts.setdefault(task[0].source, []).append(left[task[0].source])
    if tasks:
        cuts[tasks[0][0].source].pop()
    return {source: tuple(reversed(cuts[source])) for source in sorted(cuts) if cuts[source]}


def cut(sources: Mapping[str, Sequence[Piece]], cuts: Cuts) -> list[list[Piece]]:
    """Return the tasks that begin where they did when they were planned.

    Each has the number that it had: one of which everything is gone is empty.

    Args:
        sources: What is to be read of each stream or ledger, in order.
        cuts: Where tasks begin.
    """
    tasks: list[list[Piece]] = [[]]
    for source, pieces in sources.items():
        waiting = deque(cuts.get(source, ()))
        left = sum(piece.entries for piece in pieces)
        for piece in pieces:
            first, left = piece.first_entry, left - piece.entries
            while waiting and waiting[0] > left:
                begin = max(first, piece.last_entry + 1 - (waiting.popleft() - left))
                if first < begin:
                    tasks[-1].append(piece.part(first, begin - 1))
                first = begin
                tasks.append([])
            tasks[-1].append(piece.part(first, piece.last_entry))
        tasks += [[] for _ in waiting]
    return tasks if any(tasks) else []


def _pack(
    pieces: Sequence[Piece], limit: int, max_records: int, overhead: int
) -> list[list[Piece]]:
    tasks: list[list[Piece]] = []
    task: list[Piece] = []
    weight = records = 0
    most = max_records or (1 << 62)
    for piece in pieces:
        entries = piece[3] - piece[2] + 1
        if entries <= 0:
            continue
        own = piece[4] + entries * overhead
        if task and (weight + own > limit or records + piece[5] > most):
            tasks.append(task)
            task, weight, records = [], 0, 0
        if own <= limit and piece[5] <= most:
            task.append(piece)
            weight += own
            records += piece[5]
            continue
        parts = split(piece, limit, max_records, overhead)
        tasks += [[part] for part in parts[:-1]]
        task = [parts[-1]]
        weight = parts[-1].size_bytes + (parts[-1].last_entry - parts[-1].first_entry + 1)
        records = parts[-1].records
    if task:
        tasks.append(task)
    return tasks


def split(piece: Piece, limit: int, max_records: int, overhead: int = 1) -> list[Piece]:
    """Return a large piece as parts, one entry each at least, cut where fragments begin.

    A fragment that is too large by itself is cut into parts of nearly equal size.
    """
    starts = [n for n in piece.fragment_starts if piece.first_entry < n <= piece.last_entry]
    if not starts:
        return _split_evenly(piece, limit, max_records, overhead)
    parts: list[Piece] = []
    first = piece.first_entry
    for start, behind in itertools.pairwise([first, *starts, piece.last_entry + 1]):
        whole = piece.part(first, behind - 1)
        if _fits(whole, limit, max_records, overhead):
            continue
        if first < start:
            parts.append(piece.part(first, start - 1))
        fragment = piece.part(start, behind - 1)
        if _fits(fragment, limit, max_records, overhead):
            first = start
        else:
            parts += _split_evenly(fragment, limit, max_records, overhead)
            first = behind
    if first <= piece.last_entry:
        parts.append(piece.part(first, piece.last_entry))
    return parts


def _fits(piece: Piece, limit: int, max_records: int, overhead: int) -> bool:
    entries = piece.last_entry - piece.first_entry + 1
    is_small = piece.size_bytes + entries * overhead <= limit
    return is_small and (not max_records or piece.records <= max_records)


def _split_evenly(piece: Piece, limit: int, max_records: int, overhead: int) -> list[Piece]:
    entries = piece.last_entry - piece.first_entry + 1
    count = -(-(piece.size_bytes + entries * overhead) // limit)
    if max_records:
        count = max(count, -(-piece.records // max_records))
    count = min(count, entries)
    bounds = [piece.first_entry + entries * n // count for n in range(count + 1)]
    return [piece.part(first, behind - 1) for first, behind in itertools.pairwise(bounds)]


def _singles(piece: Piece) -> list[Piece]:
    return [piece.part(n, n) for n in range(piece.first_entry, piece.last_entry + 1)]
