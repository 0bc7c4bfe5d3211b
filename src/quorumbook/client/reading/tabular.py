"""A ledger as a table: the door of what needs pyarrow, without pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from quorumbook.client.reading.entries import EntryBatch
from quorumbook.errors import ConfigError
from quorumbook.ids import EntryId

if TYPE_CHECKING:
    import pyarrow as pa


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Say what to install where a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing: pip install {extra}") from error


class TabularLedger:
    """What has entries that can be read as a table; needs the extra ``[arrow]``."""

    def read_batches(
        self, first: EntryId = 0, last: EntryId | None = None
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield entries, many at a time."""
        raise NotImplementedError

    async def arrow_batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        first: EntryId = 0,
        last: EntryId | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield entries as Arrow batches.

        Args:
            columns: Which, in which order: ``ledger_id``, ``entry_id``, ``size``, ``value``.  No
                others are made.  None: all.
            first: The first entry wanted.
            last: The id of the last entry to read; by default the last add confirmed that is known
                now.

        Raises:
            ConfigError: there is no such column, or pyarrow is missing.
            LocalProtocolError: ``last`` is beyond the last add confirmed.
            ReadFailedError: no replica gives the next entry at the moment.
            DigestMismatchError: every replica of the next entry is damaged.
        """
        with needs_extra("'quorumbook[arrow]'"):
            from quorumbook.client.reading.arrow import arrow_batches  # noqa: PLC0415
        async with contextlib.aclosing(self.read_batches(first, last)) as batches:
            async for batch in arrow_batches(batches, columns):
                yield batch

    async def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        first: EntryId = 0,
        last: EntryId | None = None,
    ) -> pa.Table:
        """Return entries as an Arrow table; see ``arrow_batches``."""
        with needs_extra("'quorumbook[arrow]'"):
            import pyarrow as pa  # noqa: PLC0415

            from quorumbook.client.reading.arrow import SCHEMA  # noqa: PLC0415
            from quorumbook.client.reading.columns import schema_of  # noqa: PLC0415
        found = [batch async for batch in self.arrow_batches(columns, first=first, last=last)]
        return pa.Table.from_batches(found, schema_of(SCHEMA, columns, "entries"))

    async def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        *,
        first: EntryId = 0,
        last: EntryId | None = None,
    ) -> Any:
        """Return entries as a pandas frame; see ``arrow_batches``."""
        with needs_extra("'quorumbook[arrow]' pandas"):
            import pandas  # noqa: F401, PLC0415
        return (await self.to_arrow(columns, first=first, last=last)).to_pandas()

    async def to_polars(
        self,
        columns: Sequence[str] | None = None,
        *,
        first: EntryId = 0,
        last: EntryId | None = None,
    ) -> Any:
        """Return entries as a Polars frame; see ``arrow_batches``."""
        with needs_extra("'quorumbook[arrow]' polars"):
            import polars  # noqa: PLC0415
        return polars.from_arrow(await self.to_arrow(columns, first=first, last=last))
