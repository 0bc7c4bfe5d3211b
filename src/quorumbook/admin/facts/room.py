"""Whether what a bookie holds can go anywhere, known before anything is changed."""

from __future__ import annotations

from collections.abc import Collection

from quorumbook.client.client import BookKeeper
from quorumbook.ids import BookieId


async def no_room(client: BookKeeper, bookie_id: BookieId, *, skip_open: bool = False) -> str:
    """Say which ledger keeps a bookie from being drained; "" if none does for want of bookies.

    Args:
        client: Started.
        bookie_id: Who is to hold nothing.
        skip_open: Ledgers that are being written stay.
    """
    writable, _ = await client.bookies()
    left: Collection[BookieId] = writable - {bookie_id}
    async for metadata in client.list_ledgers(damaged=[]):
        if skip_open and not metadata.is_closed:
            continue
        for fragment in metadata.fragments:
            if bookie_id in fragment.ensemble and not set(left) - set(fragment.ensemble):
                return (
                    f"ledger {metadata.ledger_id} has an ensemble of {len(fragment.ensemble)}, and "
                    f"none of the {len(left)} writable bookies that would be left could take the "
                    f"place of {bookie_id} in it. Nothing was changed"
                )
    return ""
