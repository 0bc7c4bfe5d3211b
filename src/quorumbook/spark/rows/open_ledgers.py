"""Ledgers that are looked at again and again: metadata, confirmed ends, sizes, readers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quorumbook.client.reading.reader import LedgerReader
from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.protocol.digest import DigestType
from quorumbook.spark.connection import Connection
from quorumbook.spark.pool import ClusterClient
from quorumbook.streams.tier.reader import PartsReader


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the entries of a ledger are on average: so many bytes in so many entries."""

    entries: int
    size_bytes: int
    #: The first entries of its fragments but the first.
    fragment_starts: tuple[int, ...] = ()

    def of(self, count: int) -> int:
        """Return about how many bytes so many entries have."""
        return self.size_bytes * count // max(self.entries, 1)


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
        cluster: ClusterClient,
        connection: Connection,
        elsewhere: Callable[[LedgerId], Awaitable[PartsReader | None]] | None = None,
        **opened: Any,
    ) -> None:
        """Take the client and how it opens ledgers.

        Args:
            cluster: Has the client.
            connection: Has the password.
            elsewhere: Returns what a ledger is read from that is deleted, if anything.
            opened: How ledgers are opened, where that is not as the connection says.
        """
        self._client = cluster.client
        self._elsewhere = elsewhere
        self._opening = {**opening(connection), **opened}
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
