"""A client among failures that hit all of its surroundings at once."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from doubles.mock_bookie import PATIENCE_S, mock_cluster
from doubles.waiting import until
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.errors import QuorumbookError
from quorumbook.ledger.metadata import LedgerState
from quorumbook.testing import LocalCluster

pytestmark = pytest.mark.faults


class Hold:
    """Holds the metadata file as another process in the middle of a write does."""

    def __init__(self, uri: str) -> None:
        self._connection = sqlite3.connect(uri.removeprefix("sqlite:///"), isolation_level=None)

    def __enter__(self) -> Hold:
        self._connection.execute("BEGIN IMMEDIATE")
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


async def read_all(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    async with bk.open_ledger(ledger_id) as reader:
        return [entry.payload async for entry in reader.read()]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a held metadata file for a tenth of a second only."""
    for module in ("file", "thread"):
        monkeypatch.setattr(f"quorumbook.metadata.sqlite.{module}.BUSY_TIMEOUT_S", 0.1)


@pytest.mark.usefixtures("impatient")
async def test_r31_a_held_metadata_file_stops_no_add_and_delays_what_needs_it() -> None:
    """Beyond the session's lease, too: the writes after it are done in a new session."""
    async with (
        LocalCluster(bookies=4) as cluster,
        cluster.connect(session_timeout_s=0.5) as bk,
    ):
        ledger = await bk.create_ledger()
        other = await bk.create_ledger()
        await ledger.append(b"before")
        await other.append(b"before")
        session = client_store(bk).session_id
        victim = ledger.metadata.ensemble[0]
        with Hold(cluster.metadata_uri):
            for number in range(50):
                await ledger.append(b"%d" % number)
            closing = asyncio.create_task(other.close())
            await asyncio.sleep(1.0)  # longer than the lease of the client's session
            assert not closing.done()
            with pytest.raises(QuorumbookError) as caught:
                await bk.create_ledger()
            assert caught.value.retriable
        async with asyncio.timeout(PATIENCE_S):
            await closing
            assert (await bk.ledger_metadata(other.id)).state is LedgerState.CLOSED
            await cluster.stop(victim)
            while victim in ledger.metadata.ensemble:
                await ledger.append(b"with another ensemble")
            await ledger.close()
            assert client_store(bk).session_id != session
            assert len(await read_all(bk, ledger.id)) == ledger.last_add_confirmed + 1 > 51


async def test_all_bookies_killed_at_once_under_load_lose_nothing_acknowledged() -> None:
    async with (
        LocalCluster(bookies=3, processes=True) as cluster,
        cluster.connect() as bk,
    ):
        ledger = await bk.create_ledger()
        acknowledged: dict[int, bytes] = {}

        async def write(writer: int) -> None:
            for number in range(1_000_000):
                payload = b"%d of %d" % (number, writer)
                acknowledged[await ledger.append(payload)] = payload

        writers = [asyncio.create_task(write(number)) for number in range(50)]
        await until(lambda: len(acknowledged) > 2000)
        async with asyncio.timeout(3 * PATIENCE_S):
            await asyncio.gather(*(cluster.kill(bookie_id) for bookie_id in cluster.bookie_ids))
            outcomes = await asyncio.gather(*writers, return_exceptions=True)
            assert all(isinstance(outcome, QuorumbookError) for outcome in outcomes)
            await asyncio.gather(*(cluster.restart(b) for b in cluster.bookie_ids))
            with pytest.raises(QuorumbookError):
                await ledger.close()
            back = dict(enumerate(await read_all(bk, ledger.id)))
            assert {entry_id: back.get(entry_id) for entry_id in acknowledged} == acknowledged
            async with bk.create_ledger() as again:
                await again.append(b"the same client goes on")


async def test_a_bookie_that_comes_back_at_another_port_is_found_by_its_id() -> None:
    async with mock_cluster(3) as cluster, cluster.connect(lac_delay_s=0) as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append(b"zero")
            moved = cluster.members(ledger)[0]
            bookie_id, old_port = moved.bookie_id, moved.port
            await moved.stop()
            await cluster.unregister(bookie_id)
            async with asyncio.timeout(PATIENCE_S):
                while not ledger.is_degraded:
                    await ledger.append(b"without it")
            moved.port = 0
            await moved.start()
            assert moved.port != old_port
            moved.bookie_id = bookie_id
            await cluster.register(moved)
            await until(lambda: not ledger.is_degraded)
            last = await ledger.append(b"with it")
            await until(lambda: last in moved.entry_ids(ledger.id))
        assert (await read_all(bk, ledger.id))[-1] == b"with it"
