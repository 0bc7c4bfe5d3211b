"""Racks and labels, as a running client learns of them and heeds them."""

from __future__ import annotations

import asyncio
import sys
from typing import ClassVar

import pytest
from client_harness import payloads_at, refuse_adds

import quorumbook
from doubles.inside import adds_of
from doubles.mock_bookie import PATIENCE_S, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook import PlacementOptions
from quorumbook.client.cluster.racks import AskedRacks
from quorumbook.client.context import client_context
from quorumbook.env import Env
from quorumbook.errors import ConfigError, LocalProtocolError, NotEnoughBookiesError
from quorumbook.ledger.placement import own as own_placement
from quorumbook.ledger.placement.policy import Adherence
from quorumbook.metadata.bookies.racks import RackTable
from quorumbook.protocol.requests import BatchRead, BookieInfo, Read, ReadRun
from quorumbook.protocol.status import Status

SSD = {"tier": "ssd"}
SINGLE = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
PAIR = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}


async def stand(cluster: MockCluster, *locations: str) -> None:
    """Say where the bookies stand, in their order."""
    rows = {b.bookie_id: at for b, at in zip(cluster.bookies, locations, strict=True)}
    await RackTable(cluster.store).set(rows)


async def replaced(ledger, victim: str) -> None:
    """Append until a bookie is not a member any more."""
    async with asyncio.timeout(PATIENCE_S):
        while victim in ledger.metadata.ensemble:
            await ledger.append(b"x")
            await asyncio.sleep(0.005)


# Labels ----------------------------------------------------------------------------------------


async def test_a_ledger_is_stored_on_bookies_with_its_labels_and_says_so() -> None:
    async with mock_cluster(3) as cluster, cluster.connect() as bk:
        fast = {b.bookie_id for b in await cluster.add(3, tier="ssd", site="a")}
        for _ in range(5):
            async with bk.create_ledger(bookie_labels=SSD) as ledger:
                assert set(ledger.metadata.ensemble) <= fast
                assert ledger.metadata.custom_metadata == {
                    "quorumbook.placement.labels": b"tier=ssd"
                }
        async with bk.create_ledger(bookie_labels={}) as ledger:
            assert not ledger.metadata.custom_metadata


async def test_too_few_bookies_with_the_labels_are_told_before_anything_is_made() -> None:
    async with mock_cluster(3) as cluster, cluster.connect() as bk:
        (fast,) = await cluster.add(tier="ssd")
        with pytest.raises(
            NotEnoughBookiesError,
            match=r"3 bookies with the labels tier=ssd is wanted, 1 of 4 writable bookies carry "
            rf"them: {fast.bookie_id}",
        ):
            await bk.create_ledger(bookie_labels=SSD)
        assert [id_ async for id_ in bk.list_ledger_ids()] == []
        with pytest.raises(ConfigError, match="not a label"):
            await bk.create_ledger(bookie_labels={"tier": "a b"})


async def test_a_clients_labels_hold_for_all_its_ledgers_and_for_who_claims_one() -> None:
    async with mock_cluster(2) as cluster, cluster.connect(bookie_labels=SSD) as bk:
        fast = {b.bookie_id for b in await cluster.add(3, tier="ssd")}
        ledger_id = await bk.create_unwritten_ledger(**PAIR)
        async with bk.claim_unwritten_ledger(ledger_id) as ledger:
            assert set(ledger.metadata.ensemble) <= fast
            victim = cluster.members(ledger)[0]
            victim.on_request = refuse_adds(Status.IO_ERROR)
            await replaced(ledger, victim.bookie_id)
            assert set(ledger.metadata.ensemble) <= fast


async def test_a_failed_bookie_is_replaced_by_one_with_the_labels_or_waited_for() -> None:
    async with mock_cluster(3) as cluster, cluster.connect() as bk:
        await cluster.add(3, tier="ssd")
        ledger = await bk.create_ledger(bookie_labels=SSD)
        victim = cluster.members(ledger)[1]
        await victim.stop()
        # Three others are there and idle, none of them has the label: it goes on with two.
        for _ in range(20):
            await ledger.append(b"x")
        await until(lambda: adds_of(ledger).state.is_degraded)
        assert victim.bookie_id in ledger.metadata.ensemble
        (new,) = await cluster.add(tier="ssd")
        await replaced(ledger, victim.bookie_id)
        assert new.bookie_id in ledger.metadata.ensemble
        await ledger.close()


