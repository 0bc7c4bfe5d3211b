"""One connection to a ZooKeeper: frames, answers in the order of the requests, pings.

Requests of one loop step leave in one write; all answers of one read are handed out in one step.
A server that stays silent, answers nothing but pings, or sends what is no ZooKeeper's is given up:
then everything that waits fails with ``AnswerLost``, which knows how far answers had come.
Which server, which session, and what is asked again is the session's business.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

from quorumbook.env import patience
from quorumbook.env.tls import explain
from quorumbook.errors import QuorumbookError, RemoteProtocolError
from quorumbook.metadata.zookeeper import jute
from quorumbook.metadata.zookeeper.jute import AnswerHeader, Op

_SIZE = 4
_PING = jute.request(jute.PING_XID, Op.PING)
_LAST_XID = 2**31 - 1
#: Begins what a server that speaks TLS says to one who does not.
_ALERT = b"\x15\x03"


class AnswerLost(QuorumbookError):  # noqa: N818 - decided upon by the store, never seen outside
    """A connection ended before the answer came; the request may have been carried out."""

    def __init__(self, reason: str, answered_zxid: int) -> None:
        super().__init__(reason)
        #: Whatever was not answered, if it was carried out, has a higher zxid.
        self.answered_zxid = answered_zxid


class Answer(NamedTuple):
    """Header and whole body, header included."""

    header: AnswerHeader
    body: bytes


class _Pending(NamedTuple):
    xid: int
    future: asyncio.Future[Answer]
    #: Runs in the step in which the answer arrives, before any event behind it.
    on_answer: Callable[[AnswerHeader], None] | None
    sent_at: float


class ZooKeeperConnection(asyncio.Protocol):
    """Speaks with one server.

    Args:
        on_event: Gets the body of every watch event.
        silence_s: A server that says nothing for so long is given up.
    """

    def __init__(self, on_event: Callable[[bytes], None], silence_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._silence_s = silence_s
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._out: list[bytes] = []
        self._pending: deque[_Pending] = deque()
        #: Requests that are answered under a number of their own.
        self._special: dict[int, asyncio.Future[Answer]] = {}
        self._greeting: asyncio.Future[bytes] | None = None
        self._xid = 0
        self._heard_at = self._sent_at = self._loop.time()
        #: When the first of what the server has not reacted to was sent.
        self._asked_at: float | None = None
        self._timer: patience.Timer | None = None
        self.answered_zxid = 0
        #: The server broke TLS off when it had looked at our certificate.
        self.is_mistrusted = False
        #: Done when the connection has ended; the result says why.
        self.lost: asyncio.Future[str] = self._loop.create_future()

    # What the session asks for

    async def greet(self, frame: bytes) -> bytes:
        """Send the first frame and return the body of its answer."""
        self._greeting = self._loop.create_future()
        self._write(frame)
        return await self._greeting

    def keep_alive(self, silence_s: float) -> None:
        """Ping often enough, and give the server up after this silence."""
        self._silence_s = silence_s
        self._check()

    def request(
        self, operation: Op, record: bytes, on_answer: Callable[[AnswerHeader], None] | None = None
    ) -> asyncio.Future[Answer]:
        """Send a request; the future fails with ``AnswerLost`` if the connection ends."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self.lost.done():
            future.set_exception(self._answer_lost())
            return future
        self._xid = 1 if self._xid == _LAST_XID else self._xid + 1
        self._pending.append(_Pending(self._xid, future, on_answer, self._loop.time()))
        self._write(jute.request(self._xid, operation, record))
        return future

    @property
    def is_waiting(self) -> bool:
        """Tell whether a request has no answer yet."""
        return bool(self._pending)

    async def special(self, xid: int, operation: Op, record: bytes) -> Answer:
        """Send a request with a reserved number and return its answer."""
        if self.lost.done():
            raise self._answer_lost()
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._special[xid] = future
        self._write(jute.request(xid, operation, record))
        return await future

    def end(self, reason: str) -> None:
        """End the connection at once, from this side."""
        if self.lost.done():
            return
        self.lost.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        error = self._answer_lost()
        waiting = [each.future for each in self._pending] + list(self._special.values())
        self._pending.clear()
        self._special.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(error)

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        if self.lost.done():
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits."""
        if isinstance(exc, ssl.SSLError):
            self.is_mistrusted = True
            self.end(explain(exc))
        elif exc:
            self.end(f"the connection ended ({exc})")
        elif self._greeting is not None and not self._greeting.done():
            self.end(
                "the server closed the connection without a word; if it speaks TLS, say ?tls=true"
            )
        else:
            self.end("the server closed the connection")

    def data_received(self, data: bytes) -> None:
        """Hand out all complete frames."""
        received = self._received
        received += data
        start = 0
        try:
            while len(received) - start >= _SIZE:
                size = int.from_bytes(received[start : start + _SIZE], "big", signed=True)
                if received.startswith(_ALERT):
                    raise RemoteProtocolError("it speaks TLS: say ?tls=true in the URI")
                if not 0 <= size <= jute.MAX_FRAME_SIZE_BYTES:
                    raise RemoteProtocolError(f"no ZooKeeper: it announces {size} bytes")
                end = start + _SIZE + size
                if len(received) < end:
                    break
                body = bytes(received[start + _SIZE : end])
                start = end
                self._take(body)
        except RemoteProtocolError as error:
            self.end(str(error))
        if start:
            self._heard_at = self._loop.time()
            self._asked_at = None
            del received[:start]

    def _take(self, body: bytes) -> None:
        if self.lost.done():
            return
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_result(body)
            return
        header = jute.header(body)
        xid = header.xid
        if xid == jute.WATCH_EVENT_XID:
            self._on_event(body)
        elif xid in self._special:
            future = self._special.pop(xid)
            if not future.done():
                future.set_result(Answer(header, body))
        elif xid != jute.PING_XID:
            if not self._pending or self._pending[0].xid != xid:
                raise RemoteProtocolError("the server answers what was not asked")
            pending = self._pending.popleft()
            self.answered_zxid = max(self.answered_zxid, header.zxid)
            # An operation that was cancelled wants no watch either.
            if not pending.future.done():
                if pending.on_answer is not None:
                    pending.on_answer(header)
                pending.future.set_result(Answer(header, body))

    def _write(self, frame: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def _flush(self) -> None:
        frames, self._out = self._out, []
        if self._transport is not None and not self.lost.done():
            self._sent_at = self._loop.time()
            self._asked_at = self._asked_at or self._sent_at
            self._transport.write(b"".join(frames))

    def _check(self) -> None:
        """Ping, or give the server up."""
        now = self._loop.time()
        # Silence speaks against a server only if it was asked: we may have been paused ourselves.
        has_had_time = self._asked_at is not None and now - self._asked_at >= self._silence_s / 4
        if has_had_time and now - self._heard_at >= self._silence_s:
            self.end(f"the server was silent for {now - self._heard_at:.1f} s")
            return
        if self._pending and now - self._pending[0].sent_at >= 1.5 * self._silence_s:
            waited_s = now - self._pending[0].sent_at
            self.end(f"the server left a request unanswered for {waited_s:.1f} s")
            return
        if now - self._sent_at >= self._silence_s / 2:
            self._write(_PING)
        self._timer = patience.Timer(self._silence_s / 8, self._check)

    def _answer_lost(self) -> AnswerLost:
        reason = self.lost.result() if self.lost.done() else "the connection ended"
        return AnswerLost(reason, self.answered_zxid)
