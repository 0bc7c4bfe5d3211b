"""What stopping a bookie would endanger, and whether there is such a bookie at all."""

from __future__ import annotations

from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.errors import MetadataFormatError, NoSuchBookieError
from quorumbook.ids import BookieId
from quorumbook.ledger.danger import exposure
from quorumbook.ledger.placement.schedule import can_reach_quorum
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.metadata.recovery.queue import UnderreplicationQueue


async def check_is_known(client: BookKeeper, bookie: BookieId) -> None:
    """Refuse an id that is probably mistyped.

    Raises:
        NoSuchBookieError: It is not registered, has no cookie, and no ledger names it.
    """
    writable, read_only = await client.bookies()
    if (
        bookie in writable | read_only
        or await CookieStore(client_store(client)).read(bookie) is not None
    ):
        return
    async for metadata in client.list_ledgers(damaged=[]):
        if any(bookie in fragment.ensemble for fragment in metadata.fragments):
            return
    raise NoSuchBookieError(
        f"nothing is known of a bookie {bookie}: it is not registered, has no cookie, and no "
        "ledger names it; `quorumbook bookie ls` shows which bookies are there",
        bookie_id=bookie,
    )


async def endangered(
    client: BookKeeper, bookie: BookieId, copies: int, damaged: list[MetadataFormatError]
) -> list[dict[str, object]]:
    """Return what would be left with too few copies, or could not be written or recovered.

    Args:
        client: Started.
        bookie: Who is to be stopped.
        copies: So many of every entry must be left.
        damaged: Gets what is damaged in the queue of under-replicated ledgers.
    """
    queue = UnderreplicationQueue(client_store(client))
    try:
        marks = {mark.ledger_id: mark.replicas async for mark in queue.list(damaged)}
    finally:
        queue.close()
    writable, read_only = await client.bookies()
    there = (writable | read_only) - {bookie}
    unknown: list[MetadataFormatError] = []
    found: list[dict[str, object]] = []
    async for metadata in client.list_ledgers(damaged=unknown):
        for exposed in exposure(metadata, there, marks.get(metadata.ledger_id, ())):
            if bookie not in exposed.ensemble:
                continue
            row: dict[str, object] = {
                "ledger_id": metadata.ledger_id,
                "first_entry_id": exposed.first_entry_id,
                "last_entry_id": exposed.last_entry_id,
                "copies_left": exposed.copies,
            }
            away = sum(1 << i for i, b in enumerate(exposed.ensemble) if b not in there)
            quorum = metadata.write_quorum_size, metadata.ack_quorum_size
            if exposed.copies < copies:
                found.append({**row, "why": "too few copies are left"})
            elif (
                exposed.last_entry_id is None
                and not can_reach_quorum(away, metadata.ensemble_size, *quorum)
                and not writable - set(exposed.ensemble) - {bookie}
            ):
                found.append({**row, "why": "it is being written, and its writer could not go on"})
    found += [
        {"ledger_id": error.ledger_id, "why": f"whether it has replicas there: {error}"}
        for error in unknown
    ]
    return found
