"""Which bookies are chosen, connected to, avoided; and the connections themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import quorumbook
from doubles.mock_bookie import PATIENCE_S, SILENCE, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client.cluster import bookies
from quorumbook.client.context import client_context
from quorumbook.client.options import ClientOptions
from quorumbook.client.transport.ticker import Ticker
from quorumbook.env import Env
from quorumbook.errors import (
    ClientClosedError,
    ClusterNotInitializedError,
    ConfigError,
    ConnectFailedError,
    ConnectionLostError,
    LedgerClosedError,
    LedgerExistsError,
    LocalProtocolError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    RequestTimeoutError,
    UnauthorizedError,
)
from quorumbook.ledger.metadata import LedgerState
from quorumbook.protocol.requests import AddRun, BookieInfo, ForceLedger
from quorumbook.protocol.status import Status
from quorumbook.protocol.v3 import client as v3

# Choosing --------------------------------------------------------------------------------------


async def test_too_few_bookies_are_too_few() -> None:
    async with mock_cluster(2) as cluster, cluster.connect() as bk:
        with pytest.raises(NotEnoughBookiesError, match="3"):
            await bk.create_ledger()
        await cluster.add()
        async with asyncio.timeout(PATIENCE_S):
            while True:  # the registrations are watched
                try:
                    ledger = await bk.create_ledger()
                except NotEnoughBookiesError:
                    await asyncio.sleep(0.01)
                else:
                    break
        await ledger.close()


async def test_a_change_that_could_not_be_read_is_seen_by_who_only_waits(monkeypatch) -> None:
    monkeypatch.setattr(bookies, "_READ_AGAIN_S", 0.01)
    async with mock_cluster(1) as cluster, cluster.connect() as bk:
        await bk.bookies()
        seen = asyncio.Event()
        known = client_context(bk).bookies
        known.on_change(seen.set)
        read, failures = bk._registration.bookies, 0  # the store's failure is not to be had else

        async def away(*_: object) -> None:
            nonlocal failures
            failures += 1
            raise MetadataUnavailableError("away")

        # What it knows of bookies, and when it asks, shows in no other way.
        monkeypatch.setattr(bk._registration, "bookies", away)
        (fresh,) = await cluster.add()
        await until(lambda: failures > 1)
        assert not seen.is_set()
        # What it knows of bookies, and when it asks, shows in no other way.
        monkeypatch.setattr(bk._registration, "bookies", read)
        await until(seen.is_set)
        assert fresh.bookie_id in known.registered


async def test_a_read_only_bookie_gets_no_new_ledgers() -> None:
    async with mock_cluster(3) as cluster, cluster.connect() as bk:
        (extra,) = await cluster.add()
        await cluster.unregister(extra.bookie_id)
        await cluster.register(extra, read_only=True)
        writable, read_only = await bk.bookies()
        assert read_only == {extra.bookie_id}
        assert extra.bookie_id not in writable
        for _ in range(5):
            async with bk.create_ledger() as ledger:
                assert extra.bookie_id not in ledger.metadata.ensemble
        with pytest.raises(NotEnoughBookiesError, match=r"3 are writable; 1 are read-only, as a"):
            await bk.create_ledger(ensemble_size=4)


async def test_a_registered_but_dead_bookie_is_passed_over() -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        await cluster.bookies[0].stop()
        for _ in range(5):
            async with bk.create_ledger() as ledger:
                assert cluster.bookies[0].bookie_id not in ledger.metadata.ensemble
                await ledger.append(b"x")
        assert ledger.metadata.fragments[0].first_entry_id == 0
        with pytest.raises(NotEnoughBookiesError):
            await bk.create_ledger(ensemble_size=4)


async def test_s91_a_bookie_in_quarantine_is_not_chosen_unless_it_takes_it() -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        bad = cluster.bookies[0].bookie_id
        client_context(bk).bookies.report_failure(bad)
        assert client_context(bk).bookies.is_suspect(bad)
        for _ in range(8):
            async with bk.create_ledger() as ledger:
                assert bad not in ledger.metadata.ensemble
        async with bk.create_ledger(ensemble_size=4) as ledger:
            assert bad in ledger.metadata.ensemble


async def test_s91_a_quarantine_ends_with_time_or_with_a_connection_that_works() -> None:
    async with mock_cluster(3) as cluster, cluster.connect(quarantine_s=0.1) as bk:
        bookies = client_context(bk).bookies
        victim = cluster.bookies[0]
        bookies.report_failure(victim.bookie_id)
        await until(lambda: not bookies.quarantined)
    async with mock_cluster(3) as cluster, cluster.connect(quarantine_s=1000.0) as bk:
        bookies = client_context(bk).bookies
        victim = cluster.bookies[0]
        await victim.stop()
        with pytest.raises(ConnectFailedError):
            await bookies.fast(victim.bookie_id).connected()
        assert bookies.is_suspect(victim.bookie_id)
        await victim.start()
        await bookies.fast(victim.bookie_id).connected()
        assert not bookies.is_suspect(victim.bookie_id)
        # What it did wrong while connected is not forgiven that easily.
        bookies.report_failure(victim.bookie_id)
        victim.drop_connections()
        await until(lambda: not bookies.fast(victim.bookie_id).is_connected)
        await bookies.fast(victim.bookie_id).connected()
        assert bookies.is_suspect(victim.bookie_id)


async def test_s91_clients_do_not_all_come_back_at_the_same_time() -> None:
    async with mock_cluster(1) as cluster:
        bad = cluster.bookies[0].bookie_id
        ends = set()
        for _ in range(5):
            async with cluster.connect(quarantine_s=1000.0) as bk:
                bookies = client_context(bk).bookies
                # What it knows of bookies, and when it asks, shows in no other way.
                now_ns = bookies._env.clock.now_ns()
                bookies.report_failure(bad)
                # What it knows of bookies, and when it asks, shows in no other way.
                ends.add((bookies._quarantine[bad].until_ns - now_ns) // 1_000_000_000)
        assert len(ends) > 1
        assert all(749 <= seconds <= 1251 for seconds in ends)


@pytest.mark.parametrize("proof", ["forces", "registers"])
async def test_s91_a_quarantine_ends_early_when_the_bookie_is_provably_back(proof: str) -> None:
    async with (
        mock_cluster(4) as cluster,
        cluster.connect(quarantine_s=1000.0, add_timeout_s=0.1, lac_delay_s=0) as bk,
    ):
        bookies = client_context(bk).bookies
        ledger = await bk.create_ledger()
        await ledger.append(b"x")
        victim = cluster.members(ledger)[0]
        victim.on_request = lambda request: (
            SILENCE if isinstance(request, (AddRun, ForceLedger)) else None
        )
        while victim.bookie_id in ledger.metadata.ensemble:
            await ledger.append(b"x")
            await asyncio.sleep(0.01)
        assert bookies.is_suspect(victim.bookie_id)
        if proof == "registers":
            await cluster.unregister(victim.bookie_id)
            # What it knows of bookies, and when it asks, shows in no other way.
            await until(lambda: victim.bookie_id not in bookies._writable)
            assert bookies.is_suspect(victim.bookie_id)
            await cluster.register(victim)
        else:
            await until(lambda: victim.count(ForceLedger))  # not answered: nothing is proven
            assert bookies.is_suspect(victim.bookie_id)
            victim.on_request = None
        await until(lambda: not bookies.is_suspect(victim.bookie_id))
        await ledger.close()


# Connections -----------------------------------------------------------------------------------


async def test_a_lost_connection_fails_what_waits_and_the_next_request_connects_again() -> None:
    async with mock_cluster(1) as cluster, cluster.connect() as bk:
        bookie = cluster.bookies[0]
        channel = client_context(bk).bookies.control(bookie.bookie_id)
        bookie.on_request = lambda request: SILENCE
        waiting = [channel.request("something", v3.encode_bookie_info) for _ in range(5)]
        await until(lambda: bookie.count(BookieInfo) == 5)
        bookie.drop_connections()
        for future in waiting:
            with pytest.raises(ConnectionLostError):
                await future
        bookie.on_request = None
        response = await channel.request("something", v3.encode_bookie_info)
        assert (response.status, response.free_disk_bytes) == (Status.OK, 50)


async def test_a_request_that_is_not_answered_times_out() -> None:
    async with (
        mock_cluster(1) as cluster,
        cluster.connect(request_timeout_s=0.2, read_timeout_s=0.2) as bk,
    ):
        bookie = cluster.bookies[0]
        bookie.on_request = lambda request: SILENCE
        with pytest.raises(RequestTimeoutError, match=r"bookie info .*0\.2 s") as caught:
            await (
                client_context(bk)
                .bookies.control(bookie.bookie_id)
                .request("bookie info", v3.encode_bookie_info)
            )
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.bookie_id == bookie.bookie_id
        with pytest.raises(RequestTimeoutError):
            await client_context(bk).bookies.fast(bookie.bookie_id).batch_read(1, 0, 1, 100)
        # Nothing at all came over this connection: it is given up.
        await until(lambda: bookie.connection_count == 0)


async def test_an_answer_after_the_time_out_is_dropped() -> None:
    async with mock_cluster(1) as cluster, cluster.connect(request_timeout_s=0.1) as bk:
        bookie = cluster.bookies[0]
        channel = client_context(bk).bookies.control(bookie.bookie_id)
        await channel.request("something", v3.encode_bookie_info)
        bookie.on_request = lambda request: 0.4
        slow = channel.request("something", v3.encode_bookie_info)
        bookie_answers = asyncio.create_task(asyncio.sleep(0.5))
        with pytest.raises(RequestTimeoutError):
            await slow
        await bookie_answers
        bookie.on_request = None
        assert (await channel.request("something", v3.encode_bookie_info)).status is Status.OK


async def test_an_unknown_bookie_cannot_be_connected_to() -> None:
    async with mock_cluster(1) as cluster, cluster.connect() as bk:
        with pytest.raises(ConnectFailedError, match="nobody"):
            await client_context(bk).bookies.fast("nobody").connected()
        with pytest.raises(ConnectFailedError):
            await client_context(bk).bookies.control("nobody").request("x", v3.encode_bookie_info)


async def test_a_bookie_that_accepts_nothing_fails_after_the_time_out() -> None:
    class Hanging:
        async def connect(self, host, port, factory):
            await asyncio.get_running_loop().create_future()

        async def listen(self, host, port, factory):
            raise NotImplementedError

    async with mock_cluster(1) as cluster:
        env = Env(network=Hanging())  # type: ignore[arg-type]
        bk = cluster.connect(env=env, connect_timeout_s=0.1)
        async with bk:
            with pytest.raises(ConnectFailedError, match=r"0\.1 s"):
                await client_context(bk).bookies.fast(cluster.bookies[0].bookie_id).connected()


async def test_s89_a_callback_may_use_the_connection_that_brought_its_answer() -> None:
    async with mock_cluster(1) as cluster, cluster.connect(lac_delay_s=0) as bk:
        shape = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
        ledger = await bk.create_ledger(**shape)
        finished = asyncio.get_running_loop().create_future()

        def go_on(future: asyncio.Future[int]) -> None:
            if future.result() == 20:
                finished.set_result(None)
            else:
                ledger.append_nowait(b"x").add_done_callback(go_on)

        ledger.append_nowait(b"x").add_done_callback(go_on)
        async with asyncio.timeout(PATIENCE_S):
            await finished
        await ledger.close()


async def test_an_idle_client_has_no_timer_running() -> None:
    async with mock_cluster(3) as cluster, cluster.connect() as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append(b"x")
            await until(lambda: not client_context(bk).ticker.is_running)


async def test_a_ticker_asks_until_nobody_waits_and_begins_again() -> None:
    ticker = Ticker(Env(), 0.001)
    answers = iter([True, True, False, False])
    asked: list[int] = []

    def check(now_ns: int) -> bool:
        asked.append(now_ns)
        return next(answers)

    ticker.watch(check)
    ticker.watch(check)
    await until(lambda: not ticker.is_running)
    assert len(asked) == 3
    ticker.watch(check)
    await until(lambda: not ticker.is_running)
    assert len(asked) == 4
    ticker.close()
    ticker.watch(check)
    assert not ticker.is_running


# The door --------------------------------------------------------------------------------------


async def test_a_store_without_a_cluster_names_the_command() -> None:
    with pytest.raises(ClusterNotInitializedError, match="quorumbook cluster init"):
        await quorumbook.connect("memory://nobody-was-here")


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean read_timeout_s"):
        quorumbook.connect("memory://x", read_timeouts=1)
    for name in ("add_timeout_s", "max_pending_entries", "read_batch_bytes"):
        with pytest.raises(ConfigError, match=name):
            ClientOptions.of({name: 0})
    with pytest.raises(ConfigError, match=r"client\.lac_delay_s: -1 .*at least 0"):
        ClientOptions.of({"lac_delay_s": -1})
    assert ClientOptions.of({"lac_delay_s": 0}).lac_delay_s == 0


@pytest.mark.parametrize(
    ("sizes", "refused"),
    [
        ({"ack_quorum_size": 9}, "client.ack_quorum_size: 9 (ack_quorum_size=) is out of bounds"
         " (1 to client.write_quorum_size, which is 3)"),
        ({"ensemble_size": 2}, "client.write_quorum_size: 3 (write_quorum_size=) is out of bounds"
         " (1 to client.ensemble_size, which is 2)"),
        ({"ack_quorum_size": 0}, "client.ack_quorum_size: 0 (ack_quorum_size=) is out of bounds"
         " (1 to 1024)"),
        ({"ensemble_size": "x"}, "client.ensemble_size: 'x' (ensemble_size=) is not an integer"),
    ],
)  # fmt: skip
async def test_a_refused_size_is_named_with_its_bounds_and_source(
    sizes: dict[str, Any], refused: str
) -> None:
    async with mock_cluster(3) as cluster, cluster.connect() as bk:
        for create in (bk.create_ledger, bk.create_unwritten_ledger):
            with pytest.raises(ConfigError) as caught:
                await create(**sizes)
            assert str(caught.value) == refused


async def test_a_client_awaited_or_entered_is_started_once() -> None:
    async with mock_cluster(1) as cluster:
        bk = await cluster.connect()
        async with bk as same:
            assert same is bk
        await bk.close()
        with pytest.raises(ClientClosedError):
            await bk.create_ledger()
        with pytest.raises(ClientClosedError):
            await bk.start()
        with pytest.raises(LocalProtocolError, match="not started"):
            await cluster.connect().ledger_metadata(0)


async def test_ledgers_are_listed_by_state_and_custom_metadata() -> None:
    async with mock_cluster(3) as cluster, cluster.connect() as bk:
        ids = []
        for number in range(6):
            custom = {"team": b"red" if number % 2 else b"blue", "n": b"%d" % number}
            ledger = await bk.create_ledger(custom_metadata=custom)
            ids.append(ledger.id)
            if number < 4:
                await ledger.close()
        assert [m.ledger_id async for m in bk.list_ledgers()] == ids
        assert [i async for i in bk.list_ledger_ids()] == ids
        closed = bk.list_ledgers(state=LedgerState.CLOSED)
        assert [m.ledger_id async for m in closed] == ids[:4]
        red = bk.list_ledgers(custom_metadata={"team": b"red"})
        assert [m.ledger_id async for m in red] == ids[1::2]
        both = bk.list_ledgers(state=LedgerState.OPEN, custom_metadata={"team": b"red", "n": b"5"})
        assert [m.custom_metadata async for m in both] == [{"team": b"red", "n": b"5"}]
        await bk.delete_ledger(ids[0])
        assert [i async for i in bk.list_ledger_ids()] == ids[1:]


async def test_a_ledger_id_can_be_chosen_once() -> None:
    async with mock_cluster(3) as cluster, cluster.connect() as bk:
        async with bk.create_ledger(ledger_id=1234) as ledger:
            assert ledger.id == 1234
        with pytest.raises(LedgerExistsError):
            await bk.create_ledger(ledger_id=1234)
        # The generator goes round an id that somebody took by hand.
        async with bk.create_ledger() as first:
            taken = first.id + 1
        async with bk.create_ledger(ledger_id=taken):
            pass
        async with bk.create_ledger() as second:
            assert second.id not in (taken, first.id)


async def test_an_unwritten_ledger_is_claimed_by_one_writer_only() -> None:
    async with mock_cluster(3) as cluster:
        async with cluster.connect() as bk, cluster.connect() as other:
            ledger_id = await bk.create_unwritten_ledger(
                password=b"secret", custom_metadata={"a": b"b"}
            )
            with pytest.raises(UnauthorizedError):
                await bk.claim_unwritten_ledger(ledger_id)
            results = await asyncio.gather(
                *(
                    client.claim_unwritten_ledger(ledger_id, password=b"secret")
                    for client in (bk, other, bk, other)
                ),
                return_exceptions=True,
            )
            writers = [r for r in results if not isinstance(r, BaseException)]
            assert len(writers) == 1
            refused = [r for r in results if isinstance(r, BaseException)]
            assert all(isinstance(r, LedgerClosedError) for r in refused)
            async with writers[0] as ledger:
                assert await ledger.append(b"x") == 0
            metadata = await bk.ledger_metadata(ledger_id)
            assert metadata.is_closed
            assert metadata.custom_metadata == {"a": b"b"}
            with pytest.raises(LedgerClosedError):
                await bk.claim_unwritten_ledger(ledger_id, password=b"secret")
            abandoned = await bk.create_unwritten_ledger(custom_metadata={"a": b"b"})
            async with bk.open_ledger(abandoned) as reader:
                assert reader.is_closed
            assert (await bk.ledger_metadata(abandoned)).custom_metadata == {"a": b"b"}
            written = await bk.create_ledger()
            with pytest.raises(LedgerClosedError):
                await bk.claim_unwritten_ledger(written.id)
            await written.close()


def test_the_public_names_are_there_and_nothing_is_imported_before_it_is_used() -> None:
    import subprocess
    import sys

    for name in quorumbook.__all__:
        assert getattr(quorumbook, name) is not None
    with pytest.raises(AttributeError):
        _ = quorumbook.no_such_name  # type: ignore[attr-defined]
    assert set(quorumbook.__all__) <= set(dir(quorumbook))
    code = "import quorumbook, sys; print(any(m.startswith('asyncio') for m in sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


async def test_the_double_starts_empty() -> None:
    async with MockCluster() as cluster, cluster.connect() as bk:
        assert await bk.bookies() == (frozenset(), frozenset())
