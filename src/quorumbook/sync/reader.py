"""The blocking reader."""

from __future__ import annotations

from collections.abc import Iterator

from quorumbook.client.reading import reader as aio
from quorumbook.client.reading.entries import Entry
from quorumbook.ids import EntryId
from quorumbook.sync.declared import blocking, held, iterating
from quorumbook.sync.loop import Closing


class LedgerReader(Closing):
    """The blocking twin of ``quorumbook.LedgerReader``."""

    def __init__(self, reader: aio.LedgerReader) -> None:
        """Wrap a reader that was opened on the loop thread."""
        super().__init__()
        self._aio = reader

    id = held(aio.LedgerReader, lambda it: it.id)
    """The ledger's id."""
    metadata = held(aio.LedgerReader, lambda it: it.metadata)
    """The ledger's metadata as last heard of; kept up to date."""
    is_closed = held(aio.LedgerReader, lambda it: it.is_closed)
    """Whether the ledger is closed, so that nothing is ever added to it."""
    last_add_confirmed = held(aio.LedgerReader, lambda it: it.last_add_confirmed)
    """The newest entry known here to be safe; of a closed ledger the last one; else -1."""
    length = held(aio.LedgerReader, lambda it: it.length)
    """Payload bytes: of a closed ledger all, else up to the newest entry read so far."""

    def read(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Entry]:
        """Yield entries in order; see ``quorumbook.LedgerReader``."""
        for batch in self.read_batches(first, last):
            yield from batch

    read_batches = iterating(aio.LedgerReader.read_batches)
    """Yield entries as they come in, many at a time."""
    read_entry = blocking(aio.LedgerReader.read_entry)
    """Return one entry, quicker than ``read`` does."""
    read_last_entry = blocking(aio.LedgerReader.read_last_entry)
    """Return the last entry; of a ledger that is being written the last confirmed one."""
    read_batch = blocking(aio.LedgerReader.read_batch)
    """Return what one answer brings of the entries from ``first`` on: at least that one."""
    read_unconfirmed = iterating(aio.LedgerReader.read_unconfirmed)
    """Yield entries whether they are confirmed or not."""

    def tail(self, first: EntryId = 0) -> Iterator[Entry]:
        """Yield entries from ``first`` on as they are confirmed, until the ledger is closed."""
        for batch in self.tail_batches(first):
            yield from batch

    tail_batches = iterating(aio.LedgerReader.tail_batches)
    """Yield entries as they are confirmed, many at a time, until the ledger is closed."""
    try_read_last_add_confirmed = blocking(aio.LedgerReader.try_read_last_add_confirmed)
    """Ask bookies until one knows of progress; cheap, and maybe behind."""
    read_last_add_confirmed = blocking(aio.LedgerReader.read_last_add_confirmed)
    """Ask so many bookies that every entry confirmed before the call is counted in."""

    close = blocking(aio.LedgerReader.close)
    """Let go; the ledger itself stays as it is."""

    def __repr__(self) -> str:
        return f"<sync {self._aio!r}>"
