"""Connections that a child made by fork must not touch, also those that only uvloop has."""

from __future__ import annotations

import os
import socket

from quorumbook.env.forks import sever_in_children


class Transport:
    """As uvloop's with TLS: nothing can refer to it weakly."""

    __slots__ = ("closed", "socket")

    def __init__(self, shared: socket.socket) -> None:
        self.socket = shared
        self.closed = False

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self.socket

    def is_closing(self) -> bool:
        return self.closed


def test_a_child_writes_nothing_into_a_connection_that_cannot_be_referred_to_weakly() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    transports = [Transport(ours) for ours, _ in pairs]
    sever_in_children(transports[0])  # type: ignore[arg-type]
    transports[0].closed = True
    for transport in transports[1:]:
        sever_in_children(transport)  # type: ignore[arg-type]
    child = os.fork()
    if not child:
        for transport in transports[1:]:
            try:
                os.write(transport.socket.fileno(), b"of the child")
            except OSError:
                continue
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for ours, theirs in pairs[1:]:
        ours.sendall(b"of the parent")
        assert theirs.recv(100) == b"of the parent"
    for pair in pairs:
        for each in pair:
            each.close()
