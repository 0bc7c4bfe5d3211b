"""Segments as Parquet files: read through, restored byte by byte, removed with their segments."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

import pytest

pq = pytest.importorskip("pyarrow.parquet", reason="pip install 'quorumbook[spark]'")

from doubles.replicas import assert_fully_replicated, copies  # noqa: E402
from quorumbook.env import Env  # noqa: E402
from quorumbook.errors import (  # noqa: E402
    MetadataVersionConflict,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
)
from quorumbook.streams import Namespace, Position, Stream  # noqa: E402
from quorumbook.streams.errors import (  # noqa: E402
    CorruptRecordsError,
    DataLossError,
    FilesUnavailableError,
)
from quorumbook.streams.metadata.stream_nodes import StreamNodes  # noqa: E402
from quorumbook.streams.reading.segment_reader import open_segment  # noqa: E402
from quorumbook.streams.stream_context import namespace_store, stream_context  # noqa: E402
from quorumbook.streams.tier import moving, part_file  # noqa: E402
from quorumbook.streams.tier.manifest import Manifest, TierState  # noqa: E402
from quorumbook.streams.tier.moving import SegmentInTier  # noqa: E402
from quorumbook.streams.tier.nodes import TierNodes  # noqa: E402
from quorumbook.testing import LocalCluster  # noqa: E402

NAMESPACE = "/messaging/test"

PAYLOADS = [b"record %d " % number * (number % 7) for number in range(90)]


@pytest.fixture
async def ns(cluster: LocalCluster) -> AsyncIterator[Namespace]:
    """A namespace whose ledgers are read in small batches, so that files are cut small too."""
    address = f"{cluster.metadata_uri}#{NAMESPACE}"
    async with Namespace.open(address, bind=True, read_batch_bytes=500) as made:
        yield made


@pytest.fixture
def small_groups(monkeypatch):
    """Many row groups in small files."""
    monkeypatch.setattr(part_file, "ROW_GROUP_BYTES", 700)


async def written(ns: Namespace, segments: int = 3) -> Stream:
    """A stream of segments with 30 records, each in an entry of its own."""
    await ns.create_stream("a/s")
    stream = ns.stream("a/s")
    for number in range(segments):
        async with stream.writer() as writer:
            for payload in PAYLOADS[30 * number : 30 * number + 30]:
                await writer.append(payload)
    return stream


async def segments_of(stream: Stream) -> list[SegmentInTier]:
    return [
        SegmentInTier(context=stream_context(stream), metadata=each.metadata)
        for each in await stream.segments()
    ]


async def payloads(stream: Stream, start: Position | None = None) -> list[bytes]:
    async with stream.reader(*([start] if start else []), tail=False) as reader:
        return [record.payload async for record in reader]


def files_in(directory: object) -> list[str]:
    return sorted(
        os.path.join(path, name) for path, _, names in os.walk(str(directory)) for name in names
    )


async def gone_to_files(stream: Stream, directory: object) -> SegmentInTier:
    """The second segment's ledger deleted, its files live."""
    segment = (await segments_of(stream))[1]
    await moving.offload(segment, str(directory), part_bytes=500)
    assert await moving.delete_copy(segment, delay_s=0)
    return segment


async def test_an_offloaded_segment_reads_as_before_and_comes_back_byte_by_byte(
    ns: Namespace, tmp_path, small_groups
) -> None:
    stream = await written(ns)
    segment = (await segments_of(stream))[1]
    ledger_id = segment.metadata.ledger_id
    before = await copies(ns.client, ledger_id)
    metadata = await ns.client.ledger_metadata(ledger_id)
    manifest = await moving.offload(segment, str(tmp_path), part_bytes=500)
    assert manifest.state is TierState.LIVE
    assert len(manifest.parts) > 1
    assert not await moving.delete_copy(segment, delay_s=3600)
    assert await moving.delete_copy(segment, delay_s=0)
    with pytest.raises(NoSuchLedgerInMetadataError):
        await ns.client.ledger_metadata(ledger_id)
    assert await payloads(stream) == PAYLOADS
    # They are no other segment's that had its number before segments were merged.
    other = replace(segment.metadata, ledger_id=ledger_id + 1000)
    assert await open_segment(stream_context(stream), other, -1) is None
    # From a position in the middle of it, and by time or id: a point read of one row group.
    async with stream.reader(tail=False) as reader:
        positions = [record.position async for record in reader]
    for at in (35, 44, 59):
        assert await payloads(stream, positions[at]) == PAYLOADS[at:]

    # Anybody's Parquet reader understands it.
    table = pq.read_table(files_in(tmp_path))
    assert table.column("entry_id").to_pylist() == list(range(len(before)))
    assert set(table.column("ledger_id").to_pylist()) == {ledger_id}

    assert await moving.restore(segment) == len(before)
    assert files_in(tmp_path) == []
    assert await TierNodes(stream_context(stream).nodes).numbers() == []
    restored = await ns.client.ledger_metadata(ledger_id)
    assert (restored.last_entry_id, restored.length) == (metadata.last_entry_id, metadata.length)
    assert restored.custom_metadata == metadata.custom_metadata
    assert restored.ctime_ms == metadata.ctime_ms
    await assert_fully_replicated(ns.client, ledger_id)
    after = await copies(ns.client, ledger_id)
    assert {e: set(c.values()) for e, c in after.items()} == {
        e: set(c.values()) for e, c in before.items()
    }
    assert await payloads(stream) == PAYLOADS


