"""Entries with real digests, journals built by hand, and a visitor that remembers."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence

import pytest
from google_crc32c import value

from quorumbook.protocol.entry_run import EntryRun
from quorumbook.sim.disks.disk import SimFile
from quorumbook.storage.journal.format import boot_mark, closing_record, encode_header


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload", lac: int = -1) -> bytes:
    """Return an entry as a client with CRC-32C sends it."""
    head = struct.pack(">qqqq", ledger_id, entry_id, lac, len(payload))
    return head + struct.pack(">I", value(head + payload)) + payload


def run(ledger_id: int, first: int, payloads: Sequence[bytes]) -> EntryRun:
    """Return a run without holes."""
    bodies = [entry(ledger_id, first + i, payload) for i, payload in enumerate(payloads)]
    return EntryRun.of(ledger_id, first, bodies)


def lac_packet(ledger_id: int, lac: int) -> bytes:
    """Return an explicit last add confirmed as a client with CRC-32C sends it."""
    head = struct.pack(">qq", ledger_id, lac)
    return head + struct.pack(">I", value(head))


def journal_bytes(
    journal_id: int,
    groups: Sequence[Sequence[bytes]],
    *,
    zeros: int = 0,
    previous: tuple[int, int] = (-1, -1),
    is_start: bool = True,
    boot: str = "",
    salt: int = 0x5A17_0000_FEED_F00D,
) -> bytes:
    """Return a journal file with these groups of framed records."""
    data = bytearray(
        encode_header(
            journal_id,
            previous_id=previous[0],
            previous_end=previous[1],
            is_start=is_start,
            boot=boot_mark(boot),
            salt=salt,
        )
    )
    for group in groups:
        closing = closing_record(journal_id, len(data), group, salt)
        data += b"".join(group) + closing
    return bytes(data) + bytes(zeros)


Event = tuple[object, ...]


def in_journal_order(events: Sequence[Event], journal: Sequence[Event]) -> list[Event]:
    """Put what was handed over ledger by ledger back into the order of the journal.

    Each ledger's own order must be the journal's; what the journal does not have comes last.
    """
    places: dict[Event, deque[int]] = {}
    for place, event in enumerate(journal):
        places.setdefault(event, deque()).append(place)
    placed = [
        (places[event].popleft() if places.get(event) else len(journal), event) for event in events
    ]
    ordered = [event for _, event in sorted(placed, key=lambda item: item[0])]
    for ledger_id in {event[1] for event in events}:
        own = [event for event in events if event[1] == ledger_id]
        assert [event for event in ordered if event[1] == ledger_id] == own
    return ordered


class Recorder:
    """A journal visitor that flattens everything into a list."""

    def __init__(self) -> None:
        self.runs: list[EntryRun] = []
        self.events: list[tuple[object, ...]] = []

    def on_run(self, run: EntryRun) -> None:
        self.runs.append(run)
        for entry_id, body in run.entries():
            self.events.append(("entry", run.ledger_id, entry_id, body))

    def on_key(self, ledger_id: int, master_key: bytes) -> None:
        self.events.append(("key", ledger_id, master_key))

    def on_fence(self, ledger_id: int) -> None:
        self.events.append(("fence", ledger_id))

    def on_lac(self, ledger_id: int, packet: bytes) -> None:
        self.events.append(("lac", ledger_id, packet))


def noted_writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes | memoryview]:
    """Return a list of all buffers that are written to simulated files from now on."""
    written: list[bytes | memoryview] = []
    write = SimFile.write

    def noted(file: SimFile, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        written.extend(buffers)
        write(file, buffers, offset)

    monkeypatch.setattr(SimFile, "write", noted)
    return written