async def test_a_ledger_with_a_policy_of_its_own_is_spread_and_mended_by_it() -> None:
    async with mock_cluster(6) as cluster, cluster.connect() as bk:
        await stand(cluster, "/eu/1", "/eu/2", "/eu/3", "/us/1", "/us/2", "/us/3")
        eu = {bookie.bookie_id for bookie in cluster.bookies[:3]}
        own = {"policy": "region-aware", "regions": ["eu"], "min_regions": 0}
        for _ in range(4):
            custom = {own_placement.CUSTOM_KEY: own_placement.encode_options(own)}
            ledger = await bk.create_ledger(custom_metadata=custom, **PAIR)
            assert set(ledger.metadata.ensemble) <= eu
        victim = cluster.members(ledger)[0]
        victim.on_request = refuse_adds(Status.IO_ERROR)
        await replaced(ledger, victim.bookie_id)
        assert set(ledger.metadata.ensemble) == eu - {victim.bookie_id}
        # Whoever looks after it later has options of another kind, and heeds the ledger's.
        other_options = PlacementOptions(policy="local-bookie", local_bookie=victim.bookie_id)
        async with cluster.connect(placement=other_options) as worker:
            bookies = client_context(worker).bookies
            abroad = (cluster.bookies[3].bookie_id, cluster.bookies[4].bookie_id)
            judged = [await bookies.adherence(ledger.metadata, e) for e in (tuple(eu)[:2], abroad)]
            assert judged == [Adherence.SOFT, Adherence.FAIL]  # one region is less than could be
            mended = await bookies.repaired(ledger.metadata, abroad, ())
            assert mended is not None
            assert set(mended) <= eu
            async with worker.create_ledger(custom_metadata=custom, **PAIR) as another:
                assert set(another.metadata.ensemble) <= eu
        await ledger.close()


@pytest.mark.parametrize(
    "wrong",
    [b"{", b"[]", b'{"policy":"nearest"}', b'{"policy":"local-bookie"}', b'{"min_racks":-1}',
     b'{"min_racks":true}', b'{"local_location":"/a"}', b'{"min_zones":5,"desired_zones":2}'],
)  # fmt: skip
async def test_a_policy_that_cannot_be_understood_chooses_nobody(wrong: bytes) -> None:
    async with mock_cluster(3) as cluster, cluster.connect() as bk:
        with pytest.raises(ConfigError):
            await bk.create_ledger(custom_metadata={own_placement.CUSTOM_KEY: wrong})
        assert [id_ async for id_ in bk.list_ledger_ids()] == []


async def test_the_recovery_of_a_ledger_stays_with_its_labels() -> None:
    async with mock_cluster(3) as cluster:
        fast = {b.bookie_id for b in await cluster.add(4, tier="ssd")}
        writer = await cluster.connect()
        ledger = await writer.create_ledger(bookie_labels=SSD)
        await ledger.append(b"one")
        first, second, _ = cluster.members(ledger)
        (spare,) = fast - set(ledger.metadata.ensemble)
        await writer.close()
        # What is found is written back, and these two do not take it.
        for bookie in (first, second):
            bookie.on_request = lambda request: (
                Status.IO_ERROR if getattr(request, "is_recovery", False) else None
            )
        async with cluster.connect() as bk, await bk.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"one"]
            assert set(reader.metadata.ensemble) <= fast
            assert spare in reader.metadata.ensemble


async def test_labels_that_a_bookie_carries_anew_are_seen() -> None:
    async with mock_cluster(1) as cluster, cluster.connect() as bk:
        with pytest.raises(NotEnoughBookiesError):
            await bk.create_ledger(**SINGLE, bookie_labels=SSD)
        (bookie,) = cluster.bookies
        bookie.labels = SSD
        await cluster.unregister(bookie.bookie_id)
        await cluster.register(bookie)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    async with bk.create_ledger(**SINGLE, bookie_labels=SSD):
                        break
                except NotEnoughBookiesError:
                    await asyncio.sleep(0.005)


async def test_whoever_replaces_bookies_elsewhere_asks_in_the_same_way() -> None:
    """What auto-recovery asks: who comes into a place, and does an ensemble keep to its rules."""
    async with mock_cluster(2) as cluster, cluster.connect() as bk:
        fast = await cluster.add(4, tier="ssd")
        names = [b.bookie_id for b in fast]
        await stand(cluster, "/r1", "/r2", "/r1", "/r1", "/r2", "/r2")
        ledger = await bk.create_ledger(bookie_labels=SSD)
        metadata, bookies = ledger.metadata, client_context(bk).bookies
        assert await bookies.adherence(metadata, metadata.ensemble) is Adherence.STRICT
        assert await bookies.repaired(metadata, metadata.ensemble, ()) is None
        slow = cluster.bookies[0].bookie_id
        assert await bookies.adherence(metadata, [slow, *names[:2]]) is Adherence.FAIL
        mended = await bookies.repaired(metadata, (slow, names[0], names[2]), ())
        assert mended is not None
        assert mended[0] in (names[1], names[3])
        assert mended[1:] == (names[0], names[2])
        one_rack = names[0], names[1]
        found = await bookies.replace(
            {2: names[2]}, metadata, (*one_rack, names[2]), excluded={names[2]}
        )
        assert found == {2: names[3]}
        await ledger.close()


