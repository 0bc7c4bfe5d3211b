"""The sqlite store's own promises: its file, its leases, its transactions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
from random import Random

import pytest

from doubles.waiting import until
from quorumbook.errors import (
    ClusterNotInitializedError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchNodeError,
    SessionExpiredError,
)
from quorumbook.metadata.sqlite import file as sqlite_file
from quorumbook.metadata.sqlite import thread as sqlite_thread
from quorumbook.metadata.store import Set
from quorumbook.metadata.uri import open_store


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "metadata.db")


@pytest.fixture
async def open_one(path, env):
    stores = []

    async def open_one(*, create=True, **options):
        store = await open_store(f"sqlite:///{path}", env, create=create, **options)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await store.close()


def rows(path, statement, *values):
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def sessions(path):
    return {row[0]: row[1] for row in rows(path, "SELECT id, lease_end_ns FROM session")}


async def inside(store, work):
    """Run something on the store's thread, as an operation."""
    # What is in the file, and what is asked of it.
    return await store._read(lambda: work(store._thread))


def limit_pages(count):
    """As if the disk were full."""
    statement = f"PRAGMA max_page_count = {count}"
    # What is in the file, and what is asked of it.
    return lambda thread: thread._connection.execute(statement).fetchall()


# The file


async def test_only_create_makes_the_file(open_one, path):
    with pytest.raises(ClusterNotInitializedError) as caught:
        await open_one(create=False)
    assert f"quorumbook cluster init --metadata sqlite:///{path}" in str(caught.value)
    assert not os.path.exists(path)
    await open_one(create=True)
    await open_one(create=False)


async def test_an_existing_file_is_opened_not_emptied_by_create(open_one):
    store = await open_one()
    await store.create("/kept")
    await store.close()
    assert await (await open_one(create=True)).children("/") == ["kept"]


async def test_create_makes_missing_directories(tmp_path):
    path = tmp_path / "a" / "b" / "metadata.db"
    await (await open_store(f"sqlite:///{path}", create=True)).close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_nobody_else_can_read_the_passwords_in_the_file(open_one, path, tmp_path):
    store = await open_one()
    await store.create("/a")
    assert sorted(os.listdir(tmp_path)) == ["metadata.db", "metadata.db-shm", "metadata.db-wal"]
    for name in os.listdir(tmp_path):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


async def test_a_commit_is_synced(open_one):
    store = await open_one()
    pragma = "PRAGMA {}"
    found = [
        await inside(
            store,
            # What is in the file, and what is asked of it.
            lambda thread, name=name: thread._connection.execute(pragma.format(name)).fetchone()[0],
        )
        for name in ("journal_mode", "synchronous")
    ]
    assert found == ["wal", 2]


async def test_a_path_with_special_characters_is_taken_literally(tmp_path):
    for name in ("a b.db", "a%20b.db", "a?mode=ro.db", "a#b.db"):
        await (await open_store(f"sqlite:///{tmp_path}/{name}", create=True)).close()
        assert (tmp_path / name).exists()


async def test_a_relative_path_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    await (await open_store("sqlite:///./data/metadata.db", create=True)).close()
    assert (tmp_path / "data" / "metadata.db").exists()


async def test_an_empty_file_holds_no_cluster_until_one_is_made(open_one, path):
    open(path, "wb").close()
    with pytest.raises(ClusterNotInitializedError, match="quorumbook cluster init"):
        await open_one(create=False)
    await open_one(create=True)


async def test_a_file_left_half_made_by_a_crash_is_finished_by_create(open_one, path):
    rows(path, "PRAGMA journal_mode = WAL")
    assert os.path.getsize(path) > 0
    with pytest.raises(ClusterNotInitializedError):
        await open_one(create=False)
    await (await open_one(create=True)).create("/a")


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"this is a text file, not a database\n" * 200, "is not a metadata file"),
        (Random(1).randbytes(20_000), "is not a metadata file"),
    ],
    ids=["text", "noise"],
)
async def test_a_file_that_is_no_database_gets_one_line(open_one, path, content, says, create):
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(MetadataFormatError, match=says) as caught:
        await open_one(create=create)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)
    with open(path, "rb") as file:
        assert file.read() == content


