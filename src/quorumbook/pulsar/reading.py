"""Reads entries of a topic's ledgers as messages.

Chunks that lie before what is read are looked for in the entries before, in earlier ledgers as
well; a message of which some are gone is left out, as Pulsar's own consumers do.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable
from typing import Literal, TypeAlias

from quorumbook.client.client import BookKeeper
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.env import logger
from quorumbook.errors import (
    DigestMismatchError,
    NoSuchEntryError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
)
from quorumbook.protocol.digest import DigestType
from quorumbook.pulsar.chunks import MessageChunks, is_whole, joined, take_earlier
from quorumbook.pulsar.entries import (
    Message,
    TopicEntry,
    decode_entry,
    messages_of,
    undecoded,
    unread,
)
from quorumbook.pulsar.names import TopicName
from quorumbook.pulsar.nodes import TopicNodes
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError

#: What becomes of an entry that cannot be read: an error, a message that says so, or nothing.
OnCorrupt: TypeAlias = Literal["fail", "null", "skip"]
#: So many entries before its last chunk the other chunks of a message are looked for.
_LOOK_BACK_ENTRIES = 20_000
_BLOCK_ENTRIES = 256
#: So many messages are handed out at once.
_MANY = 1_000
_log = logger("pulsar")


class TopicReader:
    """Reads the entries of one topic as messages."""

    def __init__(
        self,
        client: BookKeeper,
        nodes: TopicNodes,
        name: TopicName,
        *,
        password: bytes = b"",
        digest_type: DigestType | None = None,
        on_corrupt: OnCorrupt = "fail",
        is_bearable: Callable[[QuorumbookError], bool] = lambda error: False,
    ) -> None:
        """Take the topic.

        Args:
            client: Opens ledgers.
            nodes: Where earlier ledgers are found.
            name: The topic, or one partition.
            password: Of its ledgers; brokers give none unless told to.
            digest_type: Of ledgers that do not say it.
            on_corrupt: What becomes of an entry that is no message, or cannot be decoded here.
            is_bearable: Tells whether reading goes on behind an entry that bookies cannot give.
        """
        self.name = name
        self._client = client
        self._nodes = nodes
        self._password, self._digest_type = password, digest_type
        self._on_corrupt = on_corrupt
        self._is_bearable = is_bearable
        self._chunks = MessageChunks()

    async def open_ledger(self, ledger_id: int) -> LedgerReader:
        """Open a ledger without fencing it, so that a broker that writes it goes on."""
        return await self._client.open_ledger(
            ledger_id, password=self._password, recover=False, digest_type=self._digest_type
        )

    async def messages(
        self, ledger: LedgerReader, first: int, last: int
    ) -> AsyncGenerator[list[Message], None]:
        """Yield the messages of some entries, many at a time.

        Raises:
            CorruptRecordsError: an entry cannot be read as a message, and that is to fail.
            UnsupportedFormatError: the same, of one that is encrypted, of a transaction, too large.
            DigestMismatchError: every replica of an entry is damaged.
            ReadFailedError: no replica gives an entry at the moment.
        """
        while first <= last:
            try:
                async with contextlib.aclosing(ledger.read_batches(first, last)) as batches:
                    async for batch in batches:
                        for entry_id, data in zip(batch.entry_ids, batch.payloads, strict=True):
                            async for found in self._of_entry(ledger, entry_id, data):
                                yield found
                            first = entry_id + 1
            except (DigestMismatchError, NoSuchEntryError) as error:
                if not self._is_bearable(error):
                    raise
                if self._on_corrupt == "null":
                    yield [unread(ledger.id, first, error)]
                first += 1

    async def _of_entry(
        self, ledger: LedgerReader, entry_id: int, data: bytes
    ) -> AsyncGenerator[list[Message], None]:
        entry = None
        try:
            entry = decode_entry(ledger.id, entry_id, data)
            if entry.is_mark:
                return
            if entry.is_chunk:
                whole = await self._whole(ledger, entry)
                if whole is None:
                    return
                entry = whole
            found = messages_of(entry)
        except (CorruptRecordsError, UnsupportedFormatError) as error:
            if self._on_corrupt == "fail":
                raise
            if self._on_corrupt == "null":
                bad = unread(ledger.id, entry_id, error)
                yield [bad if entry is None else undecoded(entry, error)]
            return
        while part := list(itertools.islice(found, _MANY)):
            yield part

    # Chunks --------------------------------------------------------------------------------

    async def _whole(self, ledger: LedgerReader, entry: TopicEntry) -> TopicEntry | None:
        """Return the message that ends with a chunk; None if none does, or parts are gone."""
        held = self._chunks.feed(entry)
        if held is None:
            return None
        parts = dict(held)
        if not is_whole(entry, parts):
            await self._look_back(ledger, entry, parts)
        if not is_whole(entry, parts):
            _log.warning(
                "the message of %s that ends at entry %d of ledger %d is left out: %d of its %d "
                "chunks are not in the %d entries before",
                self.name, entry.entry_id, ledger.id,
                entry.metadata.num_chunks_from_msg - len(parts),
                entry.metadata.num_chunks_from_msg, _LOOK_BACK_ENTRIES,
            )  # fmt: skip
            return None
        return joined(entry, parts)

    async def _look_back(
        self, ledger: LedgerReader, last: TopicEntry, parts: dict[int, bytes]
    ) -> None:
        """Add the chunks of a message that are in the entries before its last one."""
        left = _LOOK_BACK_ENTRIES
        with contextlib.suppress(  # what is gone is not found, and whoever needs it says so
            DigestMismatchError, NoSuchEntryError, NoSuchLedgerInMetadataError
        ):
            left, is_done = await self._look_into(ledger, last, parts, last.entry_id, left)
            if is_done:
                return
            state = await self._nodes.state(self.name)
            for before in reversed([] if state is None else state.ledgers):
                if before.ledger_id >= ledger.id or not left:
                    continue
                async with await self.open_ledger(before.ledger_id) as opened:
                    end = opened.last_add_confirmed + 1
                    left, is_done = await self._look_into(opened, last, parts, end, left)
                if is_done:
                    return

    async def _look_into(
        self, ledger: LedgerReader, last: TopicEntry, parts: dict[int, bytes], end: int, left: int
    ) -> tuple[int, bool]:
        """Look before an entry of one ledger; return how many may be looked at, and if it ends."""
        while end and left:
            first = max(0, end - min(_BLOCK_ENTRIES, left))
            found = []
            async with contextlib.aclosing(ledger.read_batches(first, end - 1)) as batches:
                async for batch in batches:
                    for entry_id, data in zip(batch.entry_ids, batch.payloads, strict=True):
                        if last.metadata.uuid in data:
                            with contextlib.suppress(CorruptRecordsError):
                                found.append(decode_entry(ledger.id, entry_id, data))
            for entry in reversed(found):
                if take_earlier(last, parts, entry):
                    return left, True
            left, end = left - (end - first), first
        return left, False
