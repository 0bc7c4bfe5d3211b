"""Writers that are cut off from a real ZooKeeper in the middle of a change, and overtaken.

What would be the same bytes of both is tried, and what a writer was told is held against what the
next reader finds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

import quorumbook
from doubles.inside import segment_nodes_of
from doubles.zookeeper import made_root
from doubles.zookeeper_cut import FATES, Cut, Uncut
from doubles.zookeeper_proxy import Mishap, Proxy
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.errors import LedgerClosedError, MetadataVersionConflict, QuorumbookError
from quorumbook.metadata import ids
from quorumbook.streams import Namespace
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.errors import LockLostError, WriterFencedError
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import Application, Place
from quorumbook.streams.transactions.grafting import graft
from quorumbook.streams.writing.takeover import StreamTail
from quorumbook.testing import LocalCluster
from quorumbook.zookeeper_server import ZooKeeperServer
from streams.soundness import assert_sound, read_payloads
from streams.transactions import application, write

NAMESPACE = "/messaging/test"
#: So many of a change are cut off in turn: those up to the step that decides, and some behind it.
WRITES = 9
CASES = pytest.mark.parametrize(
    ("mishap", "is_over"), FATES, ids=lambda value: getattr(value, "name", str(value))
)


class Rivals(NamedTuple):
    """A client that can be cut off, and another; and a namespace of each."""

    cut: Cut
    mine: BookKeeper
    theirs: BookKeeper
    ns: Namespace
    other: Namespace


@pytest.fixture
async def rivals(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Rivals]:
    # Ids taken ahead leave a change with fewer writes to cut, where the machine is quick.
    monkeypatch.setattr(ids, "_QUICK_STEPS", 1 << 30)
    root = await made_root(zookeeper)
    direct = f"zk://{zookeeper.address}/ledgers?chroot={root}"
    async with (
        LocalCluster(bookies=3, metadata_uri=direct),
        quorumbook.connect(direct) as theirs,
        Namespace.open(f"{direct}#{NAMESPACE}", bind=True) as other,
        Proxy(zookeeper.host, zookeeper.port) as proxy,
    ):
        behind = f"zk://127.0.0.1:{proxy.port}/ledgers?chroot={root}"
        async with (
            Namespace.open(f"{behind}#{NAMESPACE}", client_id="behind") as ns,
        ):
            yield Rivals(
                Cut(zookeeper, proxy, client_store(ns.client)), ns.client, theirs, ns, other
            )  # fmt: skip


@pytest.mark.parametrize("is_contended", [True, False], ids=["rival", "nobody"])
@CASES
async def test_an_unwritten_ledger_has_one_writer_whatever_is_lost(
    rivals: Rivals, mishap: Mishap, is_over: bool, is_contended: bool
) -> None:
    ledger_id = await rivals.theirs.create_unwritten_ledger()
    acknowledged: dict[int, bytes] = {}

    async def write(client: BookKeeper, payload: bytes) -> bool:
        try:
            ledger = await client.claim_unwritten_ledger(ledger_id)
        except LedgerClosedError:
            return False
        for _ in range(3):
            entry_id = await ledger.append(payload)
            assert acknowledged.setdefault(entry_id, payload) == payload
        await ledger.abort()
        return True

    async def rival() -> None:
        await write(rivals.theirs, b"theirs")

    is_mine = await rivals.cut.overtaken(
        lambda: write(rivals.mine, b"mine"), mishap, rival if is_contended else None,
        is_over=is_over,
    )  # fmt: skip
    # Whatever was lost: with nobody else it is ours, and so it is if it was before the rival's.
    assert is_mine is (not is_contended or mishap is Mishap.NOT_ANSWERED)
    async with rivals.theirs.open_ledger(ledger_id) as reader:
        last = reader.last_add_confirmed
        found = {each.entry_id: bytes(each.payload) async for each in reader.read(0, last)}
    assert found == acknowledged


@CASES
async def test_a_writer_overtaken_while_it_starts_a_segment_acknowledges_nothing_that_is_not_there(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch, mishap: Mishap, is_over: bool
) -> None:
    cut, stream = rivals.cut, rivals.other.stream("s")
    await rivals.ns.create_stream("s")
    writer = await rivals.ns.stream("s").writer(retention_interval_s=0)
    acknowledged = [b"first"]
    await writer.append(b"first")
    nodes = segment_nodes_of(writer)
    arm_at(monkeypatch, nodes, "start_segment", cut, mishap)

    async def roll_and_append() -> None:
        await writer.roll()
        for number in range(20):
            payload = b"mine %d" % number
            await writer.append(payload)
            acknowledged.append(payload)

    task = asyncio.ensure_future(told(roll_and_append()))
    await cut.happened()
    another = await stream.writer(takeover="force")
    await another.append(b"theirs")
    acknowledged.append(b"theirs")
    await cut.end(is_over=is_over)
    assert isinstance(await task, WriterFencedError | LockLostError)
    await another.append(b"more")
    acknowledged.append(b"more")
    await another.close()
    with contextlib.suppress(QuorumbookError):
        await writer.close()
    assert sorted(await read_payloads(stream)) == sorted(acknowledged)
    await assert_sound(stream)


@CASES
async def test_two_takeovers_have_two_epochs_whatever_is_lost(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch, mishap: Mishap, is_over: bool
) -> None:
    await rivals.ns.create_stream("s")
    mine, theirs = rivals.ns.stream("s"), rivals.other.stream("s")
    arm_at(monkeypatch, stream_context(mine).nodes, "fence_allocation", rivals.cut, mishap)
    task = asyncio.ensure_future(told(mine.writer(takeover="force")))
    await rivals.cut.happened()
    another = await theirs.writer(takeover="force")
    await rivals.cut.end(is_over=is_over)
    writer = await task
    acknowledged = []
    writers = {b"theirs": another}
    if not isinstance(writer, QuorumbookError):
        assert writer.epoch > another.epoch
        writers = {b"mine": writer, **writers}
    for payload, each in writers.items():
        with contextlib.suppress(WriterFencedError, LockLostError):
            await each.append(payload)
            acknowledged.append(payload)
        await each.abort()
    assert len(acknowledged) == 1 or (is_over and not acknowledged)
    async with theirs.writer(takeover="force") as last:
        await last.append(b"last")
    assert await read_payloads(theirs) == [*acknowledged, b"last"]
    await assert_sound(theirs)


@CASES
async def test_of_two_runs_that_commit_a_batch_one_has_whatever_is_lost(
    rivals: Rivals, mishap: Mishap, is_over: bool
) -> None:
    runs = {
        b"mine": await application(rivals.ns, run="r1"),
        b"theirs": await application(rivals.other, run="r2"),
    }
    for batch in range(WRITES):
        results = {
            who: [await write(run, batch, 0, {"": [who, b"%d" % batch]})]
            for who, run in runs.items()
        }
        committed: list[bytes] = []

        async def commit(
            who: bytes, batch: int = batch, results: Any = results, committed: Any = committed
        ) -> None:
            done = await runs[who].commit(batch, results[who])
            if not done.was_there:
                committed.append(who)

        found = await rivals.cut.overtaken(
            lambda commit=commit: commit(b"mine"), mishap,
            lambda commit=commit: told(commit(b"theirs")), is_over=is_over, skip=batch,
        )  # fmt: skip
        await told(commit(b"theirs"))
        assert len(committed) <= 1, (batch, found)
        rows = await rows_of(rivals.other, runs[b"theirs"], batch)
        assert rows in ([[who, b"%d" % batch] for who in committed or runs]), (batch, found)
        assert not isinstance(found, Uncut)
    await runs[b"theirs"].sweep()
    ledgers = {each.ledger_id async for each in runs[b"theirs"].ledgers()}
    assert len(ledgers) == WRITES


async def rows_of(ns: Namespace, run: Application, batch: int) -> list[bytes]:
    (ledger_id,) = [each.ledger_id async for each in run.ledgers() if each.batch == batch]
    async with ns.client.open_ledger(ledger_id) as reader:
        return [each.payload async for each in reader.read()]


@CASES
async def test_segments_that_two_merge_hold_their_records_once_whatever_is_lost(
    rivals: Rivals, mishap: Mishap, is_over: bool
) -> None:
    async def merge(ns: Namespace, name: str) -> None:
        work = Compaction(Place(ns.client, ns), stream_context(ns.stream(name)), keep_s=0)
        await work.run(await work.rules(target_bytes=1_000_000))

    for skip in range(WRITES):
        name, stream = f"s{skip}", rivals.other.stream(f"s{skip}")
        await rivals.other.create_stream(name)
        for number in range(3):
            async with stream.writer() as writer:
                await writer.append(b"%d" % number)
        found = await rivals.cut.overtaken(
            lambda name=name: merge(rivals.ns, name), mishap,
            lambda name=name: told(merge(rivals.other, name)), is_over=is_over, skip=skip,
        )  # fmt: skip
        await told(merge(rivals.other, name))
        assert await read_payloads(stream) == [b"0", b"1", b"2"], (skip, found)
        await assert_sound(stream)
        assert not isinstance(found, Uncut)


async def test_a_state_of_a_stream_that_was_deleted_and_made_again_changes_nothing_in_it(
    rivals: Rivals,
) -> None:
    """Its versions fit the new nodes, which are others."""
    await rivals.ns.create_stream("s")
    nodes, others = (stream_context(each.stream("s")).nodes for each in (rivals.ns, rivals.other))
    state = await nodes.fence_allocation(await nodes.read_state())
    segment = SegmentMetadata(number=1, ledger_id=5, first_txid=0)
    await nodes.start_segment(segment, state)
    old = await nodes.read_state()
    found = await nodes.segment(1, is_in_progress=True)
    assert found is not None
    await others.delete()
    await rivals.other.create_stream("s")
    state = await others.fence_allocation(await others.read_state())
    await others.start_segment(replace(segment, ledger_id=6), state)
    new = await others.read_state()
    tail = StreamTail(
        state=old, next_number=2, next_sequence_id=0, last_txid=-1, completed_at_ms=0, epoch=1,
        segment_count=1,
    )  # fmt: skip
    assert (old.allocation_version, old.max_segment_version) == (
        new.allocation_version, new.max_segment_version,
    )  # fmt: skip
    for change in (
        nodes.fence_allocation(old),
        nodes.set_allocation(7, old),
        nodes.start_segment(replace(segment, number=2), old),
        nodes.complete_segment(replace(segment, is_in_progress=False), found[1], old),
        nodes.drop_empty_segment(1, found[1], old),
        nodes.store.multi(graft(nodes.paths, [replace(segment, number=2)], tail)),
    ):
        with pytest.raises(MetadataVersionConflict, match="made again"):
            await change
    assert await others.read_state() == new
    assert [each.ledger_id for each in await others.segments()] == [6]


def arm_at(
    monkeypatch: pytest.MonkeyPatch, nodes: Any, name: str, cut: Cut, mishap: Mishap
) -> None:
    """Cut the client off at the first change of this name."""
    change = getattr(nodes, name)

    async def armed(*arguments: Any) -> Any:
        monkeypatch.setattr(nodes, name, change)
        cut.at_next_write(mishap)
        return await change(*arguments)

    monkeypatch.setattr(nodes, name, armed)


async def told(work: Any) -> Any:
    """Return the result, or the error."""
    try:
        return await work
    except QuorumbookError as error:
        return error
