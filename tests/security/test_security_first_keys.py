"""A ledger takes the first key that a bookie hears of it: what strangers can make of that."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from security_harness import (
    KEY,
    PATIENCE_S,
    SOLO,
    RawConnection,
    add_frames,
    add_v3,
    secure_cluster,
)

from doubles.waiting import until
from quorumbook.client.context import client_context
from quorumbook.client.writing import creation
from quorumbook.errors import LedgerExistsError, UnauthorizedError
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.streams import Namespace, StreamPolicy


def _lac(ledger_id: int) -> bytes:
    packet = digester(DigestType.CRC32C, b"").lac_packet(ledger_id, 5)
    return v3.encode_write_lac(1, ledger_id, 5, KEY, packet)


#: Every request that makes a bookie know a ledger.
CLAIMS: dict[str, Any] = {
    "an add": lambda ledger_id: add_frames(ledger_id, 1),
    "an add in v3": lambda ledger_id: add_v3(1, ledger_id),
    "a fence": lambda ledger_id: v2.encode_read(ledger_id, 0, master_key=KEY),
    "a fence in v3": lambda ledger_id: v3.encode_read(1, ledger_id, 0, master_key=KEY),
    "a last add confirmed": _lac,
}


@pytest.mark.parametrize("claim", CLAIMS)
async def test_a_new_ledger_gets_an_id_of_which_no_bookie_knows_anything(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, claim: str
) -> None:
    monkeypatch.setattr(creation, "_CLAIM_EVERY_NS", 3600 * 10**9)
    async with secure_cluster(tmp_path, 3) as cluster, cluster.connect(lac_delay_s=0) as bk:
        stranger = await cluster.raw()
        first = await bk.create_ledger()  # it is some time until another one's key is due
        taken = range(1, 5)
        for ledger_id in taken:
            await stranger.ask(CLAIMS[claim](ledger_id))
        async with bk.create_ledger() as ledger:
            assert ledger.id not in taken
            assert await ledger.append(b"x") == 0
        assert [ledger_id async for ledger_id in bk.list_ledger_ids()] == [first.id, ledger.id]
        stranger.close()


async def test_a_reserved_id_that_somebody_guessed_is_refused_and_leaves_nothing(
    tmp_path: Any,
) -> None:
    async with secure_cluster(tmp_path, 3) as cluster, cluster.connect() as bk:
        stranger = await cluster.raw()
        guessed = await bk.reserve_ledger_id()
        await stranger.ask(add_frames(guessed, 1))
        with pytest.raises(LedgerExistsError, match="reserve another"):
            await bk.create_ledger(ledger_id=guessed)
        assert [ledger_id async for ledger_id in bk.list_ledger_ids()] == []
        # An id that nobody guessed is as good as a new one; and chosen, the taken one as ever.
        async with bk.create_ledger(ledger_id=await bk.reserve_ledger_id()) as ledger:
            assert await ledger.append(b"x") == 0
        await bk.create_ledger(ledger_id=guessed)
        stranger.close()


async def test_a_bookie_that_is_silent_about_a_new_id_or_its_key_is_not_waited_for(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever: Any = {"read_timeout_s": 3600, "speculative_read_s": 3600}
    async with secure_cluster(tmp_path, 3) as cluster, cluster.connect(**forever) as bk:
        asked: list[asyncio.Future[Any]] = []

        def silence(*_: Any) -> asyncio.Future[Any]:
            asked.append(asyncio.get_running_loop().create_future())
            return asked[-1]

        await bk.create_ledger()
        monkeypatch.setattr(creation, "_CLAIM_EVERY_NS", 0)
        bookies = client_context(bk).bookies
        for bookie in cluster.bookies:
            monkeypatch.setattr(bookies.fast(bookie.bookie_id), "read", silence)
            monkeypatch.setattr(bookies.control(bookie.bookie_id), "request", silence)
        async with asyncio.timeout(PATIENCE_S):
            await bk.create_ledger()
        assert len(asked) == 6
        assert all(each.cancelled() for each in asked)


async def test_ids_are_asked_about_only_where_strangers_can_use_them_and_we_chose_them(
    tmp_path: Any,
) -> None:
    golden = {"auth_plugin": "security_toys:GoldenBookie"}
    own: Any = {"auth_plugin": "security_toys:GoldenClient"}
    for changes, options, ledger_id, expected in (
        ({}, {}, None, 1),
        ({}, {}, 7, 0),
        (golden, own, None, 0),
    ):
        async with secure_cluster(tmp_path, **changes) as cluster:
            async with cluster.connect(**options) as bk:
                await bk.create_ledger(ledger_id=ledger_id, **SOLO)
                found = f'bookkeeper_server_READ_ENTRY_count{{success="false"}} {expected}.0'
                assert found in cluster.bookie.render_metrics().decode().splitlines()


#: When a stranger takes the id of a ledger that is being created.
_WHENS = ("before the look", "while the metadata is written", "after it", "before the first add")
#: What the client does: creates ledgers now and then, very many, or knows of strangers.
_CLIENTS = ("seldom", "in a burst", "warned")


@pytest.mark.parametrize("client", _CLIENTS)
@pytest.mark.parametrize("is_authenticated", [False, True], ids=["open", "authenticated"])
@pytest.mark.parametrize("count", [1, 3], ids=["one bookie", "all bookies"])
@pytest.mark.parametrize("when", _WHENS)
async def test_an_id_that_a_stranger_takes_at_any_moment(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, when: str, count: int,
    is_authenticated: bool, client: str,
) -> None:  # fmt: skip
    """No ledger is lost, but for one of a burst, and that is told."""
    plugins: Any = {"auth_plugin": "security_toys:GoldenBookie"} if is_authenticated else {}
    own: Any = {"auth_plugin": "security_toys:GoldenClient"} if is_authenticated else {}
    every_s = 3600 if client == "in a burst" else 0
    monkeypatch.setattr(creation, "_CLAIM_EVERY_NS", every_s * 10**9)
    monkeypatch.setattr(creation, "_CLAIM_S", PATIENCE_S)
    async with (
        secure_cluster(tmp_path, 3, **plugins) as cluster,
        cluster.connect(lac_delay_s=0, **own) as bk,
    ):
        strangers = await _strangers(cluster, count)
        taken: set[int] = set()

        async def take(ledger_id: int) -> None:
            if ledger_id in taken or len(taken) > 3:
                return
            taken.add(ledger_id)
            for stranger in strangers:
                await stranger.ask(add_frames(ledger_id, 1))

        create = LedgerManager.create

        async def watched(self: Any, metadata: Any) -> Any:
            if when == "while the metadata is written":
                await until(lambda: _looks(cluster) >= looks + 3 or is_authenticated)
                await take(metadata.ledger_id)
            made = await create(self, metadata)
            if when == "after it":
                await take(metadata.ledger_id)
            return made

        client_context(bk).has_met_strangers = client == "warned"
        if when == "before the look":
            for ledger_id in range(3):
                await take(ledger_id)
        monkeypatch.setattr(LedgerManager, "create", watched)
        lost = []
        for number in range(3):
            looks = _looks(cluster)
            ledger = await bk.create_ledger()
            if when == "before the first add":
                await take(ledger.id)
            try:
                assert await ledger.append(b"ours") == 0
            except UnauthorizedError:
                lost.append(number)
            assert not client_context(bk).bookies.quarantined
            with contextlib.suppress(UnauthorizedError):
                await ledger.close()
        is_unasked = client == "in a burst" and when == "before the first add"
        assert lost == ([1] if is_unasked and not is_authenticated else [])
        assert taken, "the stranger was there"
        for stranger in strangers:
            stranger.close()


async def _strangers(cluster: Any, count: int) -> list[RawConnection]:
    return [await RawConnection.connect(bookie.address[1]) for bookie in cluster.bookies[:count]]


async def test_an_unwritten_ledger_keeps_its_key_however_long_it_waits(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "_CLAIM_EVERY_NS", 3600 * 10**9)
    monkeypatch.setattr(creation, "_CLAIM_S", PATIENCE_S)
    async with secure_cluster(tmp_path) as cluster, cluster.connect() as bk:
        stranger = await cluster.raw()
        await bk.create_ledger(**SOLO)  # it is some time until another one's key is due
        ledger_id = await bk.create_unwritten_ledger(**SOLO)
        assert (await stranger.ask_v2(add_frames(ledger_id, 1))).code != 0
        async with bk.claim_unwritten_ledger(ledger_id) as ledger:
            assert await ledger.append(b"x") == 0
        stranger.close()


@pytest.mark.timeout(60)
async def test_a_stream_goes_on_beside_a_stranger_who_takes_all_ids_all_the_time(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment's ledger waits for its first entry until the one before it is full."""
    monkeypatch.setattr(creation, "_CLAIM_EVERY_NS", 3600 * 10**9)
    monkeypatch.setattr(creation, "_CLAIM_S", PATIENCE_S)
    async with secure_cluster(tmp_path, 3) as cluster, asyncio.timeout(PATIENCE_S):
        strangers = await _strangers(cluster, 3)
        async with Namespace.open(f"{cluster.uri}#/messaging/keys", bind=True) as ns:
            await ns.create_stream("s", policy=StreamPolicy(roll_entries=4))
            stream = ns.stream("s")
            async with stream.writer() as writer:
                for number in range(20):
                    await writer.append(b"%d" % number)
                    await writer.flush()
                    for stranger in strangers:
                        stranger.send(b"".join(add_frames(i, 1) for i in range(30)))
                        await stranger.add_codes(30)
            async with stream.writer() as writer:  # which recovers what the first one left
                await writer.append(b"20")
            async with stream.reader("earliest", tail=False) as reader:
                found = [record.payload async for record in reader]
        assert found == [b"%d" % number for number in range(21)]
        for stranger in strangers:
            stranger.close()


