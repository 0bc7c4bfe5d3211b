"""Adds that a bookie receives in v3, decoded by hand.

They come in masses, and in one of two layouts: the peer's Java client writes the field ``flag``
first, Google's libraries write it last.

    add   0a n (08 version 10 02 18 txn [20 priority])
          aa 06 n ([a0 06 flag] 08 ledger 10 entry 1a 14 key 22 n body [28 flags] [a0 06 flag])

What does not look exactly like this is left to the protobuf library (``requests.py``).

Adds of one client and ledger differ in transaction id, entry id and body only.  After the first,
``_Layout`` knows where these are, and each frame that follows is cut up by one ``unpack_from`` and
compared with it.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import NamedTuple

from quorumbook.errors import RemoteProtocolError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol import varint
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.requests import (
    REQUESTS_MAX,
    AddRun,
    LargeAdd,
    Operation,
    Request,
    Unsupported,
)
from quorumbook.protocol.run_builder import MAX_GAP, build_run, single_run, to_cut
from quorumbook.protocol.status import Status

_IDS = Struct(">qq")
_RECOVERY_ADD = 1
_DEFERRED_SYNC = 1
_VERSION_THREE = 3

_ADD_TAG = b"\xaa\x06"
_FLAG_TAG = b"\xa0\x06"
_KEY_TAG = b"\x1a\x14"
LEAST_SIZE = 16


_structs: dict[str, Struct] = {}


def struct_of(layout: str) -> Struct:
    """Return a struct of a layout seen on the wire; many frames, and connections, have the same."""
    struct = _structs.get(layout)
    if struct is None:
        if len(_structs) >= 1024:
            _structs.clear()
        struct = _structs[layout] = Struct(layout)
    return struct


class _Add(NamedTuple):
    """One add, decoded by hand; positions are those of the chunk."""

    transaction_id: int
    transaction_at: int
    transaction_end: int
    nested_size_at: int
    nested_at: int
    is_high_priority: bool
    is_recovery: bool
    is_deferred_sync: bool
    echo_ledger_id: LedgerId
    echo_entry_id: EntryId
    entry_id_at: int
    entry_id_end: int
    master_key: bytes
    ledger_id: LedgerId
    entry_id: EntryId
    body_size_at: int
    body_at: int
    body_end: int

    def __repr__(self) -> str:
        return f"_Add(transaction_id={self.transaction_id}, {self.ledger_id}, {self.entry_id})"

    def is_like(self, other: _Add) -> bool:
        """Tell whether both can be in one run, their ids aside."""
        return (
            self.ledger_id == other.ledger_id
            and self.echo_ledger_id == other.echo_ledger_id
            and self.master_key == other.master_key
            and self.is_high_priority == other.is_high_priority
            and self.is_recovery == other.is_recovery
            and self.is_deferred_sync == other.is_deferred_sync
        )


class _Layout:
    """Where the varying fields of an add are, and what stands around them.

    Transaction id, entry id, body and the three sizes may vary, as long as each takes as many bytes
    as in the add the layout was learned from.
    """

    __slots__ = (
        "around_body",
        "around_nested_body",
        "body_at",
        "entry_id_bias",
        "fixed",
        "trailer",
        "transaction_bias",
        "unpack",
    )

    def __init__(self, data: bytes, position: int, stop: int, add: _Add) -> None:
        transaction_size = add.transaction_end - add.transaction_at
        entry_id_size = add.entry_id_end - add.entry_id_at
        # A varint that goes on behind its first byte says so in the first byte's high bit.
        self.transaction_bias = 128 if transaction_size > 1 else 0
        self.entry_id_bias = 128 if entry_id_size > 1 else 0
        self.fixed = (
            data[position + 4 : add.transaction_at],
            data[add.transaction_end : add.nested_size_at],
            data[add.nested_at : add.entry_id_at],
            data[add.entry_id_end : add.body_size_at],
        )
        self.trailer = data[add.body_end : stop]
        body_size = add.body_end - add.body_at
        self.around_body = stop - position - 4 - body_size
        self.around_nested_body = stop - add.nested_at - body_size
        self.body_at = add.body_at - position
        head, before_nested, nested, before_body = map(len, self.fixed)
        nested_size, body_size = add.nested_at - add.nested_size_at, add.body_at - add.body_size_at
        self.unpack = struct_of(
            f">i{head}sB{transaction_size - 1}s{before_nested}s{nested_size}s{nested}s"
            f"B{entry_id_size - 1}s{before_body}s{body_size}sqq"
        ).unpack_from


def decode_adds(
    data: bytes, position: int, end: int, max_length: int, requests: list[Request]
) -> int:
    """Decode the adds that follow each other from a position on; return where they end.

    Returns the position itself if the frame there is no add of a known layout.
    """
    add, stop = _add_at(data, position, end, max_length)
    while add is not None and len(requests) < REQUESTS_MAX:
        first = add
        frames = to_cut(data, add.body_end - add.body_at)
        bodies: list[bytes | memoryview] = [b"", frames[add.body_at : add.body_end]]
        ids = [add.entry_id]
        echo_ids = [add.echo_entry_id]
        transaction_ids = [add.transaction_id]
        while True:
            begin, position = position, stop
            if (
                end - stop >= stop - begin - (add.body_end - add.body_at)  # there is another
                and add.echo_entry_id == add.entry_id
                and add.echo_ledger_id == add.ledger_id
            ):
                layout = _Layout(data, begin, stop, add)
                position = _match_layout(
                    data, stop, end, max_length, layout, add, ids, transaction_ids, bodies
                )
                echo_ids += ids[len(echo_ids) :]
            add, stop = _add_at(data, position, end, max_length)
            if add is None or not add.is_like(first) or not 0 < add.entry_id - ids[-1] < MAX_GAP:
                break
            bodies.append(frames[add.body_at : add.body_end])
            ids.append(add.entry_id)
            echo_ids.append(add.echo_entry_id)
            transaction_ids.append(add.transaction_id)
        requests.append(_add_run(first, ids, echo_ids, transaction_ids, bodies))
    return position


def _match_layout(
    data: bytes,
    position: int,
    end: int,
    max_length: int,
    layout: _Layout,
    add: _Add,
    ids: list[EntryId],
    transaction_ids: list[int],
    bodies: list[bytes | memoryview],
) -> int:
    """Take the frames that look like the add before them; return where they end."""
    unpack, body_at = layout.unpack, layout.body_at
    trailer, trailer_size = layout.trailer, len(layout.trailer)
    run_head, run_before_nested, run_nested, run_before_body = layout.fixed
    transaction_bias, entry_id_bias = layout.transaction_bias, layout.entry_id_bias
    run_ledger_id, last = add.ledger_id, add.entry_id
    transaction_rest = entry_id_rest = run_nested_size = run_body_size = None
    transaction_base = entry_id_base = run_length = -1
    least_size = body_at + _IDS.size
    while end - position >= least_size:
        (
            length, head, low, rest, before_nested, nested_size, nested,
            entry_id_low, entry_id_high, before_body, body_size, ledger_id, entry_id,
        ) = unpack(data, position)  # fmt: skip
        stop = position + 4 + length
        if length != run_length:
            size = length - layout.around_body
            run_length, run_body_size = length, size >= _IDS.size and varint.encode(size)
            run_nested_size = varint.encode(size + layout.around_nested_body)
        if rest != transaction_rest:
            transaction_rest, transaction_base = rest, varint.high_part(rest)
        if entry_id_high != entry_id_rest:
            entry_id_rest, entry_id_base = entry_id_high, varint.high_part(entry_id_high)
        low -= transaction_bias
        entry_id_low -= entry_id_bias
        if (
            stop > end
            or length > max_length
            or head != run_head
            or before_nested != run_before_nested
            or nested_size != run_nested_size
            or nested != run_nested
            or before_body != run_before_body
            or body_size != run_body_size
            or ledger_id != run_ledger_id
            or not 0 < entry_id - last < MAX_GAP
            or not 0 <= low < 128
            or not 0 <= entry_id_low < 128
            or transaction_base < 0
            or entry_id_base + entry_id_low != entry_id
            or data[stop - trailer_size : stop] != trailer
        ):
            break
        bodies.append(data[position + body_at : stop - trailer_size])
        transaction_ids.append(transaction_base + low)
        ids.append(entry_id)
        last = entry_id
        position = stop
    return position


def _add_run(
    first: _Add,
    ids: list[EntryId],
    echo_ids: list[EntryId],
    transaction_ids: list[int],
    bodies: list[bytes | memoryview],
) -> Request:
    last = ids[-1]
    has_holes = last - ids[0] != len(ids) - 1
    run = build_run(first.ledger_id, ids[0], last, ids if has_holes else None, bodies)
    return _request(first, run, transaction_ids, None if echo_ids == ids else echo_ids)


def large_add(first: bytes, size_bytes: int) -> LargeAdd | None:
    """Return the add that a frame of that size will be, if its first bytes are those of one."""
    try:
        add = _decode_add(first, 0, size_bytes)
    except (RemoteProtocolError, IndexError, struct.error):
        return None

    def request(data: bytes) -> Request:
        run = single_run(add.ledger_id, add.entry_id, data)
        echo_ids = None if add.echo_entry_id == add.entry_id else [add.echo_entry_id]
        return _request(add, run, [add.transaction_id], echo_ids)

    return LargeAdd(add.body_at, request)


def _request(
    first: _Add, run: EntryRun, transaction_ids: list[int], echo_ids: list[EntryId] | None
) -> Request:
    request = AddRun(
        run,
        first.master_key,
        version=3,
        token=transaction_ids[0],
        is_recovery=first.is_recovery,
        is_high_priority=first.is_high_priority,
        # A recovery add is always synced.
        is_deferred_sync=first.is_deferred_sync and not first.is_recovery,
        transaction_ids=transaction_ids,
        echo_ledger_id=first.echo_ledger_id,
        echo_entry_ids=echo_ids,
    )
    if run.ledger_id < 0 or run.first_entry_id < 0:
        # Negative ids are records of other kinds on the disks of bookies.
        return Unsupported(3, request.token, Operation.ADD_ENTRY, Status.BAD_REQUEST, request)
    return request


def _add_at(data: bytes, position: int, end: int, max_length: int) -> tuple[_Add | None, int]:
    """Decode the frame at a position if it is a complete add of a known layout."""
    if end - position < LEAST_SIZE:
        return None, position
    length = int.from_bytes(data[position : position + 4], "big")
    stop = position + 4 + length
    if stop > end or length > max_length:
        return None, position
    try:
        return _decode_add(data, position, stop), stop
    except (RemoteProtocolError, IndexError):
        return None, position


def decode_header(data: bytes, position: int, operation: int) -> tuple[int, int, int, int, int]:
    """Return transaction id, where it begins and ends, priority, and where the header ends."""
    if (
        data[position + 4] != 0x0A
        or data[position + 6] != 0x08
        or data[position + 7] != _VERSION_THREE
        or data[position + 8] != 0x10
        or data[position + 9] != operation
        or data[position + 10] != 0x18
    ):
        raise RemoteProtocolError("another layout")
    header_end = position + 6 + data[position + 5]
    at = position + 11
    transaction_id, transaction_end = varint.decode(data, at, header_end)
    priority, field_end = 0, transaction_end
    if field_end < header_end and data[field_end] == 0x20:
        priority, field_end = varint.decode(data, field_end + 1, header_end)
    if field_end != header_end:
        raise RemoteProtocolError("another layout")
    return transaction_id, at, transaction_end, priority, header_end


def _decode_add(data: bytes, position: int, stop: int) -> _Add:
    """Decode an add by hand; raises if its layout is another."""
    transaction_id, transaction_at, transaction_end, priority, at = decode_header(
        data, position, Operation.ADD_ENTRY
    )
    flag = write_flags = 0
    nested_size_at = at + len(expect(data, at, _ADD_TAG))
    size, nested_at = varint.decode(data, nested_size_at, stop)
    at = nested_at
    if at + size != stop:
        raise RemoteProtocolError("another layout")
    if data[at : at + 2] == _FLAG_TAG:
        flag, at = varint.decode(data, at + 2, stop)
    echo_ledger_id, at = varint.decode(data, at + len(expect(data, at, b"\x08")), stop)
    entry_id_at = at + len(expect(data, at, b"\x10"))
    echo_entry_id, entry_id_end = varint.decode(data, entry_id_at, stop)
    key_at = entry_id_end + len(expect(data, entry_id_end, _KEY_TAG))
    at = key_at + 20
    body_size_at = at + len(expect(data, at, b"\x22"))
    size, body_at = varint.decode(data, body_size_at, stop)
    at = body_end = body_at + size
    if at < stop and data[at] == 0x28:
        write_flags, at = varint.decode(data, at + 1, stop)
    if data[at : at + 2] == _FLAG_TAG:
        flag, at = varint.decode(data, at + 2, stop)
    if at != stop or size < _IDS.size:
        raise RemoteProtocolError("another layout")
    ledger_id, entry_id = _IDS.unpack_from(data, body_at)
    return _Add(
        transaction_id,
        transaction_at,
        transaction_end,
        nested_size_at,
        nested_at,
        priority > 0,
        flag == _RECOVERY_ADD,
        bool(write_flags & _DEFERRED_SYNC),
        varint.signed(echo_ledger_id),
        varint.signed(echo_entry_id),
        entry_id_at,
        entry_id_end,
        data[key_at : key_at + 20],
        ledger_id,
        entry_id,
        body_size_at,
        body_at,
        body_end,
    )


def expect(data: bytes, position: int, tag: bytes) -> bytes:
    """Return a field's tag if it stands at a position; raises if the layout is another."""
    if not data.startswith(tag, position):
        raise RemoteProtocolError("another layout")
    return tag