@pytest.mark.parametrize("create", [False, True])
async def test_a_database_of_another_program_is_refused(open_one, path, create):
    rows(path, "CREATE TABLE songs (title TEXT)")
    with pytest.raises(MetadataFormatError, match="of another program"):
        await open_one(create=create)
    rows(path, "DROP TABLE songs")
    rows(path, "PRAGMA application_id = 7")
    with pytest.raises(MetadataFormatError, match="of another program"):
        await open_one(create=create)


async def test_a_file_of_a_newer_release_is_refused(open_one, path):
    await (await open_one()).close()
    rows(path, "PRAGMA user_version = 2")
    with pytest.raises(MetadataFormatError, match="newer release"):
        await open_one(create=False)


async def test_damage_inside_the_file_gets_one_line(open_one, path):
    store = await open_one()
    await store.create("/a")
    for number in range(200):
        await store.create(f"/a/{number}", b"x" * 200)
    await store.close()
    with open(path, "r+b") as file:
        file.seek(2 * 4096)
        file.write(os.urandom(os.path.getsize(path) - 2 * 4096))

    async def read_all():
        store = await open_one(create=False)
        for number in range(200):
            await store.get(f"/a/{number}")

    with pytest.raises(MetadataFormatError, match="damaged") as caught:
        await read_all()
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_directory_in_the_place_of_the_file_is_refused(open_one, path):
    os.mkdir(path)
    with pytest.raises(MetadataFormatError, match=r"metadata\.db is a directory"):
        await open_one(create=False)


async def test_a_parent_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MetadataUnavailableError, match="cannot be made"):
        await open_store(f"sqlite:///{tmp_path}/file/metadata.db", create=True)


async def test_several_openers_at_once_make_one_file(open_one):
    stores = await asyncio.gather(*(open_one() for _ in range(6)))
    await stores[0].create("/a")
    for store in stores:
        assert await store.children("/") == ["a"]
    assert len({store.session_id for store in stores}) == 6


async def test_a_file_removed_under_the_store_is_noticed(open_one, path, clock):
    store = await open_one()
    expired = []
    store.on_session_expired(lambda: expired.append(True))
    os.unlink(path)
    clock.advance(4)
    await store.exists("/")  # wakes the thread, which finds a heartbeat due
    await until(lambda: bool(expired))
    for operation in (store.create("/a"), store.get("/"), store.renew_session()):
        with pytest.raises(MetadataUnavailableError, match="removed or replaced"):
            await operation


# Leases


async def test_a_heartbeat_extends_the_lease(open_one, path, clock):
    store = await open_one(session_timeout_s=10)
    await store.create("/e", ephemeral=True)
    for _ in range(10):
        clock.advance(4)
        await store.exists("/")  # wakes the thread
        await until(lambda: sessions(path)[store.session_id] == clock.ns + 10_000_000_000)
    assert await store.exists("/e") is not None


async def test_a_heartbeat_is_due_after_a_third_of_the_lease(open_one, path, clock):
    store = await open_one(session_timeout_s=9)
    began = sessions(path)[store.session_id]
    clock.advance(2.9)
    await store.exists("/")
    await store.exists("/")
    assert sessions(path)[store.session_id] == began
    clock.advance(0.1)
    await store.exists("/")
    await until(lambda: sessions(path)[store.session_id] == began + 3_000_000_000)


async def test_heartbeats_come_by_themselves(open_one, path, clock):
    store = await open_one(session_timeout_s=0.3)
    began = sessions(path)[store.session_id]
    clock.advance(0.1)
    # Nobody asks anything of the store.
    await until(lambda: sessions(path)[store.session_id] > began)


async def test_r31_a_process_paused_beyond_its_lease_is_refused_at_its_next_write(
    open_one, path, clock
):
    store = await open_one(session_timeout_s=10)
    await store.create("/e", ephemeral=True)
    clock.advance(10)
    with pytest.raises(SessionExpiredError):
        await store.create("/a")
    assert sessions(path) == {}
    assert await store.exists("/e") is None
    assert await store.exists("/a") is None