@pytest.mark.timeout(60)
async def test_a_stranger_who_comes_while_a_segments_ledger_waits_for_its_turn_comes_too_late(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "_CLAIM_EVERY_NS", 3600 * 10**9)
    monkeypatch.setattr(creation, "_CLAIM_S", PATIENCE_S)
    async with secure_cluster(tmp_path) as cluster, cluster.connect() as bk:
        stranger = await cluster.raw()
        policy = StreamPolicy(
            roll_entries=4, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
        )
        async with Namespace.open(f"{cluster.uri}#/messaging/keys", client=bk, bind=True) as ns:
            await ns.create_stream("s", policy=policy)
            async with ns.stream("s").writer() as writer:
                for number in range(12):
                    await writer.append(b"%d" % number)
                    await writer.flush()
                    ledgers = [ledger_id async for ledger_id in bk.list_ledger_ids()]
                    for ledger_id in ledgers:
                        assert (await stranger.ask_v2(add_frames(ledger_id, 1))).code != 0
        assert not client_context(bk).has_met_strangers
        stranger.close()


def _looks(cluster: Any) -> int:
    """Return how many reads found nothing: a look at a new id is one."""
    name = 'bookkeeper_server_READ_ENTRY_count{success="false"} '
    lines = [
        line for bookie in cluster.bookies for line in bookie.render_metrics().decode().splitlines()
    ]
    return sum(int(float(line.removeprefix(name))) for line in lines if line.startswith(name))


