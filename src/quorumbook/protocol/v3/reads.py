"""Plain reads that a bookie receives in v3, decoded by hand.

    read  0a n (08 version 10 01 18 txn [20 priority])
          a2 06 n (08 ledger 10 entry)

What does not look exactly like this is left to the protobuf library (``requests.py``).

Reads of one client and ledger differ in transaction id and entry id only.  Where a client reads in
a row, entry ids are at equal distances: such a row is cut up and compared in C, and becomes one
``ReadRun``.  Transaction ids are not even decoded, for the answer echoes their bytes.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import NamedTuple

from quorumbook.errors import RemoteProtocolError
from quorumbook.protocol import varint
from quorumbook.protocol.requests import REQUESTS_MAX, Operation, Read, ReadRun, Request
from quorumbook.protocol.run_builder import MAX_GAP
from quorumbook.protocol.v3.adds import LEAST_SIZE, decode_header, expect, struct_of

_READ_TAG = b"\xa2\x06"
_SIGN = 1 << 63
#: Fewer reads than these are not worth a try.
_LEAST_ROW = 4
#: So many reads are tried first, then ever more.
_FIRST_STRETCH = 16
_STRETCH_FACTOR = 4
#: So many reads that make no row are taken before a row is tried again.
_IRREGULAR = 32


class _Frame(NamedTuple):
    """One read and where it stands; positions are those of the chunk."""

    read: Read
    start: int
    stop: int
    transaction_at: int
    transaction_end: int
    entry_id_at: int


def decode_reads(
    data: bytes, position: int, end: int, max_length: int, requests: list[Request]
) -> int:
    """Decode the plain reads that follow each other from a position on; return where they end.

    Plain are reads of one entry without key, flag or waiting.  Returns the position itself if the
    frame there is another.
    """
    while (
        len(requests) < REQUESTS_MAX
        and (frame := _frame_at(data, position, end, max_length)) is not None
    ):
        position = frame.stop
        if not data.startswith(data[frame.start : frame.start + 4], position):
            requests.append(frame.read)
            continue
        run = _row(data, frame, end)
        if run is None:
            requests.append(frame.read)
            position = _match_reads(data, frame, end, requests)
        else:
            requests.append(run)
            position = frame.start + len(run.entry_ids) * (frame.stop - frame.start)
    return position


def _frame_at(data: bytes, position: int, end: int, max_length: int) -> _Frame | None:
    """Decode the frame at a position if it is a complete plain read of the known layout."""
    if end - position < LEAST_SIZE:
        return None
    length = int.from_bytes(data[position : position + 4], "big")
    stop = position + 4 + length
    if stop > end or length > max_length:
        return None
    try:
        transaction_id, transaction_at, transaction_end, priority, at = decode_header(
            data, position, Operation.READ_ENTRY
        )
        size, at = varint.decode(data, at + len(expect(data, at, _READ_TAG)), stop)
        is_whole = at + size == stop
        ledger_id, at = varint.decode(data, at + len(expect(data, at, b"\x08")), stop)
        entry_id_at = at + len(expect(data, at, b"\x10"))
        entry_id, at = varint.decode(data, entry_id_at, stop)
    except (RemoteProtocolError, IndexError):
        return None
    if at != stop or not is_whole:
        return None
    ledger_id, entry_id = varint.signed(ledger_id), varint.signed(entry_id)
    read = Read(3, transaction_id, ledger_id, entry_id, priority > 0)
    return _Frame(read, position, stop, transaction_at, transaction_end, entry_id_at)


def _row(data: bytes, frame: _Frame, end: int) -> ReadRun | None:
    """Return the reads from a frame on whose entry ids are at equal distances; None: too few."""
    first, size = frame.read, frame.stop - frame.start
    second = _frame_at(data, frame.stop, end, size)
    room = (end - frame.start) // size
    if second is None or first.is_high_priority or room < _LEAST_ROW:
        return None
    start, step = first.entry_id, second.read.entry_id - first.entry_id
    if start < 0 or not 0 < step < MAX_GAP:
        return None
    prefix = data[frame.start : frame.transaction_at]
    middle = data[frame.transaction_end : frame.entry_id_at]
    transaction_size = frame.transaction_end - frame.transaction_at
    behind = size - len(prefix) - transaction_size
    rows = struct_of(f">{len(prefix)}x{transaction_size}s{behind}x")
    transactions: list[bytes] = []
    block = _FIRST_STRETCH
    while block := min(block, room - len(transactions)):
        position = frame.start + len(transactions) * size
        view = memoryview(data)[position : position + block * size]
        found = list(chain.from_iterable(rows.iter_unpack(view)))
        next_id = start + len(transactions) * step
        ids = varint.encode_row(range(next_id, next_id + block * step, step))
        # What they would look like is put together in C, and one comparison proves it.
        expected = zip(repeat(prefix), found, repeat(middle), ids, strict=False)
        if b"".join(chain.from_iterable(expected)) != view or not varint.are_whole(found):
            break
        transactions += found
        block *= _STRETCH_FACTOR
    if not transactions:
        return None
    entry_ids = range(start, start + len(transactions) * step, step)
    return ReadRun(first.token, first.ledger_id, entry_ids, transactions)


def _match_reads(data: bytes, frame: _Frame, end: int, requests: list[Request]) -> int:
    """Take some reads behind a frame that look like it; return where they end."""
    size = frame.stop - frame.start
    run_prefix = data[frame.start : frame.transaction_at]
    run_middle = data[frame.transaction_end : frame.entry_id_at]
    transaction_size = frame.transaction_end - frame.transaction_at
    entry_id_size = frame.stop - frame.entry_id_at
    transaction_bias = 128 if transaction_size > 1 else 0
    entry_id_bias = 128 if entry_id_size > 1 else 0
    unpack = struct_of(
        f">{len(run_prefix)}sB{transaction_size - 1}s{len(run_middle)}sB{entry_id_size - 1}s"
    ).unpack_from
    ledger_id, is_high_priority = frame.read.ledger_id, frame.read.is_high_priority
    transaction_rest = entry_id_rest = None
    transaction_base = entry_id_base = -1
    position = frame.stop
    for _ in range(min(_IRREGULAR, (end - position) // size)):
        prefix, low, rest, middle, entry_id_low, entry_id_high = unpack(data, position)
        if prefix != run_prefix or middle != run_middle:
            break
        if rest != transaction_rest:
            transaction_rest, transaction_base = rest, varint.high_part(rest)
        if entry_id_high != entry_id_rest:
            entry_id_rest, entry_id_base = entry_id_high, varint.high_part(entry_id_high)
        low -= transaction_bias
        entry_id_low -= entry_id_bias
        if (
            not 0 <= low < 128
            or not 0 <= entry_id_low < 128
            or transaction_base < 0
            or not 0 <= entry_id_base < _SIGN
        ):
            break
        transaction_id, entry_id = transaction_base + low, entry_id_base + entry_id_low
        requests.append(Read(3, transaction_id, ledger_id, entry_id, is_high_priority))
        position += size
    return position
