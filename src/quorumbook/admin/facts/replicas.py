"""What each bookie that should have an entry gives of it, and whether that is what was written."""

from __future__ import annotations

import time

from quorumbook.autorecovery.copying.verified_reads import read_verified
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import (
    DigestMismatchError,
    LocalProtocolError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuorumbookError,
)
from quorumbook.ids import BookieId, EntryId, LedgerId
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.protocol.digest import DigestType, digester

GOOD, DAMAGED, MISSING, UNKNOWN = "good", "damaged", "missing", "unknown"
_HEADER_BYTES = 32


async def replicas(
    client: BookKeeper, ledger_id: LedgerId, entry_id: EntryId
) -> list[dict[str, object]]:
    """Ask every bookie of an entry's write set for its replica.

    Raises:
        NoSuchLedgerInMetadataError: There is no such ledger.
        NoSuchEntryError: The ledger is closed before the entry.
        LocalProtocolError: The metadata does not say how its entries are verified.
    """
    metadata = await client.ledger_metadata(ledger_id)
    if metadata.is_closed and entry_id > metadata.last_entry_id:
        raise NoSuchEntryError(
            f"ledger {ledger_id} ends with entry {metadata.last_entry_id}; there is no entry "
            f"{entry_id}"
        )
    if metadata.digest_type is None:
        raise LocalProtocolError(
            f"the metadata of ledger {ledger_id}, of a very old writer, does not say how its "
            "entries are verified"
        )
    kind = DigestType(metadata.digest_type)
    seal = digester(kind, metadata.password or b"")
    ensemble = metadata.fragment_of(entry_id).ensemble
    places = write_set(entry_id, len(ensemble), metadata.write_quorum_size)

    async def ask(bookie: BookieId) -> dict[str, object]:
        began = time.monotonic()
        state, why, digest = GOOD, None, None
        try:
            wanted = range(entry_id, entry_id + 1)
            (entry,) = await read_verified(client_context(client), seal, ledger_id, bookie, wanted)
            # A MAC's bytes would let somebody try passwords.
            if kind is not DigestType.HMAC:
                digest = entry[_HEADER_BYTES : seal.payload_offset].hex()
        except DigestMismatchError as error:
            state, why = DAMAGED, str(error)
        except (NoSuchEntryError, NoSuchLedgerError) as error:
            state, why = MISSING, str(error)
        except QuorumbookError as error:
            state, why = UNKNOWN, str(error)
        took_ms = round((time.monotonic() - began) * 1000, 1)
        return {"bookie": bookie, "state": state, "digest": digest, "took_ms": took_ms, "why": why}

    return await gather_bounded(ask, [ensemble[place] for place in places])
