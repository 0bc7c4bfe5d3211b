"""The etcd driver where it differs from others: etcd goes away, forgets, and answers too late."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
from random import Random

import pytest

from doubles.etcd_server import EtcdServer, free_port
from doubles.inside import etcd_client_of, intercept_etcd
from quorumbook.errors import (
    LocalProtocolError,
    MetadataError,
    MetadataFateUnknownError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
    SessionExpiredError,
)
from quorumbook.metadata.memory import MemoryStore, MemoryTree
from quorumbook.metadata.store import Check, Create, Delete, Set
from quorumbook.metadata.uri import open_store

grpc = pytest.importorskip("grpc", reason="pip install 'quorumbook[etcd]'")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    server = EtcdServer(tmp_path_factory.mktemp("etcd"), "--unsafe-no-fsync")
    yield server
    server.kill()


@pytest.fixture
def etcd(shared):
    shared.wipe()
    return shared


@pytest.fixture
async def open_etcd(etcd):
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(uri=None, **options):
            store = await open_store(uri or etcd.uri(), **options)
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest.fixture
async def store(open_etcd):
    return await open_etcd()


@pytest.fixture
async def other(open_etcd):
    return await open_etcd()


@pytest.fixture
def impatient(monkeypatch):
    for name in ("_PATIENCE_S", "_OPEN_PATIENCE_S"):
        monkeypatch.setattr(f"quorumbook.metadata.etcd.store.{name}", 0.3)


async def rung(event):
    await asyncio.wait_for(event.wait(), 30)


class LostAnswers:
    """Has the answers to some commits of a store get lost on their way back."""

    def __init__(self, store, count=1, before=False):
        self._before = before
        self.count = count
        self._attempt = intercept_etcd(store, self)

    async def __call__(self, method, request, timeout_s):
        is_commit = bool(getattr(request, "compare", ()))
        if is_commit and self.count and self._before:
            self.count -= 1
            raise Lost
        answer = await self._attempt(method, request, timeout_s)
        if is_commit and self.count:
            self.count -= 1
            await self.on_lost()
            raise Lost
        return answer

    async def on_lost(self):
        pass


class Lost(grpc.RpcError):
    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "the answer is lost"


# Answers that are lost


@pytest.mark.parametrize("before", [False, True])
async def test_a_write_whose_answer_is_lost_is_done_once_and_known_to_be_done(store, other, before):
    for number in range(3):
        LostAnswers(store, 2, before)
        assert await store.create(f"/a{number}") == f"/a{number}"
        LostAnswers(store, 2, before)
        assert await store.set(f"/a{number}", b"1") == 1
        assert await store.create("/s-", sequential=True) == f"/s-{number * 2 + 1:010d}"
    assert (await other.get("/a0")).version == 1


async def test_a_lost_answer_does_not_hide_that_somebody_else_was_first(store, other):
    await store.create("/a")
    lost = LostAnswers(store, 1, before=True)
    changed = []

    async def overtaken(method, request, timeout_s):
        if getattr(request, "compare", ()) and not changed:
            changed.append(await other.set("/a", b"other"))
        return await inner(method, request, timeout_s)

    inner = intercept_etcd(store, overtaken)
    with pytest.raises(MetadataVersionConflict):
        await store.set("/a", b"own", 0)
    assert lost.count == 0
    assert (await store.get("/a")).data == b"other"


async def test_a_write_is_in_doubt_if_the_session_ends_with_its_answer(etcd, store, other):
    class Revoked(LostAnswers):
        async def on_lost(self):
            etcd.call("lease/revoke", ID=store.session_id)

    Revoked(store)
    with pytest.raises(MetadataUnavailableError, match="may have happened or not"):
        await store.create("/a")
    assert await other.exists("/a") is not None
    with pytest.raises(SessionExpiredError):
        await store.create("/b")


class Overtaken(LostAnswers):
    """Loses a commit or its answer, and does not come back before a rival has written."""

    def __init__(self, store, before, rival):
        super().__init__(store, 1, before)
        self._rival = rival

    async def __call__(self, method, request, timeout_s):
        try:
            return await super().__call__(method, request, timeout_s)
        except Lost:
            if self._before:
                await self._rival()
            raise

    async def on_lost(self):
        await self._rival()


@pytest.mark.parametrize("is_known", [False, True], ids=["read before", "known"])
@pytest.mark.parametrize("is_multi", [False, True], ids=["single", "multi"])
@pytest.mark.parametrize("rival", [None, b"same", b"other"])
async def test_of_two_that_set_the_same_by_version_one_at_most_is_told_that_it_did(
    etcd, open_etcd, other, rival, is_multi, is_known
):
    async def claim(store, path, data):
        if is_multi:
            await store.multi([Check("/", -1), Set(path, data, 0), Create(f"{path}/c", data)])
        else:
            await store.set(path, data, 0)

    for number, (before, is_over) in enumerate(itertools.product((True, False), repeat=2)):
        store, path, winners = await open_etcd(), f"/a{number}", []
        await other.create(path)
        if is_known:
            await store.get("/")
            await store.get(path)

        async def overtake(store=store, path=path, is_over=is_over, winners=winners):
            if rival is not None:
                with contextlib.suppress(MetadataVersionConflict):
                    await claim(other, path, rival)
                    winners.append(rival)
            if is_over:
                etcd.call("lease/revoke", ID=store.session_id)

        Overtaken(store, before, overtake)
        try:
            await claim(store, path, b"same")
            winners.append(b"same")
        except MetadataFateUnknownError:
            assert is_over
        except SessionExpiredError:
            assert is_over
            assert before
        except MetadataVersionConflict:
            assert winners == [rival]
        assert len(winners) <= 1
        if not is_over:
            assert len(winners) == 1
        for winner in winners:
            assert (await other.get(path)).data == winner


async def test_a_session_that_ends_between_the_read_and_the_write_writes_nothing(
    etcd, store, other
):

    async def revoked(method, request, timeout_s):
        if getattr(request, "compare", ()):
            intercept_etcd(store, attempt)
            etcd.call("lease/revoke", ID=store.session_id)
        return await attempt(method, request, timeout_s)

    attempt = intercept_etcd(store, revoked)
    with pytest.raises(SessionExpiredError):
        await store.create("/a")
    assert await other.exists("/a") is None


# Writes on what was seen last


class Sent:
    """Counts the requests of a store."""

    def __init__(self, store):
        self.count = 0
        self._attempt = intercept_etcd(store, self)

    async def __call__(self, method, request, timeout_s):
        self.count += 1
        return await self._attempt(method, request, timeout_s)

    def taken(self):
        self.count, count = 0, self.count
        return count


async def test_a_write_to_nodes_that_are_known_takes_one_transaction(store):
    await store.create("/a")
    sent = Sent(store)
    made = await asyncio.gather(store.create("/a/b", b"1"), store.exists("/a/b"))
    assert made[1] == await store.get("/a/b")
    assert sent.taken() == 2
    await store.set("/a/b", b"2", 0)
    assert await store.create("/a/s-", sequential=True) == "/a/s-0000000001"
    await store.multi([Set("/a", b"3"), Delete("/a/b", 1)])
    assert sent.taken() == 3


async def test_a_node_that_somebody_else_wrote_is_read_before_the_next_writes(store, other):
    await store.create("/a")
    sent = Sent(store)
    await other.set("/a", b"other")
    assert await store.set("/a", b"own") == 2
    assert sent.taken() == 2
    for version in range(3, 19):
        assert await store.set("/a", b"own") == version
    assert sent.taken() == 32
    assert await store.set("/a", b"own") == 19
    assert sent.taken() == 1


async def test_a_guess_is_no_ground_to_refuse_anything(store, other, open_etcd):
    await store.create("/a")
    await other.create("/a/c")
    with pytest.raises(NodeNotEmptyError):
        await store.delete("/a")
    await other.delete("/a/c")
    await (third := await open_etcd()).create("/a/e", ephemeral=True)
    assert (await store.get("/a")).children_count == 1
    await third.close()
    await store.delete("/a")  # whose child went with its session
    await other.create("/b")
    with pytest.raises(NodeExistsError):
        await store.create("/b")


async def test_a_node_made_again_on_a_guess_has_a_higher_creation_id(store, other):
    ids = []
    for turn in range(6):
        await store.create("/a")
        ids.append((await other.get("/a")).creation_id)
        await (other if turn % 2 else store).delete("/a", creation_id=ids[-1])
        if turn == 3:
            await other.create("/a")
            with pytest.raises(MetadataVersionConflict):
                await store.set("/a", b"", creation_id=ids[-1])
            ids.append((await store.get("/a")).creation_id)
            await other.delete("/a")
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("seed", range(3))
async def test_what_two_stores_do_in_turn_is_what_the_rules_of_the_tree_say(store, other, seed):
    random = Random(seed)
    tree = MemoryTree()
    models = [MemoryStore(tree, store.env) for _ in range(2)]
    paths = ["/a", "/b", "/a/c", "/a/d", "/a/c/e"]

    def operation():
        path, version = random.choice(paths), random.choice([-1, -1, 0, 1])
        return random.choice([
            Create(path, b"%d" % random.randrange(9)), Create(f"{path}-", sequential=True),
            Set(path, b"%d" % random.randrange(9), version), Delete(path, version),
        ])  # fmt: skip

    async def outcome(of, operations):
        try:
            return await of.multi(operations)
        except MetadataError as error:
            return type(error)

    for _ in range(250):
        who, operations = (
            random.randrange(2),
            [operation() for _ in range(random.choice([1, 1, 2]))],
        )
        expected = await outcome(models[who], operations)
        assert await outcome((store, other)[who], operations) == expected
    for path in paths:
        found, expected = await other.exists(path), await models[0].exists(path)
        assert found is expected or (found.data, found.version) == (expected.data, expected.version)
    for model in models:
        await model.close()


async def test_an_etcd_that_does_not_answer_is_said_in_one_line(impatient):
    port = free_port()
    with pytest.raises(MetadataUnavailableError, match=f"no etcd at .*:{port}: nobody"):
        await open_store(f"etcd://127.0.0.1:{port}/ledgers")


@pytest.mark.parametrize("first", [True, False])
async def test_a_dead_endpoint_is_passed_over(etcd, open_etcd, first):
    endpoints = [etcd.endpoint, f"127.0.0.1:{free_port()}"]
    uri = f"etcd://{','.join(reversed(endpoints) if first else endpoints)}/ledgers"
    store = await open_etcd(uri)
    await store.create("/a")
    event = asyncio.Event()
    await store.get("/a", event.set)
    await store.set("/a", b"1")
    await rung(event)


# Limits


async def test_the_largest_multi_fits_whatever_it_touches(store):
    for start in range(0, 200, 100):
        await store.multi([Create(f"/p{start + number:03d}") for number in range(100)])
    made = await store.multi(
        [Create(f"/p{number:03d}/s-", sequential=True) for number in range(100)]
    )
    assert made[99] == "/p099/s-0000000000"
    await store.multi([Create(f"/p{number:03d}/c", b"x" * 9000) for number in range(100)])
    await store.multi([Set(f"/p{number:03d}/c", b"y") for number in range(100)])
    await store.multi([Delete(f"/p{number:03d}/c", 1) for number in range(100)])
    assert await store.children("/p007") == ["s-0000000000"]


async def test_a_multi_of_more_bytes_than_etcd_takes_is_refused(store):
    with pytest.raises(LocalProtocolError, match="too large"):
        await store.multi([Create(f"/{name}", b"x" * 900_000) for name in "ab"])
    await asyncio.gather(*(store.create(f"/{name}", b"x" * 900_000) for name in "abcd"))


# What etcd holds


async def test_a_cluster_of_the_peers_own_driver_is_refused(etcd, open_etcd):
    for name in ("layout", "instanceid"):
        etcd.wipe()
        etcd.put(f"/ledgers/{name}")
        with pytest.raises(MetadataFormatError, match="etcd driver has a cluster at"):
            await open_store(etcd.uri())
        await open_etcd(etcd.uri("/elsewhere"))


async def test_a_foreign_value_in_a_nodes_place_is_said_to_be_one(etcd, store):
    etcd.put("quorumbook/1/node/001/a", "Zm9yZWlnbg==")
    with pytest.raises(MetadataFormatError, match="metadata node /a"):
        await store.get("/a")


async def test_a_session_leaves_nothing_behind(etcd, open_etcd):
    store = await open_etcd()
    await store.create("/e", ephemeral=True)
    assert {"ID": str(store.session_id)} in etcd.call("lease/leases")["leases"]
    await store.close()
    kept = etcd.call("kv/range", key="AA==", range_end="AA==", keys_only=True)
    assert [each["key"] for each in kept["kvs"]] == ["cXVvcnVtYm9vay8xL25vZGUvMDAwLw=="]
    assert {"ID": str(store.session_id)} not in etcd.call("lease/leases").get("leases", [])


# Watches


async def test_a_watch_whose_revision_etcd_has_forgotten_tells_to_look(etcd):
    from quorumbook.metadata.etcd.client import EtcdClient
    from quorumbook.metadata.etcd.watch import EtcdWatcher

    told = asyncio.Queue()
    client = EtcdClient([etcd.endpoint])
    for _ in range(5):
        etcd.put("quorumbook/1/node/001/a")
    etcd.compact()
    watcher = EtcdWatcher(client, told.put_nowait, told.put_nowait)
    watcher.want("/a", 1, with_children=True)
    watcher.follow_session(7, 1)
    found = [list(await asyncio.wait_for(told.get(), 30)) for _ in range(3)]
    assert sorted(found) == [[], ["/a"], ["/a"]]
    # And goes on from there.
    etcd.put("quorumbook/1/node/001/a")
    assert await asyncio.wait_for(told.get(), 30) == ["/a"]
    await watcher.stop()
    await client.close()


async def test_etcd_watches_no_more_than_somebody_waits_for(store, other):
    await store.create("/a")
    events = [asyncio.Event() for _ in range(3)]
    await store.get("/a", events[0].set)
    await store.children("/a", events[1].set)
    await store.exists("/b", events[2].set)
    assert len(store._watcher._spots) == 4  # how many watches there are on the wire
    await other.set("/a", b"")
    await rung(events[0])
    assert len(store._watcher._spots) == 4  # how many watches there are on the wire
    await other.create("/a/c")
    await rung(events[1])
    store.unwatch(events[2].set)
    assert len(store._watcher._spots) == 1  # how many watches there are on the wire


async def test_many_stores_count_one_sequence(open_etcd, store):
    await store.create("/q")
    stores = [await open_etcd() for _ in range(4)]
    made = await asyncio.gather(
        *(each.create("/q/n-", sequential=True) for each in stores for _ in range(25))
    )
    assert sorted(made) == [f"/q/n-{number:010d}" for number in range(100)]


async def test_a_session_is_at_least_as_long_as_etcd_allows(open_etcd):
    store = await open_etcd(session_timeout_s=0.1)
    assert store.session_timeout_s >= 1
    told = asyncio.Event()
    store.on_session_expired(told.set)
    beats = asyncio.Queue()
    keep_alive = etcd_client_of(store).keep_alive

    async def kept_alive(lease, *, timeout_s):
        beats.put_nowait(await keep_alive(lease, timeout_s=timeout_s))
        return True

    etcd_client_of(store).keep_alive = kept_alive
    # Nine thirds of the second asked for are beyond the two that etcd grants.
    assert [await asyncio.wait_for(beats.get(), 30) for _ in range(9)] == [True] * 9
    await store.create("/alive", ephemeral=True)
    assert not told.is_set()


async def test_a_node_of_a_deleted_and_renewed_session_stays_away(etcd, store):
    await store.create("/e", ephemeral=True)
    etcd.call("lease/revoke", ID=store.session_id)
    await store.renew_session()
    with pytest.raises(NoSuchNodeError):
        await store.get("/e")


def test_the_extra_is_named_when_it_is_missing():
    code = (
        "import asyncio, sys\n"
        "sys.modules['grpc'] = None\n"
        "from quorumbook.metadata.uri import open_store\n"
        "asyncio.run(open_store('etcd://127.0.0.1:2379/ledgers'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConfigError" in done.stderr
    assert "pip install 'quorumbook[etcd]'" in done.stderr
