"""What type checkers accept: every factory with some of its keywords, and what it returns."""

from __future__ import annotations

from concurrent.futures import Future
from typing import assert_type

import quorumbook
import quorumbook.sync
import quorumbook.sync.streams
from quorumbook import BookKeeper, LedgerMetadata, LedgerReader, LedgerWriter
from quorumbook.streams import (
    Appended,
    AppendedBatch,
    Consumer,
    CursorReader,
    Namespace,
    PartitionedReader,
    PartitionedStream,
    PartitionedWriter,
    Position,
    ReportingReader,
    StreamReader,
    StreamWriter,
)


async def ledgers() -> None:
    async with quorumbook.connect("memory://good", add_timeout_s=1.5, sticky_reads=True) as bk:
        assert_type(bk, BookKeeper)
        writer = await bk.create_ledger(ensemble_size=1, lac_delay_s=0, max_pending_entries=10)
        assert_type(writer, LedgerWriter)
        assert_type(await writer.append_batch([b"a", b"b"]), range)
        assert_type(await bk.open_ledger(writer.id, recover=False), LedgerReader)
        async with bk.create_ledger(explicit_entry_ids=True) as explicit:
            assert_type(explicit, LedgerWriter)
        async with bk.claim_unwritten_ledger(7, password=b"p") as claimed:
            assert_type(claimed, LedgerWriter)
        async with bk.open_ledger(7) as reader:
            assert_type(reader, LedgerReader)


async def streams() -> None:
    async with Namespace.open("memory://good#/t") as opened:
        assert_type(opened, Namespace)
    namespace = await Namespace.open("memory://good#/s", bind=True, add_timeout_s=1)
    assert_type(namespace, Namespace)
    stream = namespace.stream("s")
    async with stream.writer(linger_s=0.01, takeover="force", producer="p") as writer:
        assert_type(writer, StreamWriter)
    async with stream.reader("earliest", tail=False, idle_warn_s=1) as reader:
        assert_type(reader, StreamReader)
    async with stream.reader(on_gap="report") as reporting:
        assert_type(reporting, ReportingReader)
    async with stream.reader(cursor="c", exclusive=True, on_truncated="skip") as by_cursor:
        assert_type(by_cursor, CursorReader)


async def partitions(orders: PartitionedStream) -> None:
    async with orders.writer(partitions=[0], batch_bytes=100) as writer:
        assert_type(writer, PartitionedWriter)
    async with orders.reader("latest", tail=False, read_ahead_bytes=1) as reader:
        assert_type(reader, PartitionedReader)
    async with orders.consumer("billing", max_deliveries=5, dead_letter="dead") as consumer:
        assert_type(consumer, Consumer)
    await orders.seal(takeover="force")


def blocking() -> None:
    with quorumbook.sync.connect("memory://good", add_timeout_s=1.5) as bk:
        bk.create_ledger(ack_quorum_size=1, max_pending_bytes=1000)
        with bk.create_ledger(password=b"p") as writer:
            assert_type(writer, quorumbook.sync.LedgerWriter)
            assert_type(writer.append_batch([b"a"]), range)
        assert_type(bk.open_ledger(7, recover=False), quorumbook.sync.LedgerReader)
        assert_type(bk.ledger_metadata(7), LedgerMetadata)
        assert_type(bk.metadata_uri, str)
        assert_type(next(bk.list_ledger_ids()), int)


def blocking_streams(namespace: quorumbook.sync.streams.Namespace) -> None:
    stream = namespace.stream("s")
    assert_type(stream, quorumbook.sync.streams.Stream)
    with stream.writer(producer="p") as writer:
        assert_type(writer.append(b"x", key=b"k"), Appended)
        assert_type(writer.append_nowait(b"x"), Future[Appended])
        assert_type(writer.append_batch([b"x"], atomic="set"), AppendedBatch)
    with stream.reader(tail=False) as reader:
        assert_type(reader, quorumbook.sync.streams.StreamReader)
    assert_type(stream.cursors(), list[quorumbook.sync.streams.Cursor])
    assert_type(stream.cursor("c").position, Position)
