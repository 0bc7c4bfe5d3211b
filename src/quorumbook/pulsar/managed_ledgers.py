"""The list of a topic's ledgers, as Pulsar keeps it in one node of the metadata store; pure.

    [0x4778, size 4, how it is compressed] the list

Of all ledgers but the last the list says how many entries they have.
"""

from __future__ import annotations

import itertools
from struct import Struct
from typing import NamedTuple

from quorumbook.pulsar.compression import decompress
from quorumbook.pulsar.formats import parse
from quorumbook.streams.errors import CorruptRecordsError

_HEAD = Struct(">HI")
_MAGIC = 0x4778


class TopicLedger(NamedTuple):
    """One ledger of a topic."""

    ledger_id: int
    #: How many entries it has; None: the list does not say, as of the one that is written.
    entries: int | None
    #: Whether Pulsar has moved it to other storage, and deleted it from the bookies.
    is_offloaded: bool


def decode_ledgers(data: bytes) -> list[TopicLedger]:
    """Return the ledgers of a topic, in the order in which they were written.

    Raises:
        CorruptRecordsError: this is not such a list.
        UnsupportedFormatError: it is compressed by an unknown codec, or too large.
        ConfigError: decompressing it needs pyarrow, which is missing.
    """
    if len(data) >= _HEAD.size and _HEAD.unpack_from(data)[0] == _MAGIC:
        size = _HEAD.unpack_from(data)[1]
        if size > len(data) - _HEAD.size:
            raise CorruptRecordsError(f"a list of a topic's ledgers ends after {len(data)} bytes")
        end = _HEAD.size + size
        how = parse("ManagedLedgerInfoMetadata", data[_HEAD.size : end])
        data = decompress(how.compressionType, data[end:], how.uncompressedSize)
    found = sorted(parse("ManagedLedgerInfo", data).ledgerInfo, key=lambda each: each.ledgerId)
    for before, after in itertools.pairwise(found):
        if before.ledgerId == after.ledgerId:
            raise CorruptRecordsError(f"a topic has ledger {after.ledgerId} twice")
    return [
        TopicLedger(
            each.ledgerId,
            each.entries if each.entries > 0 and each is not found[-1] else None,
            each.offloadContext.complete and each.offloadContext.bookkeeperDeleted,
        )
        for each in found
    ]
