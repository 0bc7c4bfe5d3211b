"""The blocking reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from quorumbook.client.reading import reader as aio
from quorumbook.client.reading.entries import Entry
from quorumbook.client.reading.lazy_frames import ValueBounds, lazy_frame
from quorumbook.client.reading.tabular import needs_extra
from quorumbook.ids import EntryId
from quorumbook.sync.declared import blocking, held, iterating
from quorumbook.sync.twin import Closing

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerReader(Closing[aio.LedgerReader]):
    """The blocking twin of ``quorumbook.LedgerReader``."""

    id = held(aio.LedgerReader, lambda it: it.id)
    """The ledger's id."""
    metadata = held(aio.LedgerReader, lambda it: it.metadata)
    """The ledger's metadata as last heard of; kept up to date."""
    is_closed = held(aio.LedgerReader, lambda it: it.is_closed)
    """Whether the ledger is closed, so that nothing is ever added to it."""
    last_add_confirmed = held(aio.LedgerReader, lambda it: it.last_add_confirmed)
    """The id of the newest entry known to be safe, or of a closed ledger's last one; or -1."""
    length = held(aio.LedgerReader, lambda it: it.length)
    """Bytes of payload: all of a closed ledger, else up to the newest entry read so far."""

    def read(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Entry]:
        """Yield entries in order; see ``quorumbook.LedgerReader``."""
        for batch in self.read_batches(first, last):
            yield from batch

    read_batches = iterating(aio.LedgerReader.read_batches)
    """Yield entries as they come in, many at a time."""
    arrow_batches = iterating(aio.LedgerReader.arrow_batches)
    """Yield entries as Arrow batches."""
    to_arrow = blocking(aio.LedgerReader.to_arrow)
    """Return entries as an Arrow table."""
    to_pandas = blocking(aio.LedgerReader.to_pandas)
    """Return entries as a pandas frame."""
    to_polars = blocking(aio.LedgerReader.to_polars)
    """Return entries as a Polars frame."""

    def arrow_reader(
        self,
        columns: Sequence[str] | None = None,
        *,
        first: EntryId = 0,
        last: EntryId | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader of Arrow batches, which are read as they are asked for.

        DuckDB, Polars and pyarrow take it as it is; see ``arrow_batches``.
        """
        with needs_extra("'quorumbook[arrow]'"):
            import pyarrow as pa  # noqa: PLC0415

            from quorumbook.client.reading.arrow import SCHEMA  # noqa: PLC0415
            from quorumbook.client.reading.columns import schema_of  # noqa: PLC0415
        batches = self.arrow_batches(columns, first=first, last=last)
        schema = schema_of(SCHEMA, columns, "entries")
        return pa.RecordBatchReader.from_batches(schema, batches)

    def scan(self) -> Any:
        """Return a lazy frame of Polars, which reads when it is collected.

        Columns that the query does not use are not made.  Entries are read from the smallest to
        the largest ``entry_id`` that its filters leave, and none beyond its ``head``.
        """
        with needs_extra("'quorumbook[arrow]' polars"):
            from quorumbook.client.reading.arrow import SCHEMA  # noqa: PLC0415

        def batches(columns: Sequence[str], bounds: ValueBounds) -> Iterator[pa.RecordBatch]:
            first, last = max(bounds.low or 0, 0), self.last_add_confirmed
            if bounds.high is not None:
                last = min(last, bounds.high)
            if first <= last:
                yield from self.arrow_batches(columns, first=first, last=last)

        return lazy_frame(SCHEMA, "entry_id", batches, bounded="entry_id")

    read_entry = blocking(aio.LedgerReader.read_entry)
    """Return one entry, quicker than ``read`` does."""
    read_last_entry = blocking(aio.LedgerReader.read_last_entry)
    """Return the last entry; of a ledger that is being written the last confirmed one."""
    read_batch = blocking(aio.LedgerReader.read_batch)
    """Return the entries from ``first`` on that one answer holds: at least the first."""
    read_unconfirmed = iterating(aio.LedgerReader.read_unconfirmed)
    """Yield entries whether they are confirmed or not."""

    def tail(self, first: EntryId = 0) -> Iterator[Entry]:
        """Yield entries from ``first`` on as they are confirmed, until the ledger is closed."""
        for batch in self.tail_batches(first):
            yield from batch

    tail_batches = iterating(aio.LedgerReader.tail_batches)
    """Yield entries as they are confirmed, many at a time, until the ledger is closed."""
    try_read_last_add_confirmed = blocking(aio.LedgerReader.try_read_last_add_confirmed)
    """Ask bookies until one knows of progress. This is cheap, but the answer may be old."""
    read_last_add_confirmed = blocking(aio.LedgerReader.read_last_add_confirmed)
    """Ask enough bookies to know of every entry that was confirmed before the call."""

    close = blocking(aio.LedgerReader.close)
    """Let go; the ledger itself stays as it is."""
