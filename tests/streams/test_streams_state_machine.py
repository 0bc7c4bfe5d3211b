"""Replicated state machines: the same commands, the same states, whoever leads."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from quorumbook.client.context import client_store
from quorumbook.errors import LedgerClosedError, LocalProtocolError, MetadataUnavailableError
from quorumbook.metadata import nodes
from quorumbook.streams import Command, Namespace, StateMachine, StreamPolicy
from quorumbook.streams.errors import (
    ApplyError,
    DataLossError,
    PositionTruncatedError,
    RecordTooLargeError,
    WriterBusyError,
    WriterFencedError,
)
from quorumbook.streams.format.segment_text import Truncation
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.views import state_snapshots

PATIENCE_S = 60.0


class Accounts:
    """Money of people; ``name number`` adds to it, and nobody may be below zero."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.applied = 0

    def apply(self, command: Command) -> Any:
        name, _, number = command.payload.decode().partition(" ")
        assert command.sequence_id >= 0
        balance = self.balances.get(name, 0) + int(number)
        self.applied += 1
        if balance < 0:
            return "refused"
        self.balances[name] = balance
        return balance

    def snapshot(self) -> bytes:
        return json.dumps(self.balances).encode()

    def restore(self, data: bytes) -> None:
        self.balances = json.loads(data)


async def ledger_ids(ns: Namespace) -> set[int]:
    return {ledger_id async for ledger_id in ns.client.list_ledger_ids()}