async def test_r31_a_heartbeat_never_revives_a_session(open_one, path, clock):
    store = await open_one(session_timeout_s=10)
    expired = []
    store.on_session_expired(lambda: expired.append(True))
    clock.advance(10.5)
    await store.exists("/")  # wakes the thread, which finds a heartbeat due
    await until(lambda: bool(expired))
    clock.advance(4)
    await store.exists("/")
    await store.exists("/")
    assert sessions(path) == {}
    with pytest.raises(SessionExpiredError):
        await store.create("/a")


async def test_a_heartbeat_that_finds_the_session_over_tells_it(open_one, path, clock):
    store = await open_one(session_timeout_s=0.3)
    expired = []
    store.on_session_expired(lambda: expired.append(True))
    clock.advance(1)
    # Nobody asks anything of the store.
    await until(lambda: bool(expired))
    assert sessions(path) == {}


async def test_a_renewal_that_was_not_committed_is_none(open_one, path, clock):
    store = await open_one(session_timeout_s=10)
    told = []
    store.on_session_expired(lambda: told.append(True))
    before = store.session_id
    clock.advance(20)
    with pytest.raises(SessionExpiredError):
        await store.create("/a")
    await inside(store, limit_pages(1))  # SQLite takes the present size instead
    results = await asyncio.gather(
        store.renew_session(),
        store.replace("/large", b"x" * 500_000, False),
        return_exceptions=True,
    )
    await inside(store, limit_pages(100_000))
    if isinstance(results[0], MetadataUnavailableError):
        assert store.session_id == before
        # The id that was not given belongs to whoever gets it now.
        other = await open_one(session_timeout_s=1000)
        with pytest.raises(SessionExpiredError):
            await store.create("/a")
        assert other.session_id != store.session_id
    assert await store.renew_session() > before
    await store.create("/a")
    assert told == [True]


async def test_the_first_transaction_that_sees_a_lease_over_ends_the_session(open_one, path, clock):
    store = await open_one(session_timeout_s=10)
    other = await open_one(session_timeout_s=1000)
    await store.create("/e", ephemeral=True)
    clock.advance(10)
    await other.create("/unrelated")
    assert list(sessions(path)) == [other.session_id]
    assert rows(path, "SELECT name FROM node WHERE owner <> 0") == []


async def test_a_session_of_another_boot_is_over(open_one, path, clock):
    store = await open_one(session_timeout_s=1000)
    await store.create("/e", ephemeral=True)
    # After a boot the clock begins anew and old leases would look long.
    clock.boot = "another boot"
    other = await open_one(session_timeout_s=1000)
    assert await other.exists("/e") is None
    assert list(sessions(path)) == [other.session_id]


async def test_ids_are_never_given_twice(open_one, path):
    first = await open_one()
    await first.create("/a")
    creation_id = (await first.get("/a")).creation_id
    await first.delete("/a")
    await first.close()
    second = await open_one()
    await second.create("/a")
    assert second.session_id > first.session_id
    assert (await second.get("/a")).creation_id > creation_id


async def test_r31_a_file_that_is_held_by_somebody_is_no_expiry(open_one, path, monkeypatch, clock):
    for module in (sqlite_file, sqlite_thread):
        monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(sqlite_thread, "_HEARTBEAT_BUSY_TIMEOUT_S", 0.05)
    store = await open_one(session_timeout_s=10)
    await store.create("/e", ephemeral=True)
    expired = []
    store.on_session_expired(lambda: expired.append(True))
    session_id = store.session_id
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        clock.advance(5)  # a heartbeat is due, and cannot be written
        with pytest.raises(MetadataUnavailableError, match="held by another process") as caught:
            await store.create("/a")
        assert caught.value.retriable
        assert await store.exists("/e") is not None  # reads go on
        holder.execute("ROLLBACK")
    await store.create("/a")
    assert expired == []
    assert (await store.get("/e")).owner == session_id == store.session_id


# Transactions


