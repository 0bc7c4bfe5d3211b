"""The bytes of an entry log ``<hex id>.log`` and of ``lastId``.

    header, 1024 bytes   "BKLO", int32 version (1), int64 offset of the ledgers map (0: none),
                         int32 ledgers in the map, zeros
    entry                int32 size, entry as in protocol/digest.py
    ledgers map          behind the last entry, records of at most 10,000 ledgers each:
                         int32 size (20 + 16 n), int64 -1, int64 -2, int32 n,
                         n x (int64 ledger id, int64 bytes with the 4-byte sizes)
    lastId               the newest id in hex and a newline; ids are never used twice

The peer's scan skips every record of ledger -1 by its size.  Ours hides checks there:

    header, bytes 20 to 31   "QBEL", int32 our version (1), CRC32C of (int64 log id, bytes 0-27)
    run record               behind the entries of a run: int32 size (64), int64 -1,
                             int64 -0x5142, "QBR1", int64 ledger id, int64 first, int64 last,
                             int32 count, int64 bytes of the run, CRC32C of the run's bytes,
                             CRC32C of (int64 log id, int64 position of this record, its bytes)

A position in our index is that of a run's first size field; the peer's location of an entry,
``log id << 32 | position``, is that of the entry's bytes behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from struct import Struct
from typing import NamedTuple

from google_crc32c import extend, value

from quorumbook.env import File
from quorumbook.errors import CorruptEntryLogError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun

MAGIC = b"BKLO"
VERSION = 1
HEADER_SIZE = 1024
CHECK_MAGIC = b"QBEL"
CHECK_VERSION = 1

INVALID_LEDGER_ID = -1
MAP_ENTRY_ID = -2
#: The peer reads -2 as a part of the ledgers map and gives no other id of ledger -1 a meaning.
RUN_ENTRY_ID = -0x5142
RUN_MAGIC = b"QBR1"
#: What a run record looks like behind its size, for finding the next one behind damage.
RUN_PATTERN = Struct(">qq4s").pack(INVALID_LEDGER_ID, RUN_ENTRY_ID, RUN_MAGIC)
MAP_BATCH = 10_000
#: No run is larger, so a scan knows when to stop looking for the record behind one.
RUN_SIZE_LIMIT_BYTES = 64 * 1024 * 1024

_HEADER = Struct(">4siqi4si")
_PLAIN_HEADER = Struct(">4siqi")
_RUN = Struct(">iqq4sqqqiqI")
_IDS = Struct(">qq")
_INT64 = Struct(">q")
_UINT32 = Struct(">I")
_MAP_HEAD = Struct(">iqqi")
_NAME = re.compile(r"([0-9a-f]{1,16})\.log")

RUN_RECORD_SIZE = _RUN.size + 4


class Location(NamedTuple):
    """Where a run lies: its entry log and the offset of its first size field."""

    entry_log_id: int
    position: int


class EntryLogHeader(NamedTuple):
    """What the header says; without checks the log is one of the peer's."""

    map_offset: int
    map_count: int
    is_checked: bool


class RunRecord(NamedTuple):
    """The check behind a run."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    last_entry_id: EntryId
    entries: int
    size_bytes: int
    crc: int


def entry_log_name(entry_log_id: int) -> str:
    """Return the file name of an entry log."""
    return f"{entry_log_id:x}.log"


def entry_log_id_of(name: str) -> int | None:
    """Return the id in a file name, or None if the file is no entry log."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def encode_last_id(entry_log_id: int) -> bytes:
    """Return the content of ``lastId``."""
    return f"{entry_log_id:x}\n".encode()


def decode_last_id(data: bytes) -> int:
    """Parse ``lastId``; -1 if it says nothing, for then the names of the logs do."""
    try:
        return max(int(data.decode("ascii").strip(), 16), -1)
    except ValueError:
        return -1


def encode_header(entry_log_id: int, map_offset: int = 0, map_count: int = 0) -> bytes:
    """Return the first 32 bytes of a log; the rest of its header is zeros."""
    head = _HEADER.pack(MAGIC, VERSION, map_offset, map_count, CHECK_MAGIC, CHECK_VERSION)
    return head + _UINT32.pack(extend(value(_INT64.pack(entry_log_id)), head))


def encode_plain_header(map_offset: int, map_count: int) -> bytes:
    """Return the first 20 bytes of a log of the peer, which has no check behind them."""
    return _PLAIN_HEADER.pack(MAGIC, VERSION, map_offset, map_count)


