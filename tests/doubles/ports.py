"""Ports for servers of tests, chosen where the system gives none to connections of others."""

from __future__ import annotations

import contextlib
import random
import socket

#: Below what Linux, the BSDs and Windows hand out for port 0 and for outgoing connections.
_FIRST, _BEHIND = 10_000, 32_000


def free_ports(count: int) -> list[int]:
    """Return consecutive ports that nobody listens on.

    They stay free until they are used, also while a server that had one is restarted: a port
    that the system hands out would soon be somebody else's.
    """
    while True:
        first = random.SystemRandom().randrange(_FIRST, _BEHIND - count)
        ports = list(range(first, first + count))
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in ports:
                probe = stack.enter_context(contextlib.closing(socket.socket()))
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
            return ports
