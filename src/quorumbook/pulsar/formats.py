"""The Protobuf messages of Apache Pulsar that are read here, as one table; pure.

Only the fields that are used are in it, with Pulsar's numbers; Protobuf passes over the others.
Texts are bytes, because nothing says that strangers' are UTF-8; enums are numbers.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from quorumbook.protocol.messages import build_pool
from quorumbook.streams.errors import CorruptRecordsError

_MESSAGES = {
    "KeyValue": "r bytes key 1; r bytes value 2",
    # Of an entry: what a broker adds, what its producer says, and what it says of one of a batch.
    "BrokerEntryMetadata": "o uint64 broker_timestamp 1; o uint64 index 2",
    "MessageMetadata": "r bytes producer_name 1; r uint64 sequence_id 2; r uint64 publish_time 3;"
    "* KeyValue properties 4; o bytes replicated_from 5; o bytes partition_key 6;"
    "o int32 compression 8; o uint32 uncompressed_size 9; o int32 num_messages_in_batch 11;"
    "o uint64 event_time 12; * bytes encryption_keys 13; o bytes schema_version 16;"
    "o bool partition_key_b64_encoded 17; o bytes ordering_key 18; o int32 marker_type 20;"
    "o uint64 txnid_least_bits 22; o uint64 txnid_most_bits 23; o bool null_value 25;"
    "o bytes uuid 26; o int32 num_chunks_from_msg 27; o int32 total_chunk_msg_size 28;"
    "o int32 chunk_id 29; o bool null_partition_key 30",
    "SingleMessageMetadata": "* KeyValue properties 1; o bytes partition_key 2;"
    "r int32 payload_size 3; o bool compacted_out 4; o uint64 event_time 5;"
    "o bool partition_key_b64_encoded 6; o bytes ordering_key 7; o uint64 sequence_id 8;"
    "o bool null_value 9; o bool null_partition_key 10",
    # In the metadata store: the ledgers of a topic.
    "OffloadContext": "o bool complete 3; o bool bookkeeperDeleted 4",
    "LedgerInfo": "r int64 ledgerId 1; o int64 entries 2; o int64 size 3; o int64 timestamp 4;"
    "o OffloadContext offloadContext 5",
    "ManagedLedgerInfo": "* LedgerInfo ledgerInfo 1",
    # Its schema: where the versions are, each of them an entry of a ledger of its own.
    "PositionInfo": "r int64 ledgerId 1; r int64 entryId 2",
    "IndexEntry": "r int64 version 1; r PositionInfo position 2",
    "SchemaLocator": "r IndexEntry info 1; * IndexEntry index 2",
    "SchemaEntry": "r bytes schema_data 2",
    "SchemaInfo": "r int32 type 3; r bytes schema 4; o bool deleted 6; * KeyValue props 7",
    "ManagedLedgerInfoMetadata": "r int32 compressionType 1; r int32 uncompressedSize 2",
}  # fmt: skip

_pool = build_pool(_MESSAGES, {})
_classes = {
    name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(name)) for name in _MESSAGES
}


def parse(name: str, data: bytes) -> Any:
    """Parse a message of the table.

    Raises:
        CorruptRecordsError: the bytes are not such a message.
    """
    try:
        message = _classes[name].FromString(data)
    except DecodeError as error:
        raise CorruptRecordsError(f"{len(data)} bytes are not a {name} of Pulsar") from error
    if not message.IsInitialized():
        raise CorruptRecordsError(f"a {name} of Pulsar lacks fields that it must have")
    return message


def make(name: str, **fields: Any) -> Any:
    """Return a message of the table with some fields set."""
    return _classes[name](**fields)
