"""Writers that do not know: whether a change happened, that a session ended, who took over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from doubles.clusters import STORES, local_cluster
from doubles.inside import allocate_ahead, end_ledger_under, pump_of
from doubles.sessions import end_session_of
from quorumbook.client.context import client_store
from quorumbook.errors import MetadataUnavailableError, NotEnoughBookiesError
from quorumbook.metadata import nodes
from quorumbook.streams import Namespace
from quorumbook.streams.errors import WriterFencedError
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.writing import pump
from streams.soundness import assert_sound, read_payloads, unnamed_ledgers

PATIENCE_S = 60.0


cluster = local_cluster(STORES, scope="module")


class LosingStore:
    """Loses the answer to the n-th change of a store; the change itself happens, or does not."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch, *, is_done: bool) -> None:
        self.left = 0
        self.lost: list[object] = []
        #: What others do before it is tried again.
        self.while_away: Callable[[], Awaitable[None]] | None = None
        self._multi = store.multi
        self._is_done = is_done
        monkeypatch.setattr(store, "multi", self._lose)

    async def _lose(self, operations: Any) -> Any:
        self.left -= 1
        if self.left:
            return await self._multi(operations)
        self.lost.append(operations)
        if self._is_done:
            await self._multi(operations)
        if self.while_away is not None:
            await self.while_away()
        raise MetadataUnavailableError("nobody answers")


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No change waits for its answer: its writer tries again later, and does not know."""
    monkeypatch.setattr(nodes, "_PATIENCE_S", -1.0)
    monkeypatch.setattr(pump, "_RETRY_S", 0.001)


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
@pytest.mark.usefixtures("impatience")
async def test_a_writer_takes_no_change_of_its_own_for_anothers(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """Of all it makes: ledgers made ahead, segments begun, completed and dropped."""
    losing = LosingStore(client_store(ns.client), monkeypatch, is_done=is_done)
    payloads = [b"%d" % number for number in range(6)]
    for number in itertools.count(1):
        name = f"s-{is_done}-{number}"  # ledgers of the whole cluster are looked at by it
        losing.left = 0
        await ns.create_stream(name)
        async with ns.stream(name).writer(retention_interval_s=0) as writer:
            losing.left = number
            found = [await writer.append(payload) for payload in payloads[:2]]
            await writer.roll()
            found += [await writer.append(payload) for payload in payloads[2:4]]
            await other.stream(name).truncate(found[2].position)
            await writer.roll()
            # A segment that fails before anything is in it is dropped.
            with contextlib.suppress(MetadataUnavailableError):
                await pump_of(writer).segments.ensure(pump_of(writer).state)
            await pump_of(writer).segments.ensure(pump_of(writer).state)
            end_ledger_under(writer, NotEnoughBookiesError("all are gone"))
            found += [await writer.append(payload) for payload in payloads[4:]]
        assert [each.sequence_id for each in found] == list(range(6))
        assert await read_payloads(other.stream(name)) == payloads[2:]
        await assert_sound(other.stream(name))
        if not losing.lost:
            break
        losing.lost.clear()
        assert await unnamed_ledgers(other.stream(name)) == set()
    assert number > 8


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
@pytest.mark.usefixtures("impatience")
async def test_a_change_whose_answer_was_lost_hides_no_other_writer(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    await ns.create_stream("s")
    stream = other.stream("s")
    losing = LosingStore(client_store(ns.client), monkeypatch, is_done=is_done)
    writer = await ns.stream("s").writer(retention_interval_s=0)
    await writer.append(b"first")

    async def take_over() -> None:
        async with stream.writer(takeover="force") as another:
            await another.append(b"second")

    losing.left, losing.while_away = 1, take_over
    with pytest.raises(WriterFencedError):
        await writer.roll()
        await writer.append(b"late")
    with pytest.raises(WriterFencedError):
        await writer.close()
    assert losing.lost
    assert await read_payloads(stream) == [b"first", b"second"]
    await assert_sound(stream)


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
async def test_two_that_take_over_at_a_time_have_two_epochs(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    await ns.create_stream("s")
    losing = LosingStore(client_store(ns.client), monkeypatch, is_done=is_done)
    others = await other.stream("s").writer()

    async def take_over() -> None:
        nonlocal others
        await others.abort()
        others = await other.stream("s").writer(takeover="force")

    losing.left, losing.while_away = 1, take_over
    async with ns.stream("s").writer(takeover="force") as writer:
        # Its own change looks like the other's, which was made meanwhile.
        assert losing.lost
        assert writer.epoch > others.epoch
        await writer.append(b"mine")
        with pytest.raises(WriterFencedError):
            await others.append(b"late")
    await others.abort()


async def test_who_waits_for_the_lock_queues_up_again_in_another_session(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    mine, theirs = ns.stream("s"), other.stream("s")
    lock = stream_context(theirs).nodes.paths.lock

    async def write() -> int:
        async with mine.writer(wait_for_lock_s=PATIENCE_S) as writer:
            return (await writer.append(b"at last")).sequence_id

    async with asyncio.timeout(PATIENCE_S):
        async with theirs.writer():
            writing = asyncio.ensure_future(write())
            while len(await client_store(other.client).children(lock)) < 2:
                await asyncio.sleep(0.01)
            await end_session_of(client_store(ns.client))
        assert await writing == 0


async def test_who_was_pushed_out_and_makes_a_ledger_ahead_does_not_stop_the_next(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "made-ahead"  # ledgers of the whole cluster are looked at by it
    await ns.create_stream(name)
    old = await ns.stream(name).writer(retention_interval_s=0)
    await old.append(b"old")
    stream = other.stream(name)
    nodes = stream_context(stream).nodes
    read = nodes.read_state

    async def read_and_be_overtaken() -> Any:
        state = await read()
        monkeypatch.setattr(nodes, "read_state", read)
        await allocate_ahead(old)
        return state

    monkeypatch.setattr(nodes, "read_state", read_and_be_overtaken)
    async with stream.writer(takeover="force") as new:
        # It does not know yet, and nothing of what it does now is of any use.
        with pytest.raises(WriterFencedError):
            await allocate_ahead(old)
        assert (await new.append(b"new")).sequence_id == 1
        with pytest.raises(WriterFencedError):
            await old.append(b"late")
        await old.abort()
    assert await read_payloads(stream) == [b"old", b"new"]
    assert await unnamed_ledgers(stream) == set()
    await assert_sound(stream)


@pytest.mark.parametrize(
    ("end", "step"),
    [("close", "let_go"), ("abort", "publish_confirmed"), ("seal", "settled"), ("seal", "let_go")],
)
async def test_who_is_cancelled_while_it_ends_gives_the_stream_back(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, end: str, step: str
) -> None:
    """As under a limit on its time, while the store or a bookie does not answer."""
    await ns.create_stream("s")
    writer = await ns.stream("s").writer(retention_interval_s=0)
    owner: Any = pump_of(writer) if step == "settled" else pump_of(writer).segments
    work, begun, go_on = getattr(owner, step), asyncio.Event(), asyncio.Event()

    async def take_long() -> None:
        begun.set()
        await go_on.wait()
        await work()

    monkeypatch.setattr(owner, step, take_long)
    ending = asyncio.ensure_future(getattr(writer, end)())
    await begun.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    go_on.set()
    await writer.close()
    assert not writer._tenure._lock.is_held  # what is seen of it elsewhere may come later
    assert await stream_context(other.stream("s")).lock().owner() == ""
