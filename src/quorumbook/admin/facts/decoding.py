"""Decodes records by their stream's schema, to be shown, also those of a ledger's entries.

A schema and a record may be made to hurt.  ``streams.schemas.limits`` bounds what one of them can
cost, and here the record is smaller, and the answer and its time are bounded, too.  It is all done
in a thread of its own, which others who ask wait for, and never in the loop that serves them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from quorumbook.errors import ConfigError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.streams import Decoder, Position, Record, Stream, StreamSchemas
from quorumbook.streams.errors import BadRecordError
from quorumbook.streams.format.schemas import version_in
from quorumbook.streams.schemas.columns import plain

#: Of one record.
RECORD_BYTES = 64 * 1024
#: Of all decoded records of an answer together, as JSON.
ANSWER_BYTES = 4 * 1024 * 1024
#: Of all records of an answer together; one that has begun is decoded to its end.
ANSWER_S = 1.0
#: Of all entries that are shown together.
RECORDS_MAX = 1_000


class Decoded(NamedTuple):
    """A record by its schema, or why there is none."""

    #: JSON; half a surrogate pair is escaped.
    text: str | None
    reason: str | None = None


class DecodingThread:
    """Where one server decodes."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoding")

    async def decode(
        self, schemas: StreamSchemas, records: Sequence[Record], *, indent: int | None = None
    ) -> list[Decoded]:
        """Decode records as the last version of their schema.

        Args:
            schemas: All versions there are.
            records: Of one stream.
            indent: As JSON has it.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, _decode_all, schemas, records, indent)

    def close(self) -> None:
        """Decode no more; what waits is not done."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class StreamDecoding:
    """Decodes one stream's records, as many answers as there are.

    Args:
        where: The thread.
        stream: Whose schema it is.
        indent: As JSON has it.
    """

    def __init__(self, where: DecodingThread, stream: Stream, indent: int | None = None) -> None:
        self._where = where
        self._stream = stream
        self._indent = indent
        self._schemas: StreamSchemas | None = None

    async def start(self) -> None:
        """Read the schema.

        Raises:
            SchemaNotFoundError: The stream has none.
        """
        self._schemas = await self._stream.schemas()

    async def of(self, records: Sequence[Record]) -> list[Decoded]:
        """Decode the records of an answer, also by versions that came since the start."""
        if self._schemas is None or self._names_newer(records, self._schemas.last):
            await self.start()
        assert self._schemas is not None
        return await self._where.decode(self._schemas, records, indent=self._indent)

    def _names_newer(self, records: Sequence[Record], last: int) -> bool:
        for record in records:
            try:
                if (version_in(record.headers) or 0) > last:
                    return True
            except ValueError:
                continue  # it is a bad record, which says so itself
        return False


def _decode_all(
    schemas: StreamSchemas, records: Sequence[Record], indent: int | None
) -> list[Decoded]:
    end_s = time.monotonic() + ANSWER_S
    try:
        decoder = Decoder(schemas)
    except ConfigError as error:
        return [Decoded(None, f"the schema cannot be used here: {error}")] * len(records)
    left_bytes = ANSWER_BYTES
    found = []
    for record in records:
        if time.monotonic() > end_s:
            found.append(Decoded(None, f"the records before it took {ANSWER_S:g} s; ask for less"))
            continue
        decoded = _decode(decoder, record, indent, left_bytes)
        left_bytes -= len(decoded.text or "")
        found.append(decoded)
    return found


def _decode(decoder: Decoder, record: Record, indent: int | None, left_bytes: int) -> Decoded:
    size = len(record.payload)
    if size > RECORD_BYTES:
        return Decoded(None, f"it has {size:,} bytes; at most {RECORD_BYTES:,} are decoded here")
    try:
        value = plain(decoder.value(record.payload, record.headers))
    except BadRecordError as error:
        return Decoded(None, str(error))
    separators = (",", ":") if indent is None else None
    encoder = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )
    pieces, length = [], 0
    for piece in encoder.iterencode(value):
        length += len(piece)
        if length > left_bytes:
            return Decoded(None, f"with it the answer has more than {ANSWER_BYTES:,} bytes")
        pieces.append(piece)
    return Decoded("".join(pieces).encode("utf-8", "backslashreplace").decode())


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
            is_over = count > RECORDS_MAX or (size > ANSWER_BYTES and count > 1)
            if is_over or record.ledger_id != ledger_id or record.position.entry > last:
                break
            found.setdefault(record.position.entry, []).append(record)
    return found
