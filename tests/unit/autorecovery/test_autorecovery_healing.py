"""Healing one ledger, with bookies that do what a test tells them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from worker_harness import PAYLOADS, write

from doubles.clusters import scripted_cluster
from doubles.mock_bookie import SILENCE
from doubles.replicas import assert_fully_replicated
from doubles.waiting import until
from quorumbook.autorecovery.copying.healing import Healer
from quorumbook.autorecovery.copying.moving import is_well_placed
from quorumbook.autorecovery.copying.verified_reads import split
from quorumbook.client.context import client_context, client_store
from quorumbook.errors import LocalProtocolError, SessionExpiredError
from quorumbook.ids import MAX_FRAME_SIZE_BYTES
from quorumbook.ledger.placement.options import PlacementOptions
from quorumbook.ledger.placement.schedule import entries_at
from quorumbook.metadata.bookies.racks import RackTable
from quorumbook.metadata.memory import memory_tree
from quorumbook.protocol.digest import DigestType
from quorumbook.protocol.requests import AddRun, BatchRead, ListEntries, Read
from quorumbook.protocol.status import Status


def healer_of(client):
    return Healer(client_context(client))


cluster = scripted_cluster(bookies=5)


@pytest.fixture
async def client(cluster):
    async with cluster.connect(add_timeout_s=5.0) as client:
        yield client


async def gone(cluster, client, bookie_id):
    bookie = cluster.by_id(bookie_id)
    await cluster.unregister(bookie_id)
    await bookie.stop()
    await until(lambda: True)
    while bookie_id in (await client.bookies())[0]:
        await asyncio.sleep(0.005)
    return bookie


@pytest.mark.parametrize("digest_type", list(DigestType))
@pytest.mark.parametrize(("size", "quorum"), [(3, 3), (3, 2), (4, 3), (2, 2)])
async def test_s75_a_replacement_gets_the_very_bytes_of_its_write_set_and_nothing_else(
    cluster, client, size, quorum, digest_type
) -> None:
    ledger_id = await write(
        client, ensemble_size=size, write_quorum_size=quorum, ack_quorum_size=2,
        digest_type=digest_type, password=b"secret",
    )  # fmt: skip
    before = await client.ledger_metadata(ledger_id)
    lost = await gone(cluster, client, before.ensemble[1])
    outcome = await healer_of(client).heal(ledger_id, leave=[lost.bookie_id])
    assert outcome.is_healed
    after = await client.ledger_metadata(ledger_id)
    assert [a == b for a, b in zip(before.ensemble, after.ensemble, strict=True)].count(False) == 1
    new = cluster.by_id(after.ensemble[1])
    assert new.ledgers[ledger_id].entries == lost.ledgers[ledger_id].entries
    assert new.entry_ids(ledger_id) == list(entries_at(1, 0, len(PAYLOADS) - 1, size, quorum))
    assert outcome.copied_entries == len(new.entry_ids(ledger_id))
    await assert_fully_replicated(client, ledger_id, PAYLOADS)


@pytest.mark.parametrize(("size", "quorum"), [(3, 3), (3, 2)])
async def test_s12_every_add_of_a_copy_says_that_it_is_recovery(
    cluster, client, size, quorum
) -> None:
    ledger_id = await write(client, ensemble_size=size, write_quorum_size=quorum, ack_quorum_size=2)
    metadata = await client.ledger_metadata(ledger_id)
    for bookie in cluster.bookies:
        bookie.requests.clear()
    # A member is fenced, and lacks some of the entries that the third one has as well.
    lacking = cluster.by_id(metadata.ensemble[0])
    lacking.ledgers[ledger_id].is_fenced = True
    kept = dict(lacking.ledgers[ledger_id].entries)
    for entry_id in range(2, 30, 3):
        del lacking.ledgers[ledger_id].entries[entry_id]
    lost = await gone(cluster, client, metadata.ensemble[1])
    outcome = await healer_of(client).heal(
        ledger_id, leave=[lost.bookie_id], mend=[lacking.bookie_id]
    )
    assert outcome.is_healed
    adds = [r for b in cluster.bookies for r in b.requests if isinstance(r, AddRun)]
    assert adds
    assert all(add.is_recovery for add in adds)
    assert lacking.ledgers[ledger_id].entries == kept


async def test_s19_a_copy_claims_no_more_confirmed_than_the_writer_did(cluster, client) -> None:
    ledger_id = await write(client)
    metadata = await client.ledger_metadata(ledger_id)
    source = cluster.by_id(metadata.ensemble[0])
    claimed = source.ledgers[ledger_id].last_add_confirmed
    lost = await gone(cluster, client, metadata.ensemble[1])
    assert (await healer_of(client).heal(ledger_id, leave=[lost.bookie_id])).is_healed
    new = cluster.by_id((await client.ledger_metadata(ledger_id)).ensemble[1])
    assert new.ledgers[ledger_id].last_add_confirmed <= claimed


@pytest.mark.parametrize("fault", ["forgets", "damages", "refuses", "breaks"])
async def test_r30_a_bookie_that_does_not_keep_its_copies_takes_nobodys_place(
    cluster, client, fault
) -> None:
    ledger_id = await write(client)
    metadata = await client.ledger_metadata(ledger_id)
    lost = await gone(cluster, client, metadata.ensemble[1])
    spares = [b for b in cluster.bookies if b.bookie_id not in metadata.ensemble]
    first: list[str] = []

    def spoil(bookie):
        def behave(request):
            if isinstance(request, AddRun):
                first.append(bookie.bookie_id)
                if first[0] != bookie.bookie_id:
                    return None
                if fault == "refuses":
                    return Status.IO_ERROR
                if fault == "breaks":
                    bookie.drop_connections()
                if fault == "damages":
                    bookie.corrupt.add(17)
            is_check = isinstance(request, BatchRead | Read) and first[:1] == [bookie.bookie_id]
            if is_check and fault == "forgets":
                bookie.ledgers[ledger_id].entries.pop(17, None)
            return None

        return behave

    for bookie in spares:
        bookie.on_request = spoil(bookie)
    outcome = await healer_of(client).heal(ledger_id, leave=[lost.bookie_id])
    assert outcome.is_healed
    after = await client.ledger_metadata(ledger_id)
    assert first[0] not in after.ensemble
    await assert_fully_replicated(client, ledger_id, PAYLOADS)


async def test_r30_a_damaged_copy_is_not_copied(cluster, client) -> None:
    ledger_id = await write(client)
    metadata = await client.ledger_metadata(ledger_id)
    # One of the two that are left has damage in two places, the other in a third.
    cluster.by_id(metadata.ensemble[0]).corrupt |= {4, 30}
    cluster.by_id(metadata.ensemble[2]).corrupt |= {31}
    lost = await gone(cluster, client, metadata.ensemble[1])
    assert (await healer_of(client).heal(ledger_id, leave=[lost.bookie_id])).is_healed
    new = cluster.by_id((await client.ledger_metadata(ledger_id)).ensemble[1])
    assert new.ledgers[ledger_id].entries == lost.ledgers[ledger_id].entries


async def test_r30_nothing_is_recorded_when_the_ledger_is_not_ours_any_more(
    cluster, client
) -> None:
    ledger_id = await write(client)
    before = await client.ledger_metadata(ledger_id)
    lost = await gone(cluster, client, before.ensemble[1])
    asked: list[bool] = []

    def may_go_on() -> bool:
        asked.append(len(asked) < 1)  # it is lost while the copy is under way
        return asked[-1]

    with pytest.raises(SessionExpiredError):
        await healer_of(client).heal(ledger_id, leave=[lost.bookie_id], may_go_on=may_go_on)
    assert await client.ledger_metadata(ledger_id) == before


async def test_r30_nothing_is_recorded_in_another_session_than_the_locks(cluster, client) -> None:
    ledger_id = await write(client)
    before = await client.ledger_metadata(ledger_id)
    lost = await gone(cluster, client, before.ensemble[1])
    tree = memory_tree(cluster.metadata_uri.removeprefix("memory://"))

    def may_go_on() -> bool:
        # Asked last right before the write, by a process that was paused beyond its lease.
        tree.end_session(client_store(client).session_id)
        return True

    with pytest.raises(SessionExpiredError):
        await healer_of(client).heal(ledger_id, leave=[lost.bookie_id], may_go_on=may_go_on)
    assert await client.ledger_metadata(ledger_id) == before


async def test_r30_with_several_lost_no_ensemble_ever_has_a_bookie_twice(cluster, client) -> None:
    ledger_id = await write(client)
    before = await client.ledger_metadata(ledger_id)
    away = [await gone(cluster, client, bookie_id) for bookie_id in before.ensemble[:2]]
    outcome = await healer_of(client).heal(ledger_id, leave=[b.bookie_id for b in away])
    assert outcome.is_healed
    after = await client.ledger_metadata(ledger_id)
    assert len(set(after.ensemble)) == 3
    assert not {b.bookie_id for b in away} & set(after.ensemble)
    await assert_fully_replicated(client, ledger_id, PAYLOADS)


async def test_who_is_to_leave_gets_nobody_elses_copies(cluster, client) -> None:
    ledger_id = await write(client, ensemble_size=2, write_quorum_size=2)
    before = await client.ledger_metadata(ledger_id)
    # All but one of the others are to leave as well, and could still be written to.
    others = [b.bookie_id for b in cluster.bookies if b.bookie_id not in before.ensemble]
    outcome = await healer_of(client).heal(ledger_id, leave=[before.ensemble[0], *others[:-1]])
    assert outcome.is_healed
    after = await client.ledger_metadata(ledger_id)
    assert after.ensemble == (others[-1], before.ensemble[1])


async def test_what_can_be_moved_is_moved_and_the_rest_is_named(client, cluster) -> None:
    ledger_id = await write(client, ensemble_size=4, write_quorum_size=3, ack_quorum_size=2)
    before = await client.ledger_metadata(ledger_id)
    away = [await gone(cluster, client, bookie_id) for bookie_id in before.ensemble[:2]]
    outcome = await healer_of(client).heal(ledger_id, leave=[b.bookie_id for b in away])
    (problem,) = outcome.problems
    after = await client.ledger_metadata(ledger_id)
    left = {b.bookie_id for b in away} & set(after.ensemble)
    assert outcome.moved == 1
    assert len(left) == 1
    assert problem == f"no bookie is left to replace {left.pop()}"


async def test_a_fragment_that_moved_in_part_has_its_other_replicas_mended(client, cluster) -> None:
    # Found by a seed of the simulator: the fragment was looked for as it had been before.
    ledger_id = await write(client, ensemble_size=4, write_quorum_size=3, ack_quorum_size=2)
    before = await client.ledger_metadata(ledger_id)
    lacking = cluster.by_id(before.ensemble[3])
    kept = dict(lacking.ledgers[ledger_id].entries)
    # Position 2, which stays, has entry 6 as well.
    del lacking.ledgers[ledger_id].entries[6]
    away = [await gone(cluster, client, bookie_id) for bookie_id in before.ensemble[:2]]
    outcome = await healer_of(client).heal(
        ledger_id, leave=[b.bookie_id for b in away], mend=[lacking.bookie_id]
    )
    assert outcome.moved == 1
    assert len(outcome.problems) == 1
    assert lacking.ledgers[ledger_id].entries == kept


async def test_copies_move_to_where_the_placement_policy_wants_them(cluster, client) -> None:
    ledger_id = await write(client)
    before = (await client.ledger_metadata(ledger_id)).ensemble
    spare = next(b.bookie_id for b in cluster.bookies if b.bookie_id not in before)
    racks = {b.bookie_id: "/near" for b in cluster.bookies} | {spare: "/far"}
    await RackTable(cluster.store).set(racks)
    async with cluster.connect(placement=PlacementOptions(enforce_racks=True)) as strict:
        untouched = await healer_of(strict).heal(ledger_id)
        assert (await client.ledger_metadata(ledger_id)).ensemble == before
        outcome = await healer_of(strict).heal(ledger_id, adhere=True)
        after = (await client.ledger_metadata(ledger_id)).ensemble
        near = next(b for b in after if racks[b] == "/near")
        other = next(b for b in racks if b not in after)
        assert await is_well_placed(strict, ledger_id, near, other)
        assert not await is_well_placed(strict, ledger_id, spare, other)
    assert (untouched.moved, outcome.moved, outcome.problems) == (0, 1, [])
    assert spare in after
    assert len(set(after) & set(before)) == 2
    await assert_fully_replicated(client, ledger_id, PAYLOADS)


async def test_s66_an_empty_closed_ledger_gets_another_ensemble(cluster, client) -> None:
    ledger_id = await write(client, [])
    before = await client.ledger_metadata(ledger_id)
    lost = await gone(cluster, client, before.ensemble[0])
    outcome = await healer_of(client).heal(ledger_id, leave=[lost.bookie_id])
    assert (outcome.is_healed, outcome.moved, outcome.copied_entries) == (True, 1, 0)
    assert lost.bookie_id not in (await client.ledger_metadata(ledger_id)).ensemble


async def test_s68_an_entry_beyond_the_known_confirmed_one_blocks_no_older_fragment(
    cluster, client
) -> None:
    ledger = await client.create_ledger(lac_delay_s=3600.0)
    for payload in PAYLOADS:
        await ledger.append(payload)
    lost = cluster.members(ledger)[1]
    for bookie in cluster.bookies:
        bookie.on_request = lambda r: (
            SILENCE if isinstance(r, AddRun) and not r.is_recovery else None
        )
    await lost.stop()
    ledger.append_nowait(b"one more")  # reaches nobody, but it has the ensemble changed
    await until(lambda: len(ledger.metadata.fragments) == 2)
    await gone(cluster, client, lost.bookie_id)
    older = ledger.metadata.fragments[0]
    last = ledger.metadata.last_entry_of(older)
    # No bookie knows yet that the last entry of the older fragment is confirmed.
    there = [b for b in cluster.bookies if ledger.id in b.ledgers]
    assert all(bookie.ledgers[ledger.id].last_add_confirmed < last for bookie in there)
    outcome = await healer_of(client).heal(ledger.id, leave=[lost.bookie_id])
    assert outcome.is_healed
    assert not (await client.ledger_metadata(ledger.id)).is_closed
    await ledger.abort()
    await healer_of(client).close_ledger(ledger.id)
    assert lost.bookie_id not in str((await client.ledger_metadata(ledger.id)).fragments)
    await assert_fully_replicated(client, ledger.id, PAYLOADS)


async def test_s28_a_copy_and_a_writers_ensemble_change_are_both_recorded(cluster, client) -> None:
    async with cluster.connect() as writers:
        ledger = await writers.create_ledger(ensemble_size=2, write_quorum_size=2)
        for payload in PAYLOADS:
            await ledger.append(payload)
        lost = cluster.members(ledger)[1]
        await lost.stop()
        await ledger.append(b"one more")
        await until(lambda: len(ledger.metadata.fragments) == 2)
        await gone(cluster, client, lost.bookie_id)
        for bookie in cluster.bookies:
            if bookie.bookie_id not in ledger.metadata.ensemble:
                bookie.hold_adds()
        healing = asyncio.create_task(healer_of(client).heal(ledger.id, leave=[lost.bookie_id]))
        await until(
            lambda: any(
                isinstance(r, AddRun) and r.is_recovery for b in cluster.bookies for r in b.requests
            )
        )
        # While the copies are under way the writer loses the bookie that it got.
        second = cluster.members(ledger)[1]
        await second.stop()
        for bookie in cluster.bookies:
            if bookie is not second and bookie.bookie_id not in ledger.metadata.ensemble:
                bookie.release_adds()
        await ledger.append(b"another")
        outcome = await healing
        for bookie in cluster.bookies:
            bookie.release_adds()
        await until(lambda: len(ledger.metadata.fragments) == 3)
        if not outcome.is_healed:
            outcome = await healer_of(client).heal(ledger.id, leave=[lost.bookie_id])
        assert outcome.is_healed
        await ledger.close()
    fragments = (await client.ledger_metadata(ledger.id)).fragments
    assert [f.first_entry_id for f in fragments] == [0, len(PAYLOADS), len(PAYLOADS) + 1]
    assert lost.bookie_id not in str(fragments)


async def test_s74_an_entry_as_large_as_a_frame_allows_is_copied(cluster, client) -> None:
    async with client.create_ledger(add_timeout_s=60.0) as ledger:
        # The largest that a writer takes.
        whole = memoryview(bytes(MAX_FRAME_SIZE_BYTES))
        for size in range(MAX_FRAME_SIZE_BYTES - 32, 0, -1):
            with contextlib.suppress(LocalProtocolError):
                ledger.append_nowait(bytes(whole[:size]))
                break
    assert size > MAX_FRAME_SIZE_BYTES - 1024
    metadata = await client.ledger_metadata(ledger.id)
    lost = await gone(cluster, client, metadata.ensemble[0])
    outcome = await healer_of(client).heal(ledger.id, leave=[lost.bookie_id])
    assert outcome.problems == []
    new = cluster.by_id((await client.ledger_metadata(ledger.id)).ensemble[0])
    assert new.ledgers[ledger.id].entries == lost.ledgers[ledger.id].entries


@pytest.mark.parametrize("can_list", [True, False])
@pytest.mark.parametrize(("size", "quorum"), [(3, 3), (3, 2)])
async def test_a_bookie_that_is_there_gets_what_it_lacks_and_keeps_its_place(
    cluster, client, size, quorum, can_list
) -> None:
    ledger_id = await write(client, ensemble_size=size, write_quorum_size=quorum, ack_quorum_size=2)
    before = await client.ledger_metadata(ledger_id)
    lacking = cluster.by_id(before.ensemble[0])
    kept = dict(lacking.ledgers[ledger_id].entries)
    for entry_id in [*list(kept)[5:9], *list(kept)[30:]]:
        del lacking.ledgers[ledger_id].entries[entry_id]
    damaged = next(iter(kept))
    lacking.ledgers[ledger_id].entries[damaged] = kept[damaged][:-1] + b"?"
    if not can_list:
        lacking.on_request = lambda r: Status.IO_ERROR if isinstance(r, ListEntries) else None
    outcome = await healer_of(client).heal(ledger_id, mend=[lacking.bookie_id])
    assert outcome.is_healed
    assert lacking.ledgers[ledger_id].entries == kept
    assert outcome.copied_entries == 1 + 4 + len(list(kept)[30:])
    assert await client.ledger_metadata(ledger_id) == before


async def test_an_open_ledger_gets_back_what_is_confirmed_of_it(cluster, client) -> None:
    ledger = await client.create_ledger()
    for payload in PAYLOADS:
        await ledger.append(payload)
    lacking = cluster.members(ledger)[2]
    kept = dict(lacking.ledgers[ledger.id].entries)
    del lacking.ledgers[ledger.id].entries[7]
    outcome = await healer_of(client).heal(ledger.id, mend=[lacking.bookie_id])
    assert (outcome.is_healed, outcome.copied_entries) == (True, 1)
    assert lacking.ledgers[ledger.id].entries == kept
    await ledger.append(b"the writer was not disturbed")
    await ledger.close()


async def test_a_deleted_ledger_lacks_nothing(client) -> None:
    outcome = await healer_of(client).heal(4711, leave=["127.0.0.1:1"])
    assert outcome.is_gone
    assert outcome.is_healed


async def test_a_bookie_that_sheds_load_gets_the_refused_entries_again(cluster, client) -> None:
    ledger_id = await write(client)
    metadata = await client.ledger_metadata(ledger_id)
    lost = await gone(cluster, client, metadata.ensemble[1])
    refused: list[AddRun] = []

    def shed(request):
        if isinstance(request, AddRun) and len(refused) < 3:
            refused.append(request)
            return Status.TOO_MANY_REQUESTS
        return None

    for bookie in cluster.bookies:
        bookie.on_request = shed
    assert (await healer_of(client).heal(ledger_id, leave=[lost.bookie_id])).is_healed
    assert len(refused) == 3
    await assert_fully_replicated(client, ledger_id, PAYLOADS)


@pytest.mark.parametrize(
    ("ids", "runs", "outside", "inside"),
    [
        (range(10), None, [], [range(10)]),
        (range(10), [], [range(10)], []),
        (range(10), [(0, 9)], [], [range(10)]),
        (range(10), [(2, 3), (7, 20)], [range(2), range(4, 7)], [range(2, 4), range(7, 10)]),
        (range(1, 20, 3), [(4, 5), (9, 13)], [range(1, 4, 3), range(7, 10, 3), range(16, 20, 3)],
         [range(4, 7, 3), range(10, 14, 3)]),
        (range(0, 9, 3), [(1, 2), (4, 5)], [range(0, 9, 3)], []),
    ],
)  # fmt: skip
def test_entries_are_split_by_what_a_bookie_says_it_has(ids, runs, outside, inside) -> None:
    absent, present = split(ids, runs)
    flat = [[e for run in side for e in run] for side in (absent, present)]
    assert flat == [[e for run in side for e in run] for side in (outside, inside)]
    assert all(run.step == ids.step for run in (*absent, *present) if len(run) > 1)


async def test_a_ledger_is_healed_on_bookies_with_its_labels_or_not_at_all(cluster, client) -> None:
    fast = {b.bookie_id for b in await cluster.add(4, tier="ssd")}
    labels = {"tier": "ssd"}
    ledger_id = await write(client, bookie_labels=labels)
    before = await client.ledger_metadata(ledger_id)
    (spare,) = fast - set(before.ensemble)
    await gone(cluster, client, before.ensemble[0])
    assert (await healer_of(client).heal(ledger_id, leave=[before.ensemble[0]])).is_healed
    after = await client.ledger_metadata(ledger_id)
    assert after.ensemble == (spare, *before.ensemble[1:])
    # Five bookies without the label are there, and none with it is left.
    await gone(cluster, client, before.ensemble[1])
    outcome = await healer_of(client).heal(ledger_id, leave=[before.ensemble[1]])
    (problem,) = outcome.problems
    assert problem == f"no bookie with the labels tier=ssd is left to replace {before.ensemble[1]}"
    assert (await client.ledger_metadata(ledger_id)).ensemble == after.ensemble
