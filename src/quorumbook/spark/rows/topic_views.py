"""Looks at topics of Apache Pulsar: which there are, their ledgers, and what is confirmed.

A topic is seen as a stream whose segments are its ledgers, numbered by their ids.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import chain

from quorumbook.client.context import client_store
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.pulsar.entries import published_ms
from quorumbook.pulsar.managed_ledgers import TopicLedger
from quorumbook.pulsar.names import TopicName
from quorumbook.pulsar.nodes import TopicNodes
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.offsets import Offset, birth_of
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.open_ledgers import OpenLedgers, Sizes
from quorumbook.spark.rows.views import Extent, View
from quorumbook.streams.errors import CorruptRecordsError

_OFFLOADED = "Pulsar has moved it to other storage, which only brokers read"


class TopicViews:
    """The topics that are selected, each partition by itself."""

    def __init__(self, cluster: ClusterClient, options: ReadOptions) -> None:
        """Take the selection."""
        self._nodes = TopicNodes(client_store(cluster.client))
        self._selected = [TopicName.parse(topic) for topic in options.selection.topics]
        self.open_ledgers = OpenLedgers(cluster, options.connection)

    async def names(self) -> Sequence[str]:
        """Return the names of topics and partitions; one that is not there as it was given."""
        found = await gather_bounded(self._nodes.topics_of, self._selected)
        there = (each or [name] for name, each in zip(self._selected, found, strict=True))
        return [*dict.fromkeys(map(str, chain.from_iterable(there)))]

    def title(self, name: str) -> str:
        """Return what a topic is called where all of its partitions are meant."""
        return str(TopicName.parse(name).bare)

    def look_again(self, name: str) -> None:
        """Do nothing: the list of ledgers is read each time."""

    async def view(self, name: str) -> View | None:
        """Return what a topic holds; one that has no ledger yet is not there."""
        state = await self._nodes.state(TopicName.parse(name))
        if state is None or not state.ledgers:
            return None
        extents = tuple(await gather_bounded(self._extent, state.ledgers))
        return View(
            name, birth_of(state.creation_id, 0), extents, 0, is_sparse=True, bare=self.title(name)
        )

    async def _extent(self, ledger: TopicLedger) -> Extent:
        ledger_id, end, is_complete = ledger.ledger_id, ledger.entries, True
        if end is None:
            try:
                end, is_complete = await self.open_ledgers.end_entry(ledger_id)
            except NoSuchLedgerInMetadataError:
                end, is_complete = 0, False  # one without entries, soon to leave the list
        gone = _OFFLOADED if ledger.is_offloaded else ""
        return Extent(ledger_id, ledger_id, 0, 0, end, is_complete, gone=gone)

    async def find_time(self, view: View, time_ms: int) -> Offset:
        """Return where the first message is that was sent at a time or later, or the end.

        Producers' clocks say when, and differ, so it is as exact as they are.
        """
        extents = [extent for extent in view.extents if extent.end_entry and not extent.gone]
        low, high = 0, len(extents)
        while low < high:  # the first ledger whose first message is late enough
            middle = (low + high) // 2
            if await self._sent_ms(extents[middle], 0) < time_ms:
                low = middle + 1
            else:
                high = middle
        if not low:
            return view.first
        extent = extents[low - 1]
        low, high = 1, extent.end_entry
        while low < high:
            middle = (low + high) // 2
            if await self._sent_ms(extent, middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        return view.at(extent.segment, low)

    async def _sent_ms(self, extent: Extent, entry_id: int) -> int:
        reader = await self.open_ledgers.reader(extent.ledger_id)
        return published_ms(extent.ledger_id, entry_id, (await reader.read_entry(entry_id)).payload)

    def made_ms(self, extent: Extent, payload: bytes) -> int | None:
        """Return when an entry's message was sent."""
        with contextlib.suppress(CorruptRecordsError):
            return published_ms(extent.ledger_id, -1, payload)
        return None

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return what a ledger's metadata say."""
        return await self.open_ledgers.metadata(ledger_id)

    async def sizes(self, ledger_id: LedgerId, end_entry: int) -> Sizes:
        """Return how large its entries are."""
        return await self.open_ledgers.sizes(ledger_id, end_entry)
