"""A ZooKeeper whose answers are lost, late, halved or nonsense, through a proxy that does that."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from doubles.zookeeper import fresh_root
from doubles.zookeeper_proxy import Mishap, Proxy, nonsense
from quorumbook.errors import (
    MetadataFateUnknownError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.metadata.store import Check, Create, Delete, Set
from quorumbook.metadata.uri import open_store
from quorumbook.metadata.zookeeper.jute import Op

LOST = [Mishap.NOT_SENT, Mishap.NOT_ANSWERED]


def unknown_if_done(mishap):
    """Bytes are no proof: a rival may have written them, so what was done may only be unknown."""
    if mishap is Mishap.NOT_SENT:
        return contextlib.nullcontext()
    return pytest.raises(MetadataFateUnknownError, match="may have happened")


@pytest.fixture
async def plain(zookeeper):
    """Return a store with an undisturbed connection, and below which path it works."""
    store = await open_store(f"zk://{zookeeper.address}/ledgers")
    yield store
    await store.close()


@pytest.fixture
async def root(plain):
    root = fresh_root()
    await plain.create(root)
    return root


@pytest.fixture
async def proxy(zookeeper):
    async with Proxy(zookeeper.host, zookeeper.port) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def through(proxy, root, **options):
    uri = f"zk://127.0.0.1:{proxy.port}/ledgers?chroot={root}"
    store = await open_store(uri, **options)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(proxy, root):
    async with through(proxy, root) as store:
        yield store


@pytest.mark.parametrize("mishap", LOST)
async def test_an_ephemeral_node_is_created_once_whichever_way_the_answer_is_lost(
    proxy, store, mishap
):
    proxy.once(mishap, Op.CREATE)
    assert await store.create("/e", b"mine", ephemeral=True) == "/e"
    assert (await store.get("/e")).owner == store.session_id
    assert (await store.get("/")).child_version == 1


@pytest.mark.parametrize("mishap", LOST)
async def test_sequential_ephemeral_nodes_are_created_once_whichever_way_the_answers_are_lost(
    proxy, store, mishap
):
    await store.create("/s-", ephemeral=True, sequential=True)
    proxy.once(mishap, Op.CREATE)
    paths = await asyncio.gather(
        *(store.create("/s-", ephemeral=True, sequential=True) for _ in range(3))
    )
    assert sorted(paths) == [f"/s-{number:010d}" for number in (1, 2, 3)]
    assert len(await store.children("/")) == 4


@pytest.mark.parametrize("mishap", LOST)
async def test_a_compare_and_set_happens_once_whichever_way_the_answer_is_lost(
    proxy, store, mishap
):
    await store.create("/a", b"old")
    proxy.once(mishap, Op.SET)
    with unknown_if_done(mishap):
        assert await store.set("/a", b"new", 0) == 1
    node = await store.get("/a")
    assert (node.data, node.version) == (b"new", 1)


@pytest.mark.parametrize("mishap", LOST)
async def test_a_set_of_any_version_happens_once_whichever_way_the_answer_is_lost(
    proxy, store, mishap
):
    await store.create("/a", b"old")
    proxy.once(mishap, Op.SET)
    assert await store.set("/a", b"new") == 1
    assert (await store.get("/a")).version == 1


@pytest.mark.parametrize("mishap", LOST)
async def test_a_deletion_happens_whichever_way_the_answer_is_lost(proxy, store, mishap):
    await store.create("/a")
    proxy.once(mishap, Op.DELETE)
    await store.delete("/a", 0)
    assert await store.exists("/a") is None


@pytest.mark.parametrize("mishap", LOST)
async def test_a_replacement_happens_once_whichever_way_the_answer_is_lost(
    proxy, store, plain, root, mishap
):
    await plain.create(f"{root}/a", b"old", ephemeral=True)
    proxy.once(mishap, Op.MULTI)
    await store.replace("/a", b"new", ephemeral=True)
    node = await store.get("/a")
    assert (node.data, node.owner) == (b"new", store.session_id)
    assert (await store.get("/")).child_version == 3


@pytest.mark.parametrize("mishap", LOST)
async def test_a_multi_happens_once_whichever_way_the_answer_is_lost(proxy, store, mishap):
    await store.create("/a", b"old")
    await store.create("/gone")
    proxy.once(mishap, Op.MULTI)
    operations = [Check("/a", 0), Delete("/gone"), Set("/a", b"new", 0), Create("/b")]
    with unknown_if_done(mishap):
        assert await store.multi(operations) == [None, None, 1, "/b"]
    assert await store.children("/") == ["a", "b"]
    assert (await store.get("/a")).version == 1


@pytest.mark.parametrize("mishap", LOST)
async def test_a_multi_with_an_ephemeral_node_is_known_to_have_happened(proxy, store, mishap):
    await store.create("/a", b"old")
    proxy.once(mishap, Op.MULTI)
    operations = [Set("/a", b"new", 0), Create("/e", ephemeral=True)]
    assert await store.multi(operations) == [1, "/e"]
    assert (await store.get("/a")).version == 1


async def test_a_persistent_node_whose_creator_nobody_can_tell_may_have_been_created(proxy, store):
    proxy.once(Mishap.NOT_ANSWERED, Op.CREATE)
    with pytest.raises(MetadataUnavailableError, match="may have happened"):
        await store.create("/a", b"same")
    assert (await store.get("/a")).data == b"same"


async def test_a_persistent_node_that_was_not_created_is_created(proxy, store):
    proxy.once(Mishap.NOT_SENT, Op.CREATE)
    assert await store.create("/a", b"same") == "/a"


@pytest.mark.parametrize("mishap", LOST)
async def test_the_refusal_of_a_write_is_told_although_it_was_lost(proxy, store, mishap):
    await store.create("/a", b"first")
    for operation, write, error in (
        (Op.CREATE, lambda: store.create("/a", b"first"), NodeExistsError),
        (Op.SET, lambda: store.set("/a", b"first", 7), MetadataVersionConflict),
        (Op.DELETE, lambda: store.delete("/a", 7), MetadataVersionConflict),
        (Op.CREATE, lambda: store.create("/none/b"), NoSuchNodeError),
    ):
        proxy.once(mishap, operation)
        with pytest.raises(error):
            await write()
    assert (await store.get("/a")).version == 0


async def test_a_write_that_somebody_else_wrote_over_may_have_happened(proxy, store, plain, root):
    await store.create("/a", b"0")

    async def write_over():
        while (await plain.get(f"{root}/a")).version == 0:
            await asyncio.sleep(0.01)
        await plain.set(f"{root}/a", b"2")
        proxy.is_deaf = False
        proxy.cut()

    proxy.once(Mishap.NOT_ANSWERED, Op.SET)
    proxy_deaf_after_cut(proxy)
    other = asyncio.ensure_future(write_over())
    with pytest.raises(MetadataUnavailableError, match="may have happened"):
        await store.set("/a", b"1", 0)
    await other
    assert (await store.get("/a")).data == b"2"


def proxy_deaf_after_cut(proxy):
    """Keep the store away from the server from its next mishap on."""
    choose = proxy.on_request

    def deafen(number):
        mishap = choose(number)
        if mishap is not Mishap.NONE:
            proxy.is_deaf = True
        return mishap

    proxy.on_request = deafen


async def test_reads_are_asked_again(proxy, store):
    await store.create("/a", b"data")
    for operation, read in (
        (Op.GET, lambda: store.get("/a")),
        (Op.GET, lambda: store.exists("/a")),
        (Op.CHILDREN, lambda: store.children("/")),
    ):
        before = proxy.connections
        proxy.once(Mishap.NOT_ANSWERED, operation)
        assert await read()
        assert proxy.connections == before + 1


# Watches


async def test_a_watch_misses_nothing_while_the_server_is_out_of_reach(proxy, store, plain, root):
    await store.create("/a", b"old")
    await store.create("/quiet")
    rung = {name: asyncio.Event() for name in ("set", "made", "child", "gone", "quiet")}
    await store.create("/gone")
    await store.get("/a", rung["set"].set)
    await store.exists("/b", rung["made"].set)
    await store.children("/a", rung["child"].set)
    await store.get("/gone", rung["gone"].set)
    await store.get("/quiet", rung["quiet"].set)
    proxy.is_deaf = True
    proxy.cut()
    await plain.set(f"{root}/a", b"new")
    await plain.create(f"{root}/b")
    await plain.create(f"{root}/a/c")
    await plain.delete(f"{root}/gone")
    proxy.is_deaf = False
    proxy.cut()
    for name in ("set", "made", "child", "gone"):
        await asyncio.wait_for(rung[name].wait(), 20)
    assert not rung["quiet"].is_set()
    await plain.set(f"{root}/quiet", b"")
    await asyncio.wait_for(rung["quiet"].wait(), 20)


async def test_many_watches_are_left_again(proxy, store, plain, root):
    names = [f"/{'n' * 200}{number}" for number in range(1200)]
    rung = asyncio.Event()
    await asyncio.gather(*(store.exists(name, lambda: None) for name in names[:-1]))
    await store.exists(names[-1], rung.set)
    proxy.cut()
    await store.get("/")
    await plain.create(f"{root}{names[-1]}")
    await asyncio.wait_for(rung.wait(), 20)


# Slow and half


@pytest.mark.parametrize("trouble", ["is_mute", "is_half"])
async def test_a_server_that_answers_late_or_half_is_told_and_comes_back(proxy, root, trouble):
    async with through(proxy, root, session_timeout_s=0.6) as store:
        await store.create("/a", b"data")
        setattr(proxy, trouble, True)
        for operation in (store.get("/a"), store.create("/b"), store.renew_session()):
            with pytest.raises(MetadataUnavailableError, match="no ZooKeeper at"):
                await operation
        setattr(proxy, trouble, False)
        proxy.cut()
        assert (await store.get("/a")).data == b"data"


@pytest.mark.parametrize("trouble", ["is_deaf", "is_mute", "is_half"])
async def test_a_store_is_not_opened_where_nobody_answers(proxy, root, trouble):
    setattr(proxy, trouble, True)
    with pytest.raises(MetadataUnavailableError, match=f":{proxy.port} does not answer"):
        async with through(proxy, root, session_timeout_s=0.5):
            pass


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "announces"),
        (b"\xff\xff\xff\xff", "announces -1 bytes"),
        (b"\0\0\0\2xx", "cannot be understood"),
        (b"\0\0\0\x14" + b"\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\1\0\0\0\x10", "cannot be understood"),
    ],
)
async def test_what_is_no_zookeeper_is_named(answer, says):
    async with nonsense(answer) as port:
        with pytest.raises(MetadataUnavailableError, match=says):
            await open_store(f"zk://127.0.0.1:{port}/ledgers", session_timeout_s=0.5)


async def test_a_server_that_is_not_there_is_named():
    with pytest.raises(MetadataUnavailableError, match=r"nobody listens at 127\.0\.0\.1:1"):
        await open_store("zk://127.0.0.1:1/ledgers", session_timeout_s=0.5)


async def test_a_request_in_the_very_step_in_which_the_connection_ends_waits_for_the_next(store):
    for operation in (store.children("/"), store.create("/a"), store.renew_session()):
        store._session._connection.end("on purpose")  # a connection is lost between two steps
        await asyncio.wait_for(operation, 20)
