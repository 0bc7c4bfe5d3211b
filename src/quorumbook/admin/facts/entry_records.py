"""Which records of a stream lie in which entry of a ledger."""

from __future__ import annotations

from collections.abc import Mapping

from quorumbook.ids import EntryId, LedgerId
from quorumbook.streams import Position, Record, Stream

#: Of all entries that are shown together.
RECORDS_MAX = 1_000
_BYTES_MAX = 4 * 1024 * 1024


def stream_of(custom_metadata: Mapping[str, bytes]) -> tuple[str, str] | None:
    """Return the namespace and the stream that a ledger says it was made for; None: it does not."""
    found = [custom_metadata.get(name, b"").decode(errors="replace")
             for name in ("namespace", "stream")]  # fmt: skip
    return (found[0], found[1]) if all(found) else None


async def entry_records(
    stream: Stream, ledger_id: LedgerId, first: EntryId, last: EntryId
) -> dict[EntryId, list[Record]] | None:
    """Return the records of a stream that begin in some entries of a ledger.

    An entry that is not named has none: it holds control records, goes on with a record that
    began before it, or is behind the first ``RECORDS_MAX`` records or 4 MB.

    Returns:
        None if the ledger is no segment of the stream.
    """
    number = next(
        (
            each.metadata.number
            for each in await stream.segments()
            if each.metadata.ledger_id == ledger_id
        ),
        None,
    )
    if number is None:
        return None
    found: dict[EntryId, list[Record]] = {}
    count = size = 0
    start = Position(number, first, 0)
    async with stream.reader(start, tail=False, on_truncated="skip") as reader:
        async for record in reader:
            count += 1
            size += len(record.payload)
            is_over = count > RECORDS_MAX or size > _BYTES_MAX and count > 1
            if is_over or record.ledger_id != ledger_id or record.position.entry > last:
                break
            found.setdefault(record.position.entry, []).append(record)
    return found
