"""The v3 protocol, the client's side: one protobuf ``Request`` or ``Response`` in each frame.

Requests carry a transaction id, and the answer to it has the same id and operation.  Every answer
has its status twice, at the top and in the nested message; both must be equal.  The messages are
in ``messages.py``; a bookie's side is in ``requests.py`` and ``answers.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from quorumbook.errors import RemoteProtocolError
from quorumbook.ids import INVALID_ENTRY_ID, MAX_FRAME_SIZE_BYTES, EntryId, LedgerId
from quorumbook.protocol.frames import LENGTH, FrameBuffer, frame
from quorumbook.protocol.messages import message_class, parse
from quorumbook.protocol.requests import Operation
from quorumbook.protocol.status import Status, status_of_v3

VERSION = 3

#: What the peer's client sends with what must not wait.
HIGH_PRIORITY = 100

FENCE_LEDGER = 1
ENTRY_PIGGYBACK = 2
RECOVERY_ADD = 1
DEFERRED_SYNC = 1

TOTAL_DISK_CAPACITY = 1
FREE_DISK_SPACE = 2

Request = message_class("Request")
Response = message_class("Response")


def _encode(
    transaction_id: int,
    operation: Operation,
    name: str,
    fields: Mapping[str, object],
    *,
    is_high_priority: bool = False,
) -> bytes:
    """Return a frame; fields of the nested message that are None are left out."""
    header = {
        "version": VERSION,
        "operation": int(operation),
        "txnId": transaction_id,
        "priority": HIGH_PRIORITY if is_high_priority else None,
    }
    return frame(Request(header=header, **{name: fields}).SerializeToString())


def encode_add(
    transaction_id: int,
    ledger_id: LedgerId,
    entry_id: EntryId,
    master_key: bytes,
    entry: bytes,
    *,
    is_recovery: bool = False,
    is_high_priority: bool = False,
    is_deferred_sync: bool = False,
) -> bytes:
    """Return the frame of an add."""
    fields = {
        "ledgerId": ledger_id,
        "entryId": entry_id,
        "masterKey": master_key,
        "body": entry,
        "writeFlags": DEFERRED_SYNC if is_deferred_sync else None,
        "flag": RECOVERY_ADD if is_recovery else None,
    }
    return _encode(
        transaction_id, Operation.ADD_ENTRY, "addRequest", fields, is_high_priority=is_high_priority
    )


def encode_read(
    transaction_id: int,
    ledger_id: LedgerId,
    entry_id: EntryId = INVALID_ENTRY_ID,
    *,
    master_key: bytes | None = None,
    is_high_priority: bool = False,
    previous_lac: EntryId | None = None,
    timeout_ms: int | None = None,
    is_piggyback: bool = False,
) -> bytes:
    """Return the frame of a read.

    Args:
        transaction_id: What the answer echoes.
        ledger_id: The ledger.
        entry_id: The entry; -1 for the last.
        master_key: With a master key the read fences the ledger.
        is_high_priority: Do not wait behind normal requests.
        previous_lac: Answer when the last add confirmed is beyond this one (a long poll) …
        timeout_ms: … or when so much time has passed.
        is_piggyback: Send entry ``previous_lac + 1`` along; ``entry_id`` must be -1.
    """
    flag = FENCE_LEDGER if master_key is not None else None
    fields = {
        "ledgerId": ledger_id,
        "entryId": entry_id,
        "masterKey": master_key,
        "flag": ENTRY_PIGGYBACK if is_piggyback else flag,
        "previousLAC": previous_lac,
        "timeOut": timeout_ms,
    }
    return _encode(
        transaction_id,
        Operation.READ_ENTRY,
        "readRequest",
        fields,
        is_high_priority=is_high_priority,
    )


def encode_write_lac(
    transaction_id: int, ledger_id: LedgerId, lac: EntryId, master_key: bytes, packet: bytes
) -> bytes:
    """Return the frame that stores an explicit last-add-confirmed packet."""
    fields = {"ledgerId": ledger_id, "lac": lac, "masterKey": master_key, "body": packet}
    return _encode(transaction_id, Operation.WRITE_LAC, "writeLacRequest", fields)


def encode_read_lac(transaction_id: int, ledger_id: LedgerId) -> bytes:
    """Return the frame that asks for the last add confirmed."""
    fields = {"ledgerId": ledger_id}
    return _encode(transaction_id, Operation.READ_LAC, "readLacRequest", fields)


def encode_force(transaction_id: int, ledger_id: LedgerId) -> bytes:
    """Return the frame that makes acknowledged adds durable."""
    fields = {"ledgerId": ledger_id}
    return _encode(transaction_id, Operation.FORCE_LEDGER, "forceLedgerRequest", fields)


def encode_bookie_info(
    transaction_id: int, requested: int = TOTAL_DISK_CAPACITY | FREE_DISK_SPACE
) -> bytes:
    """Return the frame that asks for disk space."""
    fields = {"requested": requested}
    return _encode(transaction_id, Operation.GET_BOOKIE_INFO, "getBookieInfoRequest", fields)


def encode_list_entries(transaction_id: int, ledger_id: LedgerId) -> bytes:
    """Return the frame that asks which entries of a ledger a bookie holds."""
    return _encode(
        transaction_id,
        Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
        "getListOfEntriesOfLedgerRequest",
        {"ledgerId": ledger_id},
    )


def encode_auth(transaction_id: int, plugin: str, payload: bytes) -> bytes:
    """Return the frame of a step of authentication."""
    fields = {"authPluginName": plugin, "payload": payload}
    return _encode(transaction_id, Operation.AUTH, "authRequest", fields)


def encode_start_tls(transaction_id: int) -> bytes:
    """Return the frame that asks for TLS; v2 connections send the same."""
    return _encode(transaction_id, Operation.START_TLS, "startTLSRequest", {})


class V3Response:
    """An answer; what its operation does not have, or the bookie did not say, is None.

    ``has_details`` is false for an answer without nested message: the bookie refused the request
    as such (unknown operation, not authenticated, no TLS).
    """

    __slots__ = (
        "auth_payload",
        "auth_plugin",
        "availability",
        "body",
        "entry_id",
        "free_disk_bytes",
        "has_details",
        "lac_body",
        "lac_update_ms",
        "last_entry",
        "ledger_id",
        "max_lac",
        "operation",
        "status",
        "total_disk_bytes",
        "txn_id",
    )

    def __init__(
        self, txn_id: int, operation: Operation, status: Status, *, has_details: bool = False
    ) -> None:
        self.txn_id = txn_id
        self.operation = operation
        self.status = status
        self.has_details = has_details
        self.ledger_id: LedgerId | None = None
        self.entry_id: EntryId | None = None
        self.body: bytes | None = None
        self.max_lac: EntryId | None = None
        self.lac_update_ms: int | None = None
        self.lac_body: bytes | None = None
        self.last_entry: bytes | None = None
        self.total_disk_bytes: int | None = None
        self.free_disk_bytes: int | None = None
        self.availability: bytes | None = None
        self.auth_plugin: str | None = None
        self.auth_payload: bytes | None = None

    def __repr__(self) -> str:
        values = ", ".join(
            f"{name}={value!r}"
            for name in self.__slots__
            if name != "auth_payload"  # a secret
            and (value := getattr(self, name)) is not None
        )
        return f"V3Response({values})"


#: Nested message of each operation, and what its fields are called here.
_NESTED: dict[Operation, tuple[str, dict[str, str]]] = {
    Operation.READ_ENTRY: (
        "readResponse",
        {
            "ledgerId": "ledger_id",
            "entryId": "entry_id",
            "body": "body",
            "maxLAC": "max_lac",
            "lacUpdateTimestamp": "lac_update_ms",
        },
    ),
    Operation.ADD_ENTRY: ("addResponse", {"ledgerId": "ledger_id", "entryId": "entry_id"}),
    Operation.AUTH: (
        "authResponse",
        {"authPluginName": "auth_plugin", "payload": "auth_payload"},
    ),
    Operation.WRITE_LAC: ("writeLacResponse", {"ledgerId": "ledger_id"}),
    Operation.READ_LAC: (
        "readLacResponse",
        {"ledgerId": "ledger_id", "lacBody": "lac_body", "lastEntryBody": "last_entry"},
    ),
    Operation.GET_BOOKIE_INFO: (
        "getBookieInfoResponse",
        {"totalDiskCapacity": "total_disk_bytes", "freeDiskSpace": "free_disk_bytes"},
    ),
    Operation.START_TLS: ("startTLSResponse", {}),
    Operation.FORCE_LEDGER: ("forceLedgerResponse", {"ledgerId": "ledger_id"}),
    Operation.GET_LIST_OF_ENTRIES_OF_LEDGER: (
        "getListOfEntriesOfLedgerResponse",
        {"ledgerId": "ledger_id", "availabilityOfEntriesOfLedger": "availability"},
    ),
}
_WITHOUT_STATUS = frozenset((Operation.AUTH, Operation.START_TLS))


class ResponseDecoder:
    """Turns the bytes of a v3 connection into answers."""

    __slots__ = ("_buffer",)

    def __init__(self, max_frame_bytes: int = MAX_FRAME_SIZE_BYTES) -> None:
        self._buffer = FrameBuffer(max_frame_bytes)

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an incomplete frame are kept."""
        return self._buffer.pending_bytes

    def feed(self, data: bytes) -> list[V3Response]:
        """Decode a chunk; an incomplete frame at its end waits for the next.

        Raises:
            RemoteProtocolError: these are no v3 answers; close the connection.
        """
        data = self._buffer.take(data)
        responses: list[V3Response] = []
        max_length = self._buffer.max_frame_bytes - 4
        position, end = 0, len(data)
        while end - position >= 4:
            length = LENGTH.unpack_from(data, position)[0]
            stop = position + 4 + length
            if stop > end or not 0 < length <= max_length:
                break
            responses.append(_decode_response(data[position + 4 : stop]))
            position = stop
        self._buffer.keep(data, position)
        return responses


def _decode_response(body: bytes) -> V3Response:
    message = parse("Response", body)
    header = message.header
    operation = Operation(header.operation)
    status = status_of_v3(message.status)
    nested = _NESTED.get(operation)
    if nested is None or not message.HasField(nested[0]):
        if status is Status.OK:
            raise RemoteProtocolError(f"the answer to {operation.name} says OK and nothing else")
        return V3Response(header.txnId, operation, status)
    name, fields = nested
    details = getattr(message, name)
    if operation not in _WITHOUT_STATUS and status is Status.OK:
        status = status_of_v3(details.status)
    response = V3Response(header.txnId, operation, status, has_details=True)
    try:
        for field, attribute in fields.items():
            if details.HasField(field):
                setattr(response, attribute, getattr(details, field))
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("an answer has a text that is not UTF-8") from error
    return response
