"""What an entry of a Pulsar topic holds: one message, a batch, a chunk, or a broker's mark; pure.

    [0x0e02, size 4, broker's metadata] [0x0e01, CRC-32C 4] size 4, metadata, payload

What is in brackets may be missing; numbers are big-endian, and the checksum covers all that follows
it.  The payload of a batch is ``size 4, metadata, payload`` again and again, compressed as a whole.

An entry is taken apart whole or not at all, so its messages are there together or none is.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

import google_crc32c

from quorumbook.pulsar.compression import decompress
from quorumbook.pulsar.formats import parse
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError

_BROKER_MAGIC = b"\x0e\x02"
_CHECKSUM_MAGIC = b"\x0e\x01"
_SIZE = Struct(">I")
#: More is refused before it is taken apart, which takes many times the memory.
MAX_METADATA_BYTES = 1024 * 1024
#: The least that a message of a batch takes: its size, and metadata that say of how many bytes.
_LEAST_BYTES = 6
#: So many messages are held at once; of a larger batch all are looked at before the first is given.
_HELD_MESSAGES = 10_000
_SIGN, _WRAP = 1 << 63, 1 << 64
#: What fits into a column of microseconds.
_MAX_TIME_MS = (_SIGN - 1) // 1000


class Message(NamedTuple):
    """One message of a topic."""

    ledger_id: int
    entry_id: int
    #: Which one of the entry's batch; None: it came by itself.
    batch_index: int | None
    #: When its producer sent it, in milliseconds since 1970; None: that is no time.
    publish_time_ms: int | None
    #: When what it tells of happened; None: nobody said.
    event_time_ms: int | None
    producer_name: str
    sequence_id: int
    key: bytes | None
    ordering_key: bytes | None
    properties: dict[str, str]
    #: Which version of the topic's schema; None: none is named.
    schema_version: int | None
    #: Which cluster it was sent to first; None: this one.
    replicated_from: str | None
    #: What a broker counts messages by, and when it took this in, if it is set up to say so.
    broker_index: int | None
    broker_time_ms: int | None
    #: None: the message says that there is nothing, which deletes its key in a compacted topic.
    value: bytes | None
    #: Why the value is missing, or not to be relied upon; None: nothing is wrong.
    error: str | None = None


class TopicEntry(NamedTuple):
    """An entry whose payload is still as it is stored."""

    ledger_id: int
    entry_id: int
    #: ``MessageMetadata``.
    metadata: Any
    payload: bytes
    #: ``BrokerEntryMetadata``; None: there are none.
    broker: Any = None

    @property
    def is_mark(self) -> bool:
        """Whether a broker wrote it for brokers: the end of a transaction, a snapshot."""
        return bool(self.metadata.HasField("marker_type"))

    @property
    def is_chunk(self) -> bool:
        """Whether it is one of several parts of a message."""
        return bool(self.metadata.num_chunks_from_msg > 1)


def decode_entry(ledger_id: int, entry_id: int, data: bytes) -> TopicEntry:
    """Take an entry apart, but not its payload.

    Raises:
        CorruptRecordsError: it is not an entry of Pulsar, or its checksum is wrong.
    """
    try:
        position, broker = 0, None
        if data[:2] == _BROKER_MAGIC:
            part, position = _part(data, 2)
            broker = parse("BrokerEntryMetadata", part)
        if data[position : position + 2] == _CHECKSUM_MAGIC:
            said, position = _number(data, position + 2)
            found = google_crc32c.value(data[position:])
            if said != found:
                raise CorruptRecordsError(f"its checksum is {found:08x} and should be {said:08x}")
        part, position = _part(data, position)
        metadata = parse("MessageMetadata", part)
    except CorruptRecordsError as error:
        raise _at(error, ledger_id, entry_id) from error
    return TopicEntry(ledger_id, entry_id, metadata, data[position:], broker)


def messages_of(entry: TopicEntry) -> Iterator[Message]:
    """Yield the messages of an entry that is neither a mark nor a chunk.

    Raises:
        CorruptRecordsError: the payload is not what the metadata say.
        UnsupportedFormatError: it is encrypted, of a transaction, or compressed by a codec that is
            unknown or to more than is decompressed here.
    """
    try:
        _refuse(entry)
        metadata = entry.metadata
        payload = decompress(metadata.compression, entry.payload, metadata.uncompressed_size)
        if not metadata.HasField("num_messages_in_batch"):
            return iter([_single(entry, payload)])
        if not 0 <= metadata.num_messages_in_batch <= len(payload) // _LEAST_BYTES:
            raise CorruptRecordsError(
                f"{metadata.num_messages_in_batch} messages do not fit into {len(payload)} bytes"
            )
        if metadata.num_messages_in_batch <= _HELD_MESSAGES:
            return iter([*_batched(entry, payload)])
        for _ in _batched(entry, payload):
            pass
        return _batched(entry, payload)
    except (CorruptRecordsError, UnsupportedFormatError) as error:
        raise _at(error, entry.ledger_id, entry.entry_id) from error


def undecoded(entry: TopicEntry, error: Exception) -> Message:
    """Return a row for an entry that was not taken apart: its metadata, and why.

    A message of a transaction that came by itself has its value.
    """
    message = _single(entry, None)
    metadata = entry.metadata
    is_plain = not metadata.encryption_keys and not metadata.HasField("num_messages_in_batch")
    if metadata.HasField("txnid_most_bits") and is_plain:
        with contextlib.suppress(CorruptRecordsError, UnsupportedFormatError):
            value = decompress(metadata.compression, entry.payload, metadata.uncompressed_size)
            message = _single(entry, value)
    return message._replace(error=str(error))


def unread(ledger_id: int, entry_id: int, error: Exception) -> Message:
    """Return a row for an entry of which nothing is known but where it is, and why."""
    return Message(
        ledger_id, entry_id, None, None, None, "", -1, None, None, {}, None, None, None, None, None,
        str(error),
    )  # fmt: skip


def published_ms(ledger_id: int, entry_id: int, data: bytes) -> int:
    """Return when an entry's message was sent, or its batch.

    Raises:
        CorruptRecordsError: it is not an entry of Pulsar.
    """
    return int(decode_entry(ledger_id, entry_id, data).metadata.publish_time)


def _refuse(entry: TopicEntry) -> None:
    metadata = entry.metadata
    if metadata.encryption_keys:
        raise UnsupportedFormatError("it is encrypted, and only its consumers have the key")
    if metadata.HasField("txnid_most_bits"):
        raise UnsupportedFormatError(
            f"it is of transaction ({metadata.txnid_most_bits},{metadata.txnid_least_bits}), which "
            "may have been aborted: only a broker knows"
        )


def _number(data: bytes, position: int) -> tuple[int, int]:
    if len(data) < position + 4:
        raise CorruptRecordsError(f"it ends after {len(data)} bytes")
    return _SIZE.unpack_from(data, position)[0], position + 4


def _part(data: bytes, position: int) -> tuple[bytes, int]:
    """Return bytes behind their size, and where they end."""
    size, position = _number(data, position)
    if size > len(data) - position:
        raise CorruptRecordsError(f"{size} bytes should follow, and {len(data) - position} do")
    if size > MAX_METADATA_BYTES:
        raise CorruptRecordsError(
            f"its metadata have {size} bytes; at most {MAX_METADATA_BYTES} are read"
        )
    return data[position : position + size], position + size


class _Common(NamedTuple):
    """What all messages of an entry share."""

    publish_time_ms: int | None
    producer_name: str
    sequence_id: int
    schema_version: int | None
    replicated_from: str | None
    #: Of the first message; None: nobody counts.
    first_index: int | None
    broker_time_ms: int | None


def _common(entry: TopicEntry) -> _Common:
    metadata, broker = entry.metadata, entry.broker
    index = time_ms = None
    if broker is not None and broker.HasField("index"):
        # A broker counts messages, and says the number of the entry's last.
        index = broker.index
        if metadata.HasField("num_messages_in_batch"):
            index += 1 - metadata.num_messages_in_batch
    if broker is not None and broker.HasField("broker_timestamp"):
        time_ms = _time(broker.broker_timestamp)
    came_from = metadata.replicated_from if metadata.HasField("replicated_from") else None
    return _Common(
        _time(metadata.publish_time),
        _text(metadata.producer_name),
        metadata.sequence_id,
        _version(metadata),
        None if came_from is None else _text(came_from),
        index,
        time_ms,
    )


def _batched(entry: TopicEntry, payload: bytes) -> Iterator[Message]:
    common = _common(entry)
    position = 0
    for number in range(entry.metadata.num_messages_in_batch):
        part, position = _part(payload, position)
        single = parse("SingleMessageMetadata", part)
        end = position + single.payload_size
        if single.payload_size < 0 or end > len(payload):
            raise CorruptRecordsError(
                f"message {number} of its batch should have {single.payload_size} bytes, and "
                f"{len(payload) - position} are left"
            )
        if not single.compacted_out:
            yield _message(entry, common, single, number, payload[position:end])
        position = end


def _single(entry: TopicEntry, payload: bytes | None) -> Message:
    return _message(entry, _common(entry), entry.metadata, None, payload)


def _message(
    entry: TopicEntry, common: _Common, own: Any, batch_index: int | None, payload: bytes | None
) -> Message:
    """Return a message; ``own`` has what it does not share with others of its entry."""
    number = batch_index or 0
    sequence_id, index = common.sequence_id + number, common.first_index
    if batch_index is not None and own.HasField("sequence_id"):
        sequence_id = own.sequence_id
    event_time, properties = own.event_time, own.properties
    return Message(
        entry.ledger_id,
        entry.entry_id,
        batch_index,
        common.publish_time_ms,
        _time(event_time) if event_time else None,
        common.producer_name,
        _signed(sequence_id),
        _key(own),
        own.ordering_key if own.HasField("ordering_key") else None,
        {_text(each.key): _text(each.value) for each in properties} if properties else {},
        common.schema_version,
        common.replicated_from,
        None if index is None else _signed(index + number),
        common.broker_time_ms,
        None if own.null_value else payload,
    )


def _key(own: Any) -> bytes | None:
    if own.null_partition_key or not own.HasField("partition_key"):
        return None
    key: bytes = own.partition_key
    if own.partition_key_b64_encoded:
        with contextlib.suppress(binascii.Error):  # then it stays as it is
            return base64.b64decode(key, validate=True)
    return key


def _version(metadata: Any) -> int | None:
    version: bytes = metadata.schema_version
    return int.from_bytes(version, "big", signed=True) if len(version) == _SIZE.size * 2 else None


def _signed(value: int) -> int:
    """Return the number of 64 bits that Java has for it."""
    value &= _WRAP - 1
    return value - _WRAP if value & _SIGN else value


def _time(time_ms: int) -> int | None:
    return time_ms if time_ms <= _MAX_TIME_MS else None


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _at(
    error: CorruptRecordsError | UnsupportedFormatError, ledger_id: int, entry_id: int
) -> CorruptRecordsError | UnsupportedFormatError:
    """Return the error with where it happened."""
    return type(error)(
        f"entry {entry_id} of ledger {ledger_id} cannot be read as a message of Pulsar: {error}",
        ledger_id=ledger_id,
        entry_id=entry_id,
    )