async def test_of_files_no_more_is_read_than_is_asked_for(
    ns: Namespace, tmp_path, small_groups, monkeypatch
) -> None:
    stream = await written(ns)
    segment = await gone_to_files(stream, tmp_path)
    groups: list[int] = []
    read_run = part_file.PartFile.read_run

    def noted(file: part_file.PartFile, group: int, *how: object) -> object:
        groups.append(group)
        return read_run(file, group, *how)

    monkeypatch.setattr(part_file.PartFile, "read_run", noted)
    everything = await payloads(stream)
    assert everything == PAYLOADS
    per_segment = len(groups)
    assert per_segment > 3
    groups.clear()
    start = Position(segment.number, 12, 0)
    end = Position(segment.number, 13, 0)
    async with stream.reader(start, end=end, tail=False) as reader:
        found = [record.payload async for record in reader]
    assert found
    assert set(found) < set(PAYLOADS)
    assert len(groups) <= 2 < per_segment  # the one that has it, and that of the entry at the end


async def test_what_was_done_is_not_done_again(ns: Namespace, tmp_path) -> None:
    stream = await written(ns, 1)
    (segment,) = await segments_of(stream)
    first = await moving.offload(segment, str(tmp_path))
    files = files_in(tmp_path)
    assert await moving.offload(segment, str(tmp_path)) == first
    assert files_in(tmp_path) == files


async def test_an_interrupted_copy_is_begun_anew_and_leaves_nothing(
    ns: Namespace, tmp_path, monkeypatch
) -> None:
    stream = await written(ns, 1)
    (segment,) = await segments_of(stream)
    verify = moving.verify

    async def stop(*_: object) -> int:
        raise asyncio.CancelledError

    monkeypatch.setattr(moving, "verify", stop)
    with pytest.raises(asyncio.CancelledError):
        await moving.offload(segment, str(tmp_path))
    stored = await segment.nodes.read(segment.number)
    assert stored is not None
    assert stored.manifest.state is TierState.COPYING
    left = files_in(tmp_path)
    monkeypatch.setattr(moving, "verify", verify)
    manifest = await moving.offload(segment, str(tmp_path))
    assert manifest.state is TierState.LIVE
    assert not set(files_in(tmp_path)) & set(left)
    assert len(files_in(tmp_path)) == len(left)


async def test_of_two_that_copy_one_segment_the_first_fails_and_cleans_up(
    ns: Namespace, tmp_path, monkeypatch
) -> None:
    stream = await written(ns, 1)
    (segment,) = await segments_of(stream)
    verify = moving.verify
    others: list[object] = []

    async def overtaken(env: object, manifest: object) -> int:
        monkeypatch.setattr(moving, "verify", verify)
        others.append(await moving.offload(segment, str(tmp_path)))
        return 0

    monkeypatch.setattr(moving, "verify", overtaken)
    with pytest.raises(MetadataVersionConflict):
        await moving.offload(segment, str(tmp_path))
    (winner,) = others
    assert {os.path.dirname(path) for path in files_in(tmp_path)} == {winner.location}  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["value", "footer", "short"])
async def test_damaged_files_never_become_live_nor_let_the_ledger_go(
    ns: Namespace, tmp_path, place
) -> None:
    stream = await written(ns, 1)
    (segment,) = await segments_of(stream)

    def damage() -> None:
        (path,) = files_in(tmp_path)
        with open(path, "rb") as file:
            data = bytearray(file.read())
        values = pq.ParquetFile(path).metadata.row_group(0).column(5)
        if place == "short":
            del data[-20:]
        else:
            at = values.data_page_offset + values.total_compressed_size - 9
            data[at if place == "value" else len(data) - 6] ^= 1
        with open(path, "wb") as file:
            file.write(data)

    manifest = await moving.offload(segment, str(tmp_path))
    damage()
    with pytest.raises((CorruptRecordsError, FilesUnavailableError)):
        await moving.verify(segment.env, manifest)
    with pytest.raises((CorruptRecordsError, FilesUnavailableError)):
        await moving.delete_copy(segment, delay_s=0)
    assert (await ns.client.ledger_metadata(segment.metadata.ledger_id)).is_closed


