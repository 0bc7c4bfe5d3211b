"""The blocking stream of bytes: raw files, to be buffered by ``io`` like any other."""

from __future__ import annotations

import io
from typing import Any

from quorumbook.streams.views import byte_stream as aio
from quorumbook.sync.declared import blocking
from quorumbook.sync.loop import Twin, unwrapped
from quorumbook.sync.streams.stream import Stream


class ByteStream(Twin[aio.ByteStream]):
    """The blocking twin of ``quorumbook.streams.ByteStream``."""

    def __init__(self, stream: Stream) -> None:
        """Take a stream, whose policy does not leave transaction ids free."""
        super().__init__(aio.ByteStream(unwrapped(stream)))

    def writer(self, **options: object) -> ByteWriter:
        """Append bytes, as the only one: ``with bytes.writer() as file``."""

        async def begin() -> aio.ByteWriter:
            return await self._aio.writer(**options)

        return ByteWriter(self._run(begin))

    def reader(self, offset: int = 0, *, tail: bool = False) -> ByteReader:
        """Read bytes: ``with bytes.reader() as file``; see the asyncio twin."""
        return ByteReader(self, self._aio.reader(offset, tail=tail))

    size = blocking(aio.ByteStream.size)
    """Return the offset behind the last byte that readers can see."""
    truncate = blocking(aio.ByteStream.truncate)
    """Cut bytes off at the beginning."""


class ByteWriter(Twin[aio.ByteWriter], io.RawIOBase):
    """Appends bytes; ``write`` returns when they are safe."""

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def tell(self) -> int:
        """Return the offset at which the next byte is written."""
        return self._aio.tell()

    def write(self, data: Any) -> int:
        """Append bytes, and return how many there are."""
        kept = bytes(data)
        return self._run(lambda: self._aio.write(kept))

    def flush(self) -> None:
        """Wait until tailing readers can see what was written."""
        super().flush()
        self._run(self._aio.flush)

    def close(self) -> None:
        """Complete the segment, and give the stream's lock back."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._run(self._aio.close)


class ByteReader(Twin[aio.ByteReader], io.RawIOBase):
    """Reads bytes from any offset on."""

    def __init__(self, stream: ByteStream, reader: aio.ByteReader) -> None:
        """Take what ``ByteStream.reader`` made."""
        super().__init__(reader)
        self._stream = stream

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can go anywhere."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte that is read."""
        return self._aio.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on at another offset, from the beginning, here, or the end."""
        base = 0
        if whence == io.SEEK_CUR:
            base = self.tell()
        elif whence == io.SEEK_END:
            base = self._stream.size()
        return self._run(lambda: self._aio.seek(base + offset))

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what is there at once; 0 at the end."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def read(self, size: int | None = -1) -> bytes:
        """Return bytes; see ``quorumbook.streams.ByteReader``."""
        count = -1 if size is None else size
        return self._run(lambda: self._aio.read(count))

    def readall(self) -> bytes:
        """Return all that is left."""
        return self.read()

    def close(self) -> None:
        """Let go of everything."""
        if not self.closed:
            super().close()
            self._run(self._aio.close)