# Machines that bookies share -------------------------------------------------------------------


async def test_no_entry_is_on_two_bookies_of_one_machine() -> None:
    async with mock_cluster(0) as cluster, cluster.connect() as bk:
        both = {b.bookie_id for b in await cluster.add(2, machine="m1")}
        others = [b.bookie_id for b in await cluster.add(1, machine="m2") + await cluster.add(1)]
        for _ in range(8):
            async with bk.create_ledger() as ledger:
                assert len(both & set(ledger.metadata.ensemble)) == 1
        four = {"ensemble_size": 4, "write_quorum_size": 4, "ack_quorum_size": 2}
        with pytest.raises(NotEnoughBookiesError, match="no two replicas of an entry on one mach"):
            await bk.create_ledger(**four)
        # A failed one's neighbour takes its place, and nobody else can.
        ledger = await bk.create_ledger()
        (victim,) = both & set(ledger.metadata.ensemble)
        cluster.by_id(victim).on_request = refuse_adds(Status.IO_ERROR)
        await replaced(ledger, victim)
        assert both - {victim} <= set(ledger.metadata.ensemble)
        assert set(others) <= set(ledger.metadata.ensemble)
        await ledger.close()


async def test_a_bookie_that_was_never_there_shares_the_machine_that_its_id_names() -> None:
    options = PlacementOptions(policy="random")
    async with mock_cluster(0) as cluster, cluster.connect(placement=options) as bk:
        (there,) = await cluster.add(machine="127.0.0.1")
        await cluster.add(2)
        ledger = await bk.create_ledger()
        bookies = client_context(bk).bookies
        gone = "127.0.0.1:1"
        third = next(b for b in ledger.metadata.ensemble if b != there.bookie_id)
        judged = await bookies.adherence(ledger.metadata, (there.bookie_id, gone, third))
        assert judged is Adherence.FAIL
        apart = await bookies.adherence(ledger.metadata, (there.bookie_id, "elsewhere:1", third))
        assert apart is Adherence.STRICT
        await ledger.close()


# Where bookies stand ---------------------------------------------------------------------------


async def test_the_table_of_racks_is_seen_while_a_client_runs() -> None:
    async with mock_cluster(6) as cluster, cluster.connect() as bk:
        await stand(cluster, *["/r1"] * 5, "/r2")
        odd = cluster.bookies[5].bookie_id
        for _ in range(5):
            async with bk.create_ledger() as ledger:
                assert odd in ledger.metadata.ensemble
        await stand(cluster, "/r3", *["/r1"] * 5)
        odd = cluster.bookies[0].bookie_id
        async with asyncio.timeout(PATIENCE_S):
            alike = 0
            while alike < 30:  # until the change has been heard of, and then always
                async with bk.create_ledger() as ledger:
                    alike = alike + 1 if odd in ledger.metadata.ensemble else 0
                await asyncio.sleep(0)


@pytest.mark.parametrize("change", ["racks", "machine", "newcomer", "another shape"])
async def test_bookies_that_stood_alike_are_chosen_anew_when_one_of_them_changes(
    change: str,
) -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        for _ in range(3):
            await (await bk.create_ledger(**PAIR)).close()
        odd, size = cluster.bookies[3], 2
        if change == "racks":
            await stand(cluster, *["/r1"] * 3, "/r2")
        elif change == "machine":
            for bookie in cluster.bookies[:3]:
                await cluster.unregister(bookie.bookie_id)
                bookie.machine = "m1"
                await cluster.register(bookie)
        elif change == "newcomer":
            await cluster.unregister(odd.bookie_id)
            (odd,) = await cluster.add(machine="m2")
            await stand(cluster, *["/r1"] * 4, "/r2")
        else:
            size = 4
        shape = {"ensemble_size": size, "write_quorum_size": size, "ack_quorum_size": 2}
        async with asyncio.timeout(PATIENCE_S):
            alike = 0
            while alike < 30:  # until the change has been heard of, and then always
                async with bk.create_ledger(**shape) as ledger:
                    is_right = odd.bookie_id in ledger.metadata.ensemble
                    assert is_right or size == 2
                    assert len(set(ledger.metadata.ensemble)) == size
                    alike = alike + 1 if is_right else 0
                await asyncio.sleep(0)