async def test_what_reads_back_otherwise_than_it_was_written_does_not_become_live(
    ns: Namespace, tmp_path, monkeypatch, small_groups
) -> None:
    stream = await written(ns, 1)
    (segment,) = await segments_of(stream)
    verify = moving.verify

    async def of_damaged(env: Env, manifest: Manifest) -> int:
        (path,) = files_in(tmp_path)
        groups = pq.ParquetFile(path).metadata
        assert groups.num_row_groups > 2
        values = groups.row_group(groups.num_row_groups - 1).column(5)
        with open(path, "r+b") as file:
            file.seek(values.data_page_offset + values.total_compressed_size - 9)
            # One bit may be one that decompression does not look at.
            data = file.read(8)
            file.seek(-len(data), os.SEEK_CUR)
            file.write(bytes(byte ^ 0xFF for byte in data))
        return await verify(env, manifest)

    monkeypatch.setattr(moving, "verify", of_damaged)
    with pytest.raises(CorruptRecordsError):
        await moving.offload(segment, str(tmp_path))
    stored = await segment.nodes.read(segment.number)
    assert stored is not None
    assert stored.manifest.state is TierState.COPYING
    assert not await moving.delete_copy(segment, delay_s=0)
    assert await payloads(stream) == PAYLOADS[:30]


async def test_a_file_with_other_contents_under_right_checksums_is_found(
    ns: Namespace, tmp_path
) -> None:
    stream = await written(ns, 1)
    (segment,) = await segments_of(stream)
    manifest = await moving.offload(segment, str(tmp_path))
    (path,) = files_in(tmp_path)
    table = pq.read_table(path)
    facts = pq.ParquetFile(path).metadata.metadata
    values = table.column("value").to_pylist()
    values[3] = values[3][::-1] + b"?"
    index = table.schema.get_field_index("value")
    changed = table.set_column(index, table.schema.field("value"), [values])
    with pq.ParquetWriter(path, changed.schema, use_dictionary=False) as writer:
        writer.write_table(changed)
        writer.add_key_value_metadata(
            {k.decode(): v.decode() for k, v in facts.items() if k.startswith(b"quorumbook.")}
        )
    with pytest.raises(CorruptRecordsError, match="digest"):
        await moving.verify(segment.env, manifest)


async def test_a_restore_that_was_interrupted_is_read_from_files_until_it_is_whole(
    ns: Namespace, tmp_path, monkeypatch, small_groups
) -> None:
    stream = await written(ns)
    segment = await gone_to_files(stream, tmp_path)
    compare = moving._compare  # another answer at one step

    async def stop(*_: object) -> None:
        raise DataLossError("a bookie gives back other bytes")

    monkeypatch.setattr(moving, "_compare", stop)
    with pytest.raises(DataLossError):
        await moving.restore(segment)
    # The ledger stands, closed and half full: nobody may take it for whole, or recover it shorter.
    half = await ns.client.ledger_metadata(segment.metadata.ledger_id)
    assert half.is_closed
    assert await payloads(stream) == PAYLOADS
    monkeypatch.setattr(moving, "_compare", compare)
    await moving.restore(segment)
    assert await payloads(stream) == PAYLOADS
    await assert_fully_replicated(ns.client, segment.metadata.ledger_id)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("how", ["truncated", "stream deleted"])
async def test_files_go_with_their_segment(ns: Namespace, tmp_path, how) -> None:
    stream = await written(ns)
    await gone_to_files(stream, tmp_path)
    assert files_in(tmp_path)
    if how == "truncated":
        third = (await stream.segments())[2].metadata
        await stream.truncate(Position(third.number, 0, 0))
        await stream.enforce_retention()
        assert await payloads(stream) == PAYLOADS[60:]
    else:
        await ns.delete_stream("a/s")
    assert files_in(tmp_path) == []


async def test_missing_files_are_told_and_kept_in_mind(ns: Namespace, tmp_path) -> None:
    stream = await written(ns)
    await gone_to_files(stream, tmp_path)
    for path in files_in(tmp_path):
        os.rename(path, path + ".away")
    with pytest.raises((FilesUnavailableError, CorruptRecordsError)):
        await payloads(stream)
    for path in files_in(tmp_path):
        os.rename(path, path.removesuffix(".away"))
    assert await payloads(stream) == PAYLOADS


async def with_files_of_another(ns: Namespace, stream: Stream, directory: object) -> SegmentInTier:
    """The second segment, at which the list of the first one's files stands, and is live."""
    first, second, _ = await segments_of(stream)
    await moving.offload(first, str(directory), part_bytes=500)
    node = await namespace_store(ns).get(
        stream_context(stream).nodes.paths.segment_tier(first.number)
    )
    path = stream_context(stream).nodes.paths.segment_tier(second.number)
    await namespace_store(ns).create(path, node.data)
    return second


