"""Puts messages together that producers sent in chunks, each of which is an entry; pure.

A message is where its last chunk is, and what it is made of lies before, between other messages.
What is held meanwhile is a help and no more: where a chunk is missing, the reader looks for it in
the entries before, so which messages there are does not depend on where a task begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorumbook.pulsar.compression import MAX_SIZE_BYTES
from quorumbook.pulsar.entries import TopicEntry
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError

#: What is held of messages that are not complete yet; the one begun first goes first.
_MAX_HELD_BYTES = 256 * 1024 * 1024
#: What a chunk takes beside its payload, about.
_OVERHEAD_BYTES = 500


class MessageChunks:
    """The chunks of messages that are not complete yet."""

    def __init__(self) -> None:
        #: By message: its chunks' payloads by number.
        self._held: dict[bytes, dict[int, bytes]] = {}
        self._held_bytes = 0

    def feed(self, entry: TopicEntry) -> Mapping[int, bytes] | None:
        """Take a chunk in.

        Returns:
            Of a message's last chunk, what is held of the message; else None.

        Raises:
            CorruptRecordsError: its numbers cannot be.
        """
        metadata = entry.metadata
        uuid, number = metadata.uuid, metadata.chunk_id
        if not 0 <= number < metadata.num_chunks_from_msg:
            raise CorruptRecordsError(
                f"entry {entry.entry_id} of ledger {entry.ledger_id} is chunk {number} of "
                f"{metadata.num_chunks_from_msg}",
                ledger_id=entry.ledger_id,
                entry_id=entry.entry_id,
            )
        if number == 0:  # the producer begins, perhaps for the second time
            self._drop(uuid)
        held = self._held.setdefault(uuid, {})
        before = held.get(number)
        self._held_bytes += _size(entry.payload) - (0 if before is None else _size(before))
        held[number] = entry.payload
        if number == metadata.num_chunks_from_msg - 1:
            self._drop(uuid)
            return held
        while self._held_bytes > _MAX_HELD_BYTES:
            self._drop(next(iter(self._held)))
        return None

    def _drop(self, uuid: bytes) -> None:
        self._held_bytes -= sum(map(_size, self._held.pop(uuid, {}).values()))


def _size(payload: bytes) -> int:
    return len(payload) + _OVERHEAD_BYTES


def is_whole(last: TopicEntry, held: Mapping[int, bytes]) -> bool:
    """Tell whether all chunks of a message are there."""
    return bool(len(held) == last.metadata.num_chunks_from_msg)


def take_earlier(last: TopicEntry, held: dict[int, bytes], entry: TopicEntry) -> bool:
    """Take in what an entry before has of a message; going back, the first that is met counts.

    Returns:
        Whether nothing before this entry can be of the message.
    """
    metadata = entry.metadata
    if not entry.is_chunk or metadata.uuid != last.metadata.uuid:
        return False
    if not 0 <= metadata.chunk_id < last.metadata.num_chunks_from_msg:
        return False
    held.setdefault(metadata.chunk_id, entry.payload)
    return bool(metadata.chunk_id == 0)


def joined(last: TopicEntry, held: Mapping[int, bytes]) -> TopicEntry:
    """Return a message whose chunks are all there, as if it had come in one entry.

    Raises:
        CorruptRecordsError: its chunks are not as large as they say.
        UnsupportedFormatError: it is larger than is read here.
    """
    where: dict[str, Any] = {"ledger_id": last.ledger_id, "entry_id": last.entry_id}
    what = f"the message whose last chunk is entry {last.entry_id} of ledger {last.ledger_id}"
    size = sum(map(len, held.values()))
    if size != last.metadata.total_chunk_msg_size and not last.metadata.encryption_keys:
        raise CorruptRecordsError(
            f"{what} has {size} bytes and should have {last.metadata.total_chunk_msg_size}", **where
        )
    if size > MAX_SIZE_BYTES:
        raise UnsupportedFormatError(
            f"{what} has {size} bytes; at most {MAX_SIZE_BYTES} are read", **where
        )
    return last._replace(payload=b"".join(held[number] for number in sorted(held)))
