"""Makes few ledgers of what many processes have for a stream, right before they become segments.

Two things go through the driver's hands, while it has the stream's lock: rows that were handed to
it, as they were too few for a ledger, and ledgers whose records must be written again.  That is so
if the stream has gone on to larger transaction ids than theirs, which must not go down, and if
there are more ledgers than one step can take in.  The ledgers are the driver's own attempt's.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence

from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.streams.errors import DataLossError, TransactionLostError
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.reading.segment_reader import open_segment
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.transactions.attempt import Attempt
from quorumbook.streams.transactions.grafting import Draft, HandedRows, in_order

Part = Draft | HandedRows
#: Larger ledgers are segments of a good size, and take long to be copied.
SMALL_BYTES = 16 * 1024 * 1024


class Gathering:
    """What one commit writes by itself."""

    def __init__(self, attempt: Attempt) -> None:
        """Take what writes; its records without transaction ids get the stream's latest."""
        self.attempt = attempt

    async def drafts(
        self, context: StreamContext, parts: Sequence[Part], *, floor: int, copies_small: bool
    ) -> list[Draft]:
        """Return the ledgers of a stream, in the order in which they are grafted.

        Args:
            context: The stream's, which nobody else writes.
            parts: What processes have for it, in the order of partitions.
            floor: Below which no transaction id may be that is not the user's.
            copies_small: Whether small ledgers become few.

        Raises:
            TransactionLostError: a ledger was cleaned up meanwhile.
            DataLossError: records of one are missing.
        """
        found: list[Draft] = []
        for run in _runs(in_order(parts), floor, copies_small=copies_small):
            only = run[0]
            if isinstance(only, Draft) and len(run) == 1 and not _must_rise(only, floor):
                found.append(only)
                continue
            for part in run:
                await self._write(context, part)
            found += await self.attempt.take_drafts(context.name)
        return found

    async def _write(self, context: StreamContext, part: Part) -> None:
        name = context.name
        if isinstance(part, HandedRows):
            await self.attempt.write(name, part.payloads, part.txids, part.carried)
            return
        async with contextlib.aclosing(_rows_of(context, part)) as rows:
            async for payloads, txids, carried in rows:
                own = txids if part.has_own_txids else None
                await self.attempt.write(name, payloads, own, carried)


def _must_rise(part: Part, floor: int) -> bool:
    return (
        isinstance(part, Draft)
        and not part.has_own_txids
        and not part.is_copy
        and part.first_txid < floor
    )


def _runs(parts: Sequence[Part], floor: int, *, copies_small: bool) -> Iterator[list[Part]]:
    """Yield what goes into one ledger each: a part alone, or many in a row."""
    run: list[Part] = []
    for part in parts:
        is_large = isinstance(part, Draft) and not (
            _must_rise(part, floor)
            or (copies_small and not part.is_copy and part.size_bytes < SMALL_BYTES)
        )
        if is_large:
            if run:
                yield run
            yield [part]
            run = []
        else:
            run.append(part)
    if run:
        yield run


async def _rows_of(
    context: StreamContext, draft: Draft
) -> AsyncGenerator[tuple[Sequence[bytes], Sequence[int], list[bytes] | None], None]:
    """Yield a ledger's records: payloads, transaction ids, and what they carry."""
    metadata = SegmentMetadata(number=0, ledger_id=draft.ledger_id, first_txid=0)
    opened = await open_segment(context, metadata, 0)
    if opened is None:
        raise _cleaned_up(context, draft)
    count = 0
    try:
        async with contextlib.aclosing(opened.confirmed(0)) as runs:
            async for run in runs:
                for batch in run:
                    carried = None
                    if batch.attributes:
                        carried = [record.attributes.encode() for record in batch]
                    count += len(batch)
                    yield batch.payloads, batch.txids, carried
    except NoSuchLedgerInMetadataError as error:
        raise _cleaned_up(context, draft) from error
    finally:
        await opened.close()
    if count != draft.record_count:
        raise DataLossError(
            f"ledger {draft.ledger_id}, which was written for stream {context.name}, has {count} "
            f"records, not {draft.record_count}",
            ledger_id=draft.ledger_id,
        )


def _cleaned_up(context: StreamContext, draft: Draft) -> TransactionLostError:
    return TransactionLostError(
        f"ledger {draft.ledger_id}, which was written for stream {context.name}, was cleaned up "
        "meanwhile: it was older than attemptTtl, or another run has committed the batch; start "
        "the query again"
    )
