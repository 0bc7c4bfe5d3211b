"""What processes of the torture write down: one line of JSON for each fact, a file a process.

A line is written by one call, so it is whole or not there, and what a process wrote survives its
SIGKILL.  Payloads say by themselves whose they are: 32 bytes of ledger, entry, writer and size,
then filler that follows from those, so that a reader names the writer of each entry it is given
and notices any other byte.

    made                    there is an unwritten ledger now
    created, claimed        the process was told that it alone made, or took, the ledger
    acked                   entries first to last are acknowledged to the writer of that number
    read                    entries first to last were read, written by that writer
    alien                   an entry was read that no writer made
    whole                   all of a closed ledger was read, from its first entry to ``last``
    lac                     a reader was told a last add confirmed, on the handle of that number
    closed                  the process was told the end of the ledger
    deleting                the ledger may be gone from here on
    failed                  an operation failed, for people to read
    stuck, limbo, hung      the harness found what must not be
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

Fact: TypeAlias = dict[str, Any]

_HEAD = struct.Struct(">8sqqii")
_MAGIC = b"torture!"
SMALLEST = _HEAD.size


def payload(ledger_id: int, entry_id: int, writer: int, size: int) -> bytes:
    """Return bytes that belong to this entry of this writer alone."""
    head = _HEAD.pack(_MAGIC, ledger_id, entry_id, writer, size)
    filler = hashlib.sha256(head).digest()
    return (head + filler * ((size - len(head)) // len(filler) + 1))[:size]


def writer_of(data: bytes, ledger_id: int, entry_id: int) -> int | None:
    """Return who wrote an entry; None if these are not the bytes of anybody's."""
    if len(data) < SMALLEST:
        return None
    _, _, _, writer, size = _HEAD.unpack_from(data)
    if size != len(data) or data != payload(ledger_id, entry_id, writer, size):
        return None
    return int(writer)


class Scribe:
    """Writes the facts of one process."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._file = os.open(
            directory / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )

    def note(self, what: str, **more: Any) -> None:
        """Write a fact down."""
        fact = {"what": what, "at": round(time.monotonic(), 4), **more}
        os.write(self._file, json.dumps(fact, separators=(",", ":")).encode() + b"\n")


def facts_of(path: Path) -> Iterator[Fact]:
    """Yield the facts of one process in its order, none before its first; ``by`` names it."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        yield {**json.loads(line), "by": path.stem}


def recorded(directory: Path) -> Iterator[Fact]:
    """Yield the facts of all processes, those of one in its order."""
    for path in sorted(directory.glob("*.jsonl")):
        yield from facts_of(path)
