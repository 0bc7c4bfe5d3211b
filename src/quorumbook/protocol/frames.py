"""Frames: ``int32 length`` and that many bytes, the length not counting itself.

The decoders of both sides walk over the complete frames of a chunk themselves, in one loop each;
what they share is here: the limit, and the bytes of a frame that is not complete yet.

A frame that announces more than the limit is refused when its four length bytes are known, before
anything is kept for it.
"""

from __future__ import annotations

from io import BytesIO
from struct import Struct

from quorumbook.errors import FrameTooLargeError, RemoteProtocolError
from quorumbook.ids import MAX_FRAME_SIZE_BYTES

LENGTH = Struct(">i")
LENGTH_SIZE_BYTES = 4
#: Pieces of a frame that are smaller are gathered: each as an object of its own takes 200 bytes.
_PIECE_BYTES = 4096
#: A frame of which a decoder keeps so much is written into one place that has its size, where its
#: decoder wants it whole: pieces would be joined when it is complete, and leave holes in the heap.
GATHERED_FROM_BYTES = 1024 * 1024


def frame(body: bytes) -> bytes:
    """Put the length in front of a frame's body."""
    return LENGTH.pack(len(body)) + body


class FrameBuffer:
    """The incomplete frame between two chunks of a connection.

    Args:
        max_frame_bytes: What is refused beyond, the length included.
        gathers: Large frames are gathered in one place; ``complete`` is not for such a buffer.
    """

    __slots__ = (
        "_gathered", "_gathers", "_is_tail", "_parts", "max_frame_bytes", "missing_bytes",
        "pending_bytes", "tail",
    )  # fmt: skip

    def __init__(
        self, max_frame_bytes: int = MAX_FRAME_SIZE_BYTES, *, gathers: bool = False
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._gathers = gathers
        self._gathered: BytesIO | None = None
        self._is_tail = False
        #: What ``gather_tail`` asked for, as soon as it is complete; who takes it puts None here.
        self.tail: bytes | None = None
        self.pending_bytes = 0
        #: What is missing of it; of its length, while that is not known.
        self.missing_bytes = 0
        self._parts: list[bytes | bytearray | memoryview] = []

    def take(self, data: bytes) -> bytes:
        """Return the bytes to decode now, or nothing if no frame is complete yet.

        The pieces of a frame that comes in many chunks are joined once, not once for each chunk.
        """
        if not self.pending_bytes:
            return data
        behind = b""
        if self._is_tail:
            behind, data = data[self.missing_bytes :], data[: self.missing_bytes]
        if self._gathered is not None or self.begins_large:
            self._gather(data)
        else:
            self._keep_piece(data)
        self.pending_bytes += len(data)
        self.missing_bytes -= len(data)
        if self.missing_bytes > 0:
            return b""
        if self._gathered is None:
            data = b"".join(self._parts)
            self._parts.clear()
        else:
            # Without a copy: nothing but the place itself was written.
            data = self._gathered.getvalue()
            self._gathered = None
        self.pending_bytes = 0
        if self._is_tail:
            self.tail, self._is_tail = data, False
            return behind
        return data

    @property
    def begins_large(self) -> bool:
        """Tell whether the incomplete frame will be gathered in one place from now on."""
        size_bytes = self.pending_bytes + self.missing_bytes
        is_new = self._gathered is None
        return is_new and self._gathers and size_bytes >= GATHERED_FROM_BYTES

    def gather_tail(self, at: int) -> None:
        """Gather what follows at a place in the incomplete frame, with its length in front of it.

        It becomes ``tail`` without a copy, and ``take`` goes on behind the frame.

        Args:
            at: Where it begins; so much of the frame is here, and ``begins_large``.
        """
        (first,) = self._parts
        size_bytes = self.pending_bytes + self.missing_bytes - at
        self._gathered = BytesIO(bytes(LENGTH_SIZE_BYTES + size_bytes))
        self._gathered.writelines((LENGTH.pack(size_bytes), memoryview(first)[at:]))
        self._parts.clear()
        self._is_tail = True

    def _gather(self, data: bytes) -> None:
        if self._gathered is None:
            # Zeros that nobody wrote take no memory, so a frame has what has come of it.
            self._gathered = BytesIO(bytes(self.pending_bytes + self.missing_bytes))
            self._gathered.writelines(self._parts)
            self._parts.clear()
        self._gathered.write(data)

    def _keep_piece(self, data: bytes) -> None:
        parts = self._parts
        if len(data) >= _PIECE_BYTES:
            parts.append(data)
        elif isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data))

    def begins_with(self, size_bytes: int) -> bytes:
        """Return the first bytes of the incomplete frame; fewer if they came in several chunks."""
        return bytes(self._parts[0][:size_bytes]) if self._parts else b""

    def complete(self, data: bytes, skipped_bytes: int) -> tuple[bytes, int]:
        """Return the frame that a chunk completes, and where the next begins in the chunk.

        Large frames are copied once this way; ``take`` leaves them in the midst of other bytes.

        Args:
            data: The chunk; it has at least ``missing_bytes``.
            skipped_bytes: So many at the frame's beginning, of its first chunk, are left out.
        """
        stop = self.missing_bytes
        self._parts.append(memoryview(data)[:stop])
        self._parts[0] = self._parts[0][skipped_bytes:]
        whole = b"".join(self._parts)
        self._parts.clear()
        self.pending_bytes = 0
        return whole, stop

    def keep(self, data: bytes, position: int) -> None:
        """Keep what follows the last complete frame; empty if the chunk ended with a frame."""
        size = len(data) - position
        if not size:
            return
        if size < LENGTH_SIZE_BYTES:
            self.missing_bytes = LENGTH_SIZE_BYTES - size
        else:
            self.missing_bytes = LENGTH_SIZE_BYTES + self.length_at(data, position) - size
        # A few bytes would keep the whole chunk that they came in.
        is_most = 2 * size >= len(data)
        self._parts.append(memoryview(data)[position:] if is_most else data[position:])
        self.pending_bytes = size

    def length_at(self, data: bytes, position: int) -> int:
        """Return the frame length that stands at a position, if it is a legal one."""
        length: int = LENGTH.unpack_from(data, position)[0]
        if length <= 0:
            raise RemoteProtocolError(f"frame length {length} is not positive")
        if length > self.max_frame_bytes - LENGTH_SIZE_BYTES:
            raise FrameTooLargeError(
                f"frame of {length + LENGTH_SIZE_BYTES} bytes announced, "
                f"the limit is {self.max_frame_bytes}"
            )
        return length
