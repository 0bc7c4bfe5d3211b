"""Quorumbook: a replicated log store, compatible with Apache BookKeeper 4.18.

    async with quorumbook.connect("sqlite:///./data/metadata.db") as bk:
        async with bk.create_ledger() as ledger:
            entry_id = await ledger.append(b"...")
        async with bk.open_ledger(ledger.id) as reader:
            async for entry in reader.read():
                ...

``quorumbook.sync`` has the same names for programs without an event loop, ``quorumbook.errors``
every error, ``quorumbook.testing`` a cluster for tests.  What is named here is the public API;
it is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumbook.client.client import BookKeeper, connect
    from quorumbook.client.options import ClientOptions
    from quorumbook.client.reading.entries import Entry, EntryBatch
    from quorumbook.client.reading.reader import LedgerReader
    from quorumbook.client.writing.writer import LedgerWriter
    from quorumbook.env import TlsOptions
    from quorumbook.errors import QuorumbookError
    from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
    from quorumbook.ledger.placement.options import PlacementOptions
    from quorumbook.protocol.digest import DigestType

__version__ = "0.1.0"

__all__ = [
    "BookKeeper",
    "ClientOptions",
    "DigestType",
    "Entry",
    "EntryBatch",
    "Fragment",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "PlacementOptions",
    "QuorumbookError",
    "TlsOptions",
    "__version__",
    "connect",
]

_HOMES = {
    "BookKeeper": "quorumbook.client.client",
    "ClientOptions": "quorumbook.client.options",
    "DigestType": "quorumbook.protocol.digest",
    "Entry": "quorumbook.client.reading.entries",
    "EntryBatch": "quorumbook.client.reading.entries",
    "Fragment": "quorumbook.ledger.metadata",
    "LedgerMetadata": "quorumbook.ledger.metadata",
    "LedgerReader": "quorumbook.client.reading.reader",
    "LedgerState": "quorumbook.ledger.metadata",
    "LedgerWriter": "quorumbook.client.writing.writer",
    "PlacementOptions": "quorumbook.ledger.placement.options",
    "QuorumbookError": "quorumbook.errors",
    "TlsOptions": "quorumbook.env",
    "connect": "quorumbook.client.client",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'quorumbook' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
