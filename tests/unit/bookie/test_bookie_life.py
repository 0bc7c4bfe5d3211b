"""A bookie's life on a real storage: restart, read-only, sessions, journal failure."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
from bookie_harness import (
    DIGESTER,
    KEY,
    RawClient,
    cluster,
    code_of,
    entry,
    options_in,
    real_bookie,
    running,
    settle,
    v2_adds,
)

from doubles.waiting import until
from quorumbook.bookie.server import Bookie
from quorumbook.env import DiskUsage, Env, RealDisk
from quorumbook.errors import (
    ClusterNotInitializedError,
    ConfigError,
    CookieMismatchError,
    DirectoryLockedError,
    StorageError,
)
from quorumbook.metadata.bookies.registration import BookieRegistration
from quorumbook.metadata.memory import memory_tree
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.storage.options import Damage

FENCED, NO_ENTRY, IO_ERROR = (
    V2_CODE[status] for status in (Status.FENCED, Status.NO_ENTRY, Status.IO_ERROR)
)


# Start and stop


async def test_a_bookie_registers_where_it_listens_and_unregisters_when_it_stops(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        registration = BookieRegistration(store)
        async with real_bookie(tmp_path, store) as bookie:
            assert bookie.is_ready
            assert (await registration.bookies()).writable == {bookie.bookie_id}
            assert await registration.resolve(bookie.bookie_id) == bookie.address
            assert bookie.bookie_id == f"127.0.0.1:{bookie.address[1]}"
        assert await registration.bookies() == (frozenset(), frozenset())
        assert not bookie.is_ready
        await bookie.wait_stopped()
        with pytest.raises(OSError, match="Connect"):
            await RawClient.connect(bookie.address[1])


async def test_a_clean_stop_answers_what_is_under_way_and_can_be_asked_for_twice(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    async with cluster() as store:
        bookie = Bookie(Env(disk=disk), options_in(tmp_path), store)
        await bookie.start()
        client = await RawClient.connect(bookie.address[1])
        disk.may_sync.clear()
        client.send(v2_adds(1, range(100)))
        await until(lambda: bookie.metrics.adds_in_progress == 100)
        stopping = asyncio.gather(bookie.stop(), bookie.stop())
        await until(lambda: bookie.metrics.server_status == -1)
        await settle()
        disk.may_sync.set()
        assert await client.add_codes(100) == [(entry_id, 0) for entry_id in range(100)]
        await stopping
        assert await client.is_closed()


async def test_a_stop_goes_through_to_the_storage_although_the_metadata_store_is_closed(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        own = await open_store(store.uri)
        bookie = Bookie(Env(), options_in(tmp_path), own)
        await bookie.start()
        client = await RawClient.connect(bookie.address[1])
        assert code_of(await client.ask(v2_adds(1, [0]))) == 0
        client.close()
        await own.close()
        await bookie.stop()
        assert bookie.fatal_error is None
        # A failure that cannot be had otherwise, and what is left of it.
        assert not bookie.storage.directories._releases, "the locks are given back"


async def test_a_stop_that_fails_on_its_way_still_flushes_and_gives_the_directories_back(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        bookie = Bookie(Env(), options_in(tmp_path), store)
        await bookie.start()

        async def fail() -> None:
            raise RuntimeError("a bug of ours")

        bookie._registrar.stop = fail  # type: ignore[method-assign, union-attr, assignment]
        await bookie.stop()
        with pytest.raises(RuntimeError, match="a bug of ours"):
            await bookie.wait_stopped()
        async with real_bookie(tmp_path, store, port=bookie.address[1]):
            pass


@pytest.mark.parametrize(
    ("work", "method"),
    [
        ("collector", "collect"),
        ("scrubber", "cycle"),
        ("healing", "heal"),
        ("registrar", "set_writable"),
    ],
)
async def test_background_work_goes_on_after_what_nobody_foresaw(
    tmp_path: Path, work: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("storage.scrub.scrubber", "bookie.membership.registrar"):
        monkeypatch.setattr(f"quorumbook.{module}._RETRY_S", 0.01)
    tries = 0
    is_done = asyncio.Event()

    async def fail_once(**_: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TypeError("a bug of ours")
        is_done.set()

    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        # A bug that cannot be had otherwise, in work that nobody else asks for.
        healing, registrar, collector = bookie.healing, bookie._registrar, bookie.collector
        assert healing is not None
        assert registrar is not None
        assert collector is not None
        parts = {
            "collector": collector,
            "scrubber": healing.scrubber,
            "healing": healing,
            # The registrar asks the metadata store by it.
            "registrar": registrar._registration,
        }
        monkeypatch.setattr(parts[work], method, fail_once)
        # Nobody else registers it anew.
        registrar._registered_read_only = True
        async with asyncio.timeout(60):
            while not is_done.is_set():
                collector.trigger()
                healing.scrubber.trigger()
                healing._found(Damage(7, 0, 0, ""))  # what scrub tells it
                registrar.changed()
                await asyncio.sleep(0.01)
    assert tries >= 2


async def test_a_bookie_that_fails_while_it_starts_says_so_and_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        bookie = Bookie(Env(), options_in(tmp_path), store)
        failure = StorageError("the journal is gone")

        class Failing(BookieRegistration):
            async def register(self, *args: Any, **more: Any) -> None:
                # A failure that cannot be had otherwise, and what is left of it.
                bookie._fatal(failure)
                await bookie.stop()
                await super().register(*args, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("quorumbook.bookie.membership.registrar.BookieRegistration", Failing)
            async with asyncio.timeout(60):
                with pytest.raises(StorageError, match="the journal is gone"):
                    await bookie.start()
        assert not bookie.connections.is_serving
        assert await BookieRegistration(store).bookies() == (frozenset(), frozenset())
        with pytest.raises(OSError):  # noqa: PT011 - which one is the system's affair
            await asyncio.open_connection(*bookie.address)


async def test_a_stop_while_the_disks_are_measured_leaves_no_start_waiting(tmp_path: Path) -> None:
    async with cluster() as store:
        bookie = Bookie(Env(), options_in(tmp_path), store)
        start = asyncio.ensure_future(bookie.disks.start())
        await asyncio.sleep(0)
        bookie.disks.stop()
        async with asyncio.timeout(60):
            await start


async def test_entries_fences_and_keys_survive_a_restart(tmp_path: Path) -> None:
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            client.send(v2_adds(1, range(10), lac=5) + v2_adds(2, [0]))
            await client.add_codes(11)
            await client.ask(v2.encode_read(2, -1, master_key=KEY))
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            assert (await client.ask(v2.encode_read(1, 9))).endswith(entry(1, 9, lac=5))
            client.send(v2_adds(2, [1]))
            assert await client.add_codes(1) == [(1, FENCED)]
            client.send(v2_adds(1, [10], key=bytes(20)))
            assert await client.add_codes(1) == [(10, V2_CODE[Status.UNAUTHORIZED])]
            v3_client = await RawClient.connect(bookie.address[1])
            assert (await v3_client.ask_v3(v3.encode_read(1, 1, 0))).max_lac == 5


async def test_a_second_bookie_on_the_same_directories_is_refused(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, bookie_id="one") as bookie:
        with pytest.raises(DirectoryLockedError):
            await Bookie(Env(), options_in(tmp_path, bookie_id="one"), store).start()
        assert bookie.is_ready


async def test_a_port_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path / "one", store) as bookie:
        options = options_in(tmp_path / "two", port=bookie.address[1], bookie_id="two")
        other = Bookie(Env(), options, store)
        with pytest.raises(ConfigError, match="is in use") as caught:
            await other.start()
        assert "\n" not in str(caught.value)
        # What failed to start holds nothing: with another port it starts.
        async with running(Bookie(Env(), dataclasses.replace(options, port=0), store)):
            pass


async def test_s78_without_a_cluster_the_message_names_the_command_that_makes_one(
    tmp_path: Path,
) -> None:
    store = await open_store("memory://no-cluster-here", create=True)
    with pytest.raises(ClusterNotInitializedError, match="cluster init"):
        await Bookie(Env(), options_in(tmp_path), store).start()
    assert not (tmp_path / "ledgers" / "current").exists()
    await store.close()


async def test_a_wildcard_address_needs_one_that_clients_can_use(tmp_path: Path) -> None:
    async with cluster() as store:
        with pytest.raises(ConfigError, match="advertised_host"):
            Bookie(Env(), options_in(tmp_path, host="0.0.0.0"), store)
        async with real_bookie(
            tmp_path, store, host="0.0.0.0", advertised_host="127.0.0.1"
        ) as bookie:
            assert bookie.address[0] == "127.0.0.1"


async def test_a_bad_bookie_id_is_refused(tmp_path: Path) -> None:
    async with cluster() as store:
        for bookie_id in ("readonly", "with space", "a/b"):
            with pytest.raises(ConfigError):
                async with real_bookie(tmp_path, store, bookie_id=bookie_id):
                    pass


async def test_s49_a_single_add_is_answered_without_anything_behind_it(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        client = await RawClient.connect(bookie.address[1])
        for entry_id in range(20):
            client.send(v2_adds(1, [entry_id]))
            assert await client.add_codes(1) == [(entry_id, 0)]


# Registration


async def test_r31_an_expired_session_is_registered_again_and_adds_go_on(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, bookie_id="one") as bookie:
        registration = BookieRegistration(store)
        client = await RawClient.connect(bookie.address[1])
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        before = store.session_id
        expire(store)
        assert await registration.bookies() == (frozenset(), frozenset())
        client.send(v2_adds(1, [1]))
        assert await client.add_codes(1) == [(1, 0)]
        await until(lambda: bookie.is_ready and store.session_id != before)
        assert (await registration.bookies()).writable == {"one"}


def expire(store: MetadataStore) -> None:
    """End the store's session, as a lease that ran out does."""
    memory_tree(store.uri.removeprefix("memory://")).end_session(store.session_id)


