"""The bookie's side of a connection: bytes to requests.

Both protocols are spoken on one port.  A connection may speak v3 until the first frame that is no
v3 request; from then on it speaks v2 for ever.  A v2 frame begins with the byte 2, or 0 or 1, which
no protobuf message can, so this is decided without doubt.

All complete frames of a chunk are decoded in one loop, and adds that belong together become one
``AddRun``.  Answers are encoded in ``answers.py``.
"""

from __future__ import annotations

from quorumbook.ids import MAX_FRAME_SIZE_BYTES
from quorumbook.protocol.frames import LENGTH, FrameBuffer
from quorumbook.protocol.requests import REQUESTS_MAX, LargeAdd, Request
from quorumbook.protocol.v2 import requests as v2_requests
from quorumbook.protocol.v2.packets import ADD, READ
from quorumbook.protocol.v3 import adds as v3_runs
from quorumbook.protocol.v3 import reads as v3_reads
from quorumbook.protocol.v3 import requests as v3_requests

_FIRST_FIELD = 0x0A  # the header of a v3 request
_LAST_BYTE_OF_NO_FIELD = b"\x07"  # bytes up to this one begin no protobuf message
#: More than an add has in front of its entry, and the ids in there.
_FIRST_BYTES = 512


class RequestDecoder:
    """Turns the bytes of one connection into requests."""

    __slots__ = ("_buffer", "_is_held", "_large_add", "_position", "_rest", "is_v2")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_SIZE_BYTES) -> None:
        self._buffer = FrameBuffer(max_frame_bytes, gathers=True)
        #: A chunk with frames that are not decoded yet, and where they begin.
        self._rest = b""
        self._position = 0
        #: What the frame is whose end is yet to come, if that is a large add.
        self._large_add: LargeAdd | None = None
        #: Nothing was done with that chunk yet.
        self._is_held = False
        #: Whether the connection has settled on v2.
        self.is_v2 = False

    @property
    def pending_bytes(self) -> int:
        """How many bytes are kept that are no requests yet."""
        return self._buffer.pending_bytes + len(self._rest) - self._position

    @property
    def frame_bytes(self) -> int:
        """The size of the frame of which a part has come; 0 if there is none."""
        buffer = self._buffer
        return buffer.pending_bytes + buffer.missing_bytes if buffer.pending_bytes else 0

    @property
    def is_behind(self) -> bool:
        """Tell whether to ``feed`` nothing when the requests returned last are carried out."""
        return bool(self._rest)

    @property
    def behind_bytes(self) -> int:
        """The size of the chunk that ``is_behind`` speaks of, what was decoded of it included."""
        return len(self._rest)

    @property
    def max_frame_bytes(self) -> int:
        """The largest frame that is accepted, its length included."""
        return self._buffer.max_frame_bytes

    @max_frame_bytes.setter
    def max_frame_bytes(self, size_bytes: int) -> None:
        self._buffer.max_frame_bytes = size_bytes

    def hold(self, data: bytes) -> None:
        """Keep a chunk for later, without a copy; ``is_behind`` until it is fed."""
        self._rest, self._is_held = data, True

    def feed(self, data: bytes, *, may_rise: bool = False) -> list[Request]:
        """Decode a chunk; an incomplete frame at its end waits for the next.

        Of very many requests only the first are returned, and ``is_behind`` says that there are
        more; until they are, no further chunk may come.

        Args:
            data: The chunk.
            may_rise: The requests may raise the limit when they are carried out; so a frame
                behind them that is too large is judged after that (``is_behind`` too).

        Raises:
            RemoteProtocolError: these are no requests, or a frame is too large.  Nothing of the
                chunk is to be carried out; close the connection.
        """
        position = self._position
        is_new = self._is_held or not self._rest
        if self._rest:
            data, self._rest, self._position = self._rest, b"", 0
            self._is_held = False
        requests: list[Request] = []
        if is_new:
            data = self._take(data, requests)
        max_length = self._buffer.max_frame_bytes - 4
        end = len(data)
        while end - position >= 4:
            if len(requests) >= REQUESTS_MAX:
                self._rest, self._position = data, position
                return requests
            length = LENGTH.unpack_from(data, position)[0]
            stop = position + 4 + length
            if stop > end or not 0 < length <= max_length:
                break
            if not self.is_v2:
                first_byte = data[position + 4]
                if first_byte == _FIRST_FIELD:
                    begin = position
                    position = v3_runs.decode_adds(data, position, end, max_length, requests)
                    if position == begin:
                        position = v3_reads.decode_reads(data, position, end, max_length, requests)
                    if position != begin:
                        continue
                request = None
                if first_byte > _LAST_BYTE_OF_NO_FIELD[0]:
                    request = v3_requests.decode_request(data, position, stop)
                if request is not None:
                    requests.append(request)
                    position = stop
                    continue
                self.is_v2 = True
            begin = position
            if length >= 20:
                opcode = data[position + 5]
                if opcode == ADD:
                    position = v2_requests.decode_adds(data, position, end, max_length, requests)
                elif opcode == READ:
                    position = v2_requests.decode_reads(data, position, end, requests)
            if position == begin:
                requests.append(v2_requests.decode_request(data, position, stop))
                position = stop
        is_for_later = may_rise and requests and end - position >= 4
        if is_for_later and LENGTH.unpack_from(data, position)[0] > max_length:
            self._rest, self._position = data, position
        else:
            self._buffer.keep(data, position)
        return requests

    def _take(self, data: bytes, requests: list[Request]) -> bytes:
        """Return the bytes to decode now; the end of a large add makes a request of it.

        Its entry, which may have 5 MB, is gathered as a run has it: to cut it out of its frame
        would take the loop 3 ms.
        """
        buffer = self._buffer
        if buffer.begins_large:
            first, size_bytes = buffer.begins_with(_FIRST_BYTES), self.frame_bytes
            self.is_v2 = self.is_v2 or b"" < first[4:5] <= _LAST_BYTE_OF_NO_FIELD
            find = v2_requests.large_add if self.is_v2 else v3_runs.large_add
            self._large_add = find(first, size_bytes)
            if self._large_add is not None:
                buffer.gather_tail(self._large_add.entry_at)
        data = buffer.take(data)
        if buffer.tail is not None:
            assert self._large_add is not None
            requests.append(self._large_add.request(buffer.tail))
            buffer.tail = self._large_add = None
        return data
