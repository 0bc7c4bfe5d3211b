"""What a policy limits: how much a stream holds, how fast it is written, and who may do what."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.inside import pump_of, segment_nodes_of
from quorumbook.client.writing.pending import Watcher
from quorumbook.env import Complaint
from quorumbook.errors import (
    ConfigError,
    MetadataUnavailableError,
    NoSuchLedgerInMetadataError,
    NotEnoughBookiesError,
    QuorumbookError,
)
from quorumbook.streams import Namespace, Position, StreamPolicy
from quorumbook.streams.errors import AccessDeniedError, QuotaExceededError
from quorumbook.streams.stream_context import namespace_store
from quorumbook.streams.writing import pump
from quorumbook.streams.writing.limits import RateLimit
from quorumbook.streams.writing.pending import PackedRun
from quorumbook.testing import LocalCluster

_SECOND = 1_000_000_000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 10_000)), min_size=1, max_size=15))
def test_a_rate_is_kept_over_any_time_and_reached_by_who_waits(
    entries: list[tuple[int, int]],
) -> None:
    now_ns, limit = 0, RateLimit(1000, 50_000, 0)
    for records, size_bytes in entries:
        while wait_s := limit.wait_s(now_ns):
            now_ns += round(wait_s * _SECOND) + 1
        limit.take(records, size_bytes)
    records, size_bytes = (sum(part) for part in zip(*[(0, 0), *entries[:-1]], strict=True))
    needed_s = max(records / 1000, size_bytes / 50_000) - 0.1
    assert needed_s - 1e-6 <= now_ns / _SECOND
    # While one rate has it wait, the other's credit is full and lost.
    assert now_ns / _SECOND <= records / 1000 + size_bytes / 50_000 + 1e-5 * len(entries)


async def test_all_room_of_a_writer_is_there_again_when_everything_is_stored(
    ns: Namespace,
) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer(producer="p") as writer:
        window = pump_of(writer).window
        room = window.entries, window.size_bytes
        futures = [writer.append_nowait(b"x" * n, key=b"k" * (n % 3)) for n in range(50)]
        await writer.append_batch([b"x"] * 70)
        await writer.append(b"x" * 2_000_000)
        await asyncio.gather(*futures)
        assert (window.entries, window.size_bytes) == room


async def test_a_ledger_that_was_made_ahead_is_given_back(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=4))
    writer = await ns.stream("s").writer(batch_bytes=1)
    for _ in range(2):
        await writer.append(b"x")
    segments = pump_of(writer).segments
    async with asyncio.timeout(60):
        while segments._ahead is None:  # a ledger that was made ahead shows in no other way
            await asyncio.sleep(0.01)
    # A ledger that was made ahead shows in no other way.
    ledger_id = segments._ahead.id
    assert (await segments._nodes.read_state()).allocated == ledger_id
    await writer.close()
    # A ledger that was made ahead shows in no other way.
    assert (await segments._nodes.read_state()).allocated is None
    with pytest.raises(NoSuchLedgerInMetadataError):
        await ns.client.ledger_metadata(ledger_id)


async def test_a_writer_waits_for_metadata_so_long_and_then_says_what_is_wrong(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    monkeypatch.setattr(pump, "_PATIENCE_NS", 1)
    monkeypatch.setattr(pump, "_RETRY_S", 0.01)
    writer = await ns.stream("s").writer()
    tries = 0

    async def failing(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise MetadataUnavailableError("nobody answers")

    monkeypatch.setattr(segment_nodes_of(writer), "start_segment", failing)
    async with asyncio.timeout(60):
        with pytest.raises(MetadataUnavailableError, match="nobody answers"):
            await writer.append(b"x")
    assert tries == 2
    await writer.abort()


async def test_a_writer_above_the_rate_is_held_up_and_loses_nothing(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(max_records_per_s=200.0))
    stream = ns.stream("s")
    async with stream.writer(batch_bytes=100) as writer:
        began_ns = namespace_store(ns).env.clock.now_ns()
        await writer.append_batch([b"x" * 60] * 80)
        # 80 records at 200 a second, a tenth of a second of them at once.
        assert namespace_store(ns).env.clock.now_ns() - began_ns >= 0.25 * _SECOND
        assert (await writer.append(b"y")).sequence_id == 80
    async with stream.reader(tail=False) as reader:
        assert len([record async for record in reader]) == 81


async def test_what_is_on_its_way_is_bounded_and_sent_in_pieces(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "_IN_FLIGHT_BYTES", 300_000)
    monkeypatch.setattr(pump, "_TURN_BYTES", 60_000)
    await ns.create_stream("s")
    async with ns.stream("s").writer(batch_bytes=10_000) as writer:
        segments, state = pump_of(writer).segments, pump_of(writer).state
        append_all, sizes = segments.append_all, []

        def watched(entries: list[PackedRun], watcher: Watcher) -> None:
            sizes.append(sum(entry.size_bytes for entry in entries))
            assert state.in_flight_bytes < 310_100
            append_all(entries, watcher)

        segments.append_all = watched
        await writer.append_batch([b"x" * 1000] * 1000)
        assert max(sizes) < 70_100
        assert sum(sizes) > 1_000_000


@pytest.mark.parametrize("limit", [{"roll_entries": 10}, {"roll_bytes": 5000}])
async def test_entries_packed_together_end_where_a_segment_is_full(
    ns: Namespace, limit: dict[str, int]
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(**limit))
    stream = ns.stream("s")
    async with stream.writer(batch_bytes=1024) as writer:
        batch = await writer.append_batch([b"%01000d" % n for n in range(38)])
    counts = [segment.metadata.record_count for segment in await stream.segments()]
    # An entry has 1,071 bytes; the one that fills a segment is its last.
    assert counts == ([10, 10, 10, 8] if "roll_entries" in limit else [5] * 7 + [3])
    assert [each.position.entry for each in batch] == [n for count in counts for n in range(count)]
    async with stream.reader(tail=False) as reader:
        assert [int(record.payload) async for record in reader] == [*range(38)]


async def test_entries_packed_together_are_no_more_than_may_be_on_their_way(
    ns: Namespace,
) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer(batch_bytes=1024, max_in_flight_entries=7) as writer:
        segments, state = pump_of(writer).segments, pump_of(writer).state
        append_all, most = segments.append_all, 0

        def watched(runs: list[PackedRun], watcher: Watcher) -> None:
            nonlocal most
            most = max(most, len(runs[0].entries))
            assert state.in_flight <= 7
            append_all(runs, watcher)

        segments.append_all = watched
        await writer.append_batch([b"x" * 1000] * 100)
        assert most == 7


async def test_a_stream_takes_no_more_than_it_may_hold(ns: Namespace, other: Namespace) -> None:
    policy = StreamPolicy(max_total_bytes=3500, roll_entries=1)
    await ns.create_stream("s", policy=policy)
    stream = ns.stream("s")
    async with stream.writer() as writer:
        last = None
        with pytest.raises(QuotaExceededError, match="max_total_bytes"):
            for _ in range(5):
                last = await writer.append(bytes(1000))
        assert last is not None
        assert last.sequence_id == 2
        await stream.truncate(Position(last.position.segment, 0, 0))
        async with asyncio.timeout(60):
            while True:  # what went is noticed after a while
                try:
                    assert (await writer.append(bytes(1000))).sequence_id == 3
                    break
                except QuotaExceededError:
                    await asyncio.sleep(0.1)
    async with other.stream("s").writer() as writer:
        await writer.append(bytes(1000))
        with pytest.raises(QuotaExceededError):
            await writer.append(bytes(1000))


async def test_a_policy_denies_and_confines(ns: Namespace) -> None:
    await ns.set_policy(StreamPolicy(denied="truncate, delete"))
    await ns.create_stream("s", policy=StreamPolicy(bookie_labels="disk=ssd"))
    stream = ns.stream("s")
    with pytest.raises(AccessDeniedError):
        await stream.truncate(Position(1, 0, 0))
    with pytest.raises(AccessDeniedError):
        await ns.delete_stream("s")
    await stream.set_policy(StreamPolicy(denied="write"))
    with pytest.raises(AccessDeniedError):
        await stream.writer()
    await stream.set_policy(StreamPolicy(denied=""))
    await ns.delete_stream("s")
    with pytest.raises(ConfigError, match="denied"):
        StreamPolicy(denied="read")
    with pytest.raises(ConfigError, match="bookie_labels"):
        StreamPolicy(bookie_labels="ssd")


async def test_segments_lie_on_bookies_with_the_labels_of_the_policy(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(bookie_labels="disk=ssd"))
    writer = await ns.stream("s").writer()
    with pytest.raises(NotEnoughBookiesError, match="disk=ssd"):
        await pump_of(writer).segments.ensure(pump_of(writer).state)
    await writer.abort()


async def test_a_writer_that_waits_for_bookies_says_so_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0
    say = Complaint.say

    def counted(complaint: Complaint, text: str, now_ns: int) -> None:
        nonlocal tries
        tries += 1
        say(complaint, text, now_ns)

    monkeypatch.setattr(Complaint, "say", counted)
    monkeypatch.setattr(pump, "_RETRY_S", 0)
    async with LocalCluster(bookies=1) as cluster:
        async with Namespace.open(f"{cluster.metadata_uri}#/few", bind=True) as ns:
            await ns.create_stream("s")
            writer = await ns.stream("s").writer()
            waiting = writer.append_nowait(b"x")
            async with asyncio.timeout(60):
                while tries < 100:
                    await asyncio.sleep(0.01)
            await writer.abort()
            with pytest.raises(QuorumbookError):
                await waiting
    said = [line for line in caplog.messages if "trying again" in line]
    assert "stream s: an ensemble of 3 bookies is wanted" in said[0]
    assert len(said) < 10