async def test_replicas_apply_the_same_and_the_next_leader_goes_on(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    async with (
        asyncio.timeout(PATIENCE_S),
        StateMachine(ns.stream("s"), Accounts()) as first,
        StateMachine(other.stream("s"), Accounts()) as second,
    ):
        with pytest.raises(LocalProtocolError, match="does not lead"):
            await first.propose(b"ann 1")
        await first.lead()
        assert await first.propose(b"ann 5") == 5
        assert await first.propose(b"ann -7") == "refused"
        results = await asyncio.gather(*(first.propose(b"bob 1") for _ in range(100)))
        assert results == list(range(1, 101))
        assert first.position is not None
        await second.wait_for(first.position._replace(slot=first.position.slot - 1))
        assert second.state.balances == {"ann": 5, "bob": 100} == first.state.balances
        with pytest.raises(WriterBusyError):
            await second.lead()

        await second.lead(takeover="force")
        assert await second.propose(b"ann 1") == 6
        with pytest.raises(WriterFencedError):
            await first.propose(b"ann 1000")
        # It follows now, and has seen what the other one did.
        await first.wait_for(second.position._replace(slot=0))  # type: ignore[union-attr]
        await second.step_down()
        await first.refresh()
        assert not first.is_leading
        assert first.state.balances == {"ann": 6, "bob": 100}
        assert first.next_sequence_id == second.next_sequence_id == 103
        await first.lead()
        assert await first.propose(b"ann 1") == 7
        await second.refresh()


async def test_a_leader_waits_for_the_lock_and_follows_meanwhile(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    async with asyncio.timeout(PATIENCE_S), StateMachine(other.stream("s"), Accounts()) as standby:
        async with StateMachine(ns.stream("s"), Accounts()) as first:
            await first.lead()
            waiting = asyncio.ensure_future(standby.lead(wait_for_lock_s=None))
            await first.propose(b"ann 5")
            assert first.position is not None
            await standby.wait_for(first.position._replace(slot=0))
            assert not waiting.done()
        await waiting
        assert await standby.propose(b"ann 1") == 6


async def test_a_restart_is_snapshot_and_tail(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=4))
    before = await ledger_ids(ns)
    async with StateMachine(ns.stream("s"), Accounts()) as first:
        await first.lead()
        for number in range(10):
            await first.propose(b"ann %d" % number)
        assert await first.snapshot()
        assert not await first.snapshot()  # nothing came since
        await first.propose(b"bob 1")
        assert await first.snapshot()
        await first.propose(b"bob 1")
    cursor = await other.stream("s").cursor("snapshot")
    assert cursor.holds_retention
    async with StateMachine(other.stream("s"), Accounts()) as second:
        assert second.state.balances == {"ann": 45, "bob": 2}
        assert second.state.applied == 1
        assert second.next_sequence_id == 12
    # One snapshot is left, and it goes with the stream.
    segments = {each.metadata.ledger_id for each in await ns.stream("s").segments()}
    assert len(await ledger_ids(ns) - before - segments) == 1
    await ns.delete_stream("s")
    assert await ledger_ids(ns) == before


async def test_a_replica_that_is_behind_a_truncation_goes_on_from_a_snapshot(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    async with (
        asyncio.timeout(PATIENCE_S),
        StateMachine(other.stream("s"), Accounts()) as behind,
        StateMachine(ns.stream("s"), Accounts(), snapshot_every=5, truncates=True) as first,
    ):
        await behind._follower.pause()  # it is held up, or dies, at one step
        await first.lead()
        for _ in range(10):
            await first.propose(b"ann 1")
            # It is held up, or dies, at one step.
            while first._snapshotting is not None and not first._snapshotting.done():
                await asyncio.sleep(0.001)
        await first.propose(b"bob 1")
        await first.step_down()
        segments = await ns.stream("s").segments()
        assert segments[3].metadata.truncation is Truncation.TRUNCATED
        await behind.refresh()
        assert behind.state.balances == {"ann": 10, "bob": 1}
        assert behind.state.applied == 1
        assert behind.next_sequence_id == 11


async def test_a_snapshot_that_was_begun_and_not_ended_is_deleted_by_the_next(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    before = await ledger_ids(ns)
    async with StateMachine(ns.stream("s"), Accounts()) as machine:
        await machine.lead()
        for kept in 1, 2:
            await machine.propose(b"ann 1")
            with monkeypatch.context() as patch:
                patch.setattr(state_snapshots, "_ENTRY_BYTES", 0)  # it ends in the middle
                with pytest.raises(ValueError, match="zero"):
                    await machine.snapshot()
            segments = {each.metadata.ledger_id for each in await ns.stream("s").segments()}
            assert len(await ledger_ids(ns) - before - segments) == kept
            assert await machine.snapshot()
            assert len(await ledger_ids(ns) - before - segments) == 1
    async with StateMachine(ns.stream("s"), Accounts()) as machine:
        assert (machine.state.balances, machine.state.applied) == ({"ann": 2}, 0)


async def test_of_two_snapshots_at_the_same_time_one_is_left(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    before = await ledger_ids(ns)
    async with (
        StateMachine(ns.stream("s"), Accounts()) as first,
        StateMachine(other.stream("s"), Accounts()) as second,
    ):
        await first.lead()
        for number in range(4):
            await first.propose(b"ann 1")
            await first.step_down()
            await second.refresh()
            done = await asyncio.gather(first.snapshot(), second.snapshot())
            assert any(done) or number == 0
            await first.lead()
            # Whoever lost left nothing behind that the next one does not delete.
            assert await first.snapshot() or any(done)
    segments = {each.metadata.ledger_id for each in await ns.stream("s").segments()}
    assert len(await ledger_ids(ns) - before - segments) == 1
    async with StateMachine(other.stream("s"), Accounts()) as third:
        assert third.state.balances == {"ann": 4}
        assert third.state.applied == 0


async def test_a_snapshot_is_kept_that_the_next_one_saw_before_its_own_maker_did(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_RETRY_S", 0.0)
    await ns.create_stream("s")
    async with (
        StateMachine(ns.stream("s"), Accounts()) as first,
        StateMachine(other.stream("s"), Accounts()) as second,
    ):
        await first.lead()
        await first.propose(b"ann 1")
        assert await first.snapshot()
        await first.propose(b"ann 1")
        store, paths = client_store(ns.client), stream_context(ns.stream("s")).nodes.paths
        multi = store.multi
        moves = 0

        async def lose_the_last(operations: Any) -> Any:
            nonlocal moves
            answer = await multi(operations)
            moves += operations[0].path == paths.subscriber("snapshot")
            if moves < 2:
                return answer
            monkeypatch.setattr(store, "multi", multi)
            # The next one begins, and ends in the middle.
            await first.propose(b"bob 1")
            await second.refresh()
            with monkeypatch.context() as patch:
                patch.setattr(state_snapshots, "_ENTRY_BYTES", 0)
                with pytest.raises(ValueError, match="zero"):
                    await second.snapshot()
            raise MetadataUnavailableError("nobody answers")

        monkeypatch.setattr(store, "multi", lose_the_last)
        assert await first.snapshot()
        assert moves == 2
    async with StateMachine(other.stream("s"), Accounts()) as third:
        assert (third.state.balances, third.state.applied) == ({"ann": 2, "bob": 1}, 1)


async def test_a_state_that_lacks_commands_is_never_shown(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer:
        where = [await writer.append(b"ann 1") for _ in range(3)]
        await writer.flush()
        assert where[1].position is not None
        await stream.truncate(where[1].position)
        with pytest.raises(PositionTruncatedError, match="from sequence id 0 on were truncated"):
            await StateMachine(other.stream("s"), Accounts()).open()
    await stream.truncate(where[1].position.next_segment)
    # Nothing is left to be seen, but a leader must know what it leads.
    async with StateMachine(other.stream("s"), Accounts()) as machine:
        with pytest.raises(DataLossError, match="goes on at sequence id 3, and the state at 0"):
            await machine.lead()
        assert not machine.is_leading


async def test_a_state_that_raises_stops_its_replica(ns: Namespace) -> None:
    await ns.create_stream("s")
    async with StateMachine(ns.stream("s"), Accounts()) as machine:
        await machine.lead()
        assert await machine.propose(b"ann 1") == 1
        with pytest.raises(ApplyError, match="could not be applied"):
            await machine.propose(b"ann what")
        with pytest.raises(ApplyError):
            await machine.propose(b"ann 1")
        with pytest.raises(ApplyError):
            await machine.refresh()
    with pytest.raises(ApplyError):
        # Whoever leads next has seen it, if nobody else has.
        async with StateMachine(ns.stream("s"), Accounts()) as another:
            await another.lead()


async def test_a_leader_whose_writer_is_gone_follows_and_may_lead_again(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(max_record_bytes=1000))
    async with (
        asyncio.timeout(PATIENCE_S),
        StateMachine(ns.stream("s"), Accounts()) as first,
        StateMachine(other.stream("s"), Accounts()) as second,
    ):
        await first.lead()
        with pytest.raises(RecordTooLargeError):
            await first.propose(b"ann 1" + b" " * 1000)
        await first.propose(b"ann 1")
        # It is held up, or dies, at one step.
        assert first._writer is not None
        await first._writer.abort()
        with pytest.raises(LedgerClosedError):
            await first.propose(b"ann 1")
        await second.lead()
        assert await second.propose(b"ann 1") == 2
        assert second.position is not None
        await first.wait_for(second.position._replace(slot=0))
        assert not first.is_leading
        await second.step_down()
        await first.lead()
        assert await first.propose(b"ann 1") == 3


async def test_commands_may_be_larger_than_an_entry(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    async with (
        asyncio.timeout(PATIENCE_S),
        StateMachine(ns.stream("s"), Accounts()) as first,
        StateMachine(other.stream("s"), Accounts()) as second,
    ):
        await first.lead()
        assert await first.propose(b"ann 2" + b" " * 2_000_000) == 2
        assert await first.propose(b"ann 1") == 3
        await first.step_down()
        await second.lead()
        assert second.state.balances == {"ann": 3}
        assert await second.propose(b"ann 1" + b" " * 2_000_000) == 4
        await second.step_down()
        await second.snapshot()
        await first.lead()
        assert first.state.balances == {"ann": 4}


async def test_results_are_those_of_the_own_command_whoever_applies_first(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    async with (
        asyncio.timeout(PATIENCE_S),
        StateMachine(ns.stream("s"), Accounts()) as machine,
    ):
        await machine.lead(batch_bytes=1)
        for _ in range(5):
            proposals = [asyncio.ensure_future(machine.propose(b"ann 1")) for _ in range(50)]
            for _ in range(5):
                await machine.refresh()  # reads what is visible, while acknowledgements come
            assert await asyncio.gather(*proposals) == sorted(
                {proposal.result() for proposal in proposals}
            )
        assert machine.state.applied == 250
        assert machine._results == {}  # it is held up, or dies, at one step
        with pytest.raises(PositionTruncatedError):
            await machine._restore_newer()  # it is held up, or dies, at one step