async def test_a_registration_that_a_killed_process_left_is_taken_over(tmp_path: Path) -> None:
    name = f"bookie-left-{id(tmp_path)}"
    async with cluster(name) as store:
        async with real_bookie(tmp_path, store, bookie_id="one"):
            pass
        dead = await open_store(f"memory://{name}")
        await dead.create("/ledgers/available/one", b"", ephemeral=True)
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            resolved = await BookieRegistration(store).resolve("one")
            assert resolved == bookie.address
        await dead.close()


# Disks


class SmallDisk(RealDisk):
    """A disk whose free space the test decides."""

    def __init__(self) -> None:
        self.free = 0.5
        self.by_path: dict[str, float] = {}

    def usage(self, path: str) -> DiskUsage:
        for part, free in self.by_path.items():
            if part in path:
                return DiskUsage(10**9, int(free * 10**9))
        return DiskUsage(10**9, int(self.free * 10**9))


@pytest.mark.parametrize("which", ["journal", "ledgers"])
async def test_s82_any_full_disk_makes_the_bookie_read_only_until_space_is_back(
    tmp_path: Path, which: str
) -> None:
    disk = SmallDisk()
    async with cluster() as store:
        options = options_in(
            tmp_path,
            bookie_id="one",
            disk_check_interval_s=0.01,
            max_disk_usage=0.95,
            disk_usage_writable=0.90,
            min_high_priority_free_bytes=10_000_000,
        )
        registration = BookieRegistration(store)
        async with running(Bookie(Env(disk=disk), options, store)) as bookie:
            client = await RawClient.connect(bookie.address[1])
            client.send(v2_adds(1, [0]))
            assert await client.add_codes(1) == [(0, 0)]
            disk.by_path[which] = 0.03
            await until(lambda: bookie.metrics.server_status == 0)
            assert await registration.bookies() == (frozenset(), {"one"})
            client.send(v2_adds(1, [1]))
            assert await client.add_codes(1) == [(1, V2_CODE[Status.READ_ONLY])]
            client.send(v2_adds(1, [1], flags=6))
            assert await client.add_codes(1) == [(1, 0)]
            assert (await client.ask(v2.encode_read(1, 0))).endswith(entry(1, 0))
            # Less than high-priority adds may take.
            disk.by_path[which] = 0.001
            await until(lambda: not bookie.disks.writability.takes_high_priority)
            client.send(v2_adds(1, [2], flags=6))
            assert await client.add_codes(1) == [(2, V2_CODE[Status.READ_ONLY])]
            # A little space is not enough, or it would flip for ever.
            disk.by_path[which] = 0.07
            await until(lambda: bookie.disks.writability.takes_high_priority)
            assert bookie.is_read_only
            disk.by_path[which] = 0.2
            await until(lambda: bookie.metrics.server_status == 1)
            assert await registration.bookies() == ({"one"}, frozenset())
            client.send(v2_adds(1, [3]))
            assert await client.add_codes(1) == [(3, 0)]