async def test_a_bookie_that_failed_is_left_out_where_all_stand_alike() -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        for _ in range(3):
            await (await bk.create_ledger(**PAIR)).close()
        bookies = client_context(bk).bookies
        failed = cluster.bookies[0].bookie_id
        bookies.report_failure(failed)
        for _ in range(12):
            async with bk.create_ledger(**PAIR) as ledger:
                assert failed not in ledger.metadata.ensemble


async def test_an_enforced_policy_says_what_it_lacks() -> None:
    options = PlacementOptions(enforce_racks=True)
    async with mock_cluster(4) as cluster, cluster.connect(placement=options) as bk:
        with pytest.raises(NotEnoughBookiesError, match="where the placement policy writes noth"):
            await bk.create_ledger()
        await stand(cluster, *["/r1"] * 4)
        with pytest.raises(NotEnoughBookiesError, match="in 2 racks"):
            await bk.create_ledger()
    zones = PlacementOptions(policy="zone-aware")
    async with mock_cluster(3) as cluster, cluster.connect(placement=zones) as bk:
        with pytest.raises(LocalProtocolError, match="above the 2 zones"):
            await bk.create_ledger(**PAIR)


class Districts:
    """A class of an operator's: the last number of the address is the rack."""

    asked: ClassVar[list[str]] = []

    def __init__(self, settings: str) -> None:
        if settings == "bad":
            raise ValueError("no such building")
        self._prefix = settings

    def resolve(self, addresses):
        Districts.asked += addresses
        return [f"{self._prefix}/r{each.rpartition('.')[2]}" for each in addresses]


@pytest.fixture
def operators_module(monkeypatch: pytest.MonkeyPatch) -> str:
    Districts.asked.clear()
    monkeypatch.setitem(sys.modules, "operators_racks", sys.modules[__name__])
    return "operators_racks:Districts"


async def test_a_class_tells_where_bookies_stand(operators_module: str) -> None:
    options = PlacementOptions(rack_class=operators_module, rack_class_settings="/west")
    async with mock_cluster(0) as cluster, cluster.connect(placement=options) as bk:
        await cluster.add(4, host="127.0.0.1")
        (odd,) = await cluster.add(host="127.0.0.2")
        for _ in range(5):
            async with bk.create_ledger() as ledger:
                assert odd.bookie_id in ledger.metadata.ensemble
        assert sorted(Districts.asked) == ["127.0.0.1", "127.0.0.2"]  # once, while they are fresh


async def test_a_class_that_cannot_be_used_is_told_at_once(operators_module: str) -> None:
    for wrong in ({"rack_class": "nowhere:At"}, {"rack_class": operators_module + "s"}):
        async with mock_cluster(0) as cluster:
            with pytest.raises(ConfigError, match=r"placement.rack_class"):
                async with cluster.connect(placement=PlacementOptions(**wrong)):
                    pass
    options = PlacementOptions(rack_class=operators_module, rack_class_settings="bad")
    async with mock_cluster(0) as cluster:
        with pytest.raises(ConfigError, match="no such building"):
            async with cluster.connect(placement=options):
                pass


async def test_a_script_tells_where_bookies_stand_and_is_asked_again(tmp_path) -> None:
    script, table = tmp_path / "racks.sh", tmp_path / "table"
    script.write_text(f'#!/bin/sh\nfor a in "$@"; do sed -n "s|^$a ||p" {table}; done\n')
    script.chmod(0o755)
    table.write_text("127.0.0.1 /r1\n127.0.0.2 /r1\n127.0.0.3 /r2\n")
    options = PlacementOptions(
        rack_script=str(script), max_rack_script_arguments=2, rack_refresh_s=0.02
    )
    async with mock_cluster(0) as cluster, cluster.connect(placement=options) as bk:
        one, two, three = [
            (await cluster.add(host=f"127.0.0.{number}"))[0].bookie_id for number in (1, 2, 3)
        ]

        async def settles(odd: str) -> None:
            async with asyncio.timeout(PATIENCE_S):
                alike = 0
                while alike < 8:
                    async with bk.create_ledger(**PAIR) as ledger:
                        alike = alike + 1 if odd in ledger.metadata.ensemble else 0
                    await asyncio.sleep(0.005)

        await settles(three)
        table.write_text("127.0.0.1 /r2\n127.0.0.2 /r1\n127.0.0.3 /r2\n")
        await settles(two)
        # What fails to tell leaves what was told.
        table.write_text("127.0.0.1 /r2\n")
        await settles(two)
        assert one


