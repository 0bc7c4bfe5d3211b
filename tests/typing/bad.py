"""What type checkers refuse: each line that ends with ``# refused`` is an error, no other is."""

from __future__ import annotations

import quorumbook
import quorumbook.sync
import quorumbook.sync.streams
from quorumbook import BookKeeper
from quorumbook.streams import ByteStream, Namespace, PartitionedStream, Stream


async def ledgers(bk: BookKeeper) -> None:
    quorumbook.connect("memory://bad", add_timout_s=1)  # refused
    quorumbook.connect("memory://bad", add_timeout_s="1")  # refused
    await bk.create_ledger(ensemble=3)  # refused
    await bk.create_ledger(ensemble_size="3")  # refused
    await bk.create_ledger(lac_delay_ms=3)  # refused
    await bk.create_ledger(connect_timeout_s=3)  # refused
    await bk.open_ledger(0, recovery=True)  # refused
    bk.open_ledger(0, digest="CRC32C")  # refused
    async with bk.open_ledger(0) as reader:
        await reader.read_entry("0")  # refused


async def streams(stream: Stream) -> None:
    await Namespace.open("memory://bad", readonly=True)  # refused
    stream.writer(linger_ms=5)  # refused
    stream.writer(takeover="always")  # refused
    stream.writer(batch_bytes="1M")  # refused
    stream.reader(tailing=False)  # refused
    stream.reader(on_gap="ignore")  # refused
    stream.reader(idle_warn_s="long")  # refused
    ByteStream(stream).writer(linger_ms=5)  # refused


async def partitions(orders: PartitionedStream) -> None:
    orders.writer(partition=[0])  # refused
    async with orders.writer() as writer:
        await writer.append(b"x", expected=1)  # refused
        writer.append_nowait(b"x", txid="1")  # refused
    orders.reader(tail="no")  # refused
    orders.consumer()  # refused
    orders.consumer("billing", max_delivery=5)  # refused
    orders.consumer("billing", auto_commit_s=None)  # refused


def blocking(bk: quorumbook.sync.BookKeeper) -> None:
    quorumbook.sync.connect("memory://bad", add_timout_s=1)  # refused
    bk.create_ledger(ensemble=3)  # refused
    bk.open_ledger(0, recovery=True)  # refused
    bk.ledger_metadata("0")  # refused
    bk.create_ledger().append("text")  # refused


def blocking_streams(stream: quorumbook.sync.streams.Stream) -> None:
    stream.writer(linger_ms=5)  # refused
    stream.writer().append(b"x", expected=1)  # refused
    stream.cursor(start="earliest")  # refused
