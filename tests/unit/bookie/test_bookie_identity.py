"""Who a bookie is: cookies, and what one without a past may answer."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import socket
import uuid
from pathlib import Path

import pytest
from bookie_harness import RawClient, cluster, code_of, entry, options_in, real_bookie, v2_adds

from quorumbook.bookie.server import Bookie
from quorumbook.env import Env, RealDisk
from quorumbook.errors import (
    ClusterExistsError,
    ClusterNotInitializedError,
    CookieError,
    CookieMismatchError,
    CookieMissingError,
    MetadataError,
    StorageError,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.metadata.cluster import Layout, init_cluster, read_layout
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.paths import LayoutKind
from quorumbook.metadata.store import Create, MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.protocol.digest import DigestType
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.sim.disks.faults import FaultyDisk

FENCED, NO_ENTRY, IO_ERROR = (
    V2_CODE[status] for status in (Status.FENCED, Status.NO_ENTRY, Status.IO_ERROR)
)


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


# Identity


async def made_by_pulsar() -> MetadataStore:
    """Return a store after Apache Pulsar's own setup: it writes no LAYOUT."""
    store = await open_store(f"memory://{uuid.uuid4()}", create=True)
    await store.multi(
        [
            Create("/ledgers"),
            Create("/ledgers/available"),
            Create("/ledgers/available/readonly"),
            Create("/ledgers/cookies"),
            Create("/ledgers/INSTANCEID", b"24bb6ded-77d1-4a4f-a6a7-2a2d9e1be2b6"),
        ]
    )
    return store


async def test_a_bookie_joins_a_cluster_without_a_layout_and_gives_it_the_hierarchical_one(
    tmp_path: Path,
) -> None:
    store = await made_by_pulsar()
    async with real_bookie(tmp_path, store, bookie_id="one"):
        layout = (await store.get("/ledgers/LAYOUT")).data
        assert layout == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
        await LedgerManager(store).create(metadata(5, "one"))
        assert await store.exists("/ledgers/00/0000/L0005") is not None
        with pytest.raises(ClusterExistsError):
            await init_cluster(store)
    await store.close()


async def test_whoever_asks_first_at_the_same_time_gets_one_layout() -> None:
    store = await made_by_pulsar()
    found = await asyncio.gather(*(read_layout(store) for _ in range(10)))
    assert set(found) == {Layout(LayoutKind.HIERARCHICAL)}
    assert (await store.get("/ledgers/LAYOUT")).version == 0
    await store.close()


async def test_a_store_that_holds_no_cluster_is_given_no_layout() -> None:
    store = await made_by_pulsar()
    await store.delete("/ledgers/INSTANCEID")
    with pytest.raises(ClusterNotInitializedError):
        await read_layout(store)
    assert await store.exists("/ledgers/LAYOUT") is None
    await store.close()


@pytest.mark.parametrize("lacking", ["/ledgers/INSTANCEID", "a layout it knows"])
async def test_a_bookie_that_a_cluster_refuses_leaves_neither_cookie_nor_open_port(
    tmp_path: Path, lacking: str
) -> None:
    store = await made_by_pulsar()
    if lacking.startswith("/"):
        await store.delete(lacking)
    else:
        await store.create("/ledgers/LAYOUT", b"2\norg.example.Unknown:1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    bookie = Bookie(Env(), options_in(tmp_path, port=port, bookie_id="one"), store)
    with pytest.raises(MetadataError):
        await bookie.start()
    assert await store.children("/ledgers/cookies") == []
    assert not list(tmp_path.rglob("VERSION"))
    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection("127.0.0.1", port)
    assert await store.exists("/ledgers/LAYOUT") is None or not lacking.startswith("/")
    await store.close()


async def test_r25_a_new_bookie_stamps_the_store_and_every_directory(tmp_path: Path) -> None:
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one"):
            pass
        found = await CookieStore(store).read("one")
        assert found is not None
        for directory in ("journal", "ledgers"):
            stamped = (tmp_path / directory / "current" / "VERSION").read_bytes()
            line, _, cookie = stamped.partition(b"\n")
            assert line.startswith(b"Quorumbook keeps these directories")
            assert cookie == found[0].encode()
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
    from quorumbook.bookie.membership import identity

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


@pytest.mark.parametrize("name", ["VERSION.past", "READ_ONLY", "/lastMark", "/DIRTY", "/VERSION"])
async def test_r26_a_bookie_that_cannot_look_at_what_it_left_itself_does_not_start(
    tmp_path: Path, name: str
) -> None:
    async with cluster() as store:
        await LedgerManager(store).create(metadata(1, "one"))
        async with real_bookie(tmp_path, store, bookie_id="one"):
            pass
        disk = FaultyDisk(RealDisk())
        disk.faults.fail("exists", name)
        with pytest.raises(StorageError, match="injected failure of exists"):
            await Bookie(Env(disk=disk), options_in(tmp_path, bookie_id="one"), store).start()
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            client.send(v2_adds(4, [0]))
            assert await client.add_codes(1) == [(0, FENCED)], "the gate was forgotten"


async def test_a_new_bookie_with_a_new_id_has_no_gate(tmp_path: Path) -> None:
    async with cluster() as store:
        await LedgerManager(store).create(metadata(1, "another"))
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            # That nothing is checked any more shows in no other way.
            assert bookie._started().operations.adds.gate is None
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
            whole = dataclasses.replace(metadata(4, "one", closed=True), last_entry_id=1)
            await ledgers.create(whole)
            client.send(v2_adds(4, [0, 1]))
            assert [code for _, code in await client.add_codes(2)] == [0, 0]
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
            for request in (v3.encode_read(2, 1, -1), v3.encode_read_lac(3, 1)):
                answer = await v3_client.ask_v3(request)
                assert answer.status is Status.UNKNOWN_LEDGER_STATE
            # What it still has it gives back.
            assert (await client.ask(v2.encode_read(1, 0))).endswith(entry(1, 0))
            # A closed ledger and an old fragment of which entries are expected here lack some.
            for request in (v3.encode_read(4, 2, 5), v3.encode_read(5, 3, 5)):
                answer = await v3_client.ask_v3(request)
                assert answer.status is Status.UNKNOWN_LEDGER_STATE
            client.send(v2_adds(3, [11]))
            assert await client.add_codes(1) == [(11, IO_ERROR)], "it is not written here any more"
            # One that has them all is what the entry logs say.
            assert code_of(await client.ask(v2.encode_read(4, 5))) == NO_ENTRY
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            v3_client = await RawClient.connect(bookie.address[1])
            answer = await v3_client.ask_v3(v3.encode_read(1, 1, 5))
            assert answer.status is Status.UNKNOWN_LEDGER_STATE
