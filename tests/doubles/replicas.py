"""Looks at every copy of every entry of a ledger, on the very bookies that should hold it."""

from __future__ import annotations

from quorumbook import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.ids import BookieId, EntryId, LedgerId
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.protocol.digest import DigestType, digester


async def copies(client: BookKeeper, ledger_id: LedgerId) -> dict[EntryId, dict[BookieId, bytes]]:
    """Return the bytes of each entry on each bookie of its write set; empty where it has none."""
    metadata = await client.ledger_metadata(ledger_id)
    found: dict[EntryId, dict[BookieId, bytes]] = {}
    for entry_id in range(metadata.last_entry_id + 1):
        ensemble = metadata.fragment_of(entry_id).ensemble
        places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
        found[entry_id] = {}
        for bookie_id in (ensemble[index] for index in places):
            answer = await client_context(client).bookies.fast(bookie_id).read(ledger_id, entry_id)
            found[entry_id][bookie_id] = b"" if answer.code else answer.entry
    return found


async def assert_fully_replicated(
    client: BookKeeper, ledger_id: LedgerId, payloads: list[bytes] | None = None
) -> None:
    """Compare every copy of every entry, byte by byte, with each other and with what was written.

    The digests are verified; the ledger must be closed.
    """
    metadata = await client.ledger_metadata(ledger_id)
    assert metadata.is_closed
    assert metadata.digest_type is not None
    assert metadata.password is not None
    seal = digester(DigestType(metadata.digest_type), metadata.password)
    found = await copies(client, ledger_id)
    for entry_id, by_bookie in found.items():
        assert len(by_bookie) == metadata.write_quorum_size
        assert len(set(by_bookie.values())) == 1, f"entry {entry_id} differs: {by_bookie}"
        for entry in by_bookie.values():
            seal.verify(entry, ledger_id, entry_id)
            if payloads is not None:
                assert seal.payload(entry) == payloads[entry_id]
    if payloads is not None:
        assert len(found) == len(payloads)
