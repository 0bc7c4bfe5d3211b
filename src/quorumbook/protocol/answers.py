"""What a bookie answers, in the protocol of the request.

Each function takes the request, whose ids and tokens the answer echoes, and returns the bytes to
write.  v3 answers to adds and reads are put together by hand: within a run, only transaction id and
entry id differ, and of these mostly the lowest seven bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol import varint
from quorumbook.protocol.frames import LENGTH, frame
from quorumbook.protocol.messages import message_class
from quorumbook.protocol.requests import (
    AddRun,
    Auth,
    BatchRead,
    BookieInfo,
    ForceLedger,
    ListEntries,
    Operation,
    Read,
    ReadLAC,
    ReadRun,
    Request,
    StartTLS,
    Unsupported,
    WriteLAC,
)
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2

TOTAL_DISK_CAPACITY = 1
FREE_DISK_SPACE = 2

_VERSION_THREE = 3
_ADD_HEADER = b"\x08\x03\x10\x02\x18"
_READ_HEADER = b"\x08\x03\x10\x01\x18"
_STATUS_CODES = {status: varint.encode(status) for status in Status}
_MORE = varint.MORE
_LAST = varint.LAST


def add_answers(request: AddRun, status: Status) -> bytes:
    """Return the answers to all adds of a run."""
    transaction_ids = request.transaction_ids
    if transaction_ids is None:
        ids = request.echo_entry_ids
        return v2.encode_add_answers(request.echo_ledger_id, ids, V2_CODE[status], request.token)
    return _v3_add_answers(request.echo_ledger_id, request.echo_entry_ids, transaction_ids, status)


def _v3_add_answers(
    ledger_id: LedgerId, entry_ids: Sequence[EntryId], transaction_ids: list[int], status: Status
) -> bytes:
    encode = varint.encode
    code = _STATUS_CODES[status]
    ledger = encode(ledger_id)
    parts: list[bytes] = []
    block = (-1, 0)
    head = middle = tail = b""
    transaction_bytes = entry_bytes = _LAST
    for transaction_id, entry_id in zip(transaction_ids, entry_ids, strict=True):
        if block != (transaction_id >> 7, entry_id >> 7):
            # All but the lowest seven bits of both numbers are new: so is what stands around.
            block = (transaction_id >> 7, entry_id >> 7)
            transaction_rest = encode(transaction_id)[1:]
            tail = encode(entry_id)[1:]
            transaction_bytes = _MORE if transaction_rest else _LAST
            entry_bytes = _MORE if tail else _LAST
            nested = b"\x08" + code + b"\x10" + ledger + b"\x18"
            nested_size = encode(len(nested) + 1 + len(tail))
            header_size = len(_ADD_HEADER) + 1 + len(transaction_rest)
            middle = transaction_rest + b"\x10" + code + b"\xaa\x06" + nested_size + nested
            size = 2 + len(_ADD_HEADER) + 1 + len(middle) + 1 + len(tail)
            head = LENGTH.pack(size) + b"\x0a" + encode(header_size) + _ADD_HEADER
        parts.append(
            head
            + transaction_bytes[transaction_id & 127]
            + middle
            + entry_bytes[entry_id & 127]
            + tail
        )
    return b"".join(parts)


def read_answer(
    request: Read,
    status: Status,
    entry: bytes | None = None,
    max_lac: EntryId | None = None,
    entry_id: EntryId | None = None,
    lac_update_ms: int | None = None,
) -> bytes:
    """Return the answer to a read.

    Args:
        request: The read.
        status: How it went.
        entry: What was found.
        max_lac: The last add confirmed this bookie knows (v3 only).
        entry_id: Only for long polls that piggyback: the id of ``entry``, or -1 without one.
        lac_update_ms: When the last add confirmed was learned, if that ended a wait.
    """
    body = entry or b""
    if request.version == 2:
        return v2.encode_read_answer(
            request.ledger_id, request.entry_id, V2_CODE[status], body, request.token
        )
    encode = varint.encode
    code = _STATUS_CODES[status]
    nested = (
        b"\x08"
        + code
        + b"\x10"
        + encode(request.ledger_id)
        + b"\x18"
        + encode(request.entry_id if entry_id is None else entry_id)
    )
    if entry is not None:
        nested += b"\x22" + encode(len(entry))
    tail = b"" if max_lac is None else b"\x28" + encode(max_lac)
    if lac_update_ms is not None:
        tail += b"\x30" + encode(lac_update_ms)
    nested_size = len(nested) + len(body) + len(tail)
    transaction = encode(request.token)
    head = (
        b"\x0a"
        + _LAST[len(_READ_HEADER) + len(transaction)]
        + _READ_HEADER
        + transaction
        + b"\x10"
        + code
        + b"\xa2\x06"
        + encode(nested_size)
        + nested
    )
    size = len(head) + len(body) + len(tail)
    return b"".join((LENGTH.pack(size), head, body, tail))


def found_answer(request: Read, entry: bytes, max_lac: EntryId | None) -> bytes:
    """Return the answer to a plain read whose entry was found; ``read_answer``, but quicker.

    In a row of reads nothing but the transaction, the entry id and the entry changes.
    """
    if request.version == 2:
        return v2.encode_read_answer(
            request.ledger_id, request.entry_id, V2_CODE[Status.OK], entry, request.token
        )
    transaction = varint.encode(request.token)
    entry_id = varint.encode(request.entry_id)
    head, middle, before_entry, tail = _found_layout(
        request.ledger_id, max_lac, len(transaction), len(entry_id), len(entry)
    )
    return b"".join((head, transaction, middle, entry_id, before_entry, entry, tail))


@lru_cache(maxsize=1024)
def _found_layout(
    ledger_id: LedgerId,
    max_lac: EntryId | None,
    transaction_size: int,
    entry_id_size: int,
    entry_size: int,
) -> tuple[bytes, bytes, bytes, bytes]:
    """Return what stands around the transaction, the entry id and the entry."""
    encode, code = varint.encode, _STATUS_CODES[Status.OK]
    tail = b"" if max_lac is None else b"\x28" + encode(max_lac)
    before_entry = b"\x22" + encode(entry_size)
    nested = b"\x08" + code + b"\x10" + encode(ledger_id) + b"\x18"
    nested_size = len(nested) + entry_id_size + len(before_entry) + entry_size + len(tail)
    middle = b"\x10" + code + b"\xa2\x06" + encode(nested_size) + nested
    header_size = len(_READ_HEADER) + transaction_size
    head = b"\x0a" + _LAST[header_size] + _READ_HEADER
    size = 2 + header_size + len(middle) - len(nested) + nested_size
    return LENGTH.pack(size) + head, middle, before_entry, tail


def found_answers(
    request: ReadRun, entries: Sequence[memoryview], max_lac: EntryId | None
) -> bytes:
    """Return the answers to all reads of a run; the entries, all of one size, were found."""
    transactions = request.transactions
    if transactions is None:
        return v2.encode_read_answers(request.ledger_id, request.entry_ids, entries)
    entry_ids = varint.encode_row(request.entry_ids)
    head, middle, before_entry, tail = _found_layout(
        request.ledger_id, max_lac, len(transactions[0]), len(entry_ids[0]), len(entries[0])
    )
    rows = zip(
        repeat(tail + head),
        transactions,
        repeat(middle),
        entry_ids,
        repeat(before_entry),
        entries,
        strict=False,
    )
    pieces = chain.from_iterable(rows)
    next(pieces)
    return b"".join(chain((head,), pieces, (tail,)))


def batch_read_answer(
    request: BatchRead, status: Status, data: bytes | Sequence[bytes] = b""
) -> list[bytes]:
    """Return the answer to a batch read in pieces; ``data``, of ``EntryRun``s, is not copied."""
    return v2.encode_batch_read_answer(
        request.ledger_id,
        request.first_entry_id,
        request.request_id,
        V2_CODE[status],
        data,
        request.token,
    )


def write_lac_answer(request: WriteLAC, status: Status) -> bytes:
    """Return the answer to a write of the last add confirmed."""
    return _answer(request, status, "writeLacResponse", ledgerId=request.ledger_id)


def read_lac_answer(
    request: ReadLAC,
    status: Status,
    lac_body: bytes | None = None,
    last_entry: bytes | None = None,
) -> bytes:
    """Return the answer to a read of the last add confirmed: the packet and the last entry."""
    return _answer(
        request,
        status,
        "readLacResponse",
        ledgerId=request.ledger_id,
        lacBody=lac_body,
        lastEntryBody=last_entry,
    )


def force_answer(request: ForceLedger, status: Status) -> bytes:
    """Return the answer to a force."""
    return _answer(request, status, "forceLedgerResponse", ledgerId=request.ledger_id)


def bookie_info_answer(
    request: BookieInfo, status: Status, total: int | None = None, free: int | None = None
) -> bytes:
    """Return the answer about disk space; only what was asked for goes out."""
    return _answer(
        request,
        status,
        "getBookieInfoResponse",
        totalDiskCapacity=total if request.requested & TOTAL_DISK_CAPACITY else None,
        freeDiskSpace=free if request.requested & FREE_DISK_SPACE else None,
    )


def list_entries_answer(
    request: ListEntries, status: Status, availability: bytes | None = None
) -> bytes:
    """Return the answer with the entries held; ``availability`` is of ``availability.py``."""
    return _answer(
        request,
        status,
        "getListOfEntriesOfLedgerResponse",
        ledgerId=request.ledger_id,
        availabilityOfEntriesOfLedger=availability,
    )


def auth_answer(request: Auth, status: Status, plugin: str = "", payload: bytes = b"") -> bytes:
    """Return a step of authentication; a refusal has a form in v3 only."""
    if request.version == 2:
        return v2.encode_auth(plugin, payload)
    if status is not Status.OK:
        return bare_answer(request, status)
    response = _response(request.operation, request.token, status)
    response.authResponse.MergeFrom(
        message_class("AuthMessage")(authPluginName=plugin, payload=payload)
    )
    return frame(response.SerializeToString())


def start_tls_answer(request: StartTLS, status: Status) -> bytes:
    """Return the answer to StartTLS; after an OK the next bytes are the handshake's."""
    response = _response(request.operation, request.token, status)
    if status is Status.OK:
        response.startTLSResponse.SetInParent()
    return frame(response.SerializeToString())


