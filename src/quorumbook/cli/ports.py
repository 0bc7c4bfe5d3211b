"""Ports of this host: which are in use, which are free."""

from __future__ import annotations

import contextlib
import socket

from quorumbook.errors import ConfigError

_HOST = "127.0.0.1"


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def refuse_used(port: int) -> None:
    """Raise a ConfigError if somebody listens on a port."""
    if not _is_free(port):
        raise ConfigError(
            f"port {port} is in use; stop what uses it (another standalone?), or choose others"
            " with --port and another --data-dir"
        )


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on; whoever wants them should be quick."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(contextlib.closing(socket.socket())) for _ in range(count)]
        for probe in probes:
            probe.bind((_HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
