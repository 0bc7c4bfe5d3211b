"""What a bookie receives in v2; the layouts are in ``packets.py``.

Adds are the hot path.  One frame costs one ``unpack_from`` and one slice; where frames of one size
follow each other, which is usual, whole stretches of them are checked column by column and cut out
in C.
"""

from __future__ import annotations

from itertools import chain
from operator import sub
from struct import Struct

from quorumbook.errors import RemoteProtocolError
from quorumbook.ids import MASTER_KEY_SIZE_BYTES, EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.requests import (
    REQUESTS_MAX,
    AddRun,
    Auth,
    BatchRead,
    LargeAdd,
    Operation,
    Read,
    ReadRun,
    Request,
    Unsupported,
)
from quorumbook.protocol.run_builder import MAX_GAP, build_run, single_run, to_cut
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2.packets import (
    ADD,
    ADD_ENTRY_OFFSET,
    AUTH,
    BATCH_READ,
    BATCH_READ_REQUEST,
    FENCE,
    HIGH_PRIORITY,
    READ,
    READ_REQUEST,
    RECOVERY_ADD,
    VERSION,
    decode_auth,
    encode_reads,
    split_packet_header,
)

#: Frame length, packet header, master key, ledger id, entry id.
_ADD_REQUEST = Struct(">iI20sqq")
_LEAST_ADD_SIZE = _ADD_REQUEST.size
_HEAD_SIZE = ADD_ENTRY_OFFSET + 8  # all that frames of one run and size have in common

#: After so many frames of one size in a row a whole stretch is tried, first so long, then longer.
_STREAK = 3
_FIRST_STRETCH = 8
_STRETCH_FACTOR = 4

_stretch_structs: dict[int, tuple[Struct, Struct]] = {}


def decode_adds(
    data: bytes, position: int, end: int, max_length: int, requests: list[Request]
) -> int:
    """Decode the adds that follow each other from a position on; return where they end.

    The caller has seen that a complete add of version 1 or 2 begins there.
    """
    unpack = _ADD_REQUEST.unpack_from
    while end - position >= _LEAST_ADD_SIZE and len(requests) < REQUESTS_MAX:
        length, run_header, run_key, run_ledger_id, first = unpack(data, position)
        stop = position + 4 + length
        if stop > end or length > max_length or run_header >> 16 not in _ADD_HEADS:
            return position
        if length < _LEAST_ADD_SIZE - 4:
            raise RemoteProtocolError("an add carries no whole entry")
        frames = to_cut(data, length)
        bodies: list[bytes | memoryview] = [b"", frames[position + ADD_ENTRY_OFFSET : stop]]
        ids: list[EntryId] | None = None
        last, run_length, streak, stretch = first, length, 0, _FIRST_STRETCH
        position = stop
        while end - position >= _LEAST_ADD_SIZE:
            length, header, key, ledger_id, entry_id = unpack(data, position)
            stop = position + 4 + length
            if (
                header != run_header
                or key != run_key
                or ledger_id != run_ledger_id
                or not 0 < entry_id - last < MAX_GAP
                or stop > end
                or not _LEAST_ADD_SIZE - 4 <= length <= max_length
            ):
                break
            bodies.append(frames[position + ADD_ENTRY_OFFSET : stop])
            if ids is not None:
                ids.append(entry_id)
            elif entry_id != last + 1:
                ids = [*range(first, last + 1), entry_id]
            last = entry_id
            position = stop
            if length != run_length:
                run_length, streak = length, 0
                continue
            streak += 1
            if streak < _STREAK:
                continue
            streak = 0
            found = _cut_stretch(data, position, end, length + 4, stretch, last)
            if found is None:
                stretch = _FIRST_STRETCH
                continue
            stretch, streak = stretch * _STRETCH_FACTOR, _STREAK
            new_ids, new_bodies = found
            bodies += new_bodies
            if ids is not None or new_ids[-1] - last != len(new_ids):
                ids = [*(ids or range(first, last + 1)), *new_ids]
            last = new_ids[-1]
            position += len(new_ids) * (length + 4)
        requests.append(
            _add_run(build_run(run_ledger_id, first, last, ids, bodies), run_key, run_header)
        )
    return position


