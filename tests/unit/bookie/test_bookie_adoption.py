"""Directories of the peer become ours and the peer's again; nothing is lost, nothing comes back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
from pathlib import Path

import pytest
from bookie_harness import cluster, running

from doubles.peer_disk import KEY, PeerDisk
from doubles.records import entry, lac_packet
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.server import Bookie
from quorumbook.bookie.stopped.adoption import adopt, give_back
from quorumbook.env import Env, RealDisk
from quorumbook.errors import (
    CookieError,
    CorruptEntryLogError,
    DirectoryLockedError,
    ForeignDirectoryError,
    NoSuchLedgerError,
    StorageError,
    UnknownLedgerStateError,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.bookies.cookies import Cookie, CookieStore
from quorumbook.metadata.bookies.registration import BookieRegistration, BookieServiceInfo
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.protocol.digest import DigestType, master_key
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.adoption.peer_index import IndexFiles
from quorumbook.storage.directories.places import Directories, make_ours, make_the_peers
from quorumbook.storage.store import LedgerStorage

LAC = lac_packet(3, 1)


@pytest.fixture
async def store():
    async with cluster() as store:
        yield store


async def known(store, *ledger_ids, closed=False):
    """Make ledgers of this bookie alone."""
    for ledger_id in ledger_ids:
        await LedgerManager(store).create(
            LedgerMetadata(
                ledger_id=ledger_id,
                ensemble_size=1,
                write_quorum_size=1,
                ack_quorum_size=1,
                state=LedgerState.CLOSED if closed else LedgerState.OPEN,
                last_entry_id=9 if closed else -1,
                length=1 if closed else 0,
                fragments=(Fragment(0, ("127.0.0.1:3181",)),),
                digest_type=DigestType.CRC32C,
                password=b"secret",
            )
        )


async def peer_disk(tmp_path, store, **shape) -> PeerDisk:
    """Return a disk of a bookie that the cluster knows."""
    disk = PeerDisk(tmp_path, await read_instance_id(store), **shape)
    await CookieStore(store).write(Cookie.decode(disk.cookie().encode()))
    return disk


def options_of(disk: PeerDisk) -> BookieOptions:
    return BookieOptions(
        journal_directories=tuple(map(str, disk.journals)),
        ledger_directories=tuple(map(str, disk.ledgers)),
        index_directories=tuple(map(str, disk.indexes)),
    )


def history(disk: PeerDisk) -> None:
    """An open ledger, a fenced one, one with an explicit LAC, one that was deleted, a new one."""
    disk.ledger(1)
    disk.ledger(2, fenced=True)
    disk.ledger(3, lac=LAC)
    directories = len(disk.ledgers)
    for ledger_id in (1, 2, 3):
        place = ledger_id % directories
        # Ids of entry logs count for one directory in one storage, for all of them in the other.
        log = 0 if disk.kind == "db" else place
        disk.checkpointed(ledger_id, 0, 1, 2, directory=place, log=log)
    disk.checkpointed(5, 0, 1, is_named=False)
    disk.journaled(1, 3, 4)
    disk.journaled_key(7)
    disk.journaled(7, 0, 1)
    disk.journaled_fence(7)
    disk.write()


WRITTEN = {1: 5, 2: 3, 3: 3, 7: 2}


async def serving(disk: PeerDisk) -> LedgerStorage:
    options = options_of(disk)
    return await LedgerStorage.open(
        Env(),
        journal_directories=options.journal_directories,
        ledger_directories=options.ledger_directories,
        other_directories=options.index_directories,
    )


async def read(storage: LedgerStorage, ledger_id: int, entry_id: int):
    done = asyncio.get_running_loop().create_future()
    storage.read([(ledger_id, entry_id)], lambda found: done.set_result(found[0]))
    return await done


async def check_history(storage: LedgerStorage) -> None:
    for ledger_id, count in WRITTEN.items():
        for entry_id in range(count):
            expected = entry(ledger_id, entry_id, b"payload", entry_id - 1)
            assert await read(storage, ledger_id, entry_id) == expected
    handles = {ledger_id: storage.handle(ledger_id) for ledger_id in WRITTEN}
    assert all(handle.master_key == KEY for handle in handles.values())
    assert [i for i, handle in handles.items() if handle.is_fenced] == [2, 7]
    assert handles[3].explicit_lac == LAC
    assert storage.handle(5) is None


def java_starts(disk: PeerDisk) -> bool:
    """Tell whether a Java bookie takes all the cookies for its own: each begins with a number."""
    versions = [
        (directory / "current" / "VERSION").read_text()
        for directory in (*disk.journals, *disk.ledgers, *disk.indexes)
    ]
    return all(version.partition("\n")[0].isdigit() for version in versions)


def check_that_java_starts_only_on_its_own(disk: PeerDisk) -> None:
    """See that its index is whole and nothing of ours remains, wherever it would start."""
    if not java_starts(disk):
        return
    names = {path.name for ledgers in disk.ledgers for path in (ledgers / "current").iterdir()}
    assert not names & {"index.sqlite", "quorumbook.adopting", "quorumbook.giving-back"}
    places = [str(directory / "current") for directory in disk.indexes or disk.ledgers]
    if disk.kind == "sorted":
        assert {1, 2, 3} <= set(IndexFiles(Env(), places).states)
    else:
        assert all((Path(place) / "ledgers" / "CURRENT").exists() for place in places)
        assert all((Path(place) / "locations" / "CURRENT").exists() for place in places)


async def take(disk: PeerDisk, store, env: Env | None = None, **how):
    return await adopt(env or Env(), options_of(disk), store, scratch=None, **how)


SHAPES = [
    {"kind": "sorted"},
    {"kind": "sorted", "journals": 2, "ledgers": 2, "indexes": 2},
    {"kind": "db"},
    {"kind": "db", "journals": 2, "ledgers": 2, "indexes": 2},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_adopted_and_given_back_directories_hold_the_same(tmp_path, store, shape):
    disk = await peer_disk(tmp_path, store, **shape)
    history(disk)
    await known(store, 1, 2, 3, 7)
    for _ in range(2):
        report = await take(disk, store)
        assert report.is_done
        assert report.index == shape["kind"]
        storage = await serving(disk)
        await check_history(storage)
        await storage.gc.keep_reserve(64 * 1024)
        await storage.stop()
        returned = await give_back(Env(), options_of(disk), store, is_applied=True)
        assert (returned.index, returned.ledgers, returned.entries) == (shape["kind"], 4, 13)
        assert not list(tmp_path.rglob("*.reserve"))


async def test_a_dry_run_counts_everything_and_changes_nothing(tmp_path, store):
    disk = await peer_disk(tmp_path / "disk", store)
    history(disk)
    await known(store, 1, 2, 3, 7)
    (tmp_path / "scratch").mkdir()

    def files():
        return {
            path: path.read_bytes() for path in (tmp_path / "disk").rglob("*") if path.is_file()
        }

    before = files()
    found = await adopt(Env(), options_of(disk), store, scratch=str(tmp_path / "scratch"))
    assert files() == before
    assert not found.is_done
    assert (found.ledgers, found.fenced, found.explicit_lacs) == (3, 1, 1)
    assert (found.entries, found.entry_logs) == (9, 1)
    assert (found.journals, found.journal_entries) == (1, 4)
    assert found.deleted_ledgers == 1
    assert found.damage == []


@pytest.mark.parametrize("version", [4, 5, 6])
async def test_journals_of_every_version_are_replayed(tmp_path, store, version):
    disk = await peer_disk(tmp_path, store)
    disk.version = version
    history(disk)
    await known(store, 1, 2, 3, 7)
    await take(disk, store)
    storage = await serving(disk)
    await check_history(storage)
    await storage.stop()


async def test_the_replay_begins_at_the_newest_mark_of_all_directories(tmp_path, store):
    disk = await peer_disk(tmp_path, store, ledgers=2)
    disk.ledger(1)
    disk.checkpointed(1, 0, payload=b"in its place")
    disk.journaled(1, 0, payload=b"an older copy")
    disk.journaled(1, 1)
    disk.marks = [1, 0]
    disk.write()
    await known(store, 1)
    await take(disk, store)
    storage = await serving(disk)
    assert await read(storage, 1, 0) == entry(1, 0, b"in its place", -1)
    assert await read(storage, 1, 1) == entry(1, 1, b"payload", 0)
    await storage.stop()


async def test_only_the_copy_that_the_index_names_counts(tmp_path, store):
    disk = await peer_disk(tmp_path, store)
    disk.ledger(1)
    disk.checkpointed(1, 0, 1, 2)
    disk.checkpointed(1, 1, payload=b"written, and never named", is_named=False, log=1)
    disk.write()
    await known(store, 1)
    await take(disk, store)
    storage = await serving(disk)
    assert await read(storage, 1, 1) == entry(1, 1, b"payload", 0)
    await storage.stop()


async def test_a_ledger_that_is_gone_from_the_metadata_is_not_revived_by_journals(tmp_path, store):
    disk = await peer_disk(tmp_path, store)
    disk.journaled_key(7)
    disk.journaled(7, 0)
    disk.write()
    report = await take(disk, store)
    assert report.deleted_ledgers == 1
    storage = await serving(disk)
    assert storage.handle(7) is None
    assert isinstance(await read(storage, 7, 0), NoSuchLedgerError)
    await storage.stop()


async def test_a_lost_part_of_the_index_is_damage_and_its_open_ledger_in_limbo(tmp_path, store):
    disk = await peer_disk(tmp_path, store)
    disk.ledger(1)
    disk.checkpointed(1, 0)
    disk.checkpointed(5, 0, is_named=False)
    disk.write()
    await known(store, 1, 5)
    with pytest.raises(CorruptEntryLogError, match=r"ledger 5.*--accept-damage"):
        await take(disk, store)
    report = await take(disk, store, accept_damage=True)
    assert report.ledgers_without_index == 1
    storage = await serving(disk)
    handle = storage.handle(5)
    assert (handle.is_fenced, handle.is_in_limbo) == (True, True)
    assert handle.master_key == master_key(b"secret")
    assert await read(storage, 5, 0) == entry(5, 0, b"payload", -1)
    assert isinstance(await read(storage, 5, 1), UnknownLedgerStateError)
    assert not storage.handle(1).is_in_limbo
    await storage.stop()
    with pytest.raises(ForeignDirectoryError, match="may have lost"):
        await give_back(Env(), options_of(disk), store, is_applied=True)


async def test_entries_that_the_index_names_and_no_log_has_are_damage(tmp_path, store):
    disk = await peer_disk(tmp_path, store)
    disk.ledger(1)
    disk.checkpointed(1, 0, 1, 2)
    disk.write()
    await known(store, 1)
    log = disk.ledgers[0] / "current" / "0.log"
    log.write_bytes(log.read_bytes()[:-20])
    with pytest.raises(CorruptEntryLogError, match="ledger 1: 1 entries"):
        await take(disk, store)
    await take(disk, store, accept_damage=True)
    storage = await serving(disk)
    assert storage.handle(1).is_in_limbo
    assert isinstance(await read(storage, 1, 2), UnknownLedgerStateError)
    await storage.stop()


async def test_a_torn_end_of_an_entry_log_that_nothing_names_is_no_damage(tmp_path, store):
    disk = await peer_disk(tmp_path, store)
    history(disk)
    await known(store, 1, 2, 3, 7)
    log = disk.ledgers[0] / "current" / "0.log"
    log.write_bytes(log.read_bytes() + entry(1, 9, b"x" * 300)[:50])
    with log.open("ab") as file:
        file.write(b"\0\0\1\0torn")
    await take(disk, store)
    storage = await serving(disk)
    await check_history(storage)
    await storage.stop()
    await give_back(Env(), options_of(disk), store, is_applied=True)


@pytest.mark.parametrize("kind", ["sorted", "db", "none"])
async def test_without_the_index_every_open_ledger_is_fenced_and_in_limbo(tmp_path, store, kind):
    disk = await peer_disk(tmp_path, store, kind=kind)
    history(disk)
    await known(store, 1, 2, 7)
    await known(store, 3, closed=True)
    await take(disk, store, without_index=True)
    options = dataclasses.replace(options_of(disk), port=0, bookie_id=disk.bookie_id)
    async with running(Bookie(Env(), options, store)) as bookie:
        handles = {ledger_id: bookie.storage.handle(ledger_id) for ledger_id in WRITTEN}
        assert [i for i, h in handles.items() if h.is_fenced and h.is_in_limbo] == [1, 2, 7]
        assert not handles[3].is_fenced
        assert handles[3].is_in_limbo, "closed, and not all of what it should hold is here"
        assert handles[1].master_key == master_key(b"secret")
        assert bookie.storage.handle(5) is None


class DyingDisk(RealDisk):
    """A disk that dies at its n-th change of a name."""

    def __init__(self, last: int) -> None:
        self.left = last

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StorageError("the disk is gone")

    def replace(self, source, target):
        self._count()
        super().replace(source, target)

    def unlink(self, path):
        self._count()
        super().unlink(path)

    def sync_directory(self, path):
        self._count()
        super().sync_directory(path)


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3]], ids=str)
async def test_adoption_and_return_go_on_after_an_end_at_any_point(tmp_path, store, shape):
    disk = await peer_disk(tmp_path / "disk", store, **shape)
    history(disk)
    await known(store, 1, 2, 3, 7)
    shutil.copytree(tmp_path / "disk", tmp_path / "copy")
    is_unharmed, point = False, 0
    while not is_unharmed:
        shutil.rmtree(tmp_path / "disk")
        shutil.copytree(tmp_path / "copy", tmp_path / "disk")
        is_unharmed = True
        for work in (take, _give):
            try:
                await work(disk, store, Env(disk=DyingDisk(point)))
            except StorageError:
                is_unharmed = False
                check_that_java_starts_only_on_its_own(disk)
                with contextlib.suppress(ForeignDirectoryError):  # it was done already
                    await work(disk, store, Env())
            assert java_starts(disk) is (work is _give)
            if work is take:
                storage = await serving(disk)
                await check_history(storage)
                await storage.stop()
        # The peer's form is whole again, whatever happened on the way.
        index = disk.indexes[0] / "current"
        if shape["kind"] == "sorted":
            places = [str(directory / "current") for directory in disk.indexes]
            assert set(IndexFiles(Env(), places).states) == set(WRITTEN)
        else:
            assert (index / "ledgers" / "CURRENT").exists()
        assert (await take(disk, store)).entries == 13
        point += 1
    assert point > 20


async def _give(disk, store, env):
    return await give_back(env, options_of(disk), store, is_applied=True)


@pytest.mark.parametrize("begun", [1, 6])
async def test_what_only_the_cookies_call_ours_is_given_back_or_adopted(tmp_path, store, begun):
    disk = await peer_disk(tmp_path, store, **SHAPES[1])
    history(disk)
    await known(store, 1, 2, 3, 7)
    every = [str(directory) for directory in (*disk.journals, *disk.ledgers, *disk.indexes)]
    for way_out in (_give, take):
        # An adoption, or a return, was killed when so many cookies said "ours" and nothing else.
        make_ours(Env(), every[:begun])
        assert not java_starts(disk)
        found = await give_back(Env(), options_of(disk), store, is_applied=False)
        assert not found.is_done
        assert not java_starts(disk)
        assert (await way_out(disk, store, Env())).is_done
        assert java_starts(disk) is (way_out is _give)
    storage = await serving(disk)
    await check_history(storage)
    await storage.stop()


async def test_directories_of_an_earlier_release_keep_java_away_from_the_next_start_on(
    tmp_path, store
):
    disk = await peer_disk(tmp_path, store, **SHAPES[1])
    history(disk)
    await known(store, 1, 2, 3, 7)
    await take(disk, store)
    every = [str(directory) for directory in (*disk.journals, *disk.ledgers, *disk.indexes)]
    make_the_peers(Env(), every)  # as earlier releases left them
    assert java_starts(disk)
    storage = await serving(disk)
    assert not java_starts(disk)
    await check_history(storage)
    await storage.stop()
    assert not java_starts(disk)


async def test_a_lost_index_is_no_reason_to_let_java_start(tmp_path, store):
    disk = await peer_disk(tmp_path, store)
    history(disk)
    await known(store, 1, 2, 3, 7)
    await take(disk, store)
    (disk.ledgers[0] / "current" / "index.sqlite").unlink()
    with pytest.raises(ForeignDirectoryError, match="no index of ours"):
        await give_back(Env(), options_of(disk), store, is_applied=True)
    assert not java_starts(disk)
    await (await serving(disk)).stop()
    await give_back(Env(), options_of(disk), store, is_applied=True)
    assert java_starts(disk)


async def test_a_start_that_is_refused_leaves_directories_of_java_as_they_are(tmp_path, store):
    disk = await peer_disk(tmp_path, store)
    history(disk)
    with pytest.raises(ForeignDirectoryError, match="bookie adopt"):
        await serving(disk)
    assert java_starts(disk)


async def test_a_bookie_does_not_start_on_what_is_the_peers_or_half_way(tmp_path, store):
    disk = await peer_disk(tmp_path, store)
    history(disk)
    await known(store, 1, 2, 3, 7)
    with pytest.raises(ForeignDirectoryError, match="bookie adopt"):
        await serving(disk)
    note = disk.ledgers[0] / "current" / "quorumbook.adopting"
    note.write_text("{}")
    with pytest.raises(ForeignDirectoryError, match="adopt` was not finished"):
        await serving(disk)
    note.unlink()
    await take(disk, store)
    with pytest.raises(ForeignDirectoryError, match="keeps these directories already"):
        await take(disk, store)
    (disk.ledgers[0] / "current" / "0" / "1").mkdir(parents=True)
    with pytest.raises(ForeignDirectoryError, match="Java bookie keeps its index"):
        await serving(disk)


async def test_running_bookies_and_foreign_clusters_are_refused(tmp_path, store):
    disk = await peer_disk(tmp_path, store)
    history(disk)
    registration = BookieRegistration(store)
    await registration.register(disk.bookie_id, BookieServiceInfo())
    with pytest.raises(ForeignDirectoryError, match="is registered"):
        await take(disk, store)
    await registration.unregister()
    options = options_of(disk)
    held = Directories(Env(), options.journal_directories, options.ledger_directories)
    held.prepare()
    with pytest.raises(DirectoryLockedError):
        await take(disk, store)
    held.release()
    async with cluster() as other:
        with pytest.raises(CookieError, match="cluster"):
            await take(disk, other)
    elsewhere = dataclasses.replace(options, ledger_directories=(str(tmp_path / "other"),))
    with pytest.raises(CookieError):
        await adopt(Env(), elsewhere, store, scratch=None)


async def test_what_was_written_meanwhile_and_the_marks_of_all_journals_go_back(tmp_path, store):
    disk = await peer_disk(tmp_path, store, **SHAPES[1])
    history(disk)
    await known(store, 1, 2, 3, 7)
    await take(disk, store)
    storage = await serving(disk)
    run = EntryRun.of(1, 5, [entry(1, 5, b"meanwhile", 4)])
    done = asyncio.get_running_loop().create_future()
    storage.append([(storage.handle(1), run)], done.set_result)
    assert await done is None
    await storage.stop()
    returned = await give_back(Env(), options_of(disk), store, is_applied=True)
    assert returned.entries == 14
    newest = max(int(path.stem, 16) for path in (disk.journals[0] / "current").glob("*.txn"))
    for directory in disk.ledgers:
        assert not (directory / "current" / "lastMark").exists()
        mark = (directory / "current" / "lastMark.0").read_bytes()
        assert int.from_bytes(mark[:8], "big") == newest
    assert (await take(disk, store)).journal_entries == 0


async def test_ledgers_in_limbo_go_back_only_where_the_peer_can_say_so(tmp_path, store):
    disk = await peer_disk(tmp_path, store)
    history(disk)
    await known(store, 1, 2, 3, 7)
    await take(disk, store)
    storage = await serving(disk)
    await storage.put_in_limbo([1])
    await storage.stop()
    with pytest.raises(ForeignDirectoryError, match=r"1 ledgers are in limbo.*--storage db"):
        await give_back(Env(), options_of(disk), store, is_applied=True)
    await give_back(Env(), options_of(disk), store, is_applied=True, storage="db")
    assert (await take(disk, store)).index == "db"
    storage = await serving(disk)
    assert storage.handle(1).is_in_limbo
    await storage.stop()
