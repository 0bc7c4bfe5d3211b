"""What moving a cluster's metadata promises, from every driver to every driver."""

from __future__ import annotations

import asyncio
import io

import pytest

from quorumbook.errors import MetadataMoveError, NoSuchNodeError, SessionExpiredError
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.cluster import Layout, init_cluster, read_instance_id, read_layout
from quorumbook.metadata.dump import DumpReader
from quorumbook.metadata.ids import LedgerIdGenerator
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.paths import LayoutKind, TreePaths
from quorumbook.metadata.store import Create, Delete
from quorumbook.metadata.transfer import copy_metadata, dump_metadata, restore_metadata

PATHS = TreePaths("/ledgers")


async def tree(store, path=None):
    """Return data and children of every node, the nodes that count ids and locks aside."""
    path = path or store.ledgers_root
    names = [name for name in await store.children(path) if not name.startswith("idgen")]
    found = {path.removeprefix(store.ledgers_root): ((await store.get(path)).data, names)}
    for name in names:
        found |= await tree(store, f"{path}/{name}")
    return found


async def next_id(store):
    generator = LedgerIdGenerator(store)
    ledger_id = await generator.next_id()
    await generator.close()
    return ledger_id


async def make_cluster(store, kind=LayoutKind.HIERARCHICAL, ids=3):
    """Make a cluster with something of everything in it."""
    await init_cluster(store, layout=Layout(kind))
    manager = LedgerManager(store)
    given = [await next_id(store) for _ in range(ids)]
    own = [] if "flat" in kind.value or "legacy" in kind.value else [2**31 - 1, 2**63 - 1]
    for ledger_id in (*given, 123_456, *own):
        await manager.create(
            LedgerMetadata(
                ledger_id=ledger_id,
                ensemble_size=2,
                write_quorum_size=2,
                ack_quorum_size=2,
                fragments=(Fragment(0, ("b1:1", "b2:2")),),
                password=b"secret",
                custom_metadata={"k": bytes(range(256))},
            )
        )
    for path, data in {
        PATHS.cookie("127.0.0.1:3181"): b"a cookie",
        PATHS.underreplicated(7): b'replica: "b1:1"\n',
        f"{PATHS.underreplication}/LAYOUT": b"type: ...",
        "/ledgers/streams/ä 1/<default>/ledgers": b"1",
        "/ledgers/large": b"\0\xff" * 450_000,
    }.items():
        await create_with_parents(store, path, data)
    await store.set("/ledgers/large", b"\1\xff" * 450_000)
    await store.set("/ledgers", b"the root has data too")


async def test_a_copy_holds_the_same_nodes(store, target):
    await make_cluster(store)
    copied = await target.open()
    summary = await copy_metadata(store, copied)
    assert await tree(copied) == await tree(store)
    assert await read_instance_id(copied) == await read_instance_id(store)
    assert summary.ledgers == 6
    ledgers = LedgerManager(copied)
    assert [each async for each in ledgers.list()] == [0, 1, 2, 123_456, 2**31 - 1, 2**63 - 1]
    assert (await ledgers.read(2))[0].password == b"secret"


async def test_a_dump_restores_to_the_same_nodes(store, target):
    await make_cluster(store)
    file = io.BytesIO()
    await dump_metadata(store, file)
    restored = await target.open()
    await restore_metadata(DumpReader(file, "a dump"), restored)
    assert await tree(restored) == await tree(store)
    again = io.BytesIO()
    await dump_metadata(restored, again)
    assert len(again.getvalue()) == len(file.getvalue())


@pytest.mark.parametrize("kind", LayoutKind)
async def test_ids_go_on_where_they_were_in_every_layout(store, target, kind):
    await make_cluster(store, kind, ids=20)
    copied = await target.open()
    await copy_metadata(store, copied)
    assert (await read_layout(copied)).kind is kind
    expected = await next_id(store)
    assert expected >= 20
    # In the flat layout everything below the root counts, the nodes of the move as well.
    found = await next_id(copied)
    assert expected <= found <= expected + 5


async def use_up(store, parent, count):
    """Have a node's counter stand at a number."""
    await create_with_parents(store, parent)
    for _ in range(count):
        await store.multi([Create(f"{parent}/x"), Delete(f"{parent}/x")])


@pytest.fixture
def hurried(monkeypatch):
    """Counters are left behind sooner."""
    monkeypatch.setattr("quorumbook.metadata.ids.MAX_STEPS", 10)


@pytest.mark.parametrize("used", [0, 7, 11])
async def test_long_ids_go_on_beyond_the_old_ones(store, target, hurried, used):
    await init_cluster(store)
    await create_with_parents(store, PATHS.idgen)
    await use_up(store, PATHS.high_order_bits(3), used)
    copied = await target.open()
    await copy_metadata(store, copied)
    expected = (4 << 32) if used == 11 else (3 << 32 | used)
    assert await next_id(copied) == expected >= await next_id(store)


