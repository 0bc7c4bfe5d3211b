"""The blocking twin: the same names as ``quorumbook``, for programs without an event loop.

    with quorumbook.sync.connect("sqlite:///./data/metadata.db") as bk:
        with bk.create_ledger() as ledger:
            entry_id = ledger.append(b"...")           # returns when it is safe
            future = ledger.append_nowait(b"...")      # pipelined
        with bk.open_ledger(ledger.id) as reader:
            for entry in reader.read():
                ...

All clients of a process share one thread with an event loop; the asyncio client does the work
there.  Pipelined appends are queued and wake that thread once for a batch, not once for an entry;
everything may be called from any thread but the loop's own.  A child process made by ``fork`` has
no such thread: clients, and futures, made before the fork say so there, and it makes its own.
"""

from __future__ import annotations

from quorumbook.sync.client import BookKeeper, connect
from quorumbook.sync.futures import AppendBatchFuture, AppendFuture
from quorumbook.sync.reader import LedgerReader
from quorumbook.sync.writer import LedgerWriter

__all__ = [
    "AppendBatchFuture",
    "AppendFuture",
    "BookKeeper",
    "LedgerReader",
    "LedgerWriter",
    "connect",
]
