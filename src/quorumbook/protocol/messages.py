"""The peer's protobuf messages, wire and metadata, from one table in code.

Messages are built at run time in a descriptor pool of their own: there are no generated modules
that would bind the protobuf runtime to one version or clash with somebody else's in the process.

Each line of ``_MESSAGES`` is a message; each field reads ``label type name number``, where the
label is ``r`` (required), ``o`` (optional) or ``*`` (repeated).  A type that is not a scalar is an
enum or message of this table.  Numbers and labels are the peer's and never change.

The protobuf runtime does not insist on required fields when it parses; ``parse`` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from quorumbook.errors import RemoteProtocolError

_ENUMS: dict[str, dict[str, int]] = {
    "ProtocolVersion": {"VERSION_ONE": 1, "VERSION_TWO": 2, "VERSION_THREE": 3},
    "StatusCode": {
        "EOK": 0,
        "ENOLEDGER": 402,
        "ENOENTRY": 403,
        "EBADREQ": 404,
        "EIO": 501,
        "EUA": 502,
        "EBADVERSION": 503,
        "EFENCED": 504,
        "EREADONLY": 505,
        "ETOOMANYREQUESTS": 506,
        "EUNKNOWNLEDGERSTATE": 507,
    },
    "OperationType": {
        "READ_ENTRY": 1,
        "ADD_ENTRY": 2,
        "RANGE_READ_ENTRY": 3,
        "RANGE_ADD_ENTRY": 4,
        "AUTH": 5,
        "WRITE_LAC": 6,
        "READ_LAC": 7,
        "GET_BOOKIE_INFO": 8,
        "START_TLS": 9,
        "FORCE_LEDGER": 10,
        "GET_LIST_OF_ENTRIES_OF_LEDGER": 11,
        "BATCH_READ_ENTRY": 12,
    },
    "ReadRequest.Flag": {"FENCE_LEDGER": 1, "ENTRY_PIGGYBACK": 2},
    "AddRequest.Flag": {"RECOVERY_ADD": 1},
    "LedgerMetadataFormat.State": {"OPEN": 1, "IN_RECOVERY": 2, "CLOSED": 3},
    "LedgerMetadataFormat.DigestType": {"CRC32": 1, "HMAC": 2, "CRC32C": 3, "DUMMY": 4},
}

_MESSAGES: dict[str, str] = {
    "BKPacketHeader": "r ProtocolVersion version 1; r OperationType operation 2; r uint64 txnId 3;"
    "o uint32 priority 4",
    "ContextPair": "r string key 1; r string value 2",
    "Request": "r BKPacketHeader header 1; o ReadRequest readRequest 100;"
    "o AddRequest addRequest 101; o AuthMessage authRequest 102;"
    "o WriteLacRequest writeLacRequest 103; o ReadLacRequest readLacRequest 104;"
    "o GetBookieInfoRequest getBookieInfoRequest 105; o StartTLSRequest startTLSRequest 106;"
    "o ForceLedgerRequest forceLedgerRequest 107;"
    "o GetListOfEntriesOfLedgerRequest getListOfEntriesOfLedgerRequest 108;"
    "* ContextPair requestContext 200",
    "ReadRequest": "o ReadRequest.Flag flag 100; r int64 ledgerId 1; r int64 entryId 2;"
    "o bytes masterKey 3; o int64 previousLAC 4; o int64 timeOut 5",
    "AddRequest": "o AddRequest.Flag flag 100; r int64 ledgerId 1; r int64 entryId 2;"
    "r bytes masterKey 3; r bytes body 4; o int32 writeFlags 5",
    "StartTLSRequest": "",
    "WriteLacRequest": "r int64 ledgerId 1; r int64 lac 2; r bytes masterKey 3; r bytes body 4",
    "ForceLedgerRequest": "r int64 ledgerId 1",
    "ReadLacRequest": "r int64 ledgerId 1",
    "GetBookieInfoRequest": "o int64 requested 1",
    "GetListOfEntriesOfLedgerRequest": "r int64 ledgerId 1",
    "AuthMessage": "r string authPluginName 1; r bytes payload 2",
    "Response": "r BKPacketHeader header 1; r StatusCode status 2;"
    "o ReadResponse readResponse 100; o AddResponse addResponse 101;"
    "o AuthMessage authResponse 102; o WriteLacResponse writeLacResponse 103;"
    "o ReadLacResponse readLacResponse 104; o GetBookieInfoResponse getBookieInfoResponse 105;"
    "o StartTLSResponse startTLSResponse 106; o ForceLedgerResponse forceLedgerResponse 107;"
    "o GetListOfEntriesOfLedgerResponse getListOfEntriesOfLedgerResponse 108",
    "ReadResponse": "r StatusCode status 1; r int64 ledgerId 2; r int64 entryId 3; o bytes body 4;"
    "o int64 maxLAC 5; o int64 lacUpdateTimestamp 6",
    "AddResponse": "r StatusCode status 1; r int64 ledgerId 2; r int64 entryId 3",
    "WriteLacResponse": "r StatusCode status 1; r int64 ledgerId 2",
    "ForceLedgerResponse": "r StatusCode status 1; r int64 ledgerId 2",
    "ReadLacResponse": "r StatusCode status 1; r int64 ledgerId 2; o bytes lacBody 3;"
    "o bytes lastEntryBody 4",
    "GetBookieInfoResponse": "r StatusCode status 1; o int64 totalDiskCapacity 2;"
    "o int64 freeDiskSpace 3",
    "GetListOfEntriesOfLedgerResponse": "r StatusCode status 1; r int64 ledgerId 2;"
    "o bytes availabilityOfEntriesOfLedger 3",
    "StartTLSResponse": "",
    # Metadata
    "LedgerMetadataFormat": "r int32 quorumSize 1; r int32 ensembleSize 2; r int64 length 3;"
    "o int64 lastEntryId 4; r LedgerMetadataFormat.State state 5;"
    "* LedgerMetadataFormat.Segment segment 6; o LedgerMetadataFormat.DigestType digestType 7;"
    "o bytes password 8; o int32 ackQuorumSize 9; o int64 ctime 10;"
    "* LedgerMetadataFormat.cMetadataMapEntry customMetadata 11; o int64 cToken 12",
    "LedgerMetadataFormat.Segment": "* string ensembleMember 1; r int64 firstEntryId 2",
    "LedgerMetadataFormat.cMetadataMapEntry": "o string key 1; o bytes value 2",
    "LedgerRereplicationLayoutFormat": "r string type 1; r int32 version 2",
    "UnderreplicatedLedgerFormat": "* string replica 1; o int64 ctime 2",
    "CookieFormat": "r string bookieHost 1; r string journalDir 2; r string ledgerDirs 3;"
    "o string instanceId 4; o string indexDirs 5",
    # A ledger in the RocksDB index of the peer's DbLedgerStorage.
    "LedgerData": "r bool exists 1; r bool fenced 2; r bytes masterKey 3; o bytes explicitLac 4;"
    "o bool limbo 5",
    "LockDataFormat": "o string bookieId 1",
    "AuditorVoteFormat": "o string bookieId 1",
    "CheckAllLedgersFormat": "o int64 checkAllLedgersCTime 1",
    "PlacementPolicyCheckFormat": "o int64 placementPolicyCheckCTime 1",
    "ReplicasCheckFormat": "o int64 replicasCheckCTime 1",
    "BookieServiceInfoFormat": "* BookieServiceInfoFormat.Endpoint endpoints 6;"
    "* BookieServiceInfoFormat.PropertiesEntry properties 7",
    "BookieServiceInfoFormat.Endpoint": "r string id 1; r int32 port 2; r string host 3;"
    "r string protocol 4; * string auth 5; * string extensions 6",
    "BookieServiceInfoFormat.PropertiesEntry": "o string key 1; o string value 2",
}

# What a bookie reads of a request: words for the peer's log may be very many in one frame, and to
# take them apart held a bookie up for 50 ms.
_MESSAGES["ReceivedRequest"] = _MESSAGES["Request"].rpartition(";")[0]

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "uint64": _FIELD.TYPE_UINT64,
    "bytes": _FIELD.TYPE_BYTES,
    "string": _FIELD.TYPE_STRING,
}
_LABELS = {
    "r": _FIELD.LABEL_REQUIRED,
    "o": _FIELD.LABEL_OPTIONAL,
    "*": _FIELD.LABEL_REPEATED,
}


def _add_fields(message: Any, lines: str, enums: Mapping[str, object]) -> None:
    for line in filter(None, map(str.strip, lines.split(";"))):
        label, kind, name, number = line.split()
        field = message.field.add(name=name, number=int(number), label=_LABELS[label])
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = _FIELD.TYPE_ENUM if kind in enums else _FIELD.TYPE_MESSAGE
            field.type_name = "." + kind


def build_pool(
    table: Mapping[str, str], enums: Mapping[str, Mapping[str, int]]
) -> descriptor_pool.DescriptorPool:
    """Make a pool of its own out of a table of messages; an outer one comes before its inner."""
    file = descriptor_pb2.FileDescriptorProto(name="quorumbook.proto", syntax="proto2")
    messages: dict[str, Any] = {}
    for full_name, lines in table.items():
        outer, _, name = full_name.rpartition(".")
        parent = messages[outer].nested_type if outer else file.message_type
        message = messages[full_name] = parent.add(name=name)
        _add_fields(message, lines, enums)
        # An entry of a map field is a message that only says so.
        message.options.map_entry = name == "PropertiesEntry"
    for full_name, values in enums.items():
        outer, _, name = full_name.rpartition(".")
        enum = (messages[outer] if outer else file).enum_type.add(name=name)
        for value_name, number in values.items():
            enum.value.add(name=value_name, number=number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_pool = build_pool(_MESSAGES, _ENUMS)
_classes: dict[str, Any] = {}


def message_class(name: str) -> Any:
    """Return the class of a message of the table, such as ``"LedgerMetadataFormat"``."""
    if name not in _classes:
        descriptor = _pool.FindMessageTypeByName(name)
        _classes[name] = message_factory.GetMessageClass(descriptor)
        # The library makes the classes of its parts when they are used, and again and again.
        for field in descriptor.fields:
            if field.message_type is not None:
                message_class(field.message_type.full_name)
    return _classes[name]


def parse(name: str, data: bytes) -> Any:
    """Parse a message that came over the network.

    Raises:
        RemoteProtocolError: the bytes are no such message, or a required field is missing.
    """
    try:
        message = message_class(name).FromString(data)
    except DecodeError as error:
        raise RemoteProtocolError(f"these bytes are no {name}") from error
    if not message.IsInitialized():
        raise RemoteProtocolError(f"a {name} came without its required fields")
    return message