async def test_ids_that_nobody_created_are_given_up_only_so_often(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "_GIVEN_UP_MAX", 5)
    async with secure_cluster(tmp_path) as cluster, cluster.connect() as bk:
        stranger = await cluster.raw()
        for ledger_id in range(7):
            await stranger.ask(add_frames(ledger_id, 1))
        with pytest.raises(LedgerExistsError, match="bookies authenticate clients"):
            await bk.create_ledger(**SOLO)
        assert [ledger_id async for ledger_id in bk.list_ledger_ids()] == []
        async with bk.create_ledger(**SOLO) as ledger:
            assert ledger.id == 7
        stranger.close()


async def test_a_refused_key_shuts_no_bookie_out(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "_CLAIM_EVERY_NS", 3600 * 10**9)
    async with secure_cluster(tmp_path) as cluster, cluster.connect(lac_delay_s=0) as bk:
        await bk.create_ledger(**SOLO)  # it is some time until another one's key is due
        ledger = await bk.create_ledger(**SOLO)
        stranger = await cluster.raw()
        assert (await stranger.ask_v2(add_frames(ledger.id, 1))).code == 0
        with pytest.raises(UnauthorizedError):
            await ledger.append(b"x")
        assert not client_context(bk).bookies.quarantined
        async with bk.create_ledger(**SOLO) as other:
            assert await other.append(b"x") == 0
        stranger.close()