_ADD_HEADS = frozenset((1 << 8 | ADD, 2 << 8 | ADD))


def large_add(first: bytes, _size_bytes: int) -> LargeAdd | None:
    """Return the add that a frame of that size will be, if its first bytes are those of one."""
    if len(first) < _LEAST_ADD_SIZE:
        return None
    _, header, key, ledger_id, entry_id = _ADD_REQUEST.unpack_from(first)
    if header >> 16 not in _ADD_HEADS:
        return None

    def request(data: bytes) -> Request:
        return _add_run(single_run(ledger_id, entry_id, data), key, header)

    return LargeAdd(ADD_ENTRY_OFFSET, request)


def _cut_stretch(
    data: bytes, position: int, end: int, size: int, stretch: int, last: EntryId
) -> tuple[tuple[EntryId, ...], list[bytes]] | None:
    """Cut the next adds out if they are of one size and run, like the one before ``position``."""
    count = min(stretch, (end - position) // size)
    if count < 2:
        return None
    head = data[position - size : position - size + _HEAD_SIZE]
    # Frames can only be where the lengths before them say; look at the far end first, cheaply.
    if not data.startswith(head, position + (count - 1) * size):
        return None
    structs = _stretch_structs.get(size)
    if structs is None:
        if len(_stretch_structs) >= 1024:
            _stretch_structs.clear()
        structs = _stretch_structs[size] = (
            Struct(f">{_HEAD_SIZE}sq{size - _HEAD_SIZE - 8}x"),
            Struct(f">{ADD_ENTRY_OFFSET}x{size - ADD_ENTRY_OFFSET}s"),
        )
    view = memoryview(data)[position : position + count * size]
    heads, ids = zip(*structs[0].iter_unpack(view), strict=True)
    if heads.count(head) != count:
        return None
    if ids != tuple(range(last + 1, last + 1 + count)):
        gaps = list(map(sub, ids, (last, *ids)))
        if min(gaps) < 1 or max(gaps) >= MAX_GAP:
            return None
    return ids, list(chain.from_iterable(structs[1].iter_unpack(view)))


def _add_run(run: EntryRun, master_key: bytes, header: int) -> Request:
    if header == _PLAIN_ADD and run.ledger_id >= 0 <= run.first_entry_id:
        return AddRun(run, master_key)
    version, _, flags = split_packet_header(header)
    request = AddRun(
        run,
        master_key,
        token=version,
        is_recovery=bool(flags & RECOVERY_ADD),
        is_high_priority=bool(flags & HIGH_PRIORITY),
    )
    if version > VERSION:
        return Unsupported(2, version, Operation.ADD_ENTRY, Status.BAD_VERSION, request)
    if run.ledger_id < 0 or run.first_entry_id < 0:
        # Negative ids are records of other kinds on the disks of bookies.
        return Unsupported(2, version, Operation.ADD_ENTRY, Status.BAD_REQUEST, request)
    return request


def decode_reads(data: bytes, position: int, end: int, requests: list[Request]) -> int:
    """Decode the plain reads that follow each other from a position on; return where they end."""
    unpack = READ_REQUEST.unpack_from
    append = requests.append
    while end - position >= 24 and len(requests) < REQUESTS_MAX:
        length, header, ledger_id, entry_id = unpack(data, position)
        if length != 20 or header != _PLAIN_READ:
            break
        if end - position >= _LEAST_ROW_SIZE and 0 <= entry_id < _ROW_ID_LIMIT:
            step = unpack(data, position + 24)[3] - entry_id
            if 0 < step < MAX_GAP:
                count = _row_length(data, position, end, ledger_id, entry_id, step)
                if count:
                    ids = range(entry_id, entry_id + count * step, step)
                    append(ReadRun(VERSION, ledger_id, ids))
                    position += 24 * count
                    continue
        append(Read(2, VERSION, ledger_id, entry_id))
        position += 24
    return position


def _row_length(
    data: bytes, position: int, end: int, ledger_id: LedgerId, first: EntryId, step: int
) -> int:
    """Return how many plain reads of ids at one distance follow each other; 0: too few.

    What they would look like is put together in C, and one comparison proves it: of a few first,
    then of ever more.
    """
    room = (end - position) // 24
    count, block = 0, _FIRST_STRETCH
    while block := min(block, room - count):
        start = first + count * step
        expected = encode_reads(ledger_id, range(start, start + block * step, step))
        if not data.startswith(expected, position + 24 * count):
            break
        count += block
        block *= _STRETCH_FACTOR
    return count


#: Fewer reads than these are not worth a try.
_LEAST_ROW_SIZE = 4 * 24
#: From here on, what follows in a row might be no entry id any more.
_ROW_ID_LIMIT = 2**62


_PLAIN_READ = VERSION << 24 | READ << 16
_PLAIN_ADD = VERSION << 24 | ADD << 16


def decode_request(data: bytes, position: int, stop: int) -> Request:
    """Decode one frame of any kind.

    Raises:
        RemoteProtocolError: an unknown opcode, or a frame that is too short.
    """
    size = stop - position
    if size < 8:
        raise RemoteProtocolError(f"a frame of {size} bytes is not a v2 request")
    header = int.from_bytes(data[position + 4 : position + 8], "big")
    version, opcode, _ = split_packet_header(header)
    request: Request
    if opcode == ADD:
        return _decode_add(data, position, stop)
    if opcode == READ:
        request = _decode_read(data, position, stop)
    elif opcode == BATCH_READ:
        request = _decode_batch_read(data, position, stop)
    elif opcode == AUTH:
        plugin, payload = decode_auth(data[position + 8 : stop])
        request = Auth(2, version, plugin, payload)
    else:
        raise RemoteProtocolError(f"v2 has no opcode {opcode}")
    if version > VERSION:
        return Unsupported(2, version, request.operation, Status.BAD_VERSION, request)
    return request


def _decode_add(data: bytes, position: int, stop: int) -> Request:
    if stop - position < _LEAST_ADD_SIZE:
        raise RemoteProtocolError("an add carries no whole entry")
    _, header, key, ledger_id, entry_id = _ADD_REQUEST.unpack_from(data, position)
    body = data[position + ADD_ENTRY_OFFSET : stop]
    return _add_run(EntryRun.of(ledger_id, entry_id, [body]), key, header)


def _decode_read(data: bytes, position: int, stop: int) -> Request:
    if stop - position < READ_REQUEST.size:
        raise RemoteProtocolError("a read is too short")
    _, header, ledger_id, entry_id = READ_REQUEST.unpack_from(data, position)
    version, _, flags = split_packet_header(header)
    return Read(
        2,
        version,
        ledger_id,
        entry_id,
        is_high_priority=bool(flags & HIGH_PRIORITY),
        is_fencing=bool(flags & FENCE),
        master_key=_fencing_key(data, position + READ_REQUEST.size, stop, version, flags),
    )


def _decode_batch_read(data: bytes, position: int, stop: int) -> Request:
    if stop - position < BATCH_READ_REQUEST.size:
        raise RemoteProtocolError("a batch read is too short")
    _, header, ledger_id, first, request_id, max_count, max_size = BATCH_READ_REQUEST.unpack_from(
        data, position
    )
    version, _, flags = split_packet_header(header)
    return BatchRead(
        version,
        ledger_id,
        first,
        request_id,
        max_count,
        max_size,
        is_high_priority=bool(flags & HIGH_PRIORITY),
        is_fencing=bool(flags & FENCE),
        master_key=_fencing_key(data, position + BATCH_READ_REQUEST.size, stop, version, flags),
    )


def _fencing_key(data: bytes, position: int, stop: int, version: int, flags: int) -> bytes | None:
    if not flags & FENCE or version < VERSION:
        return None
    if stop - position < MASTER_KEY_SIZE_BYTES:
        raise RemoteProtocolError("a fencing read carries no master key")
    return data[position : position + MASTER_KEY_SIZE_BYTES]
