"""The v2 protocol: fixed binary layouts for adds, reads, batch reads and authentication.

Behind the 4-byte frame length stands a packet header, version << 24 | opcode << 16 | flags:

    add request         header 4, master key 20, entry
    add answer          header 4, code 4, ledger id 8, entry id 8
    read request        header 4, ledger id 8, entry id 8, [master key 20 if it fences]
    read answer         header 4, code 4, ledger id 8, entry id 8 as requested, [entry]
    batch read request  header 4, ledger id 8, first entry id 8, request id 8, max count 4,
                        max size 8, [master key 20 if it fences]
    batch read answer   header 4, code 4, ledger id 8, first entry id 8, request id 8,
                        [size 4, entry] as often as there are entries
    authentication      header 4, AuthMessage

Clients send version 2.  In version 0 the whole header is the opcode.  Answers carry no flags.
This module has the layouts, what a client sends, what a bookie answers, and the client's decoder;
what a bookie receives is decoded in ``requests.py``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from struct import Struct
from typing import NamedTuple

from quorumbook.errors import RemoteProtocolError
from quorumbook.ids import MAX_FRAME_SIZE_BYTES, EntryId, LedgerId
from quorumbook.protocol.digest import HEADER_SIZE_BYTES, Digester, seal_headers
from quorumbook.protocol.frames import LENGTH, FrameBuffer, frame
from quorumbook.protocol.messages import message_class, parse

VERSION = 2

ADD = 1
READ = 2
AUTH = 3
BATCH_READ = 7

FENCE = 1
RECOVERY_ADD = 2
HIGH_PRIORITY = 4

#: Where the entry begins in an add frame, the frame length included.
ADD_ENTRY_OFFSET = 28

ADD_HEAD = Struct(">iI20s")
ANSWER = Struct(">iIiqq")
READ_REQUEST = Struct(">iIqq")
BATCH_READ_REQUEST = Struct(">iIqqqiq")
BATCH_READ_ANSWER = Struct(">iIiqqq")

ADD_ANSWER_SIZE_BYTES = ANSWER.size
_ANSWER_LENGTH = ANSWER.size - 4
_BATCH_LENGTH = BATCH_READ_ANSWER.size - 4

#: The last byte of an entry id, as bytes: what differs between the answers of 256 ids in a row.
_LAST_BYTE = [bytes((value,)) for value in range(256)]

_join = b"".join


def packet_header(version: int, opcode: int, flags: int = 0) -> int:
    """Return the packet header as the unsigned integer that is packed."""
    return version << 24 | opcode << 16 | flags if version else opcode


def split_packet_header(header: int) -> tuple[int, int, int]:
    """Return version, opcode and flags of a packet header."""
    version = header >> 24
    if not version:
        return 0, header & 0xFF, 0
    return version, header >> 16 & 0xFF, header & 0xFFFF


_ADD_HEADER = packet_header(VERSION, ADD)
_READ_HEADER = packet_header(VERSION, READ)
_AUTH_HEADER = packet_header(VERSION, AUTH)
_BATCH_READ_HEADER = packet_header(VERSION, BATCH_READ)
_BATCH_READ_HEADER_BYTES = _BATCH_READ_HEADER.to_bytes(4, "big")


# What a client sends.


def encode_adds(master_key: bytes, flags: int, bodies: Sequence[bytes]) -> list[bytes]:
    """Return the add frame of each entry."""
    header = packet_header(VERSION, ADD, flags)
    sizes = list(map(len, bodies))
    pack = ADD_HEAD.pack
    heads = {size: pack(24 + size, header, master_key) for size in set(sizes)}
    return list(map(_join, zip(map(heads.__getitem__, sizes), bodies, strict=True)))


def seal_add_frames(
    digester: Digester,
    master_key: bytes,
    flags: int,
    ledger_id: LedgerId,
    first_entry_id: EntryId,
    lac: EntryId,
    length: int,
    payloads: Sequence[bytes],
) -> tuple[list[bytes], int]:
    """Seal consecutive entries and frame them as adds, each in one step.

    The arguments are those of ``Digester.seal_many`` and ``encode_adds``.  The entry of a frame
    begins at byte ``ADD_ENTRY_OFFSET``.

    Returns:
        The frames, and the ledger's length after the last entry.
    """
    if len(payloads) == 1:
        # Columns of one are dearer than the one.
        new_length = length + len(payloads[0])
        entry = digester.seal(ledger_id, first_entry_id, lac, new_length, payloads[0])
        head = ADD_HEAD.pack(ADD_ENTRY_OFFSET - 4 + len(entry), _ADD_HEADER | flags, master_key)
        return [head + entry], new_length
    headers, new_length = seal_headers(ledger_id, first_entry_id, lac, length, payloads)
    digests = digester.digest_columns(headers, payloads)
    header = packet_header(VERSION, ADD, flags)
    overhead = ADD_ENTRY_OFFSET - 4 + HEADER_SIZE_BYTES + digester.size_bytes
    pack = ADD_HEAD.pack
    sizes = list(map(len, payloads))
    if sizes and sizes.count(sizes[0]) == len(sizes):
        head = pack(overhead + sizes[0], header, master_key)
        # The head and three columns, joined in C; equal sizes have equal heads.
        return list(map(_join, zip(repeat(head), headers, digests, payloads))), new_length
    heads = {size: pack(overhead + size, header, master_key) for size in set(sizes)}
    rows = zip(map(heads.__getitem__, sizes), headers, digests, payloads, strict=True)
    return list(map(_join, rows)), new_length


def encode_read(
    ledger_id: LedgerId,
    entry_id: EntryId,
    *,
    master_key: bytes | None = None,
    is_high_priority: bool = False,
) -> bytes:
    """Return the frame of a read; with a master key the read fences the ledger."""
    flags = HIGH_PRIORITY if is_high_priority else 0
    if master_key is None:
        return READ_REQUEST.pack(20, _READ_HEADER | flags, ledger_id, entry_id)
    head = READ_REQUEST.pack(40, _READ_HEADER | flags | FENCE, ledger_id, entry_id)
    return head + master_key


def encode_reads(ledger_id: LedgerId, entry_ids: range) -> bytes:
    """Return the frames of plain reads, ids ascending."""
    parts: list[bytes] = []
    for first, last_bytes in _blocks(entry_ids):
        prefix = READ_REQUEST.pack(20, _READ_HEADER, ledger_id, first)[:-1]
        parts.append(prefix)
        parts.append(prefix.join(last_bytes))
    return _join(parts)


def _blocks(entry_ids: range) -> Iterator[tuple[EntryId, list[bytes]]]:
    """Cut ascending ids where more than their last byte changes: first ids and last bytes."""
    while entry_ids:
        first = entry_ids[0]
        last_bytes = _LAST_BYTE[first & 255 :: entry_ids.step][: len(entry_ids)]
        yield first, last_bytes
        entry_ids = entry_ids[len(last_bytes) :]


def encode_batch_read(
    ledger_id: LedgerId,
    first_entry_id: EntryId,
    request_id: int,
    max_count: int,
    max_size_bytes: int,
    master_key: bytes | None = None,
    *,
    is_high_priority: bool = False,
) -> bytes:
    """Return the frame of a batch read; with a master key the read fences the ledger."""
    header = _BATCH_READ_HEADER | (HIGH_PRIORITY if is_high_priority else 0)
    size = BATCH_READ_REQUEST.size - 4
    if master_key is not None:
        header |= FENCE
        size += len(master_key)
    head = BATCH_READ_REQUEST.pack(
        size, header, ledger_id, first_entry_id, request_id, max_count, max_size_bytes
    )
    return head if master_key is None else head + master_key


def encode_auth(plugin: str, payload: bytes) -> bytes:
    """Return the frame of an authentication message; requests and answers look alike."""
    message = message_class("AuthMessage")(authPluginName=plugin, payload=payload)
    return frame(_AUTH_HEADER.to_bytes(4, "big") + message.SerializeToString())


# What a bookie answers.


def encode_add_answers(
    ledger_id: LedgerId, entry_ids: Sequence[EntryId], code: int, version: int = VERSION
) -> bytes:
    """Return the answers to adds of ascending ids, one frame for each.

    Answers of up to 256 ids in a row differ in their last byte only, so a block of them is one
    join in C of that byte's table, with the other 27 bytes as the separator.
    """
    header = packet_header(version, ADD)
    count = len(entry_ids)
    if count == 1:
        return ANSWER.pack(_ANSWER_LENGTH, header, code, ledger_id, entry_ids[0])
    is_range = isinstance(entry_ids, range) and entry_ids.step == 1
    parts: list[bytes] = []
    start = 0
    while start < count:
        first = entry_ids[start]
        block = first >> 8
        prefix = ANSWER.pack(_ANSWER_LENGTH, header, code, ledger_id, first)[:-1]
        if is_range:
            stop = min(count, start + 256 - (first & 255))
            last_bytes = _LAST_BYTE[first & 255 : (first & 255) + stop - start]
        else:
            stop = bisect_left(entry_ids, (block + 1) << 8, start)
            last_bytes = [_LAST_BYTE[entry_id & 255] for entry_id in entry_ids[start:stop]]
        parts.append(prefix)
        parts.append(prefix.join(last_bytes))
        start = stop
    return _join(parts)


def encode_read_answer(
    ledger_id: LedgerId,
    entry_id: EntryId,
    code: int,
    entry: bytes = b"",
    version: int = VERSION,
) -> bytes:
    """Return the answer to a read; the entry id is the requested one, -1 included."""
    header = _READ_HEADER if version == VERSION else packet_header(version, READ)
    return ANSWER.pack(_ANSWER_LENGTH + len(entry), header, code, ledger_id, entry_id) + entry


def encode_read_answers(
    ledger_id: LedgerId, entry_ids: range, entries: Sequence[memoryview]
) -> bytes:
    """Return the answers to plain reads that found entries of one size, ids ascending."""
    length = _ANSWER_LENGTH + len(entries[0])
    rows: list[Iterable[tuple[bytes, bytes, memoryview]]] = []
    start = 0
    for first, last_bytes in _blocks(entry_ids):
        prefix = ANSWER.pack(length, _READ_HEADER, 0, ledger_id, first)[:-1]
        rows.append(zip(repeat(prefix), last_bytes, entries[start : start + len(last_bytes)]))
        start += len(last_bytes)
    return _join(chain.from_iterable(chain.from_iterable(rows)))


def encode_batch_read_answer(
    ledger_id: LedgerId,
    first_entry_id: EntryId,
    request_id: int,
    code: int,
    data: bytes | Sequence[bytes] = b"",
    version: int = VERSION,
) -> list[bytes]:
    """Return the answer to a batch read in pieces to write one after the other.

    ``data`` is ``EntryRun.data``, or several of them in order, and is not copied.
    """
    pieces = [data] if isinstance(data, bytes) else data
    head = BATCH_READ_ANSWER.pack(
        _BATCH_LENGTH + sum(map(len, pieces)),
        packet_header(version, BATCH_READ),
        code,
        ledger_id,
        first_entry_id,
        request_id,
    )
    return [head, *filter(None, pieces)]


# What a client receives.


class AddAnswers(NamedTuple):
    """Equal answers to adds of consecutive ids."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    last_entry_id: EntryId
    code: int


