"""The metadata of all ledgers, some at a time; a damaged one costs itself alone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, MutableSequence

from quorumbook.client.context import Context
from quorumbook.client.waiting.outcomes import limit
from quorumbook.errors import MetadataFormatError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata

#: How many ledgers' metadata are read at a time.
_BATCH = 64


async def metadata_of(
    context: Context,
    ledger_ids: AsyncGenerator[LedgerId, None],
    errors: MutableSequence[MetadataFormatError],
) -> AsyncGenerator[LedgerMetadata, None]:
    """Yield the metadata of ledgers in order, those left out that were deleted meanwhile.

    Args:
        context: Of the client.
        ledger_ids: Which.
        errors: Takes an error for each ledger whose metadata cannot be understood.
    """
    async with contextlib.aclosing(_batches(ledger_ids)) as batches:
        async for ids in batches:
            async with limit(context.options.operation_timeout_s, "listing ledgers"):
                found = await context.ledgers.read_many(ids)
            for outcome in found:
                if isinstance(outcome, MetadataFormatError):
                    errors.append(outcome)
                elif outcome is not None:  # else it was deleted since it was listed
                    yield outcome


async def _batches(
    ledger_ids: AsyncGenerator[LedgerId, None],
) -> AsyncGenerator[list[LedgerId], None]:
    batch: list[LedgerId] = []
    async with contextlib.aclosing(ledger_ids):
        async for ledger_id in ledger_ids:
            batch.append(ledger_id)
            if len(batch) == _BATCH:
                yield batch
                batch = []
    yield batch
