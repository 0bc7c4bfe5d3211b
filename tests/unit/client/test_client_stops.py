"""What the end of a writer or reader stops: changes, publications, forces, reads, timers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from doubles.inside import adds_of, append_state_of
from doubles.mock_bookie import PATIENCE_S, SILENCE, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.errors import ClientClosedError, ConnectionLostError, LedgerClosedError
from quorumbook.protocol.requests import BatchRead, ForceLedger, Read, ReadLAC, Request, WriteLAC
from quorumbook.protocol.status import Status


def on(kind: type[Request], behaviour: Any) -> Callable[[Request], Any]:
    return lambda request: behaviour if isinstance(request, kind) else None


def script(cluster: MockCluster, behave: Callable[[Request], Any]) -> None:
    for bookie in cluster.bookies:
        bookie.on_request = behave


def asked(cluster: MockCluster, kind: type[Request]) -> int:
    return sum(bookie.count(kind) for bookie in cluster.bookies)


async def never(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


async def changing(bk: BookKeeper, ledger: Any, cluster: MockCluster, patch: Any) -> None:
    """A change that nothing waits for, and that chooses a bookie for ever."""
    patch.setattr(client_context(bk).bookies, "replace", never)
    adds = adds_of(ledger)
    # That nothing is left shows in no other way.
    adds._fail_position(adds._positions[0], ConnectionLostError("gone"))
    append_state_of(ledger).retry_replacement()
    adds.act()
    assert append_state_of(ledger).is_changing


async def looking(bk: BookKeeper, ledger: Any, cluster: MockCluster, patch: Any) -> None:
    """A writer without enough bookies, which looks for others."""
    await cluster.members(ledger)[0].stop()
    await ledger.append(b"y")
    await until(lambda: ledger.is_degraded)


async def publishing_later(bk: BookKeeper, ledger: Any, cluster: MockCluster, patch: Any) -> None:
    """An idle writer, which tells the bookies in a while."""
    # That nothing is left shows in no other way.
    await until(lambda: adds_of(ledger)._lac._timer is not None)


async def publishing(bk: BookKeeper, ledger: Any, cluster: MockCluster, patch: Any) -> None:
    """A publication that no bookie answers."""
    script(cluster, on(WriteLAC, SILENCE))
    adds_of(ledger)._lac.begin()  # that nothing is left shows in no other way
    await until(lambda: asked(cluster, WriteLAC) == 3)


async def refused(bk: BookKeeper, ledger: Any, cluster: MockCluster, patch: Any) -> None:
    """A publication that every bookie refused, to be tried again."""
    script(cluster, on(WriteLAC, Status.IO_ERROR))
    # That nothing is left shows in no other way.
    adds_of(ledger)._lac.begin()
    await until(lambda: asked(cluster, WriteLAC) == 3 and adds_of(ledger)._lac._timer is not None)


STATES = [changing, looking, publishing_later, publishing, refused]


async def nothing_goes_on(bk: BookKeeper, ledger: Any, cluster: MockCluster) -> None:
    assert not adds_of(ledger).keeper._tasks  # that nothing is left shows in no other way
    await until(lambda: not client_context(bk).tasks)
    timer = adds_of(ledger)._lac._timer  # that nothing is left shows in no other way
    assert timer is None or timer.cancelled()
    await until(lambda: not client_context(bk).ticker.is_running)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", ["close", "abort"])
async def test_s88_a_writer_that_ended_has_nothing_under_way(
    way: str, state: Callable[..., Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(lac_delay_s=60.0, request_timeout_s=0.3) as bk,
    ):
        ledger = await bk.create_ledger()
        await ledger.append(b"x")
        await state(bk, ledger, cluster, monkeypatch)
        async with asyncio.timeout(PATIENCE_S):
            await (ledger.close() if way == "close" else ledger.abort())
        await nothing_goes_on(bk, ledger, cluster)


async def test_an_abort_ends_a_force_that_no_bookie_answers() -> None:
    async with mock_cluster() as cluster, cluster.connect(request_timeout_s=60.0) as bk:
        ledger = await bk.create_ledger(deferred_sync=True)
        await ledger.append(b"x")
        script(cluster, on(ForceLedger, SILENCE))
        forcing = asyncio.create_task(ledger.force())
        await until(lambda: asked(cluster, ForceLedger) == 3)
        await ledger.abort()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(LedgerClosedError, match="aborted"):
                await forcing
        assert ledger.last_add_confirmed == -1


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


READS: dict[str, tuple[type[Request], Callable[[Any], Awaitable[Any]]]] = {
    "a range": (BatchRead, lambda reader: all_of(reader.read())),
    "an entry": (BatchRead, lambda reader: reader.read_entry(0)),
    "a batch": (BatchRead, lambda reader: reader.read_batch(0)),
    "the last add confirmed": (ReadLAC, lambda reader: reader.read_last_add_confirmed()),
    "a try of it": (ReadLAC, lambda reader: reader.try_read_last_add_confirmed()),
    "news": (Read, lambda reader: all_of(reader.tail(1))),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize(
    ("way", "expected"), [("reader", LedgerClosedError), ("client", ClientClosedError)]
)
@pytest.mark.parametrize("striped", [False, True])
async def test_s88_a_reader_that_is_closed_ends_reads_that_no_bookie_answers(
    striped: bool, way: str, expected: type[Exception], name: str
) -> None:
    kind, read = READS[name]
    async with mock_cluster() as cluster:
        async with cluster.connect(
            read_timeout_s=60.0, request_timeout_s=60.0, speculative_read_s=0.2, lac_delay_s=0
        ) as bk:
            ledger = await bk.create_ledger(write_quorum_size=2 if striped else 3)
            await ledger.append(b"x")
            await ledger.flush()
            reader = await bk.open_ledger(ledger.id, recover=False)
            silent = Read if striped and kind is BatchRead else kind
            script(cluster, lambda request: SILENCE if isinstance(request, kind | silent) else None)
            before = asked(cluster, kind) + asked(cluster, silent)
            reading = asyncio.create_task(read(reader))
            await until(lambda: asked(cluster, kind) + asked(cluster, silent) > before)
            await (reader.close() if way == "reader" else bk.close())
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(expected):
                    await reading
            assert not reader._reads  # that nothing is left shows in no other way
            if way == "reader":
                await asyncio.sleep(0.1)  # what left before has arrived
                count = sum(len(bookie.requests) for bookie in cluster.bookies)
                await asyncio.sleep(0.3)  # longer than a bookie's silence is borne
                assert sum(len(bookie.requests) for bookie in cluster.bookies) == count
