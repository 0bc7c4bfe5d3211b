"""Any request that a bookie receives in v3, by the protobuf library.

Adds and plain reads are decoded by hand in ``adds.py``; here is everything else, and whatever
of these has another layout.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from quorumbook.errors import RemoteProtocolError
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.messages import parse
from quorumbook.protocol.requests import (
    AddRun,
    Auth,
    BookieInfo,
    ForceLedger,
    ListEntries,
    Operation,
    Read,
    ReadLAC,
    Request,
    StartTLS,
    Unsupported,
    WriteLAC,
)
from quorumbook.protocol.status import Status

_IDS = Struct(">qq")
_FENCE_LEDGER = 1
_ENTRY_PIGGYBACK = 2
_RECOVERY_ADD = 1
_DEFERRED_SYNC = 1
_VERSION_THREE = 3


def decode_request(data: bytes, position: int, stop: int) -> Request | None:
    """Decode one frame of any kind with the protobuf library.

    Returns:
        The request, or None if the frame is no v3 request at all.

    Raises:
        RemoteProtocolError: it is one, but lacks what its operation needs.
    """
    try:
        message = parse("ReceivedRequest", data[position + 4 : stop])
    except RemoteProtocolError:
        return None
    header = message.header
    operation = Operation(header.operation)
    build = _BUILDERS.get(operation)
    if build is None:
        return Unsupported(3, header.txnId, operation, Status.BAD_REQUEST)
    name, builder = build
    if not message.HasField(name):
        raise RemoteProtocolError(f"a {operation.name} request came without its {name}")
    request: Request = builder(header.txnId, header.priority > 0, getattr(message, name))
    if header.version != _VERSION_THREE:
        refused = request.refused if isinstance(request, Unsupported) else request
        return Unsupported(3, header.txnId, operation, Status.BAD_VERSION, refused)
    return request


def _build_add(token: int, is_high_priority: bool, message: Any) -> Request:
    body = message.body
    is_readable = len(body) >= _IDS.size
    ledger_id, entry_id = _IDS.unpack_from(body) if is_readable else (0, 0)
    is_recovery = message.HasField("flag") and message.flag == _RECOVERY_ADD
    request = AddRun(
        EntryRun.of(ledger_id, entry_id, [body]),
        message.masterKey,
        version=3,
        token=token,
        is_recovery=is_recovery,
        is_high_priority=is_high_priority,
        is_deferred_sync=bool(message.writeFlags & _DEFERRED_SYNC) and not is_recovery,
        transaction_ids=[token],
        echo_ledger_id=message.ledgerId,
        echo_entry_ids=[message.entryId],
    )
    if not is_readable or ledger_id < 0 or entry_id < 0:
        return Unsupported(3, token, Operation.ADD_ENTRY, Status.BAD_REQUEST, request)
    return request


def _build_read(token: int, is_high_priority: bool, message: Any) -> Request:
    flag = message.flag if message.HasField("flag") else 0
    return Read(
        3,
        token,
        message.ledgerId,
        message.entryId,
        is_high_priority,
        flag == _FENCE_LEDGER,
        message.masterKey if message.HasField("masterKey") else None,
        message.previousLAC if message.HasField("previousLAC") else None,
        message.timeOut if message.HasField("timeOut") else None,
        flag == _ENTRY_PIGGYBACK,
    )


def _build_write_lac(token: int, is_high_priority: bool, message: Any) -> Request:
    packet = message.body
    ledger_id, lac = message.ledgerId, message.lac
    is_good = len(packet) >= _IDS.size
    if is_good:
        # The packet is what readers get; what the request says beside it must agree.
        packet_ledger_id, lac = _IDS.unpack_from(packet)
        is_good = packet_ledger_id == ledger_id >= 0
    request = WriteLAC(token, ledger_id, lac, message.masterKey, packet)
    if not is_good:
        return Unsupported(3, token, Operation.WRITE_LAC, Status.BAD_REQUEST, request)
    return request


def _build_auth(token: int, is_high_priority: bool, message: Any) -> Request:
    try:
        return Auth(3, token, message.authPluginName, message.payload)
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("an authentication plug-in has no readable name") from error


_BUILDERS: dict[Operation, tuple[str, Any]] = {
    Operation.ADD_ENTRY: ("addRequest", _build_add),
    Operation.READ_ENTRY: ("readRequest", _build_read),
    Operation.WRITE_LAC: ("writeLacRequest", _build_write_lac),
    Operation.AUTH: ("authRequest", _build_auth),
    Operation.READ_LAC: (
        "readLacRequest",
        lambda token, _, message: ReadLAC(token, message.ledgerId),
    ),
    Operation.FORCE_LEDGER: (
        "forceLedgerRequest",
        lambda token, _, message: ForceLedger(token, message.ledgerId),
    ),
    Operation.GET_LIST_OF_ENTRIES_OF_LEDGER: (
        "getListOfEntriesOfLedgerRequest",
        lambda token, _, message: ListEntries(token, message.ledgerId),
    ),
    Operation.GET_BOOKIE_INFO: (
        "getBookieInfoRequest",
        lambda token, _, message: BookieInfo(token, message.requested),
    ),
    Operation.START_TLS: ("startTLSRequest", lambda token, _, message: StartTLS(token)),
}