class ReadAnswer(NamedTuple):
    """The answer to a read; ``entry_id`` is the requested one."""

    ledger_id: LedgerId
    entry_id: EntryId
    code: int
    entry: bytes


class BatchReadAnswer(NamedTuple):
    """The answer to a batch read; ``data`` has entries behind their sizes."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    request_id: int
    code: int
    data: bytes


class AuthAnswer(NamedTuple):
    """The bookie's step of authentication."""

    plugin: str
    payload: bytes

    def __repr__(self) -> str:
        return f"AuthAnswer({self.plugin!r})"  # the payload is a secret


Answer = AddAnswers | ReadAnswer | BatchReadAnswer | AuthAnswer


class AnswerDecoder:
    """Turns the bytes of a v2 connection into answers."""

    __slots__ = ("_buffer",)

    def __init__(self, max_frame_bytes: int = MAX_FRAME_SIZE_BYTES) -> None:
        self._buffer = FrameBuffer(max_frame_bytes)

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an incomplete frame are kept."""
        return self._buffer.pending_bytes

    def feed(self, data: bytes) -> list[Answer]:
        """Decode a chunk; an incomplete frame at its end waits for the next.

        Raises:
            RemoteProtocolError: these are no v2 answers; close the connection.
        """
        answers: list[Answer] = []
        head = self._buffer.begins_with(BATCH_READ_ANSWER.size)
        if _is_batch_read(head) and self._buffer.missing_bytes <= len(data):
            rest, position = self._buffer.complete(data, len(head))
            answers.append(_batch_read_answer(head, 0, rest))
        else:
            data, position = self._buffer.take(data), 0
        max_length = self._buffer.max_frame_bytes - 4
        end = len(data)
        while end - position >= 4:
            length = LENGTH.unpack_from(data, position)[0]
            stop = position + 4 + length
            if stop > end or not 0 < length <= max_length:
                break
            if length == _ANSWER_LENGTH and data[position + 5] == ADD:
                position = _decode_add_answers(data, position, end, answers)
            else:
                answers.append(_decode_answer(data, position, stop))
                position = stop
        self._buffer.keep(data, position)
        return answers


def _decode_add_answers(data: bytes, position: int, end: int, answers: list[Answer]) -> int:
    """Decode add answers from a position on; return where they end."""
    count = (end - position) // ADD_ANSWER_SIZE_BYTES
    _, _, code, ledger_id, first = ANSWER.unpack_from(data, position)
    # A chunk is nearly always one run: guess that, and let one comparison prove it.
    if data.startswith(encode_add_answers(ledger_id, range(first, first + count), code), position):
        answers.append(AddAnswers(ledger_id, first, first + count - 1, code))
        return position + count * ADD_ANSWER_SIZE_BYTES
    run_ledger_id, run_code, last = ledger_id, code, first - 1
    rows = 0
    view = memoryview(data)[position : position + count * ADD_ANSWER_SIZE_BYTES]
    for length, header, code, ledger_id, entry_id in ANSWER.iter_unpack(view):
        if header != _ADD_HEADER or length != _ANSWER_LENGTH:
            break
        if entry_id != last + 1 or ledger_id != run_ledger_id or code != run_code:
            answers.append(AddAnswers(run_ledger_id, first, last, run_code))
            run_ledger_id, run_code, first = ledger_id, code, entry_id
        last = entry_id
        rows += 1
    if not rows:
        raise RemoteProtocolError("an add answer has a strange packet header")
    answers.append(AddAnswers(run_ledger_id, first, last, run_code))
    return position + rows * ADD_ANSWER_SIZE_BYTES


def _decode_answer(data: bytes, position: int, stop: int) -> Answer:
    """Decode one frame that is no add answer."""
    size = stop - position
    if size < 8:
        raise RemoteProtocolError(f"a frame of {size} bytes is not a v2 answer")
    header = int.from_bytes(data[position + 4 : position + 8], "big")
    if header == _READ_HEADER and size >= ANSWER.size:
        _, _, code, ledger_id, entry_id = ANSWER.unpack_from(data, position)
        return ReadAnswer(ledger_id, entry_id, code, data[position + ANSWER.size : stop])
    if header == _BATCH_READ_HEADER and size >= BATCH_READ_ANSWER.size:
        return _batch_read_answer(data, position, data[position + BATCH_READ_ANSWER.size : stop])
    if header == _AUTH_HEADER:
        return decode_auth(data[position + 8 : stop])
    raise RemoteProtocolError(
        f"a frame of {size} bytes with header {header:08x} is not a v2 answer"
    )


def _is_batch_read(head: bytes) -> bool:
    return len(head) == BATCH_READ_ANSWER.size and head[4:8] == _BATCH_READ_HEADER_BYTES


def _batch_read_answer(data: bytes, position: int, rest: bytes) -> BatchReadAnswer:
    _, _, code, ledger_id, entry_id, request_id = BATCH_READ_ANSWER.unpack_from(data, position)
    return BatchReadAnswer(ledger_id, entry_id, request_id, code, rest)


def decode_auth(body: bytes) -> AuthAnswer:
    """Decode an authentication message, which stands behind the packet header."""
    message = parse("AuthMessage", body)
    try:
        return AuthAnswer(message.authPluginName, message.payload)
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("an authentication plug-in has no readable name") from error
