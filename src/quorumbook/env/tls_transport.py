"""TLS on a connection that exists: a transport on top of a transport.

``TlsTransport`` takes the place of the protocol below, in one step of the loop: what was received
before is plain, every byte after it belongs to the handshake.  OpenSSL works on two buffers in
memory, so nothing is awaited and no task stands between the bytes and the protocol above:

    received bytes  ->  incoming buffer  ->  OpenSSL  ->  protocol.data_received, one piece a chunk
    transport.write ->  OpenSSL  ->  outgoing buffer  ->  one write below

Back-pressure is that of the transport below: its limits count what is encrypted and not sent yet,
and its ``pause_writing`` and ``resume_writing`` go to the protocol above.  OpenSSL makes records of
16 KB at most and the outgoing buffer is emptied every few of them, so a write of any size holds
little beside itself.

A peer can make a few bytes cost much: a handshake costs a signature, and each new key that a record
asks for ten times what its bytes would.  So what comes is decrypted in slices of so many bytes and
records, and at a bookie each of them waits for a turn of the loop that has time left; what is held
meanwhile is one chunk.  Records tell their length in the clear:

    type u8 | version u16 | length u16 | so many bytes

So OpenSSL is asked once for each record that has come whole, and never for one that has not: to say
no costs it as much as to decrypt 6 KB.

A handshake has a largest size at a bookie, and a peer whose records hold nothing is given up.

Certificates, and what a failed handshake means to people, are ``tls.py``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from quorumbook.env.interfaces import Turns
from quorumbook.errors import RemoteProtocolError

#: Longest plain piece that is encrypted before what came of it is handed down.
_PIECE_BYTES = 256 * 1024
#: What a record holds at most; OpenSSL returns one at a time.
_READ_BYTES = 16 * 1024
#: What a record may say it is long; OpenSSL refuses a longer one by its head.
_RECORD_BYTES_MAX = 16 * 1024 + 2048
#: So much is decrypted before somebody else may have the loop: a chunk, unless its records are
#: small. It takes some 0.1 ms; smaller slices end in smaller groups of the journal.
_SLICE_BYTES = 256 * 1024
#: And so many records, each of which may ask for a new key: about a millisecond's work.
_SLICE_RECORDS = 64
_HEAD_BYTES = 5
#: What a client's side of a handshake takes at most; with a chain of certificates a few KB.
_HANDSHAKE_BYTES_MAX = 32 * 1024
#: Records without data in a row: a new key now and then, but not many.
_EMPTY_BYTES_MAX = 32 * 1024

#: Told once how the handshake ended: None, or the ``ssl.SSLError`` or ``OSError`` that ended it.
OnDone = Callable[[Exception | None], None]


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """One side of a TLS connection.

    Args:
        below: The connection.
        protocol: Who gets what is decrypted.
        context: Certificates and rules.
        server_side: Which side this is.
        server_hostname: On the client's side: the name or address the peer must prove to have.
        done: Called when the handshake has ended; nothing may be written before.
        turns: On a bookie's side: who shares the loop.
    """

    def __init__(
        self,
        below: asyncio.Transport,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None,
        done: OnDone,
        turns: Turns | None = None,
    ) -> None:
        super().__init__()
        self._below = below
        self._protocol = protocol
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side, server_hostname=server_hostname
        )
        self._done: OnDone | None = done
        self._error: Exception | None = None
        self._is_closing = False
        self._turns = turns
        #: What came and is not decrypted yet; nothing more is received meanwhile.
        self._held = memoryview(b"")
        #: Where in it the next record begins, and what came of its head at the end of a chunk.
        self._record_at = 0
        self._head = b""
        self._is_waiting = False
        #: The protocol above wants nothing more for now.
        self._is_paused = False
        #: Bytes of the handshake, then those since a record last held something.
        self._empty_bytes = 0

    def begin(self) -> None:
        """Begin the handshake."""
        self._below.set_protocol(self)
        self._shake()

    # Called by the transport below

    def data_received(self, data: bytes) -> None:
        """Decrypt a chunk and hand it on, in one piece unless the turn ends meanwhile."""
        self._held = memoryview(self._head + data if self._head else data)
        self._head = b""
        self._take()

    def eof_received(self) -> bool:
        """The peer sends no more: the protocol above says whether it closes, and when."""
        return bool(self._protocol.eof_received())

    def pause_writing(self) -> None:
        """The transport below has too much to send."""
        if self._done is None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The transport below has sent most of it."""
        if self._done is None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._is_closing = True
        self._held = memoryview(b"")
        done, self._done = self._done, None
        if done is not None:
            done(self._error or exc or ConnectionResetError("it was closed in the handshake"))
        self._protocol.connection_lost(self._error or exc)

    # Called by the protocol above

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._is_closing or not data:
            return
        tls, below, outgoing = self._tls, self._below, self._outgoing
        view = memoryview(data)
        try:
            while view:
                piece, view = view[:_PIECE_BYTES], view[_PIECE_BYTES:]
                while piece:
                    piece = piece[tls.write(piece) :]
                below.write(outgoing.read())
        except ssl.SSLError as error:
            self._fail(error)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt and send several pieces; small ones must not become a record each."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Say so to the peer, send what is there, close."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._done is None:
            # The peer's own farewell is not waited for.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._send()
        self._below.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._is_closing = True
        self._below.abort()

    def is_closing(self) -> bool:
        """Tell whether it is closed, or about to be."""
        return self._is_closing or self._below.is_closing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand everything from now on to another protocol."""
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol above."""
        return self._protocol

    def pause_reading(self) -> None:
        """Receive nothing."""
        self._is_paused = True
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """Receive again, what is held first."""
        self._is_paused = False
        if self._held:
            self._wait()
        else:
            self._below.resume_reading()

    def is_reading(self) -> bool:
        """Tell whether it receives."""
        return self._below.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when to pause writing; encrypted bytes count."""
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how much is encrypted and not sent."""
        return self._below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known: ``ssl_object``, its context, and what the transport below knows."""
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._below.get_extra_info(name, default)

    # Called when its turn has come

    def go_on(self) -> None:
        """Decrypt more of what is held."""
        self._is_waiting = False
        if not self._is_paused and not self._is_closing:
            self._take()
            if not (self._held or self._is_paused or self._is_closing):
                self._below.resume_reading()

    # Inside

    def _take(self) -> None:
        """Decrypt what is held, as long as the turn lasts, and hand on what comes of it."""
        pieces: list[bytes] = []
        turns = self._turns
        is_over = False
        while self._held and not (is_over or self._is_closing):
            if turns is not None and turns.is_over:
                break
            piece, records = self._slice()
            self._incoming.write(piece)
            if self._done is not None:
                self._shake(len(piece))
                records = len(piece)  # nobody knows how many the handshake took
            if self._done is None:
                is_over = self._read(pieces, len(piece), records)
        if pieces and not self._below.is_closing():
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._is_closing:
            return
        if self._error is not None:
            self._fail(self._error)
        elif is_over:
            self.close()
        elif self._held:
            self._wait()

    def _slice(self) -> tuple[memoryview, int]:
        """Take a slice off what is held; return it, and how many records end in it.

        It ends where a record does, if that has come whole; a part of a head at its end waits for
        the rest of it.
        """
        held, at = self._held, self._record_at
        records = int(0 < at <= len(held))
        # In the handshake one record at a time: what comes behind it is no part of it.
        most = _SLICE_BYTES if self._done is None else 1
        while at < most and at + _HEAD_BYTES <= len(held) and records < _SLICE_RECORDS:
            size_bytes = held[at + 3] << 8 | held[at + 4]
            at += _HEAD_BYTES + size_bytes
            records += at <= len(held) or size_bytes > _RECORD_BYTES_MAX
        if at < len(held) < at + _HEAD_BYTES:
            self._head, held = bytes(held[at:]), held[:at]
        size = min(at, len(held))
        self._record_at = at - size
        self._held = held[size:]
        return held[:size], records

    def _wait(self) -> None:
        """Have the rest wait for a turn; whoever paused us meanwhile says when to go on."""
        self._below.pause_reading()
        if self._turns is not None and not (self._is_waiting or self._is_paused):
            self._is_waiting = True
            self._turns.wait(self, len(self._held))

    def _shake(self, size_bytes: int = 0) -> None:
        self._empty_bytes += size_bytes
        try:
            if self._turns is not None and self._empty_bytes > _HANDSHAKE_BYTES_MAX:
                raise RemoteProtocolError(
                    f"its side of the TLS handshake takes more than {_HANDSHAKE_BYTES_MAX} bytes"
                )
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except (ssl.SSLError, ValueError, RemoteProtocolError) as error:
            self._fail(error)
            return
        self._send()
        self._empty_bytes = 0
        done, self._done = self._done, None
        if done is not None:
            done(None)

    def _read(self, pieces: list[bytes], size_bytes: int, records: int) -> bool:
        """Add what a slice of that size and so many records holds; tell whether it is the end."""
        count = len(pieces)
        is_over = False
        read = self._tls.read
        try:
            for _ in range(records):
                piece = read(_READ_BYTES)
                if not piece:
                    is_over = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            is_over = True
        except ssl.SSLError as error:
            self._error = error
        self._send()  # new keys are acknowledged
        self._empty_bytes = 0 if len(pieces) > count else self._empty_bytes + size_bytes
        if self._empty_bytes > _EMPTY_BYTES_MAX:
            self._error = RemoteProtocolError("its TLS records hold nothing, again and again")
        return is_over or self._error is not None

    def _send(self) -> None:
        if self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def _fail(self, error: Exception) -> None:
        """Tell the peer why, if it can be told at once, and end the connection."""
        if self._error is None:
            self._error = error
        self._is_closing = True
        self._send()
        if self._below.get_write_buffer_size():
            self._below.abort()
        else:
            self._below.close()