async def test_ids_too_many_to_be_counted_again_go_on_as_long_ones(store, target, hurried):
    await init_cluster(store)
    await use_up(store, PATHS.idgen, 11)
    copied = await target.open()
    await copy_metadata(store, copied)
    assert await next_id(copied) == 1 << 32


async def test_a_target_that_names_another_layout_is_refused(store, target):
    await make_cluster(store)
    other = await target.open()

    class Named(Overtaken):
        uri = "zk+flat://127.0.0.1:2181/ledgers"

    with pytest.raises(MetadataMoveError, match="names another layout than the source has"):
        await copy_metadata(store, Named(other, ()))
    assert await other.exists("/ledgers") is None


async def test_a_target_that_is_not_empty_is_refused_and_left_alone(store, target):
    await make_cluster(store)
    other = await target.open()
    await create_with_parents(other, "/ledgers/something", b"kept")
    before = await tree(other)
    with pytest.raises(MetadataMoveError, match="not empty: there is /ledgers/something"):
        await copy_metadata(store, other)
    assert await tree(other) == before


async def test_a_source_in_use_is_refused_unless_that_is_wanted(driver, store, target):
    await make_cluster(store)
    bookie = await driver.open()
    await bookie.create(PATHS.bookie("b:1", read_only=False), ephemeral=True)
    lock = PATHS.underreplicated_lock(7)
    await create_with_parents(bookie, lock, ephemeral=True)
    copied = await target.open()
    with pytest.raises(MetadataMoveError, match=r"bookie b:1 is registered.*--online"):
        await copy_metadata(store, copied)
    await bookie.delete(PATHS.bookie("b:1", read_only=False))
    # Who holds a lock writes as well; what was copied before it was met is taken away again.
    with pytest.raises(MetadataMoveError, match="urL0000000007 is held"):
        await copy_metadata(store, copied)
    assert await copied.children("/ledgers") == []
    await copy_metadata(store, copied, is_online=True)
    expected = await tree(store)
    del expected[lock.removeprefix("/ledgers")]
    expected["/underreplication/locks"] = (b"", [])
    assert await tree(copied) == expected
    # The source goes on giving ids.
    assert await next_id(copied) == 1 << 32


async def test_a_source_that_changes_during_the_move_is_noticed(store, other, target):
    await make_cluster(store)
    copied = await target.open()
    changed = []

    def report(stage, _done):
        if stage == "writing" and not changed:
            # A ledger behind the place where the move is.
            changed.append(asyncio.ensure_future(create_with_parents(other, "/ledgers/zz/L0009")))

    with pytest.raises(MetadataMoveError, match="it was changed"):
        await copy_metadata(store, Overtaken(copied, changed), report=report)
    assert await copied.children("/ledgers") == []


class Overtaken:
    """A store whose writes wait for what happens elsewhere."""

    def __init__(self, store, tasks):
        self._store = store
        self._tasks = tasks

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def multi(self, operations):
        await asyncio.gather(*self._tasks)
        return await self._store.multi(operations)

    @property
    def multi_limit(self):
        return 4


class Dying(Overtaken):
    """A store whose session ends before the n-th write, as if its process had been killed."""

    def __init__(self, store, driver, lives):
        super().__init__(store, ())
        self._driver = driver
        self._lives = lives

    async def multi(self, operations):
        self._lives -= 1
        if self._lives == 0:
            await self._driver.end_lease(self._store)
        return await self._store.multi(operations)


@pytest.mark.parametrize("lives", [1, 2, 4, 8])
async def test_what_a_killed_move_leaves_is_no_cluster_and_the_next_move_begins_again(
    store, target, lives
):
    await make_cluster(store)
    first = await target.open()
    with pytest.raises(SessionExpiredError):
        await copy_metadata(store, Dying(first, target, lives))
    second = await target.open()
    with pytest.raises(NoSuchNodeError):
        await second.get(PATHS.layout)
    await copy_metadata(store, second)
    assert await tree(second) == await tree(store)


async def test_two_moves_into_one_target_are_kept_apart(store, target):
    await make_cluster(store)
    first = await target.open()
    second = await target.open(session_timeout_s=0.5)
    seconds = []

    def report(stage, _done):
        if stage == "writing" and not seconds:
            seconds.append(asyncio.ensure_future(copy_metadata(store, second)))

    await copy_metadata(store, Overtaken(first, ()), report=report)
    with pytest.raises(MetadataMoveError):
        await seconds[0]
    assert await tree(first) == await tree(store)


async def test_the_ledgers_are_read_back_before_the_target_is_a_cluster(store, target):
    await make_cluster(store)
    copied = await target.open()

    class Forgetful(Overtaken):
        async def multi(self, operations):
            changed = [each for each in operations if getattr(each, "data", b"") != b"a cookie"]
            return await self._store.multi(changed)

    with pytest.raises(MetadataMoveError, match="does not hold what was written"):
        await copy_metadata(store, Forgetful(copied, ()))
    assert await copied.children("/ledgers") == []
