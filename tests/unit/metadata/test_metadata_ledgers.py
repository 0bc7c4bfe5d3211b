"""Ledger metadata in the tree: compare-and-set, creation tokens, a listing to be trusted."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from quorumbook.env import Env
from quorumbook.errors import (
    ClusterNotInitializedError,
    LedgerExistsError,
    LedgerIdOverflowError,
    MetadataFateUnknownError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NoSuchLedgerInMetadataError,
    SessionExpiredError,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.cluster import Layout, init_cluster
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.paths import LayoutKind


def metadata_of(ledger_id, **changes):
    return LedgerMetadata(
        **{
            "ledger_id": ledger_id,
            "ensemble_size": 2,
            "write_quorum_size": 2,
            "ack_quorum_size": 1,
            "fragments": (Fragment(0, ("b1:1", "b2:2")),),
            "password": b"",
            **changes,
        }
    )


class Faulty:
    """A store of which single operations can be made to fail or to be overtaken."""

    def __init__(self, store):
        self._store = store
        self.before = {}
        self.after = {}

    async def create_node(self, path, data):
        """Create it, and look then."""
        await self.create(path, data)
        return await self.exists(path)

    def __getattr__(self, name):
        inner = getattr(self._store, name)
        if name not in ("create", "children", "get", "exists", "set", "delete"):
            return inner

        async def operation(path, *args, **kwargs):
            if hook := self.before.get((name, path)):
                await hook()
            result = await inner(path, *args, **kwargs)
            if hook := self.after.get((name, path)):
                await hook()
            return result

        return operation


@pytest.fixture
async def faulty(store):
    await init_cluster(store)
    return Faulty(store)


@pytest.fixture
def manager(faulty):
    return LedgerManager(faulty)


async def test_a_ledger_that_went_while_another_was_made_in_its_place_is_not_taken_for_it(
    faulty, manager, open_memory
):
    rival = LedgerManager(await open_memory())
    await rival.create(metadata_of(7, password=b"rival"))
    path = await manager._path(7)  # where the node is

    async def vanish():
        faulty.before.clear()
        await rival.delete(7)

    faulty.before["create", path] = vanish
    made, version = await manager.create(metadata_of(7))
    found, _ = await rival.read(7)
    assert (made.incarnation, version) == (found.incarnation, 0)
    assert found.password == b""


async def listed(manager):
    return [ledger_id async for ledger_id in manager.list()]


def raising(error, times=1):
    left = [times]

    async def fail():
        if left[0]:
            left[0] -= 1
            raise error

    return fail


# One ledger


async def test_a_ledger_is_read_as_it_was_created(manager, store):
    metadata, version = await manager.create(metadata_of(7, custom_metadata={"app": b"x"}))
    assert version == 0
    found, version = await manager.read(7)
    assert version == 0
    assert found.fragments == metadata.fragments
    assert found.custom_metadata == {"app": b"x"}
    assert found.ctime_ms == store.env.clock.wall_ms()
    assert await manager.exists(7)
    assert not await manager.exists(8)


async def test_many_ledgers_are_read_at_once_and_a_damaged_one_costs_itself_alone(manager, store):
    for ledger_id in 1, 2, 5:
        await manager.create(metadata_of(ledger_id))
    await store.set("/ledgers/00/0000/L0002", b"garbage")
    first, damaged, missing, last = await manager.read_many([1, 2, 4, 5])
    assert [first, last] == [(await manager.read(each))[0] for each in (1, 5)]
    assert isinstance(damaged, MetadataFormatError)
    assert missing is None


async def test_creation_writes_a_random_token_and_the_first_update_zero(manager, store):
    first, _ = await manager.create(metadata_of(1))
    second, _ = await manager.create(metadata_of(2))
    assert first.creator_token > 0
    assert first.creator_token != second.creator_token
    assert (await manager.read(1))[0].creator_token == first.creator_token
    await manager.write(first, 0)
    assert (await manager.read(1))[0].creator_token is None
    # Field 12, a varint, is written as zero.
    assert (await store.get("/ledgers/00/0000/L0001")).data.endswith(b"\x60\x00")


async def test_an_id_that_is_taken_is_refused(manager):
    await manager.create(metadata_of(1, custom_metadata={"owner": b"first"}))
    with pytest.raises(LedgerExistsError) as caught:
        await manager.create(metadata_of(1))
    assert caught.value.ledger_id == 1
    assert (await manager.read(1))[0].custom_metadata == {"owner": b"first"}


async def test_a_creation_whose_answer_was_lost_is_recognized_by_its_token(manager, faulty):
    faulty.after["create", "/ledgers/00/0000/L0001"] = raising(MetadataUnavailableError("lost"))
    metadata, version = await manager.create(metadata_of(1))
    assert version == 0
    assert (await manager.read(1))[0].creator_token == metadata.creator_token


async def test_a_ledger_of_format_2_made_by_somebody_else_is_never_taken_for_ours(manager):
    await manager.create(metadata_of(1, format_version=2))
    with pytest.raises(LedgerExistsError):
        await manager.create(metadata_of(1, format_version=2))


async def test_a_write_demands_the_version_it_is_based_on(manager):
    metadata, version = await manager.create(metadata_of(1))
    version = await manager.write(metadata.in_recovery(), version)
    assert version == 1
    with pytest.raises(MetadataVersionConflict) as caught:
        await manager.write(metadata.closed(4, 100), 0)
    assert caught.value.ledger_id == 1
    assert (await manager.read(1))[0].state is LedgerState.IN_RECOVERY


async def test_a_ledger_made_again_under_an_id_is_not_changed_by_what_was_read_of_the_old_one(
    manager,
):
    """Whatever the versions are: a writer may outlive its ledger."""
    old, _ = await manager.create(metadata_of(1, custom_metadata={"whose": b"old"}))
    read, version = await manager.read(1)
    await manager.delete(1)
    await manager.create(metadata_of(1, custom_metadata={"whose": b"new"}))
    for metadata in (old, read):
        with pytest.raises(MetadataVersionConflict):
            await manager.write(metadata.in_recovery(), version)
        with pytest.raises(MetadataVersionConflict):
            await manager.write_alone(metadata.in_recovery(), version)
        with pytest.raises(NoSuchLedgerInMetadataError, match="another one has its id"):
            await manager.read_again(metadata)
    new, _ = await manager.read(1)
    assert (new.custom_metadata, new.state) == ({"whose": b"new"}, LedgerState.OPEN)
    assert (await manager.read_again(new))[0] == new


async def test_a_ledger_that_another_made_right_after_ours_was_deleted_is_not_ours(
    manager, faulty, store
):
    path = "/ledgers/00/0000/L0001"

    async def made_by_another():
        del faulty.after["create", path]
        await store.delete(path)
        other = LedgerManager(store)
        await other.create(metadata_of(1, custom_metadata={"whose": b"another's"}))

    faulty.after["create", path] = made_by_another
    with pytest.raises(LedgerExistsError):
        await manager.create(metadata_of(1))


async def test_a_look_that_came_before_the_creation_is_not_believed(
    manager, faulty, store, monkeypatch
):
    path = "/ledgers/00/0000/L0001"
    await LedgerManager(store).create(metadata_of(1, custom_metadata={"whose": b"another's"}))
    rivals = await store.get(path)
    await store.delete(path)

    async def create_node(path, data):
        await store.create(path, data)
        return rivals

    monkeypatch.setattr(faulty, "create_node", create_node)
    made, _ = await manager.create(metadata_of(1))
    assert made.incarnation == (await store.get(path)).creation_id != rivals.creation_id


async def test_a_creation_whose_answer_tells_enough_is_not_looked_at(faulty, manager, store):
    path = "/ledgers/00/0000/L0001"
    seen = []

    async def look():
        seen.append(path)

    async def create_node(path, data):
        await store.create(path, data)
        return await store.get(path)

    faulty.before["exists", path] = faulty.before["get", path] = look
    faulty.create_node = create_node
    made, version = await manager.create(metadata_of(1))
    assert (seen, version) == ([], 0)
    assert made.incarnation == (await store.get(path)).creation_id


@pytest.mark.parametrize("format_version", [2, 3])
@pytest.mark.parametrize("is_rivals", [True, False])
async def test_who_changed_a_ledger_alone_is_known_or_counts_as_somebody_else(
    manager, faulty, store, format_version, is_rivals
):
    """Two write the same; the answer of one is lost."""
    metadata, _ = await manager.create(metadata_of(1, format_version=format_version))
    rival = LedgerManager(store)

    async def lose(operations):
        faulty.multi = store.multi
        if is_rivals:
            await rival.write_alone(metadata, 0)
        else:
            await store.multi(operations)
        raise MetadataFateUnknownError("lost")

    faulty.multi = lose
    if is_rivals or format_version == 2:
        with pytest.raises(MetadataVersionConflict):
            await manager.write_alone(metadata, 0)
    else:
        assert await manager.write_alone(metadata, 0) == 1
    found, version = await manager.read(1)
    assert version == 1
    # The next change leaves no token behind, as Apache BookKeeper's does not.
    await manager.write(found, version)
    assert (await manager.read(1))[0].creator_token is None


async def test_s20_metadata_without_password_and_digest_keeps_its_format(manager, store):
    # Format 1, as very old writers left it.
    await store.create("/ledgers/00")
    await store.create("/ledgers/00/0000")
    old = b"BookieMetadataFormatVersion\t1\n2\n2\n0\n0\tb1:1\tb2:2\n"
    await store.create("/ledgers/00/0000/L0001", old)
    metadata, version = await manager.read(1)
    assert (metadata.password, metadata.digest_type, metadata.format_version) == (None, None, 1)
    await manager.write(metadata.in_recovery(), version)
    data = (await store.get("/ledgers/00/0000/L0001")).data
    assert data == old + b"-102\tCLOSED"


async def test_s21_a_deleted_ledger_is_no_such_ledger_in_metadata(manager):
    metadata, _ = await manager.create(metadata_of(1))
    await manager.delete(1)
    for operation in (manager.read(1), manager.write(metadata, 0), manager.delete(1)):
        with pytest.raises(NoSuchLedgerInMetadataError) as caught:
            await operation
        assert caught.value.ledger_id == 1
        assert caught.value.code == -25


async def test_deletion_by_version_refuses_another_one(manager):
    metadata, _ = await manager.create(metadata_of(1))
    await manager.write(metadata, 0)
    with pytest.raises(MetadataVersionConflict):
        await manager.delete(1, 0)
    await manager.delete(1, 1)


async def test_deletion_removes_parents_that_nothing_else_lies_below(manager, store):
    for ledger_id in (0, 1, 10_000, 2**31):
        await manager.create(metadata_of(ledger_id))
    await manager.delete(0)
    assert await store.children("/ledgers/00/0000") == ["L0001"]
    await manager.delete(1)
    assert await store.children("/ledgers/00") == ["0001"]
    await manager.delete(10_000)
    await manager.delete(2**31)
    assert await store.children("/ledgers") == ["INSTANCEID", "LAYOUT", "available"]


async def test_parents_deleted_while_a_ledger_is_created_are_made_again(manager, faulty, store):
    async def delete_parent():
        faulty.before.clear()
        await store.delete("/ledgers/00/0000")

    await store.create("/ledgers/00")
    await store.create("/ledgers/00/0000")
    faulty.before["create", "/ledgers/00/0000/L0001"] = delete_parent
    await manager.create(metadata_of(1))
    assert await listed(manager) == [1]


async def test_damaged_metadata_is_a_typed_error(manager, store):
    await manager.create(metadata_of(1))
    await store.set("/ledgers/00/0000/L0001", b"garbage")
    with pytest.raises(MetadataFormatError):
        await manager.read(1)


async def test_a_reader_hears_of_a_change(manager):
    rung = []
    metadata, _ = await manager.create(metadata_of(1))
    await manager.read(1, lambda: rung.append(True))
    await manager.write(metadata.in_recovery(), 0)
    assert (await manager.read(1))[1] == 1
    assert rung == [True]


async def test_writes_guarded_by_a_version_go_on_in_a_new_session(manager, store, clock):
    expired = []
    store.on_session_expired(lambda: expired.append(True))
    clock.advance(100)
    metadata, version = await manager.create(metadata_of(1))
    clock.advance(100)
    await manager.write(metadata, version)
    clock.advance(100)
    await manager.delete(1)
    assert expired == [True] * 3


@pytest.mark.parametrize("kind", LayoutKind)
async def test_every_layout_keeps_and_lists_its_ledgers(store, kind):
    await init_cluster(store, layout=Layout(kind))
    manager = LedgerManager(store)
    ids = [0, 1, 9999, 10_000, 99_999_999, 123_456_789, 2**31 - 2, 2**31 - 1, 2**32, 2**63 - 1]
    random.Random(1).shuffle(ids)
    for ledger_id in ids:
        if kind is LayoutKind.LEGACY_HIERARCHICAL and ledger_id >= 10**10:
            with pytest.raises(LedgerIdOverflowError):
                await manager.create(metadata_of(ledger_id))
            continue
        await manager.create(metadata_of(ledger_id))
        assert (await manager.read(ledger_id))[0].ledger_id == ledger_id
    expected = sorted(ids)
    if kind is LayoutKind.LEGACY_HIERARCHICAL:
        expected.remove(2**63 - 1)
    assert await listed(manager) == expected
    for ledger_id in expected:
        await manager.delete(ledger_id)
    assert await listed(manager) == []
    if kind is not LayoutKind.FLAT:
        assert await store.children("/ledgers") == ["INSTANCEID", "LAYOUT", "available"]


# The listing


async def test_r27_the_listing_skips_what_is_no_ledger(manager, store):
    await manager.create(metadata_of(5))
    for path in ("cookies", "idgen", "idgen-long", "underreplication", "000", "0", "0x", "00a"):
        await store.create(f"/ledgers/{path}")
    for path in ("/ledgers/00/x", "/ledgers/00/00000", "/ledgers/00/0000/M0001"):
        await store.create(path)
    await store.create("/ledgers/00/0000/L00011")
    await store.create("/ledgers/00/0000/L000")
    assert await listed(manager) == [5]


async def test_s56_a_parent_that_vanishes_hides_nothing_behind_it(manager, faulty):
    ids = [1, 10_001, 20_001, 100_000_001, 2**31, 2**40]
    for ledger_id in ids:
        await manager.create(metadata_of(ledger_id))

    async def delete_ledger():
        faulty.before.clear()
        await manager.delete(10_001)

    faulty.before["children", "/ledgers/00/0001"] = delete_ledger
    assert await listed(manager) == [1, 20_001, 100_000_001, 2**31, 2**40]


async def test_s56_an_empty_parent_hides_nothing_behind_it(manager, store):
    for ledger_id in (1, 20_001, 2**31, 2**40):
        await manager.create(metadata_of(ledger_id))
    for path in ("00/0001", "01", "01/0000", "000/0000/0022", "001"):
        await store.create(f"/ledgers/{path}")
    assert await listed(manager) == [1, 20_001, 2**31, 2**40]


async def test_s56_ids_are_listed_by_number_not_by_text(store):
    await init_cluster(store, layout=Layout(LayoutKind.FLAT))
    manager = LedgerManager(store)
    ids = [2, 10, 9_999_999_999, 10_000_000_000, 123_456_789_012]
    for ledger_id in ids:
        await manager.create(metadata_of(ledger_id))
    assert await listed(manager) == ids


async def test_s57_the_listing_crosses_every_border_between_ranges(manager):
    borders = [10_000, 10**8, 2**31 - 1, 10**10, 10**12, 2**32, 10**16]
    ids = sorted({border + offset for border in borders for offset in (-1, 0, 1)})
    for ledger_id in ids:
        await manager.create(metadata_of(ledger_id))
    assert await listed(manager) == ids


@pytest.mark.parametrize(
    "path", ["/ledgers", "/ledgers/00", "/ledgers/00/0001", "/ledgers/000/0000/0021/4748"]
)
@pytest.mark.parametrize(
    "error", [MetadataUnavailableError("away"), SessionExpiredError("over")], ids=["away", "over"]
)
async def test_r27_a_listing_that_cannot_be_completed_raises(manager, faulty, path, error):
    for ledger_id in (1, 10_001, 2**31):
        await manager.create(metadata_of(ledger_id))
    assert await listed(manager) == [1, 10_001, 2**31]
    faulty.before["children", path] = raising(error)
    with pytest.raises(type(error)):
        await listed(manager)
    assert await listed(manager) == [1, 10_001, 2**31]


async def test_r27_a_cluster_that_vanishes_during_the_listing_is_an_error(manager, faulty, store):
    async def remove_everything():
        faulty.before.clear()
        await manager.delete(10_001)
        await manager.delete(1)
        for path in ("available/readonly", "available", "LAYOUT", "INSTANCEID"):
            await store.delete(f"/ledgers/{path}")
        await store.delete("/ledgers")

    for ledger_id in (1, 10_001):
        await manager.create(metadata_of(ledger_id))
    faulty.before["children", "/ledgers/00/0001"] = remove_everything
    with pytest.raises(ClusterNotInitializedError):
        await listed(manager)


async def test_r27_a_cluster_replaced_by_another_during_the_listing_is_an_error(
    manager, faulty, store
):
    async def replace_cluster():
        faulty.before.clear()
        await manager.delete(1)
        for path in ("available/readonly", "available", "LAYOUT", "INSTANCEID"):
            await store.delete(f"/ledgers/{path}")
        await store.delete("/ledgers")
        await init_cluster(store)

    await manager.create(metadata_of(1))
    faulty.before["children", "/ledgers/00/0000"] = replace_cluster
    with pytest.raises(ClusterNotInitializedError):
        await listed(manager)


async def test_r27_absence_of_one_ledger_is_said_only_by_a_store_that_has_the_cluster(
    manager, store
):
    assert not await manager.exists(1)
    await store.delete("/ledgers/INSTANCEID")
    with pytest.raises(ClusterNotInitializedError):
        await manager.exists(1)


async def test_r27_ledgers_that_exist_throughout_are_always_listed(store):
    """Others come and go at random while the listing runs."""
    await init_cluster(store)
    dice = random.Random(27)
    faulty = Faulty(store)
    manager = LedgerManager(faulty)
    changer = LedgerManager(store)
    stay = {dice.randrange(2 ** dice.choice((8, 16, 33, 40))) for _ in range(40)}
    for ledger_id in stay:
        await changer.create(metadata_of(ledger_id))
    guests = set()

    async def disturb():
        if guests and dice.random() < 0.5:
            await changer.delete(guests.pop())
        else:
            guest = dice.randrange(2 ** dice.choice((8, 16, 33, 40)))
            if guest not in stay | guests:
                await changer.create(metadata_of(guest))
                guests.add(guest)

    class Everywhere(dict):
        def get(self, key):
            return disturb if key[0] == "children" else None

    faulty.before = Everywhere()
    for _ in range(20):
        found = await listed(manager)
        assert stay <= set(found)
        assert found == sorted(set(found))


async def test_the_token_comes_from_the_worlds_randomness(open_memory):
    store = await open_memory()
    store.env = Env(clock=store.env.clock, random=random.Random(5))
    await init_cluster(store)
    first, _ = await LedgerManager(store).create(metadata_of(1))
    store.env = Env(clock=store.env.clock, random=random.Random(5))
    store.env.random.getrandbits(128)  # the instance id took these
    second, _ = await LedgerManager(store).create(metadata_of(2))
    assert first.creator_token == second.creator_token
    assert replace(first, ledger_id=2) == second