async def test_the_storage_says_at_once_that_a_disk_is_full(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, bookie_id="one") as bookie:
        bookie.disks.storage_full(StorageError("no space left"))
        assert bookie.is_read_only
        await until(lambda: bookie.metrics.server_status == 0)
        bookie.disks.storage_has_space()
        await until(lambda: bookie.metrics.server_status == 1)


async def test_s81_a_bookie_forced_to_be_read_only_stays_so(tmp_path: Path) -> None:
    async with (
        cluster() as store,
        real_bookie(
            tmp_path, store, bookie_id="one", force_read_only=True, disk_check_interval_s=0.01
        ) as bookie,
    ):
        assert await BookieRegistration(store).bookies() == (frozenset(), {"one"})
        bookie.disks.storage_has_space()
        await asyncio.sleep(0.05)
        assert bookie.is_read_only


# The end


class FailingDisk(RealDisk):
    """A disk whose journal fails to sync, or waits, on demand."""

    def __init__(self) -> None:
        self.fails = False
        self.may_sync = threading.Event()
        self.may_sync.set()

    def open(self, path: str, **modes: bool) -> Any:  # type: ignore[override]
        file = super().open(path, **modes)
        return _FailingFile(self, file) if path.endswith(".txn") else file


class _FailingFile:
    def __init__(self, disk: FailingDisk, file: Any) -> None:
        self._disk = disk
        self._file = file

    def sync(self) -> None:
        self._disk.may_sync.wait(20)
        if self._disk.fails:
            raise StorageError("I/O error", path=self._file.path)
        self._file.sync()

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