async def test_operations_that_wait_share_a_commit(open_one):
    store = await open_one()
    await store.create("/a")
    statements = []
    # What is in the file, and what is asked of it.
    await inside(store, lambda thread: thread._connection.set_trace_callback(statements.append))
    await asyncio.gather(*(store.set("/a", b"%d" % number) for number in range(100)))
    # What is in the file, and what is asked of it.
    await inside(store, lambda thread: thread._connection.set_trace_callback(None))
    assert (await store.get("/a")).version == 100
    assert statements.count("COMMIT") < 20


async def test_an_answer_comes_after_the_commit(open_one, path):
    store = await open_one()
    await store.create("/a")
    for number in range(20):
        await store.set("/a", b"%d" % number)
        assert rows(path, "SELECT data FROM node WHERE name = 'a'") == [(b"%d" % number,)]


async def test_a_transaction_that_fails_fails_all_that_share_it_and_leaves_no_watch(open_one):
    store = await open_one()
    await store.create("/a", b"old")
    other = await open_one()
    rung = []
    await inside(store, limit_pages(1))  # SQLite takes the present size instead
    results = await asyncio.gather(
        store.get("/a", lambda: rung.append(True)),
        store.set("/a", b"new"),
        store.create("/large", b"x" * 500_000),
        return_exceptions=True,
    )
    assert isinstance(results[2], MetadataUnavailableError)
    assert "full" in str(results[2])
    await inside(store, limit_pages(100_000))
    if isinstance(results[1], MetadataUnavailableError):
        assert (await other.get("/a")).data == b"old"
    assert await other.exists("/large") is None
    await store.create("/large", b"x" * 500_000)


async def test_an_unexpected_error_is_told_and_the_thread_goes_on(open_one):
    store = await open_one()

    def fail(_thread):
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        await inside(store, fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        await store._write(lambda: fail(None))  # what is in the file, and what is asked of it
    await store.create("/a")


async def test_what_waits_when_the_store_closes_is_done_or_refused(open_one, path):
    store = await open_one()
    await store.create("/a")
    pending = [asyncio.ensure_future(store.set("/a", b"")) for _ in range(1000)]
    await asyncio.sleep(0)
    await store.close()
    results = await asyncio.gather(*pending, return_exceptions=True)
    done = sum(isinstance(each, int) for each in results)
    assert all(isinstance(each, int | MetadataUnavailableError) for each in results)
    assert rows(path, "SELECT version FROM node WHERE name = 'a'") == [(done,)]
    assert sessions(path) == {}


async def test_an_open_that_is_cancelled_leaves_no_session(path, env):
    task = asyncio.ensure_future(open_store(f"sqlite:///{path}", env, create=True))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    def is_clean():
        with contextlib.suppress(sqlite3.Error):
            return os.path.exists(path) and sessions(path) == {}
        return False

    await until(is_clean)


async def test_a_watch_costs_nothing_while_nothing_changes(open_one):
    store = await open_one()
    other = await open_one()
    rung = asyncio.Event()
    for number in range(50):
        await store.create(f"/{number}")
        await store.get(f"/{number}", rung.set)
    await store.children("/", rung.set)
    await asyncio.sleep(0)
    statements = []
    # What is in the file, and what is asked of it.
    await inside(store, lambda thread: thread._connection.set_trace_callback(statements.append))
    looked = asyncio.Event()
    await store.exists("/later", looked.set)
    await other.create("/later")
    await asyncio.wait_for(looked.wait(), 20)
    compared = sum("created_count FROM node" in each for each in statements)
    # One comparison of all of them after the change, not one a poll.
    assert compared <= 3 * 53


async def test_reading_a_missing_node_inside_a_batch_keeps_the_others_watches(open_one):
    store = await open_one()
    other = await open_one()
    await store.create("/a")
    rung = asyncio.Event()
    results = await asyncio.gather(
        store.get("/missing"), store.get("/a", rung.set), return_exceptions=True
    )
    assert isinstance(results[0], NoSuchNodeError)
    await other.multi([Set("/a", b"")])
    await asyncio.wait_for(rung.wait(), 20)
