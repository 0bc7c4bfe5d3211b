"""Looks at ledgers: which there are, and what is confirmed of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from quorumbook.client.reading.reader import LedgerReader
from quorumbook.env.tasks import of_each
from quorumbook.errors import LedgerClosedError, NoSuchLedgerInMetadataError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.protocol.digest import DigestType
from quorumbook.spark.connection import Connection
from quorumbook.spark.pool import Cluster
from quorumbook.spark.rows.views import Extent, Sizes, View
from quorumbook.spark.source.read_options import ReadOptions
from quorumbook.streams.tier.reader import PartsReader


def opening(connection: Connection) -> Mapping[str, Any]:
    """Return what ``open_ledger`` takes beside the id."""
    kind = connection.digest_type
    return {
        "password": connection.password(),
        "digest_type": DigestType[kind.upper()] if kind else None,
    }


class OpenLedgers:
    """Ledgers that are looked at again and again; those that are closed are known for good."""

    def __init__(
        self,
        cluster: Cluster,
        connection: Connection,
        elsewhere: Callable[[LedgerId], Awaitable[PartsReader | None]] | None = None,
    ) -> None:
        """Take the client and how it opens ledgers.

        Args:
            cluster: Has the client.
            connection: Has the password.
            elsewhere: Returns what a ledger is read from that is deleted, if anything.
        """
        self._client = cluster.client
        self._elsewhere = elsewhere
        self._opening = opening(connection)
        self._readers: dict[LedgerId, LedgerReader | PartsReader] = {}
        self._closed: dict[LedgerId, LedgerMetadata] = {}
        self._sizes: dict[LedgerId, Sizes] = {}

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return what the metadata say.

        Raises:
            NoSuchLedgerInMetadataError: there is no such ledger.
        """
        found = self._closed.get(ledger_id)
        if found is None:
            found = await self._client.ledger_metadata(ledger_id)
            if found.is_closed:
                self._closed[ledger_id] = found
        return found

    async def end_entry(self, ledger_id: LedgerId) -> tuple[int, bool]:
        """Return the entry behind the last confirmed one, and whether it is the last for good.

        Raises:
            NoSuchLedgerInMetadataError: there is no such ledger.
        """
        found = self._closed.get(ledger_id)
        if found is not None:
            return found.last_entry_id + 1, True
        if ledger_id not in self._readers:
            found = await self.metadata(ledger_id)
            if found.is_closed:
                return found.last_entry_id + 1, True
            reader = await self.reader(ledger_id)
        else:
            reader = self._readers[ledger_id]
            await reader.read_last_add_confirmed()
        if reader.is_closed:
            await self.forget(ledger_id)
        return reader.last_add_confirmed + 1, reader.is_closed

    async def sizes(self, ledger_id: LedgerId, end_entry: int) -> Sizes:
        """Return how large its entries are; see ``Views.sizes``."""
        try:
            metadata = await self.metadata(ledger_id)
        except NoSuchLedgerInMetadataError:
            reader = await self.reader(ledger_id)
            return Sizes(reader.last_add_confirmed + 1, reader.length)
        starts = tuple(fragment.first_entry_id for fragment in metadata.fragments[1:])
        if metadata.is_closed:
            return Sizes(metadata.last_entry_id + 1, metadata.length, starts)
        known = self._sizes.get(ledger_id)
        if known is None or end_entry > 2 * known.entries:
            length = await self.bytes_before(ledger_id, end_entry)
            known = self._sizes[ledger_id] = Sizes(end_entry, length, starts)
        return known

    async def bytes_before(self, ledger_id: LedgerId, entry_id: int) -> int:
        """Return how many bytes of payload are before an entry."""
        if not entry_id:
            return 0
        reader = await self.reader(ledger_id)
        return (await reader.read_entry(entry_id - 1)).length

    async def reader(self, ledger_id: LedgerId) -> LedgerReader | PartsReader:
        """Return a reader that stays open until ``forget``.

        Raises:
            NoSuchLedgerInMetadataError: the ledger is gone.
        """
        found = self._readers.get(ledger_id)
        if found is None:
            try:
                found = await self._client.open_ledger(ledger_id, recover=False, **self._opening)
            except NoSuchLedgerInMetadataError:
                found = None if self._elsewhere is None else await self._elsewhere(ledger_id)
                if found is None:
                    raise
            self._readers[ledger_id] = found
        return found

    async def forget(self, ledger_id: LedgerId) -> None:
        """Close its reader, if there is one."""
        reader = self._readers.pop(ledger_id, None)
        if reader is not None:
            await reader.close()


class LedgerViews:
    """The ledgers that are selected, by their ids as text."""

    def __init__(self, cluster: Cluster, options: ReadOptions) -> None:
        """Take the selection."""
        self._client = cluster.client
        self._options = options
        self._selection = options.selection
        self.open_ledgers = OpenLedgers(cluster, options.connection)
        #: Whether a ledger's custom metadata match; they never change.
        self._matches: dict[LedgerId, bool] = {}

    async def names(self) -> Sequence[str]:
        """Return the ids, ascending.

        Raises:
            NoSuchLedgerInMetadataError: one that is named by itself is not there.
        """
        ranges = self._selection.ledgers
        if all(first == last for first, last in ranges):
            ids = [first for first, _ in ranges]
        else:
            ids = [n async for n in self._client.list_ledger_ids() if _is_in(n, ranges)]
        if not self._selection.ledger_filter:
            return [str(ledger_id) for ledger_id in ids]
        new = [ledger_id for ledger_id in ids if ledger_id not in self._matches]
        await of_each(self._match, new)
        return [str(ledger_id) for ledger_id in ids if self._matches.get(ledger_id)]

    def title(self, name: str) -> str:
        """Return the id itself."""
        return name

    def look_again(self, name: str) -> None:
        """Do nothing: ledgers are looked at anew each time until they are closed."""

    async def view(self, name: str) -> View | None:
        """Return what a ledger holds.

        Raises:
            LedgerClosedError: it is not closed, and only closed ones may be read.
        """
        ledger_id = int(name)
        mode = self._options.open_mode
        try:
            if mode != "norecovery" and not (await self.open_ledgers.metadata(ledger_id)).is_closed:
                if mode == "closedOnly":
                    raise LedgerClosedError(
                        f"ledger {ledger_id} is not closed; openMode=norecovery reads what is "
                        "confirmed of it",
                        ledger_id=ledger_id,
                    )
                connection = self._options.connection
                async with await self._client.open_ledger(ledger_id, **opening(connection)):
                    pass
            end, is_complete = await self.open_ledgers.end_entry(ledger_id)
        except NoSuchLedgerInMetadataError:
            return None
        return View(name, 0, (Extent(0, ledger_id, 0, 0, end, is_complete),), 0)

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return what its metadata say."""
        return await self.open_ledgers.metadata(ledger_id)

    async def sizes(self, ledger_id: LedgerId, end_entry: int) -> Sizes:
        """Return how large its entries are."""
        return await self.open_ledgers.sizes(ledger_id, end_entry)

    async def _match(self, ledger_id: LedgerId) -> None:
        try:
            custom = (await self.open_ledgers.metadata(ledger_id)).custom_metadata
        except NoSuchLedgerInMetadataError:
            return  # deleted since it was listed
        self._matches[ledger_id] = self._selection.ledger_filter.items() <= custom.items()


def _is_in(ledger_id: LedgerId, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= ledger_id <= last for first, last in ranges)