async def test_r08_s50_a_failed_journal_sync_ends_the_bookie_and_nothing_acknowledged_is_lost(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    async with cluster() as store:
        bookie = Bookie(Env(disk=disk), options_in(tmp_path, bookie_id="one"), store)
        await bookie.start()
        client = await RawClient.connect(bookie.address[1])
        client.send(v2_adds(1, [0]))
        assert await client.add_codes(1) == [(0, 0)]
        disk.fails = True
        client.send(v2_adds(1, [1]))
        # An error or no answer at all; never a success.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            assert await client.add_codes(1) == [(1, IO_ERROR)]
        with pytest.raises(StorageError):
            await bookie.wait_stopped()
        assert await BookieRegistration(store).bookies() == (frozenset(), frozenset())
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            assert (await client.ask(v2.encode_read(1, 0))).endswith(entry(1, 0))


async def test_r10_s07_a_fence_outlives_the_eviction_of_its_ledger(tmp_path: Path) -> None:
    async with cluster() as store:
        options = options_in(tmp_path, bookie_id="one")
        options = dataclasses.replace(
            options, storage=dataclasses.replace(options.storage, max_idle_handles=4)
        )
        async with running(Bookie(Env(), options, store)) as bookie:
            client = await RawClient.connect(bookie.address[1])
            await client.ask(v2.encode_read(1, -1, master_key=KEY))
            for ledger_id in range(100, 140):
                client.send(v2_adds(ledger_id, [0]))
                await client.add_codes(1)
            await bookie.storage.flush()
            for ledger_id in range(140, 180):
                client.send(v2_adds(ledger_id, [0]))
                await client.add_codes(1)
            client.send(v2_adds(1, [0]))
            assert await client.add_codes(1) == [(0, FENCED)]


async def test_s14_a_fenced_ledger_refuses_its_old_writer_after_a_restart_too(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            client.send(v2_adds(1, [0]))
            await client.add_codes(1)
            await client.ask(v2.encode_read(1, -1, master_key=KEY))
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            client.send(v2_adds(1, [1]))
            assert await client.add_codes(1) == [(1, FENCED)]


async def test_s36_a_lac_that_a_reader_saw_is_there_after_a_restart(tmp_path: Path) -> None:
    packet = DIGESTER.lac_packet(1, 0)
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            await client.ask_v3(v3.encode_add(1, 1, 0, KEY, entry(1, 0)))
            await client.ask_v3(v3.encode_write_lac(2, 1, 0, KEY, packet))
            assert (await client.ask_v3(v3.encode_read(3, 1, 0))).max_lac == 0
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            assert (await client.ask_v3(v3.encode_read(1, 1, 0))).max_lac == 0
            assert (await client.ask_v3(v3.encode_read_lac(2, 1))).lac_body == packet


async def test_no_entry_of_a_bookie_is_lost_by_a_restart_under_way(tmp_path: Path) -> None:
    acknowledged = 0
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            for start in range(0, 2000, 100):
                client.send(v2_adds(1, range(start, start + 100), bytes(500)))
            acknowledged = len(await client.add_codes(1000))
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            for entry_id in range(acknowledged):
                assert code_of(await client.ask(v2.encode_read(1, entry_id))) == 0


async def test_a_bookie_with_several_journals_keeps_them_by_its_cookie(tmp_path: Path) -> None:
    several = {"journal_directories": (f"{tmp_path}/journal", f"{tmp_path}/journal2")}
    async with cluster() as store:
        async with real_bookie(tmp_path, store, port=0, **several) as bookie:
            bookie_id, port = bookie.bookie_id, bookie.address[1]
            client = await RawClient.connect(port)
            for ledger_id in (1, 2):
                client.send(v2_adds(ledger_id, range(5)))
                assert {code for _, code in await client.add_codes(5)} == {0}
            text = bookie.render_metrics().decode()
            for journal in (0, 1):
                name = f'bookie_journal_JOURNAL_SYNC_count{{journalIndex="{journal}"'
                assert any(line.startswith(name) for line in text.splitlines())
        with pytest.raises(CookieMismatchError, match=r"journal_directories=.*journal2"):
            async with real_bookie(tmp_path, store, bookie_id=bookie_id):
                pass
        async with real_bookie(tmp_path, store, bookie_id=bookie_id, **several) as bookie:
            assert bookie.storage.ledger_ids() == [1, 2]
