"""Looks at ledgers: which there are, and what is confirmed of them."""

from __future__ import annotations

from collections.abc import Sequence

from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import LedgerClosedError, NoSuchLedgerInMetadataError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.open_ledgers import OpenLedgers, Sizes, opening
from quorumbook.spark.rows.views import Extent, View


class LedgerViews:
    """The ledgers that are selected, by their ids as text."""

    def __init__(self, cluster: ClusterClient, options: ReadOptions) -> None:
        """Take the selection."""
        self._client = cluster.client
        self._options = options
        self._selection = options.selection
        self.open_ledgers = OpenLedgers(cluster, options.connection)
        #: Whether a ledger's custom metadata match; they never change.
        self._matches: dict[LedgerId, bool] = {}
        #: Those that were there at the last look, whatever their custom metadata.
        self.seen: Sequence[LedgerId] = ()

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
        self.seen = ids
        if not self._selection.ledger_filter:
            return [str(ledger_id) for ledger_id in ids]
        new = [ledger_id for ledger_id in ids if ledger_id not in self._matches]
        await gather_bounded(self._match, new)
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
                async with self._client.open_ledger(ledger_id, **opening(connection)):
                    pass
            end, is_complete = await self.open_ledgers.end_entry(ledger_id)
        except NoSuchLedgerInMetadataError:
            return None
        return View(name, 0, (Extent(0, ledger_id, 0, 0, end, is_complete),), 0)

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return what its metadata say."""
        return await self.open_ledgers.metadata(ledger_id)

    def made_ms(self, extent: Extent, payload: bytes) -> int | None:
        """Return None: entries of a ledger by itself do not say."""

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
