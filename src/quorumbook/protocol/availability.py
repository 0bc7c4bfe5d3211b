"""Which entries of a ledger a bookie holds, as one answer.

    header, 64 bytes   int32 version 0, int32 number of groups, 56 zeros
    group, 24 bytes    int64 first start, int64 last start, int32 sequence size, int32 period

A group stands for runs of ``sequence size`` ids that begin at first, first + period, … last;
period 0 says that there is one run only.  Like the peer we write one group for each run, and read
periods as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

from quorumbook.errors import RemoteProtocolError
from quorumbook.ids import EntryId

HEADER_SIZE_BYTES = 64
_HEADER = Struct(">ii56x")
_GROUP = Struct(">qqii")
_MAX_SEQUENCE_SIZE = 2**31 - 1
_MAX_RUNS = 1 << 20


def encode_ranges(ranges: Iterable[tuple[EntryId, EntryId]]) -> bytes:
    """Encode runs given as first and last id, ascending and apart from each other."""
    groups = [
        _GROUP.pack(start, start, min(_MAX_SEQUENCE_SIZE, last + 1 - start), 0)
        for first, last in ranges
        for start in range(first, last + 1, _MAX_SEQUENCE_SIZE)
    ]
    return _HEADER.pack(0, len(groups)) + b"".join(groups)


def encode(entry_ids: Iterable[EntryId]) -> bytes:
    """Encode ids in ascending order; one that comes twice counts once."""
    return encode_ranges(_ranges_of(entry_ids))


def decode_ranges(data: bytes) -> list[tuple[EntryId, EntryId]]:
    """Decode to runs of first and last id, as they come.

    Ids are not multiplied out, and the number of runs is bounded, so that no small answer becomes
    a large list.

    Raises:
        RemoteProtocolError: the bytes are no availability of this version.
    """
    if len(data) < HEADER_SIZE_BYTES:
        raise RemoteProtocolError("the availability of entries has no whole header")
    version, group_count = _HEADER.unpack_from(data)
    if version != 0:
        raise RemoteProtocolError(f"availability of entries in version {version}")
    if group_count < 0 or len(data) < HEADER_SIZE_BYTES + group_count * _GROUP.size:
        raise RemoteProtocolError("the availability of entries is cut off")
    ranges: list[tuple[EntryId, EntryId]] = []
    for index in range(group_count):
        group = _GROUP.unpack_from(data, HEADER_SIZE_BYTES + index * _GROUP.size)
        ranges += _runs_of_group(*group)
        if len(ranges) > _MAX_RUNS:
            raise RemoteProtocolError("the availability of entries has too many runs")
    return ranges


def decode(data: bytes) -> list[EntryId]:
    """Decode to ids in ascending order; meant for ledgers of known, moderate size."""
    ids = {entry_id for first, last in decode_ranges(data) for entry_id in range(first, last + 1)}
    return sorted(ids)


def _runs_of_group(
    first: EntryId, last: EntryId, size: int, period: int
) -> list[tuple[EntryId, EntryId]]:
    if size <= 0 or first < 0 or last < first or period < 0 or (period == 0) != (first == last):
        raise RemoteProtocolError("a group of the availability of entries contradicts itself")
    if period == 0:
        return [(first, first + size - 1)]
    if (last - first) % period or (last - first) // period >= _MAX_RUNS:
        raise RemoteProtocolError("a group of the availability of entries contradicts itself")
    return [(start, start + size - 1) for start in range(first, last + 1, period)]


def _ranges_of(entry_ids: Iterable[EntryId]) -> Iterator[tuple[EntryId, EntryId]]:
    first = last = -1
    for entry_id in entry_ids:
        if first < 0:
            first = last = entry_id
        elif entry_id <= last + 1:
            last = entry_id
        else:
            yield first, last
            first = last = entry_id
    if first >= 0:
        yield first, last