class Names:
    """A network that knows one host."""

    async def address_of(self, host: str) -> str:
        if host != "b1.example":
            raise OSError(f"{host} is not known")
        return "10.0.0.1"


async def test_a_host_that_is_not_known_keeps_no_other_from_being_told() -> None:
    asked: list[list[str]] = []

    def resolve(addresses):
        asked.append(list(addresses))
        return ["/r1" if each == "10.0.0.1" else None for each in addresses]

    racks = AskedRacks(Env(network=Names()), resolve, refresh_s=0.001)
    await racks.refresh({"b1:3181": "b1.example"})
    await asyncio.sleep(0.005)
    # When it is time, those are asked for again that this choice does not need, too.
    await racks.refresh({"b2:3181": "gone.example"})
    assert asked == [["10.0.0.1"], ["10.0.0.1", "gone.example"]]
    assert racks.location("b1:3181", "b1.example") == "/r1"
    assert racks.location("b2:3181", "gone.example") is None
    await racks.close()


# Reading, weighing, acknowledging --------------------------------------------------------------


async def test_readers_ask_the_nearest_bookies_first_and_slow_ones_last() -> None:
    near = PlacementOptions(policy="region-aware", local_location="/west/1")
    async with mock_cluster(3) as cluster:
        await stand(cluster, "/east/1", "/west/1", "/west/2")
        far, here, region = cluster.bookies
        async with cluster.connect(placement=near) as bk:
            async with bk.create_ledger() as ledger:
                await ledger.append_batch_nowait([b"%d" % i for i in range(30)])

            async def who_is_read() -> set[str]:
                for bookie in cluster.bookies:
                    bookie.requests.clear()
                async with bk.open_ledger(ledger.id) as reader:
                    for entry_id in range(30):
                        await reader.read_entry(entry_id)
                    assert len([e async for e in reader.read()]) == 30
                kinds = Read, ReadRun, BatchRead
                return {b.bookie_id for b in cluster.bookies if any(map(b.count, kinds))}

            assert await who_is_read() == {here.bookie_id}
            client_context(bk).bookies.note_slow_read(here.bookie_id)
            assert await who_is_read() == {region.bookie_id}
            client_context(bk).bookies.note_slow_read(region.bookie_id)
            assert await who_is_read() == {far.bookie_id}


async def test_free_space_weighs() -> None:
    options = PlacementOptions(weigh_free_space=True, free_space_interval_s=0.02)
    async with mock_cluster(3) as cluster, cluster.connect(placement=options) as bk:
        full, *others = cluster.bookies
        full.free_bytes = 1
        for bookie in others:
            bookie.free_bytes = 10**12
        for _ in range(15):
            async with bk.create_ledger(**PAIR) as ledger:
                assert full.bookie_id not in ledger.metadata.ensemble
        asked = full.count(BookieInfo)
        assert asked
        # It was emptied, and the others filled up: they are asked again.
        full.free_bytes = 10**12
        others[0].free_bytes = 1
        async with asyncio.timeout(PATIENCE_S):
            alike = 0
            while alike < 10:
                async with bk.create_ledger(**SINGLE) as ledger:
                    is_kept = others[0].bookie_id not in ledger.metadata.ensemble
                alike = alike + 1 if is_kept and full.count(BookieInfo) > asked + 1 else 0
                await asyncio.sleep(0.005)


async def test_an_entry_waits_for_acks_of_enough_racks() -> None:
    options = PlacementOptions(enforce_ack_domains=True)
    async with mock_cluster(3) as cluster, cluster.connect(placement=options) as bk:
        with pytest.raises(NotEnoughBookiesError, match="every write set in 2 fault domains"):
            await bk.create_ledger()
        await stand(cluster, "/r1", "/r1", "/r2")
        ledger = await bk.create_ledger()
        alone = cluster.bookies[2]
        await ledger.append(b"one")
        alone.hold_adds()
        future = ledger.append_nowait(b"two")
        await until(lambda: all(len(payloads_at(b, ledger.id)) == 2 for b in cluster.bookies[:2]))
        await asyncio.sleep(0.05)
        assert not future.done()  # an ack quorum has it, all in one rack
        alone.release_adds()
        assert await future == 1
        await ledger.close()


async def test_the_public_name_of_the_options() -> None:
    assert quorumbook.PlacementOptions is PlacementOptions
