"""One entry by its id: the shortest way, for reads at random.

One bookie of the entry's write set is asked once.  Whatever goes wrong with that (silence, an
error, a digest that does not fit) is not decided here: the caller then reads in the general way
(``reading.py``), which asks one replica after the other and knows what their answers mean.
"""

from __future__ import annotations

import asyncio
from typing import Any

from quorumbook.client.context import Context
from quorumbook.client.reading.entries import EntryBatch
from quorumbook.client.reading.ranges import Sticky
from quorumbook.env import patience
from quorumbook.errors import BookieUnavailableError, DigestMismatchError
from quorumbook.ids import EntryId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.protocol.digest import Digester


async def read_single(
    context: Context,
    digester: Digester,
    metadata: LedgerMetadata,
    entry_id: EntryId,
    under_way: set[asyncio.Future[Any]],
    sticky: Sticky | None = None,
) -> EntryBatch | None:
    """Return the entry, verified, or None if the first bookie asked did not give it.

    The request is among those ``under_way`` meanwhile; whoever cancels it there ends the wait.
    """
    ensemble = metadata.fragment_of(entry_id).ensemble
    bookie_id = ensemble[entry_id % len(ensemble) if sticky is None else sticky.index]
    if context.bookies.is_asked_late(bookie_id, ensemble):
        return None
    asked = context.bookies.fast(bookie_id).read_run(
        metadata.ledger_id, entry_id, 1, context.options.read_batch_bytes
    )
    limit_s = context.options.speculative_read_s or context.options.read_timeout_s
    timer = patience.Timer(limit_s, asked.cancel)
    under_way.add(asked)
    try:
        answer = await asked
        if answer.code:
            return None
        payloads = digester.open_run(answer.data, metadata.ledger_id, entry_id, 1)
    except (BookieUnavailableError, DigestMismatchError):
        return None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # it is the caller who is cancelled, not the request alone
        return None
    finally:
        timer.cancel()
        under_way.discard(asked)
    return EntryBatch(
        metadata.ledger_id, entry_id, answer.data, payloads, digester.payload_offset
    ).part(entry_id, entry_id)
