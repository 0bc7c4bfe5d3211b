"""Streaming queries of a stream whose writer is within a record of several entries."""

from __future__ import annotations

import contextlib
import itertools
import os

import pytest
from spark_helpers import records, values

from doubles.inside import pump_of
from doubles.waiting import until
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    NoSuchEntryError,
    ReadFailedError,
)
from quorumbook.streams.errors import CorruptRecordsError

EARLIEST = {"startingOffsets": "earliest"}
_names = itertools.count()


@pytest.fixture
def name():
    return f"unfinished/{next(_names)}"


class Halfway:
    """A writer that is stopped within a record of several entries, two of which are there."""

    def __init__(self, streams, name):
        self.streams = streams
        self.writer = streams.writer(name)
        streams.append(self.writer, records(0))
        self.large = os.urandom(4_000_000)
        self._held = []
        streams.run(self._begin())

    async def _begin(self):
        pump = pump_of(self.writer)
        self._send, left = pump.segments.append_all, 2

        def send_two(runs, watcher):
            nonlocal left
            now, later = runs[:left], runs[left:]
            left -= len(now)
            if now:
                self._send(now, watcher)
            if later:
                self._held.append((later, watcher))

        pump.segments.append_all = send_two
        self._appended = self.writer.append_nowait(self.large)
        await until(lambda: self._held and pump.state.tail.confirmed_count == 3)
        await pump.segments.publish()

    def finish(self):
        self.streams.run(self._finish())

    async def _finish(self):
        pump_of(self.writer).segments.append_all = self._send
        for later, watcher in self._held:
            self._send(later, watcher)
        await self._appended
        await self.writer.append_batch(records(1))
        await self.writer.close()


def failing_once(monkeypatch, *errors):
    """Have the next reads of single entries fail."""
    read_entry, coming = LedgerReader.read_entry, list(errors)

    async def read(reader, entry_id):
        if coming:
            raise coming.pop(0)
        return await read_entry(reader, entry_id)

    monkeypatch.setattr(LedgerReader, "read_entry", read)
    return coming


def until_the_last(tailing, last):
    """Run batches until a row is there that follows all others."""
    while last not in values(tailing.rows):
        tailing.step()
    return values(tailing.rows)


AWAY = [
    ReadFailedError("away"), BookieUnavailableError("away"), OSError("away"),
    DigestMismatchError("one is damaged, others are away"), NoSuchEntryError("nobody has it"),
]  # fmt: skip


@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
def test_a_record_is_not_lost_when_its_last_entry_so_far_cannot_be_read_for_a_moment(
    query, streams, name, monkeypatch, error
):
    streams.write(name, records(9))
    tailing = query(f"stream:{name}", **EARLIEST)
    tailing.until(1)
    halfway = Halfway(streams, name)
    coming = failing_once(monkeypatch, error)
    with contextlib.suppress(type(error)):
        while coming:
            tailing.step()
    tailing.drain()
    halfway.finish()
    found = until_the_last(tailing, b"record 1")
    assert found == [b"record 9", b"record 0", halfway.large, b"record 1"]


def test_an_end_that_is_damaged_once_is_looked_at_again(query, streams, name, monkeypatch):
    halfway = Halfway(streams, name)
    failing_once(monkeypatch, CorruptRecordsError("damaged"))
    tailing = query(f"stream:{name}", maxEntriesPerTrigger=1, **EARLIEST)
    tailing.drain()
    halfway.finish()
    assert until_the_last(tailing, b"record 1") == [b"record 0", halfway.large, b"record 1"]


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (CorruptRecordsError("damaged"), {}),
        (DigestMismatchError("damaged"), {"onCorrupt": "skip"}),
        (NoSuchEntryError("nobody has it"), {"failOnDataLoss": "false"}),
    ],
)
def test_an_end_that_is_lost_for_good_does_not_hold_up_what_is_before_it(
    query, streams, name, monkeypatch, error, options
):
    streams.write(name, records(0), records(1))
    failing_once(monkeypatch, *[error] * 9)
    assert values(query(f"stream:{name}", **options, **EARLIEST).drain()) == records(0, 1)
