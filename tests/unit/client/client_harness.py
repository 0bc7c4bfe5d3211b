"""What several of the client's tests use."""

from __future__ import annotations

import asyncio
import random

from doubles.mock_bookie import MockBookie
from quorumbook.client.context import client_context
from quorumbook.env import Env
from quorumbook.errors import (
    QuorumbookError,
)
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.protocol.requests import AddRun, Request
from quorumbook.protocol.status import Status

QUIET = {"lac_delay_s": 0}


class Lot(random.Random):
    """Draws what a test says."""

    def __init__(self, drawn: int) -> None:
        super().__init__()
        self._drawn = drawn

    def getrandbits(self, k: int, /) -> int:
        return self._drawn


def polling_from(position: int) -> Env:
    """A world whose readers ask the bookies at a position and behind it first."""
    return Env(random=Lot(position))


def refuse_adds(status: Status | str):
    def behave(request: Request):
        return status if isinstance(request, AddRun) and not request.is_recovery else None

    return behave


def payloads_at(bookie: MockBookie, ledger_id: int) -> list[bytes]:
    seal = digester(DigestType.CRC32C, b"")
    entries = bookie.ledgers[ledger_id].entries
    return [seal.payload(entries[entry_id]) for entry_id in sorted(entries)]


class Gate:
    """Holds the metadata writes of a client up."""

    def __init__(self, bk, monkeypatch) -> None:
        self._write = client_context(bk).ledgers.write
        self._open = asyncio.Event()
        self.waiting = 0
        self.fail_with: QuorumbookError | None = None
        monkeypatch.setattr(client_context(bk).ledgers, "write", self._gated)

    async def _gated(self, metadata, version, **options):
        self.waiting += 1
        await self._open.wait()
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        return await self._write(metadata, version, **options)

    def open(self) -> None:
        self._open.set()