@pytest.mark.parametrize("step", ["offload", "delete_copy", "restore"])
async def test_files_of_another_ledger_move_and_delete_nothing(
    ns: Namespace, tmp_path, step
) -> None:
    stream = await written(ns)
    segment = await with_files_of_another(ns, stream, tmp_path)
    before, metadata = files_in(tmp_path), await ns.client.ledger_metadata(0)
    work = {
        "offload": lambda: moving.offload(segment, str(tmp_path)),
        "delete_copy": lambda: moving.delete_copy(segment, delay_s=0),
        "restore": lambda: moving.restore(segment),
    }
    with pytest.raises(CorruptRecordsError, match="files listed for it are those of ledger"):
        await work[step]()
    assert files_in(tmp_path) == before
    assert await ns.client.ledger_metadata(0) == metadata
    assert await payloads(stream) == PAYLOADS


async def test_files_of_another_ledger_are_not_read_for_a_ledger_that_is_gone(
    ns: Namespace, tmp_path
) -> None:
    stream = await written(ns)
    segment = await with_files_of_another(ns, stream, tmp_path)
    await ns.client.delete_ledger(segment.metadata.ledger_id)
    assert await open_segment(stream_context(stream), segment.metadata, -1) is None
    with pytest.raises(DataLossError):
        await payloads(stream)


@pytest.mark.parametrize("how", ["truncated", "stream deleted"])
async def test_files_of_another_segment_stay_when_their_stranger_goes(
    ns: Namespace, tmp_path, how
) -> None:
    stream = await written(ns)
    segment = await with_files_of_another(ns, stream, tmp_path)
    # The first one's list is lost; whoever mends that needs the files.
    await namespace_store(ns).delete(
        stream_context(stream).nodes.paths.segment_tier(segment.number - 1)
    )
    before = files_in(tmp_path)

    async def go(*, forget_files: bool) -> None:
        if how == "stream deleted":
            await ns.delete_stream("a/s", forget_files=forget_files)
            return
        await stream.truncate(Position(segment.number + 1, 0, 0))
        await stream.enforce_retention(forget_files=forget_files)

    with pytest.raises(FilesUnavailableError, match="never had files there"):
        await go(forget_files=False)
    await go(forget_files=True)
    assert files_in(tmp_path) == before


class PausingStore:
    """A metadata store that lets others work before one of the calls."""

    def __init__(self, store: Any, before: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._left = before
        self._meanwhile = meanwhile

    @property
    def was_paused(self) -> bool:
        return self._left < 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                await self._meanwhile()
            return await found(*arguments, **options)

        return call


async def deleted(segment: SegmentInTier) -> None:
    await moving.delete_copy(segment, delay_s=0)


async def deleted_up_to_the_ledger(segment: SegmentInTier) -> None:
    stored = await segment.stored()
    assert stored is not None
    marked = stored.manifest.turned(TierState.DELETED, segment.now_ms())
    await segment.nodes.write(segment.number, marked, stored.revision)


async def restored(segment: SegmentInTier) -> None:
    await moving.restore(segment)


async def restored_and_deleted(segment: SegmentInTier) -> None:
    """Files again in the end, but others; the directory is that of the old ones."""
    stored = await segment.stored()
    assert stored is not None
    await restored(segment)
    await moving.offload(segment, os.path.dirname(os.path.dirname(stored.manifest.location)))
    await deleted(segment)


@pytest.mark.parametrize("begun", [None, deleted_up_to_the_ledger, deleted])
@pytest.mark.parametrize(
    ("paused", "meanwhile"),
    [
        (deleted, restored),
        (deleted, restored_and_deleted),
        (restored, deleted),
        (restored, restored),
        (restored, restored_and_deleted),
    ],
)
async def test_a_copy_is_left_wherever_who_deletes_or_restores_pauses(
    ns: Namespace, tmp_path, begun, paused, meanwhile
) -> None:
    """Before each step, and by all that can be done in between."""
    for step in range(100):
        await ns.create_stream(f"s{step}")
        stream = ns.stream(f"s{step}")
        async with stream.writer() as writer:
            await writer.append_batch(PAYLOADS[:3])
        (segment,) = await segments_of(stream)
        await moving.offload(segment, str(tmp_path))
        if begun is not None:
            await begun(segment)
        store: Any = PausingStore(segment.context.store, step, partial(meanwhile, segment))
        nodes = StreamNodes(store, segment.context.nodes.paths)
        mine = replace(segment, context=replace(segment.context, store=store, nodes=nodes))
        with contextlib.suppress(QuorumbookError):
            await paused(mine)
        assert await payloads(stream) == PAYLOADS[:3]
        if not store.was_paused:
            assert step >= 3
            return
    raise AssertionError("it has no end")