async def test_a_strangers_key_is_found_although_it_is_not_durable_yet(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then his bookie refuses another key, and denies that it knows the ledger."""
    monkeypatch.setattr(creation, "_CLAIM_S", PATIENCE_S)
    async with secure_cluster(tmp_path) as cluster, cluster.connect(lac_delay_s=0) as bk:
        stranger, storage = await cluster.raw(), cluster.bookie.storage
        fence, held = storage.fence, []
        monkeypatch.setattr(storage, "fence", lambda *what: held.append(what))
        stranger.send(CLAIMS["a fence"](0))
        await until(lambda: held)
        creating = asyncio.create_task(bk.create_ledger(**SOLO).__aenter__())
        await until(lambda: _looks(cluster) > 3)
        fence(*held[0])
        ledger = await creating
        assert ledger.id == 1
        assert await ledger.append(b"ours") == 0
        await ledger.close()
        stranger.close()


async def test_a_stranger_at_some_bookies_costs_their_places_and_nothing_else(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He knows the id and comes first at a member, and at a bookie that is to replace another."""
    monkeypatch.setattr(creation, "_CLAIM_EVERY_NS", 3600 * 10**9)
    async with secure_cluster(tmp_path, 5) as cluster, cluster.connect(lac_delay_s=0) as bk:
        await bk.create_ledger()  # it is some time until another one's key is due
        ledger = await bk.create_ledger()
        everybody = {each.bookie_id: each for each in cluster.bookies}
        member = ledger.metadata.ensemble[0]
        spare = sorted(everybody.keys() - set(ledger.metadata.ensemble))
        for taken in (member, spare[0]):
            stranger = await RawConnection.connect(everybody[taken].address[1])
            await stranger.ask(CLAIMS["a fence"](ledger.id))
            stranger.close()
        sent = 0
        async with asyncio.timeout(PATIENCE_S):
            while spare[1] not in ledger.metadata.ensemble:  # a change waits for the next entry
                sent += await ledger.append(b"%d" % sent) == sent
        assert member not in ledger.metadata.ensemble
        assert not client_context(bk).bookies.quarantined
        async with bk.open_ledger(ledger.id) as reader:  # which recovers it
            found = [int(entry.payload) async for entry in reader.read()]
        assert found == list(range(sent))
        await ledger.abort()


@pytest.mark.parametrize("claim", CLAIMS)
async def test_only_who_has_authenticated_makes_a_bookie_know_a_ledger(
    tmp_path: Any, claim: str
) -> None:
    async with secure_cluster(tmp_path, auth_plugin="security_toys:GoldenBookie") as cluster:
        stranger = await cluster.raw()
        answer = await stranger.ask(CLAIMS[claim](7))
        if "v3" in claim or "confirmed" in claim:
            assert v3.ResponseDecoder().feed(answer)[0].status is Status.UNAUTHORIZED
        assert cluster.bookie.storage.handle(7) is None
        stranger.close()
