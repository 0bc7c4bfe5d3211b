"""The reader of a ledger: ranges, batches, the last add confirmed, and following a writer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from quorumbook.client.context import Context
from quorumbook.client.reading.entries import Entry, EntryBatch
from quorumbook.client.reading.last_confirmed import LacPolls, read_lac
from quorumbook.client.reading.ranges import ChunkRead, RangeRead, Sticky
from quorumbook.client.reading.single_entry import read_single
from quorumbook.client.reading.tabular import TabularLedger
from quorumbook.client.waiting.closing import Closing
from quorumbook.client.waiting.outcomes import copy_error, outcome_of
from quorumbook.env import logger
from quorumbook.errors import (
    ClientClosedError,
    LedgerClosedError,
    LocalProtocolError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
    ReadFailedError,
)
from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.ledger.machines.read import NEGATIVE_ERRORS
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.protocol.digest import Digester

_log = logger("client.reader")
_METADATA_RETRY_S = 0.5


class LedgerReader(Closing, TabularLedger):
    """A ledger opened for reading; made by ``BookKeeper.open_ledger``.

    If the ledger is still being written (opened with ``recover=False``), a reader reads entries up
    to the last add confirmed that it knows; ``tail`` follows the writer.  When a writer is idle,
    its last entry becomes visible after the writer's ``lac_delay_s``.
    """

    def __init__(
        self,
        context: Context,
        metadata: LedgerMetadata,
        version: int,
        digester: Digester,
        on_over: Callable[[LedgerReader], None] | None = None,
    ) -> None:
        """Begin to read; see ``BookKeeper.open_ledger``."""
        self._context = context
        self._metadata = metadata
        self._version = version
        self._digester = digester
        self._on_over = on_over
        self._lac: EntryId = INVALID_ENTRY_ID
        self._length = 0
        self._is_over = False
        self._error: QuorumbookError | None = None
        self._reads: dict[RangeRead | ChunkRead, None] = {}
        #: Other requests that somebody waits for.
        self._asking: set[asyncio.Future[Any]] = set()
        self._sticky: Sticky | None = None
        if context.options.sticky_reads and metadata.write_quorum_size == metadata.ensemble_size:
            self._sticky = Sticky(metadata.ledger_id % metadata.ensemble_size)
        self._news: set[asyncio.Future[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._is_stale = False
        self._watch = self._on_watch  # one object, by which it can be forgotten
        self._take(metadata, version)

    # What it knows -------------------------------------------------------------------------

    @property
    def id(self) -> LedgerId:
        """The ledger's id."""
        return self._metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as last heard of; kept up to date."""
        return self._metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, so that nothing is ever added to it."""
        return self._metadata.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        """The id of the newest entry known to be safe, or of a closed ledger's last one; or -1."""
        return self._lac

    @property
    def length(self) -> int:
        """Bytes of payload: all of a closed ledger, else up to the newest entry read so far."""
        return self._metadata.length if self._metadata.is_closed else self._length

    # Reading -------------------------------------------------------------------------------

    async def read(
        self, first: EntryId = 0, last: EntryId | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Yield entries in order.

        Args:
            first: The first one wanted.
            last: The id of the last entry to read; by default the last add confirmed that is known
                now.

        Raises:
            LocalProtocolError: ``last`` is beyond the last add confirmed.
            ReadFailedError: no replica gives the next entry at the moment.
            DigestMismatchError: every replica of the next entry is damaged.
        """
        async with contextlib.aclosing(self.read_batches(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def read_batches(
        self, first: EntryId = 0, last: EntryId | None = None
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield entries as they come in, many at a time; see ``read``."""
        if last is None:
            last = self._lac
        self._check_confirmed(last)
        async with contextlib.aclosing(self._read(first, last)) as batches:
            async for batch in batches:
                yield batch

    async def read_entry(self, entry_id: EntryId) -> Entry:
        """Return one entry, quicker than ``read`` does; raises as ``read``."""
        self._check_open()
        self._check_first(entry_id)
        self._check_confirmed(entry_id)
        batch = await read_single(
            self._context, self._digester, self._metadata, entry_id, self._asking, self._sticky
        )
        if batch is None:
            async for entry in self.read(entry_id, entry_id):
                return entry
        assert batch is not None
        self._check_open()
        self._note(batch)
        return next(iter(batch))

    async def read_last_entry(self) -> Entry:
        """Return the last entry; of a ledger that is being written the last confirmed one.

        Raises:
            NoSuchEntryError: there is none yet.
        """
        last = await self.read_last_add_confirmed()
        if last == INVALID_ENTRY_ID:
            raise NoSuchEntryError(f"ledger {self.id} has no entry yet", ledger_id=self.id)
        return await self.read_entry(last)

    async def read_batch(
        self,
        first: EntryId,
        *,
        max_count: int | None = None,
        max_size_bytes: int | None = None,
    ) -> EntryBatch:
        """Return the entries from ``first`` on that one answer holds: at least the first.

        Args:
            first: The id of the first entry to read, which must be confirmed.
            max_count: Most entries to return.
            max_size_bytes: The largest number of bytes to return, headers of entries included; an
                entry that is larger is returned alone.  By default ``read_batch_bytes``.

        Raises:
            LocalProtocolError: ``first`` is beyond the last add confirmed.
        """
        self._check_open()
        self._check_first(first)
        self._check_confirmed(first)
        limit = max_size_bytes or self._context.options.read_batch_bytes
        last = self._lac if not max_count else min(self._lac, first + max_count - 1)
        metadata = self._metadata
        batches: list[EntryBatch] = []
        if metadata.write_quorum_size < metadata.ensemble_size:
            async with contextlib.aclosing(self._read(first, last)) as found:
                async for batch in found:
                    batches.append(batch)
                    if sum(batch.size_bytes for batch in batches) >= limit:
                        break
        else:
            batches.append(await self._read_chunk(first, last, limit))
        return EntryBatch.joined(batches).within(limit)

    async def _read_chunk(self, first: EntryId, last: EntryId, limit: int) -> EntryBatch:
        read = ChunkRead(
            self._context,
            self._digester,
            self._metadata,
            first,
            last,
            first,
            self._look_again,
            self._sticky,
            limit,
        )
        self._reads[read] = None
        try:
            batch = await read.next_batch()
        finally:
            self._reads.pop(read, None)
            read.close()
        self._check_open()
        self._note(batch)
        return batch

    async def read_unconfirmed(self, first: EntryId, last: EntryId) -> AsyncGenerator[Entry, None]:
        """Yield entries whether they are confirmed or not.

        Entries beyond the last add confirmed may vanish when the ledger is recovered.

        Raises:
            NoSuchEntryError: no bookie has the next one.
        """
        async with contextlib.aclosing(self._read(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def tail(self, first: EntryId = 0) -> AsyncGenerator[Entry, None]:
        """Yield entries from ``first`` on as they are confirmed, until the ledger is closed."""
        async with contextlib.aclosing(self.tail_batches(first)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def tail_batches(self, first: EntryId = 0) -> AsyncGenerator[EntryBatch, None]:
        """Yield entries as they are confirmed, many at a time, until the ledger is closed.

        Raises:
            NoSuchLedgerInMetadataError: the ledger was deleted meanwhile.
        """
        self._check_first(first)
        polls = LacPolls(self._context, self._digester)
        try:
            while True:
                if first <= self._lac:
                    due = self._read(first, self._lac, polls.source)
                    async with contextlib.aclosing(due) as batches:
                        async for batch in batches:
                            first = batch.last_entry_id + 1
                            yield batch
                self._check_open()
                if first <= self._lac:
                    continue
                if self._metadata.is_closed:
                    return
                came_along = await self._wait_for_news(polls)
                if came_along is not None and came_along.first_entry_id == first:
                    first = came_along.last_entry_id + 1
                    self._note(came_along)
                    yield came_along
        finally:
            polls.close()

    async def try_read_last_add_confirmed(self) -> EntryId:
        """Ask bookies until one knows of progress. This is cheap, but the answer may be old."""
        return await self._read_lac(is_try=True)

    async def read_last_add_confirmed(self) -> EntryId:
        """Ask enough bookies to know of every entry that was confirmed before the call.

        The result is a lower bound: a writer tells bookies of a confirmed entry only with its next
        entry, or when it is idle.
        """
        return await self._read_lac(is_try=False)

    # The end -------------------------------------------------------------------------------

    async def close(self) -> None:
        """Let go; the ledger itself stays as it is."""
        self._stop(LedgerClosedError("this reader is closed", ledger_id=self.id))
        task = self._refreshing
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _stop(self, error: QuorumbookError) -> None:
        """End every iteration with an error; the client calls it when it closes."""
        if self._is_over:
            return
        self._is_over = True
        self._error = error
        self._context.unwatch(self._watch)
        self._announce()
        for read in list(self._reads):
            read.fail(error)
        for asked in self._asking:
            asked.cancel()
        if self._on_over is not None:
            self._on_over(self)

    def _abandon(self, error: LocalProtocolError, *, may_act: bool) -> None:
        """In a child made by fork: read nothing more; see ``env.forks``."""
        if may_act:
            self._stop(error)
        self._error = self._error or error
        self._refreshing = None

    def __repr__(self) -> str:
        state = self._metadata.state.name.lower()
        return f"<LedgerReader {self.id}, {state}, last add confirmed {self._lac}>"

    # Inside --------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Begin to watch the metadata: replicas move, ledgers get closed."""
        metadata, version = await self._context.ledgers.read_again(self._metadata, self._watch)
        self._take(metadata, version)
        if not metadata.is_closed:
            await self.read_last_add_confirmed()

    async def _read(
        self, first: EntryId, last: EntryId, source: Sticky | None = None
    ) -> AsyncGenerator[EntryBatch, None]:
        self._check_open()
        self._check_first(first)
        if first > last:
            return
        read = RangeRead(
            self._context,
            self._digester,
            lambda: self._metadata,
            first,
            last,
            self._look_again,
            self._sticky or source,
        )
        self._reads[read] = None
        try:
            batches: AsyncIterator[EntryBatch] = read.batches()
            async for batch in batches:
                self._note(batch)
                yield batch
                self._check_open()
        finally:
            self._reads.pop(read, None)
            read.close()

    def _note(self, batch: EntryBatch) -> None:
        """Learn from entries that were read."""
        self._length = max(self._length, batch.length_after)
        self._raise_lac(batch.last_add_confirmed)

    async def _read_lac(self, *, is_try: bool) -> EntryId:
        self._check_open()
        if not self._metadata.is_closed:
            asking = asyncio.ensure_future(
                read_lac(
                    self._context, self._digester, self._metadata, known=self._lac, is_try=is_try
                )
            )
            self._asking.add(asking)
            try:
                self._raise_lac(await outcome_of(asking))
            except ClientClosedError:
                self._check_open()
                raise
            finally:
                asking.cancel()
                self._asking.discard(asking)
        return self._lac

    def _raise_lac(self, lac: EntryId) -> None:
        if not self._metadata.is_closed:
            self._lac = max(self._lac, lac)

    async def _wait_for_news(self, polls: LacPolls) -> EntryBatch | None:
        """Wait for a larger last add confirmed, or other metadata."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._news.add(news)
        known = self._lac
        try:
            lac, batch = await polls.wait(self._metadata, known, news)
        finally:
            self._news.discard(news)
        self._raise_lac(lac)
        return batch

    def _take(self, metadata: LedgerMetadata, version: int) -> None:
        self._metadata, self._version = metadata, version
        if metadata.is_closed:
            self._lac = metadata.last_entry_id
        else:
            self._lac = max(self._lac, metadata.last_fragment.first_entry_id - 1)
        for read in list(self._reads):
            read.on_metadata(metadata)

    async def _look_again(self, error: QuorumbookError) -> None:
        """Take the newest metadata before it is believed that no replica gives an entry.

        Raises:
            NoSuchLedgerInMetadataError: the ledger was deleted; its entries are being collected.
            ReadFailedError: all replicas deny the entry, and nobody knows whether it has others.
        """
        self._check_open()
        try:
            metadata, version = await self._context.ledgers.read_again(self._metadata)
        except MetadataUnavailableError as cause:
            if not isinstance(error, NEGATIVE_ERRORS):
                return
            raise ReadFailedError(
                f"{error}, and whether it was moved to others cannot be told: {cause}",
                ledger_id=self.id,
                entry_id=error.entry_id,
            ) from cause
        if version > self._version:
            self._take(metadata, version)

    def _announce(self) -> None:
        for news in self._news:
            if not news.done():
                news.set_result(None)

    def _on_watch(self) -> None:
        self._is_stale = True
        if not self._is_over and self._refreshing is None:
            self._refreshing = self._context.spawn(self._refresh())

    async def _refresh(self) -> None:
        try:
            # A change that comes in while this reads is read in the next round.
            while self._is_stale and not self._is_over:
                self._is_stale = False
                try:
                    metadata, version = await self._context.ledgers.read_again(
                        self._metadata, self._watch
                    )
                except MetadataUnavailableError:
                    self._is_stale = True
                    await asyncio.sleep(_METADATA_RETRY_S)
                    continue
                except NoSuchLedgerInMetadataError as error:
                    self._error = error
                    break
                if version > self._version:
                    self._take(metadata, version)
        except MetadataError as error:
            _log.warning("ledger %d: %s", self.id, error)
        finally:
            self._refreshing = None
            self._announce()

    def _check_open(self) -> None:
        if self._error is not None:
            raise copy_error(self._error)

    def _check_confirmed(self, last: EntryId) -> None:
        if last > self._lac:
            raise LocalProtocolError(
                f"entry {last} is beyond the last add confirmed, {self._lac}; it may still "
                "vanish (read_unconfirmed reads it nevertheless)",
                ledger_id=self.id,
                entry_id=last,
            )

    def _check_first(self, first: EntryId) -> None:
        if first < 0:
            raise LocalProtocolError(
                f"entry ids begin at 0, not {first}", ledger_id=self.id, entry_id=first
            )


def note_confirmed(reader: LedgerReader, entry_id: EntryId) -> None:
    """Take it from somebody who knows that an entry is confirmed, so that it can be read."""
    reader._raise_lac(entry_id)  # noqa: SLF001 - of this module
