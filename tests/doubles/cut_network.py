"""A network on which some servers can be cut off from one process, and be there again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from quorumbook.env import RealNetwork


class CutNetwork(RealNetwork):
    """The network as a process has it; ``cut`` and ``heal`` go by port."""

    def __init__(self) -> None:
        self._gone: frozenset[int] = frozenset()
        self._transports: list[tuple[int, asyncio.Transport]] = []

    def cut(self, ports: Collection[int]) -> None:
        """End all connections to these ports, and let nobody connect to them."""
        self._gone = frozenset(ports)
        for port, transport in self._transports:
            if port in self._gone:
                transport.abort()
        self._transports = [each for each in self._transports if each[0] not in self._gone]

    def heal(self) -> None:
        """Let connect again."""
        self._gone = frozenset()

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, Any]:
        if port in self._gone:
            raise ConnectionRefusedError(f"{port} is cut off")
        transport, protocol = await super().connect(host, port, factory)
        self._transports.append((port, transport))
        return transport, protocol
