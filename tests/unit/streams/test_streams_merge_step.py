"""The step that puts a merged segment in the place of others, or changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quorumbook.errors import MetadataVersionConflict
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.store import Delete, MetadataStore, Operation
from quorumbook.metadata.uri import open_store
from quorumbook.streams.compaction import Compaction, Merge
from quorumbook.streams.format.names import StreamPaths
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.metadata.stream_nodes import StreamNodes
from quorumbook.streams.tier.manifest import Manifest, TierState
from quorumbook.streams.tier.nodes import TierNodes
from quorumbook.streams.transactions.state import AttemptName, AttemptRecord, Identity

_numbers = itertools.count()
WHO = Identity("compact-segments", "run")
NAME = AttemptName(4, 0, 0, "token")
MERGED_LEDGER = 100


class Stream:
    """A stream of four segments, of which the last two become one, without bookies."""

    def __init__(self, store: MetadataStore) -> None:
        self.nodes = StreamNodes(store, StreamPaths("/ns", "s"))
        context: Any = SimpleNamespace(nodes=self.nodes, store=store, name="s", client=None)
        place: Any = SimpleNamespace(store=store, client=None, path="/txns", attempt_ttl_s=1.0)
        self.work = Compaction(place, context, keep_s=1.0)
        self.segments = [
            SegmentMetadata(
                number=number, ledger_id=10 + number, first_txid=0, last_txid=0, record_count=5,
                last_entry=4, last_slot=0, start_sequence_id=5 * number - 5, is_in_progress=False,
                completed_at_ms=1,
            )
            for number in (1, 2, 3, 4)
        ]  # fmt: skip
        self.merge = Merge(self.segments[2:], self.segments[:2], 10)

    async def make(self) -> None:
        await self.nodes.create(b"")
        for segment in self.segments:
            path = self.nodes.paths.segment(segment.number, is_in_progress=False)
            await self.nodes.store.create(path, segment.encode().encode())
        await self.work._nodes.make()  # one step, without a merge around it
        record = AttemptRecord(query=WHO.query, run=WHO.run, ledgers=(MERGED_LEDGER,))
        # One step, without a merge around it.
        await self.work._nodes.record_attempt(NAME, record, is_new=True)

    async def step(self) -> None:
        # One step, without a merge around it.
        await self.work._swap(self.merge, self.merge.merged(MERGED_LEDGER, 9), NAME, WHO)

    async def state(self) -> Any:
        """Return everything that the step may change, files included."""
        own = self.work._nodes  # one step, without a merge around it
        tier = TierNodes(self.nodes)
        return (
            await self.nodes.segments(),
            [await tier.read(number) for number in await tier.numbers()],
            await own.attempts(),
            [(name, record.ledgers) for name, record, _ in await own.garbage()],
        )

    async def cut(self, number: int) -> None:
        segment = self.segments[number - 1]
        assert await self.nodes.replace_segment(segment, segment.truncated(Position(number, 1, 0)))

    async def begin_files(self, number: int) -> None:
        ledger = LedgerMetadata(
            ledger_id=self.segments[number - 1].ledger_id, ensemble_size=1, write_quorum_size=1,
            ack_quorum_size=1, fragments=(Fragment(0, ("b:1",)),),
        )  # fmt: skip
        manifest = Manifest(state=TierState.COPYING, token="t", location="/f", ledger=ledger)
        await TierNodes(self.nodes).write(number, manifest, None)


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    opened = await open_store(f"memory://merge-step-{next(_numbers)}", create=True)
    yield opened
    await opened.close()


@pytest.fixture
async def stream(store: MetadataStore) -> Stream:
    made = Stream(store)
    await made.make()
    return made


async def test_all_segments_change_at_once(stream: Stream) -> None:
    await stream.step()
    segments, _, attempts, garbage = await stream.state()
    assert [(s.number, s.ledger_id, s.start_sequence_id) for s in segments] == [
        (2, 11, 0), (3, 12, 5), (4, MERGED_LEDGER, 10),
    ]  # fmt: skip
    assert (attempts, garbage) == ([], [(str(NAME), (13, 14))])


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("change", [Stream.cut, Stream.begin_files])
@pytest.mark.parametrize("when", ["before it is looked at", "after that", "right before the step"])
async def test_nothing_changes_where_one_segment_has_changed_merged_or_moved(
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    change: Callable[[Stream, int], Awaitable[None]],
    when: str,
) -> None:
    left: list[Any] = []

    async def happen() -> None:
        await change(stream, number)
        left.append(await stream.state())

    numbers, multi = TierNodes.numbers, stream.nodes.store.multi

    async def looking(nodes: TierNodes) -> list[int]:
        monkeypatch.setattr(TierNodes, "numbers", numbers)
        found = await numbers(nodes)
        await happen()
        return found

    async def stepping(operations: list[Operation]) -> Any:
        # One step, without a merge around it.
        if operations[0] == Delete(f"{stream.work._nodes.attempts_path}/{NAME}"):
            await happen()
        return await multi(operations)

    if when == "before it is looked at":
        await happen()
    elif when == "after that":
        monkeypatch.setattr(TierNodes, "numbers", looking)
    else:
        monkeypatch.setattr(stream.nodes.store, "multi", stepping)
    with pytest.raises(MetadataVersionConflict):
        await stream.step()
    assert [await stream.state()] == left


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_files_are_begun_for_a_segment_as_it_is_and_for_no_other(
    stream: Stream, number: int
) -> None:
    await stream.step()
    before = await stream.state()
    # The first one's node is gone, the others' have other ledgers.
    with pytest.raises(MetadataVersionConflict):
        await stream.begin_files(number)
    assert await stream.state() == before


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_of_a_step_and_files_that_are_begun_at_the_same_moment_one_is_made(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    left: list[Any] = []
    multi = stream.nodes.store.multi

    async def overtaken(operations: list[Operation]) -> Any:
        monkeypatch.setattr(stream.nodes.store, "multi", multi)
        await stream.step()
        left.append(await stream.state())
        return await multi(operations)

    monkeypatch.setattr(stream.nodes.store, "multi", overtaken)
    with pytest.raises(MetadataVersionConflict):
        await stream.begin_files(number)
    assert [await stream.state()] == left


async def test_files_are_begun_once_and_also_where_old_writers_named_the_segment(
    stream: Stream,
) -> None:
    await stream.begin_files(2)
    with pytest.raises(MetadataVersionConflict, match="is there already"):
        await stream.begin_files(2)
    path = stream.nodes.paths.segment(3, is_in_progress=False)
    node = await stream.nodes.store.get(path)
    await stream.nodes.store.delete(path)
    with pytest.raises(MetadataVersionConflict, match="another one than it was"):
        await stream.begin_files(3)
    await stream.nodes.store.create(f"{stream.nodes.paths.segments}/logrecs_0_1_3_2_5", node.data)
    await stream.begin_files(3)
    assert await TierNodes(stream.nodes).numbers() == [2, 3]
