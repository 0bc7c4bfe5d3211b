"""Jobs that read the metadata of all ledgers: a unit is some ids, read by the task itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from quorumbook.client.client import BookKeeper
from quorumbook.errors import (
    MetadataFormatError,
    NoSuchLedgerInMetadataError,
)
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.spark.jobs.frame import Unit

_CHUNK = 2000
#: Readings of metadata that are under way at once, in one task.
_AT_ONCE = 64
#: About what the metadata of a ledger take.
_METADATA_BYTES = 500


async def ledger_chunks(client: BookKeeper) -> list[Unit]:
    """Return units over all ledgers; only their ids are listed for it."""
    units: list[Unit] = []
    ids: list[LedgerId] = []

    def add() -> None:
        if ids:
            key = f"{ids[0]}-{ids[-1]}"
            units.append(Unit(key, len(ids) * _METADATA_BYTES, {"ids": list(ids)}))
            ids.clear()

    async for ledger_id in client.list_ledger_ids():
        ids.append(ledger_id)
        if len(ids) == _CHUNK:
            add()
    add()
    return units


async def ledgers_of(
    client: BookKeeper, ids: Sequence[LedgerId]
) -> AsyncIterator[tuple[LedgerId, LedgerMetadata | str]]:
    """Yield the metadata of ledgers, or why they cannot be understood; without deleted ones."""

    async def read(ledger_id: LedgerId) -> LedgerMetadata | str | None:
        try:
            return await client.ledger_metadata(ledger_id)
        except NoSuchLedgerInMetadataError:
            return None
        except MetadataFormatError as error:
            return str(error)

    for start in range(0, len(ids), _AT_ONCE):
        part = ids[start : start + _AT_ONCE]
        for ledger_id, found in zip(part, await asyncio.gather(*map(read, part)), strict=True):
            if found is not None:
                yield ledger_id, found