def decode_header(data: bytes, entry_log_id: int, path: str) -> EntryLogHeader:
    """Parse the first 32 bytes of the peer's or our log.

    Raises:
        CorruptEntryLogError: The header is damaged, of another log, or of a newer release.
    """
    if len(data) < 32:
        raise CorruptEntryLogError("the header is cut", path=path, offset=len(data))
    magic, version, map_offset, map_count, check_magic, check_version = _HEADER.unpack_from(data)
    if check_magic == CHECK_MAGIC:
        crc = extend(value(_INT64.pack(entry_log_id)), data[: _HEADER.size])
        if crc != _UINT32.unpack_from(data, _HEADER.size)[0]:
            raise CorruptEntryLogError("the header is damaged", path=path, offset=0)
        if check_version > CHECK_VERSION:
            raise CorruptEntryLogError(
                f"the entry log was written by a newer release (checks {check_version}, ours "
                f"{CHECK_VERSION})",
                path=path,
                offset=24,
            )
    if magic != MAGIC:
        raise CorruptEntryLogError("this is not an entry log", path=path, offset=0)
    if version not in (0, VERSION):
        raise CorruptEntryLogError(f"version {version} is not known", path=path, offset=4)
    if version == 0:
        map_offset = map_count = 0
    if map_offset < 0 or map_count < 0:
        raise CorruptEntryLogError("the header is damaged", path=path, offset=8)
    return EntryLogHeader(map_offset, map_count, check_magic == CHECK_MAGIC)


def encode_run_record(
    entry_log_id: int, position: int, run: EntryRun, checksum: int | None = None
) -> bytes:
    """Return the record that proves the run just before ``position``."""
    record = _RUN.pack(
        RUN_RECORD_SIZE - 4,
        INVALID_LEDGER_ID,
        RUN_ENTRY_ID,
        RUN_MAGIC,
        run.ledger_id,
        run.first_entry_id,
        run.last_entry_id,
        run.count,
        len(run.data),
        value(run.data) if checksum is None else checksum,
    )
    return record + _UINT32.pack(extend(value(_IDS.pack(entry_log_id, position)), record))


def decode_run_record(
    entry_log_id: int, position: int, data: bytes, index: int = 0
) -> RunRecord | None:
    """Parse the run record that lies at ``index`` of data and ``position`` of the log.

    Returns None if it does not prove itself.
    """
    end = index + _RUN.size
    if end + 4 > len(data):
        return None
    size, _, _, magic, ledger_id, first, last, count, size_bytes, crc = _RUN.unpack_from(
        data, index
    )
    if size != RUN_RECORD_SIZE - 4 or magic != RUN_MAGIC:
        return None
    expected = extend(value(_IDS.pack(entry_log_id, position)), data[index:end])
    if expected != _UINT32.unpack_from(data, end)[0]:
        return None
    return RunRecord(ledger_id, first, last, count, size_bytes, crc)


def is_start_of_run(file: File, entry_log_id: int, position: int) -> bool:
    """Tell whether a run begins at a position of a log: the one before is proven up to there."""
    if position == HEADER_SIZE:
        return True
    before = position - RUN_RECORD_SIZE
    data = file.read(before, RUN_RECORD_SIZE)
    return decode_run_record(entry_log_id, before, data) is not None


def encode_ledgers_map(sizes: Mapping[LedgerId, int]) -> bytes:
    """Return the map's records: how many bytes of which ledger the log holds."""
    records: list[bytes] = []
    items = iter(sizes.items())
    while batch := list(islice(items, MAP_BATCH)):
        count = len(batch)
        records.append(_MAP_HEAD.pack(20 + 16 * count, INVALID_LEDGER_ID, MAP_ENTRY_ID, count))
        records.extend(_IDS.pack(ledger_id, size) for ledger_id, size in batch)
    return b"".join(records)


def read_ledgers_map(file: File, header: EntryLogHeader) -> dict[LedgerId, int] | None:
    """Read a log's ledgers map; None if it has none that can be believed.

    An empty map is no proof that the log is empty (S61): whoever wants to delete a log scans it
    first when this is None.
    """
    size = file.size_bytes()
    if not HEADER_SIZE <= header.map_offset < size or header.map_count <= 0:
        return None
    if size - header.map_offset < 16 * header.map_count:
        return None
    ledgers: dict[LedgerId, int] = {}
    for batch in _map_records(file, header.map_offset, size):
        if batch is None:
            return None
        ledgers.update(batch)
    return ledgers if len(ledgers) == header.map_count else None


def _map_records(file: File, position: int, size: int) -> Iterator[dict[LedgerId, int] | None]:
    while position < size:
        head = file.read(position, _MAP_HEAD.size)
        if len(head) < _MAP_HEAD.size:
            yield None
            return
        record_size, ledger_id, entry_id, count = _MAP_HEAD.unpack(head)
        if (
            (ledger_id, entry_id) != (INVALID_LEDGER_ID, MAP_ENTRY_ID)
            or not 0 < count <= MAP_BATCH
            or record_size != 20 + 16 * count
        ):
            yield None
            return
        body = file.read(position + _MAP_HEAD.size, 16 * count)
        if len(body) != 16 * count:
            yield None
            return
        yield dict(_IDS.iter_unpack(body))
        position += 4 + record_size