def bare_answer(request: Request, status: Status) -> bytes:
    """Return a v3 answer that says nothing but the status.

    That is how requests before the authentication is done are refused in v3.
    """
    if isinstance(request, AddRun) and request.transaction_ids is not None:
        return b"".join(
            _bare(Operation.ADD_ENTRY, token, status) for token in request.transaction_ids
        )
    if isinstance(request, ReadRun):
        return b"".join(_bare(read.operation, read.token, status) for read in request.reads())
    return _bare(request.operation, request.token, status)


def error_answer(request: Request, status: Status) -> bytes:
    """Return an answer to any request that carries the status and nothing else.

    An ``Unsupported`` request says itself which status it gets; the argument is not looked at.
    """
    if isinstance(request, Unsupported):
        if request.refused is None:
            return bare_answer(request, request.status)
        return error_answer(request.refused, request.status)
    if isinstance(request, BatchRead):
        return b"".join(batch_read_answer(request, status))
    if isinstance(request, ReadRun):
        return b"".join(read_answer(read, status) for read in request.reads())
    answer = _ERROR_ANSWERS.get(type(request))
    if answer is None:
        return bare_answer(request, status)
    encoded: bytes = answer(request, status)
    return encoded


_ERROR_ANSWERS: dict[type[Request], Any] = {
    AddRun: add_answers,
    Read: read_answer,
    WriteLAC: write_lac_answer,
    ReadLAC: read_lac_answer,
    ForceLedger: force_answer,
    BookieInfo: bookie_info_answer,
    ListEntries: list_entries_answer,
    Auth: auth_answer,
    StartTLS: start_tls_answer,
}


def _response(operation: Operation, token: int, status: Status) -> Any:
    response = message_class("Response")(status=int(status))
    header = response.header
    header.version = _VERSION_THREE
    header.operation = int(operation)
    header.txnId = token
    return response


def _bare(operation: Operation, token: int, status: Status) -> bytes:
    return frame(_response(operation, token, status).SerializeToString())


def _answer(request: Request, status: Status, name: str, **fields: int | bytes | None) -> bytes:
    """Encode an answer whose status stands at both places."""
    response = _response(request.operation, request.token, status)
    nested = getattr(response, name)
    nested.status = int(status)
    for field, value in fields.items():
        if value is not None:
            setattr(nested, field, value)
    return frame(response.SerializeToString())
