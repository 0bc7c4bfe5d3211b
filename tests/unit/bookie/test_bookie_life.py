"""A bookie's life on a real storage: identity, restart, read-only, sessions, journal failure."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from bookie_harness import (
    DIGESTER,
    KEY,
    RawClient,
    cluster,
    entry,
    options_in,
    real_bookie,
    running,
    settle,
    until,
    v2_adds,
)

from quorumbook.bookie import Bookie
from quorumbook.env import DiskUsage, Env, RealDisk
from quorumbook.errors import (
    ClusterNotInitializedError,
    ConfigError,
    CookieError,
    CookieMismatchError,
    CookieMissingError,
    DirectoryLockedError,
    MetadataUnavailableError,
    StorageError,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.cookies import CookieStore
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.memory import memory_tree
from quorumbook.metadata.registration import BookieRegistration
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.protocol import v2, v3
from quorumbook.protocol.digest import DigestType
from quorumbook.protocol.status import V2_CODE, Status

FENCED, NO_ENTRY, IO_ERROR = (
    V2_CODE[status] for status in (Status.FENCED, Status.NO_ENTRY, Status.IO_ERROR)
)


def code_of(frame: bytes) -> int:
    return v2.ANSWER.unpack_from(frame)[2]


def metadata(ledger_id: int, *ensembles: str, closed: bool = False) -> LedgerMetadata:
    """Return a ledger of one-bookie ensembles, ten entries each."""
    fragments = tuple(Fragment(10 * n, (bookie,)) for n, bookie in enumerate(ensembles))
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        state=LedgerState.CLOSED if closed else LedgerState.OPEN,
        last_entry_id=20 if closed else -1,
        length=1 if closed else 0,
        fragments=fragments,
        digest_type=DigestType.CRC32C,
        password=b"passwd",
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
        for bookie_id in ("readonly", "with space", "a/b", ""):
            with pytest.raises(ConfigError):
                async with real_bookie(tmp_path, store, bookie_id=bookie_id):
                    pass


# Identity


async def test_r25_a_new_bookie_stamps_the_store_and_every_directory(tmp_path: Path) -> None:
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one"):
            pass
        found = await CookieStore(store).read("one")
        assert found is not None
        for directory in ("journal", "ledgers"):
            stamped = (tmp_path / directory / "current" / "VERSION").read_bytes()
            assert stamped == found[0].encode()
        async with real_bookie(tmp_path, store, bookie_id="one"):
            pass


async def test_r25_s78_an_emptied_directory_is_no_new_bookie(tmp_path: Path) -> None:
    for directory in ("journal", "ledgers"):
        async with cluster() as store:
            root = tmp_path / directory
            async with real_bookie(root, store, bookie_id="one"):
                pass
            shutil.rmtree(root / directory)
            with pytest.raises(CookieMissingError) as caught:
                async with real_bookie(root, store, bookie_id="one"):
                    pass
            assert directory in str(caught.value)


async def test_r25_s78_a_cookie_that_the_cluster_does_not_know_is_refused(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, bookie_id="one"):
        pass
    async with cluster() as another:
        with pytest.raises(CookieError, match="metadata"):
            async with real_bookie(tmp_path, another, bookie_id="one"):
                pass
        assert await CookieStore(another).read("one") is None


async def test_r25_data_without_any_cookie_is_refused(tmp_path: Path) -> None:
    async with cluster() as store:
        current = tmp_path / "ledgers" / "current"
        current.mkdir(parents=True)
        (current / "0.log").write_bytes(b"something")
        with pytest.raises(CookieMissingError):
            async with real_bookie(tmp_path, store, bookie_id="one"):
                pass
        assert await CookieStore(store).read("one") is None


async def test_r25_another_id_on_the_same_directories_is_refused(tmp_path: Path) -> None:
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one"):
            pass
        with pytest.raises(CookieError):
            async with real_bookie(tmp_path, store, bookie_id="two"):
                pass


async def test_r25_s79_the_order_of_directories_does_not_matter_and_a_new_one_must_be_allowed(
    tmp_path: Path,
) -> None:
    paths = [str(tmp_path / name) for name in ("ledgers", "second", "third")]
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one", ledger_directories=(
            paths[0], paths[1]
        )):  # fmt: skip
            pass
        async with real_bookie(tmp_path, store, bookie_id="one", ledger_directories=(
            paths[1], paths[0]
        )):  # fmt: skip
            pass
        with pytest.raises(CookieMismatchError):
            async with real_bookie(tmp_path, store, bookie_id="one", ledger_directories=(
                paths[0],
            )):  # fmt: skip
                pass
        with pytest.raises(CookieMismatchError, match="allow_storage_expansion"):
            async with real_bookie(
                tmp_path, store, bookie_id="one", ledger_directories=tuple(paths)
            ):
                pass
        (tmp_path / "third" / "current").mkdir(parents=True, exist_ok=True)
        (tmp_path / "third" / "current" / "0.log").write_bytes(b"something")
        with pytest.raises(CookieMissingError, match="empty"):
            async with real_bookie(
                tmp_path,
                store,
                bookie_id="one",
                ledger_directories=tuple(paths),
                allow_storage_expansion=True,
            ):
                pass
        (tmp_path / "third" / "current" / "0.log").unlink()
        async with real_bookie(
            tmp_path,
            store,
            bookie_id="one",
            ledger_directories=tuple(paths),
            allow_storage_expansion=True,
        ):
            pass
        # From now on it has three, with or without the option.
        async with real_bookie(tmp_path, store, bookie_id="one", ledger_directories=tuple(paths)):
            pass


async def test_r26_s13_a_blank_bookie_under_a_known_id_distrusts_itself(tmp_path: Path) -> None:
    async with cluster() as store:
        ledgers = LedgerManager(store)
        await ledgers.create(metadata(1, "one"))
        await ledgers.create(metadata(2, "one", "two"))
        await ledgers.create(metadata(3, "one", closed=True))
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            v3_client = await RawClient.connect(bookie.address[1])
            unknown = Status.UNKNOWN_LEDGER_STATE
            # The open ledger that is written here: fenced, and unknown until it is checked.
            client.send(v2_adds(1, [0]))
            assert await client.add_codes(1) == [(0, FENCED)]
            assert (await v3_client.ask_v3(v3.encode_read(1, 1, 0))).status is unknown
            assert (await v3_client.ask_v3(v3.encode_read(2, 1, -1))).status is unknown
            # Written elsewhere by now: this bookie is not where its writer may write.
            client.send(v2_adds(2, [20]))
            assert await client.add_codes(1) == [(20, IO_ERROR)]
            # Closed long ago, and its old writer comes back (BK#4812).
            client.send(v2_adds(3, [21]))
            assert await client.add_codes(1) == [(21, FENCED)]
            # Deleted, or never made.
            client.send(v2_adds(4, [0]))
            assert await client.add_codes(1) == [(0, FENCED)]
            # Recovery may repair everything.
            client.send(v2_adds(3, [0], flags=2))
            assert await client.add_codes(1) == [(0, 0)]
            # A new ledger is welcome; all adds of the first chunk wait for one look-up, in order.
            await ledgers.create(metadata(5, "one"))
            client.send(v2_adds(5, range(3)) + v2_adds(5, range(20, 30)))
            assert await client.add_codes(13) == [(n, 0) for n in (0, 1, 2, *range(20, 30))]
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            # The next start does not forget it, and does not distrust what came since.
            client = await RawClient.connect(bookie.address[1])
            client.send(v2_adds(5, [30]) + v2_adds(1, [1]))
            assert sorted(await client.add_codes(2)) == [(1, FENCED), (30, 0)]
            client.send(v2_adds(6, [0]))
            assert await client.add_codes(1) == [(0, FENCED)]


async def test_r26_a_blank_bookie_that_died_before_it_looked_up_its_past_looks_it_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quorumbook.bookie import identity

    async with cluster() as store:
        await LedgerManager(store).create(metadata(1, "one"))

        async def crash(*_: object) -> None:
            raise StorageError("the power failed")

        with monkeypatch.context() as patched:
            patched.setattr(identity, "find_in_metadata", crash)
            with pytest.raises(StorageError):
                await Bookie(Env(), options_in(tmp_path, bookie_id="one"), store).start()
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            client.send(v2_adds(1, [0]))
            assert await client.add_codes(1) == [(0, FENCED)]


async def test_a_new_bookie_with_a_new_id_has_no_gate(tmp_path: Path) -> None:
    async with cluster() as store:
        await LedgerManager(store).create(metadata(1, "another"))
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            assert bookie._operations.adds.gate is None
            assert not (tmp_path / "ledgers" / "current" / "VERSION.past").exists()


async def test_r22_a_bookie_that_lost_its_index_and_copies_calls_its_open_ledgers_unknown(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        ledgers = LedgerManager(store)
        await ledgers.create(metadata(1, "one"))
        await ledgers.create(metadata(2, "one", closed=True))
        await ledgers.create(metadata(3, "one", "two"))
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            # A bookie with a past of its own: no gate, no limbo.
            await bookie.storage.clear_limbo([1])
        current = tmp_path / "ledgers" / "current"
        (current / "VERSION.past").unlink()
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            client.send(v2_adds(1, [0], flags=2) + v2_adds(2, [0]) + v2_adds(3, [0]))
            assert [code for _, code in await client.add_codes(3)] == [0, 0, 0]
        for path in current.iterdir():
            if path.name.startswith(("index.sqlite", "ledger-states")):
                path.unlink()
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            v3_client = await RawClient.connect(bookie.address[1])
            # The open ledger that is written here may have lost a fence or an entry.
            client.send(v2_adds(1, [1]))
            assert await client.add_codes(1) == [(1, FENCED)]
            answer = await v3_client.ask_v3(v3.encode_read(1, 1, 5))
            assert answer.status is Status.UNKNOWN_LEDGER_STATE
            for request in (
                v3.encode_read(2, 1, -1),
                v3.encode_read_lac(3, 1),
                v3.encode_list_entries(4, 1),
            ):
                answer = await v3_client.ask_v3(request)
                assert answer.status is Status.UNKNOWN_LEDGER_STATE
            # What it still has it gives back.
            assert (await client.ask(v2.encode_read(1, 0))).endswith(entry(1, 0))
            # A closed ledger and an old fragment are what the entry logs say.
            assert code_of(await client.ask(v2.encode_read(2, 5))) == NO_ENTRY
            assert code_of(await client.ask(v2.encode_read(3, 5))) == NO_ENTRY
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            v3_client = await RawClient.connect(bookie.address[1])
            answer = await v3_client.ask_v3(v3.encode_read(1, 1, 5))
            assert answer.status is Status.UNKNOWN_LEDGER_STATE


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
            disk_usage_max=0.95,
            disk_usage_writable=0.90,
            high_priority_free_bytes_min=10_000_000,
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
            options, storage=dataclasses.replace(options.storage, handle_limit=4)
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


# Health and metrics


async def ask_http(port: int, request: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


async def test_health_and_metrics_are_served_on_loopback(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http_port=-1) as bookie:
        port = bookie.http_port
        assert port is not None
        client = await RawClient.connect(bookie.address[1])
        client.send(v2_adds(1, range(10)))
        await client.add_codes(10)
        await client.ask(v2.encode_read(1, 0))
        assert await ask_http(port, "GET /heartbeat HTTP/1.1\r\n\r\n") == (200, "OK\n")
        assert (await ask_http(port, "GET /is_ready HTTP/1.1\r\n\r\n"))[0] == 200
        status, text = await ask_http(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == 200
        lines = text.splitlines()
        assert 'bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"} 10.0' in lines
        assert 'bookkeeper_server_READ_ENTRY_count{success="true"} 1.0' in lines
        assert "bookie_SERVER_STATUS 1.0" in lines
        assert any(line.startswith("bookie_WRITE_BYTES ") for line in lines)
        assert any(line.startswith("bookie_ledger_dir_usage{path=") for line in lines)
        assert (await ask_http(port, "GET /nothing HTTP/1.1\r\n\r\n"))[0] == 404
        assert (await ask_http(port, "DELETE /metrics HTTP/1.1\r\n\r\n"))[0] == 405
        assert (await ask_http(port, "rubbish\r\n\r\n"))[0] == 400
        assert (await ask_http(port, "G" * 9000))[0] == 400
        assert await ask_http(port, "HEAD /heartbeat HTTP/1.1\r\n\r\n") == (200, "")
        bookie.disks.storage_full(StorageError("no space left"))
        await until(lambda: bookie.metrics.server_status == 0)
        text = (await ask_http(port, "GET /metrics HTTP/1.1\r\n\r\n"))[1]
        assert "bookie_SERVER_STATUS 0.0" in text.splitlines()


async def test_a_bookie_that_cannot_be_found_is_not_ready(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http_port=-1) as bookie:
        port = bookie.http_port
        assert port is not None

        async def refuse(*_: object, **__: object) -> int:
            raise MetadataUnavailableError("the store is away")

        store.renew_session = refuse  # type: ignore[method-assign]
        expire(store)
        await until(lambda: bookie.metrics.server_status == -1)
        assert (await ask_http(port, "GET /is_ready HTTP/1.1\r\n\r\n"))[0] == 503
        assert (await ask_http(port, "GET /heartbeat HTTP/1.1\r\n\r\n"))[0] == 200
        del store.renew_session  # type: ignore[attr-defined]
        await until(lambda: bookie.is_ready)
        assert (await ask_http(port, "GET /is_ready HTTP/1.1\r\n\r\n"))[0] == 200


async def test_metrics_families_have_each_name_once(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        lines = bookie.render_metrics().decode().splitlines()
        names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        for name in ("bookie_journal_JOURNAL_SYNC", "bookie_write_cache_size", "bookie_flush"):
            assert name in names
        assert len(names) == len(set(names))
        assert bookie.http_port is None


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
