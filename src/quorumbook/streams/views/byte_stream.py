"""A stream as a file that grows: bytes at offsets, DistributedLog's append-only format.

    a record's transaction id   the offset behind its last byte
    its payload                 some bytes, in the order in which they were written

Java's ``AppendOnlyStreamWriter`` and ``AppendOnlyStreamReader`` read and write the same.
"""

from __future__ import annotations

from typing import Any

from quorumbook.client.waiting.closing import Closing, ClosingQuietly
from quorumbook.client.waiting.opening import Opening
from quorumbook.errors import LocalProtocolError
from quorumbook.options import takes
from quorumbook.streams.errors import DataLossError, PositionTruncatedError
from quorumbook.streams.reading.entries import decode_user_records
from quorumbook.streams.reading.reader import StreamReader
from quorumbook.streams.reading.seek import TxId, find_txid
from quorumbook.streams.reading.segment_reader import open_segment
from quorumbook.streams.stream import Stream
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.streams.writing.writer import StreamWriter

#: What is written at once is cut into records of so many bytes.
_RECORD_BYTES = 512 * 1024


class ByteStream:
    """The bytes of a stream; nothing else may be appended to it."""

    def __init__(self, stream: Stream) -> None:
        """Take a stream, whose policy does not leave transaction ids free."""
        self._stream = stream

    @takes(WriterOptions)
    def writer(self, **options: Any) -> Opening[ByteWriter]:
        """Append bytes, as the only writer: ``async with bytes.writer() as file``.

        Args:
            options: Those of ``Stream.writer``.
        """

        async def begin() -> ByteWriter:
            return ByteWriter(await self._stream.writer(**options))

        return Opening(begin)

    def reader(self, offset: int = 0, *, tail: bool = False) -> ByteReader:
        """Read bytes: ``async with bytes.reader() as file``.

        Args:
            offset: Where to begin.
            tail: At the end, wait for more.
        """
        return ByteReader(self._stream, offset, tail=tail)

    async def size(self) -> int:
        """Return the offset behind the last byte that readers can see."""
        context = stream_context(self._stream)
        for segment in reversed(await context.nodes.segments()):
            opened = await open_segment(context, segment, -1)
            if opened is None:
                continue
            try:
                last = await opened.ledger.read_last_add_confirmed()
                for entry_id in range(last, -1, -1):
                    entry = await opened.ledger.read_entry(entry_id)
                    found = decode_user_records(
                        entry.payload, is_enveloped=segment.is_enveloped, count_before=-1
                    )
                    if found.runs:
                        return found.runs[-1].txids[-1]
            finally:
                await opened.close()
        return 0

    async def truncate(self, before: int) -> int:
        """Remove the records at the beginning that lie entirely before an offset.

        Offsets stay what they are.

        Returns:
            The offset of the first byte that is left.
        """
        await self._stream.truncate(await find_txid(stream_context(self._stream), before + 1))
        async with self._stream.reader(tail=False) as reader:
            async for record in reader:
                return record.txid - len(record.payload)
        return await self.size()


class ByteWriter(ClosingQuietly):
    """Appends bytes; made by ``ByteStream.writer``."""

    def __init__(self, writer: StreamWriter) -> None:
        """Take the stream's writer."""
        self._writer = writer

    def tell(self) -> int:
        """Return the offset at which the next byte is written."""
        return max(self._writer.last_txid, 0)

    async def write(self, data: bytes) -> int:
        """Append bytes, wait until they are safe, and return how many there are."""
        view, offset = memoryview(data).cast("B"), self.tell()
        if not view:
            return 0
        starts = range(0, len(view), _RECORD_BYTES)
        pieces = [bytes(view[start : start + _RECORD_BYTES]) for start in starts]
        ends = [*starts[1:], len(view)]
        await self._writer.append_batch(pieces, txids=[offset + end for end in ends])
        return len(view)

    async def flush(self) -> None:
        """Wait until tailing readers can see what was written."""
        await self._writer.flush()

    async def close(self) -> None:
        """Complete the segment, and give the stream's lock back."""
        await self._writer.close()


class ByteReader(Closing):
    """Reads bytes; made by ``ByteStream.reader``."""

    def __init__(self, stream: Stream, offset: int, *, tail: bool) -> None:
        """Begin at an offset."""
        self._stream = stream
        self._tail = tail
        self._offset = offset
        self._reader: StreamReader | None = None
        self._rest = b""

    def tell(self) -> int:
        """Return the offset of the next byte that is read."""
        return self._offset

    async def seek(self, offset: int) -> int:
        """Go on at another offset; one behind the end waits for it, or is the end."""
        if offset < 0:
            raise LocalProtocolError(f"there is no offset {offset}")
        await self.close()
        self._offset = offset
        return offset

    async def read(self, size: int = -1) -> bytes:
        """Return bytes: all that are left, or as many as are there at once.

        Args:
            size: At most so many, and one at least unless the end is reached; below 0: all up to
                the end, which only a reader that does not tail has.

        Raises:
            PositionTruncatedError: they were truncated away.
            DataLossError: bytes are missing between two that are there.
        """
        if size == 0:
            return b""
        if size > 0:
            return await self._read_some(size)
        parts = []
        while part := await self._read_some(1 << 62):
            parts.append(part)
        return b"".join(parts)

    async def _read_some(self, size: int) -> bytes:
        while not self._rest:
            is_first = self._reader is None
            if self._reader is None:
                start = TxId(self._offset + 1)
                self._reader = await self._stream.reader(start, tail=self._tail)
            record = await anext(self._reader, None)
            if record is None:
                return b""
            begin = record.txid - len(record.payload)
            if begin > self._offset:
                where = f"bytes {self._offset} to {begin - 1} of stream {self._stream.name}"
                if is_first:
                    raise PositionTruncatedError(f"{where} were truncated away")
                raise DataLossError(f"{where} are missing")
            self._rest = record.payload[self._offset - begin :]
        part, self._rest = self._rest[:size], self._rest[size:]
        self._offset += len(part)
        return part

    async def close(self) -> None:
        """Let go of everything."""
        reader, self._reader, self._rest = self._reader, None, b""
        if reader is not None:
            await reader.close()
