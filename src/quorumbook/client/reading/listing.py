"""The metadata of all ledgers, some at a time; a damaged one costs itself alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, MutableSequence

from quorumbook.client.context import Context
from quorumbook.client.waiting.outcomes import limit
from quorumbook.errors import MetadataFormatError, NoSuchLedgerInMetadataError
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
                found = await asyncio.gather(
                    *(context.ledgers.read(ledger_id) for ledger_id in ids),
                    return_exceptions=True,
                )
            for outcome in found:
                if isinstance(outcome, NoSuchLedgerInMetadataError):
                    continue  # deleted since it was listed
                if isinstance(outcome, MetadataFormatError):
                    errors.append(outcome)
                    continue
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome[0]


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
