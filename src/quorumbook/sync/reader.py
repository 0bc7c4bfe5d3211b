"""The blocking reader."""

from __future__ import annotations

from collections.abc import Iterator

from quorumbook.client.reading import reader as aio
from quorumbook.client.reading.entries import Entry, EntryBatch
from quorumbook.ids import EntryId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.sync.loop import Closing


class LedgerReader(Closing):
    """The blocking twin of ``quorumbook.LedgerReader``."""

    def __init__(self, reader: aio.LedgerReader) -> None:
        """Wrap a reader that was opened on the loop thread."""
        super().__init__()
        self._aio = reader

    @property
    def id(self) -> LedgerId:
        """The ledger's id."""
        return self._aio.id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as last heard of; kept up to date."""
        return self._aio.metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, so that nothing is ever added to it."""
        return self._aio.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        """The newest entry known here to be safe; of a closed ledger the last one; else -1."""
        return self._aio.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes: of a closed ledger all, else up to the newest entry read so far."""
        return self._aio.length

    def read(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Entry]:
        """Yield entries in order; see ``quorumbook.LedgerReader``."""
        for batch in self.read_batches(first, last):
            yield from batch

    def read_batches(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[EntryBatch]:
        """Yield entries as they come in, many at a time."""
        return self.iterate(lambda: self._aio.read_batches(first, last))

    def read_entry(self, entry_id: EntryId) -> Entry:
        """Return one entry, quicker than ``read`` does."""
        return self.run(lambda: self._aio.read_entry(entry_id))

    def read_last_entry(self) -> Entry:
        """Return the last entry; of a ledger that is being written the last confirmed one."""
        return self.run(self._aio.read_last_entry)

    def read_batch(
        self,
        first: EntryId,
        *,
        max_count: int | None = None,
        max_size_bytes: int | None = None,
    ) -> EntryBatch:
        """Return what one answer brings of the entries from ``first`` on: at least that one."""
        return self.run(
            lambda: self._aio.read_batch(first, max_count=max_count, max_size_bytes=max_size_bytes)
        )

    def read_unconfirmed(self, first: EntryId, last: EntryId) -> Iterator[Entry]:
        """Yield entries whether they are confirmed or not."""
        return self.iterate(lambda: self._aio.read_unconfirmed(first, last))

    def tail(self, first: EntryId = 0) -> Iterator[Entry]:
        """Yield entries from ``first`` on as they are confirmed, until the ledger is closed."""
        for batch in self.tail_batches(first):
            yield from batch

    def tail_batches(self, first: EntryId = 0) -> Iterator[EntryBatch]:
        """Yield entries as they are confirmed, many at a time, until the ledger is closed."""
        return self.iterate(lambda: self._aio.tail_batches(first))

    def try_read_last_add_confirmed(self) -> EntryId:
        """Ask bookies until one knows of progress; cheap, and maybe behind."""
        return self.run(self._aio.try_read_last_add_confirmed)

    def read_last_add_confirmed(self) -> EntryId:
        """Ask so many bookies that every entry confirmed before the call is counted in."""
        return self.run(self._aio.read_last_add_confirmed)

    def note_confirmed(self, entry_id: EntryId) -> None:
        """Take it from somebody who knows that an entry is confirmed, so that it can be read."""

        async def note() -> None:
            self._aio.note_confirmed(entry_id)

        self.run(note)

    def close(self) -> None:
        """Let go; the ledger itself stays as it is."""
        self.run(self._aio.close)

    def __repr__(self) -> str:
        return f"<sync {self._aio!r}>"
