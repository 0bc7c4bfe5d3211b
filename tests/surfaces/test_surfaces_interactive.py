"""What people see who type: short representations, and a loop that runs already."""

from __future__ import annotations

import os
import subprocess
import sys

from quorumbook import Entry
from quorumbook.streams import Namespace, Position, Record


def test_an_entry_and_a_record_show_where_they_are_and_how_they_begin():
    assert repr(Entry(7, 3, b"hello", 9)) == "<Entry 3 of ledger 7, 5 bytes, b'hello'>"
    assert repr(Entry(7, 3, b"x" * 999, 999)).endswith(f"999 bytes, b'{'x' * 40}'…>")
    record = Record(Position(1, 2, 0), 5, 5, b"hello", None, 7)
    assert repr(record) == "<Record 5 at 1:2:0, 5 bytes, b'hello'>"


async def test_a_namespace_and_a_stream_show_their_names(cluster):
    async with Namespace.open(cluster.metadata_uri, bind=True) as ns:
        await ns.create_stream("shown", exist_ok=True)
        assert repr(ns) == "<Namespace /streams>"
        assert repr(ns.stream("shown")) == "<Stream shown>"


def test_python_m_asyncio_takes_await_and_the_blocking_twin(cluster):
    """Its loop runs while something is typed, as that of a notebook does."""
    typed = f"""
import quorumbook, quorumbook.sync
bk = await quorumbook.connect({cluster.metadata_uri!r})
ledger = await bk.create_ledger()
await ledger.append(b"typed")
ledger
await ledger.close()
twin = quorumbook.sync.connect({cluster.metadata_uri!r}).__enter__()
list(twin.open_ledger(ledger.id).__enter__().read())
twin.close()
await bk.close()
"""
    done = subprocess.run(
        [sys.executable, "-m", "asyncio"], input=typed, capture_output=True, text=True,
        check=False, timeout=60, env=os.environ | {"PYTHON_COLORS": "0"},
    )  # fmt: skip
    shown = done.stdout + done.stderr
    assert "open, confirmed 0>" in shown, shown
    assert "5 bytes, b'typed'>]" in shown, shown
    assert "Traceback" not in shown
