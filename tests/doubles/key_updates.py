"""A TLS peer that asks for new keys again and again, which Python's ``ssl`` has no call for.

OpenSSL's own is called on the connection behind an ``ssl.SSLObject``.
"""

from __future__ import annotations

import _ssl
import ctypes
import ssl

#: In CPython's object of a connection: behind its count, its type and its socket.
_OFFSET = 3 * ctypes.sizeof(ctypes.c_void_p)
_UPDATE_REQUESTED = 1

_openssl = ctypes.CDLL(_ssl.__file__)
_openssl.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
_openssl.SSL_do_handshake.argtypes = [ctypes.c_void_p]


def ask_for_new_keys(connection: ssl.SSLObject, count: int) -> None:
    """Write that many KeyUpdate messages, each a record; a peer has to answer each."""
    inner = connection._sslobj  # type: ignore[attr-defined]
    address = ctypes.c_void_p.from_address(id(inner) + _OFFSET).value
    for _ in range(count):
        assert _openssl.SSL_key_update(address, _UPDATE_REQUESTED) == 1
        assert _openssl.SSL_do_handshake(address) == 1
