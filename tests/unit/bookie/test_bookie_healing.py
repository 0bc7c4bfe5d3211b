"""Damage and limbo of a real bookie: known to the cluster, and over as soon as there is proof."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bookie_harness import RawClient, cluster, options_in, real_bookie, v2_adds

from doubles.waiting import until
from quorumbook.bookie.membership import healing as membership_healing
from quorumbook.bookie.membership.healing import lacks
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env
from quorumbook.errors import CookieMissingError, DiskFullError
from quorumbook.ledger.holdings import lacking
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.store import MetadataStore
from quorumbook.protocol.digest import DigestType
from quorumbook.protocol.status import Status
from quorumbook.protocol.v3 import client as v3
from quorumbook.storage.options import ScrubOptions

EAGER = ScrubOptions(interval_s=0.05, heal_interval_s=0.02, rate_bytes=0)
RECOVERY = 2


def ledger(ledger_id: int, *bookies: str, last: int = 9) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=len(bookies),
        write_quorum_size=len(bookies),
        ack_quorum_size=len(bookies),
        state=LedgerState.CLOSED if last >= 0 else LedgerState.OPEN,
        last_entry_id=last,
        length=1 if last >= 0 else 0,
        fragments=(Fragment(0, bookies),),
        digest_type=DigestType.CRC32C,
        password=b"",
    )


async def write(bookie: Bookie, ledger_id: int, ids: list[int]) -> None:
    client = await RawClient.connect(bookie.address[1])
    client.send(v2_adds(ledger_id, ids, flags=RECOVERY))
    assert {code for _, code in await client.add_codes(len(ids))} == {0}
    client.close()


async def status_of(bookie: Bookie, ledger_id: int, entry_id: int) -> Status:
    client = await RawClient.connect(bookie.address[1])
    answer = await client.ask_v3(v3.encode_read(1, ledger_id, entry_id))
    client.close()
    return answer.status


async def marked(store: MetadataStore, ledger_id: int) -> bool:
    mark = await UnderreplicationQueue(store).read(ledger_id)
    return mark is not None and mark.replicas == ("one",)


async def repaired(store: MetadataStore, ledger_id: int) -> None:
    """Take a ledger off the queue as a worker does."""
    queue = UnderreplicationQueue(store, "worker")
    work = await queue.take()
    assert work is not None
    assert work.ledger_id == ledger_id
    await queue.done(work)


def flip(root: Path, ledger_id: int, entry_id: int) -> None:
    for path in (root / "ledgers" / "current").glob("*.log"):
        data = bytearray(path.read_bytes())
        place = data.find(struct.pack(">qq", ledger_id, entry_id))
        if place >= 0:
            data[place + 40] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("no entry log has the entry")


async def test_s76_a_flipped_bit_is_marked_until_the_entry_is_added_again(tmp_path: Path) -> None:
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            await LedgerManager(store).create(ledger(1, "one", "two"))
            await write(bookie, 1, list(range(10)))
        flip(tmp_path, 1, 4)
        async with real_bookie(tmp_path, store, bookie_id="one", scrub=EAGER) as bookie:
            healing = bookie.healing
            assert healing is not None
            await until(lambda: healing.statistics.damaged_ledgers)
            await until(lambda: marked(store, 1))
            assert await status_of(bookie, 1, 4) is Status.IO_ERROR
            assert await status_of(bookie, 1, 5) is Status.OK
            assert b"bookie_storage_healing_damaged_ledgers 1.0" in bookie.render_metrics()
            # A worker that saw nothing wrong takes it off the queue; it comes back.
            await repaired(store, 1)
            await until(lambda: marked(store, 1))
            assert healing.statistics.marks >= 2
        async with real_bookie(tmp_path, store, bookie_id="one", scrub=EAGER) as bookie:
            healing = bookie.healing
            assert healing is not None
            assert await status_of(bookie, 1, 4) is Status.IO_ERROR, "it is on record"
            await write(bookie, 1, [4])
            await until(lambda: healing.statistics.healed_ledgers)
            assert await status_of(bookie, 1, 4) is Status.OK
            assert await bookie.storage.scrub.damaged_runs() == []
            assert b"bookie_storage_scrub_cycles" not in bookie.render_metrics()


async def test_a_damaged_mark_keeps_no_other_ledger_from_being_healed(tmp_path: Path) -> None:
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            for ledger_id in 1, 2:
                await LedgerManager(store).create(ledger(ledger_id, "one", "two"))
                await write(bookie, ledger_id, list(range(10)))
        flip(tmp_path, 1, 4)
        flip(tmp_path, 2, 4)
        await UnderreplicationQueue(store).mark(1, ["two"])
        await store.set(TreePaths(store.ledgers_root).underreplicated(1), b"damaged")
        async with real_bookie(tmp_path, store, bookie_id="one", scrub=EAGER):
            await until(lambda: marked(store, 2))


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_disk_that_is_mended_is_believed_although_its_ledger_has_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            await LedgerManager(store).create(ledger(1, "one", "two"))
            await write(bookie, 1, list(range(10)))
        flip(tmp_path, 1, 4)
        async with real_bookie(tmp_path, store, bookie_id="one", scrub=EAGER) as bookie:
            healing = bookie.healing
            assert healing is not None
            await until(lambda: marked(store, 1))
            monkeypatch.setattr(membership_healing, "_LONGEST_PAUSE_S", 1e6)
            healing._pauses[1].length_s = 1e6  # many workers saw nothing wrong
            await repaired(store, 1)
            await until(lambda: marked(store, 1))
            if is_full:
                monkeypatch.setattr(bookie.storage, "flush", refuse)
            flip(tmp_path, 1, 4)
            await until(lambda: healing.statistics.healed_ledgers)
            assert await status_of(bookie, 1, 4) is Status.OK


async def refuse() -> None:
    raise DiskFullError("no room")


async def test_damage_of_entries_that_are_expected_elsewhere_now_is_forgotten(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        ledgers = LedgerManager(store)
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            await ledgers.create(ledger(1, "one"))
            await write(bookie, 1, list(range(10)))
        flip(tmp_path, 1, 4)
        async with real_bookie(tmp_path, store, bookie_id="one", scrub=EAGER) as bookie:
            healing = bookie.healing
            assert healing is not None
            await until(lambda: healing.statistics.damaged_ledgers)
            await until(lambda: marked(store, 1))
            found, version = await ledgers.read(1)
            await ledgers.write(found.replace_bookie(0, "one", "two"), version)
            await until(lambda: healing.statistics.healed_ledgers)
            assert await bookie.storage.scrub.damaged_runs() == []
            assert await status_of(bookie, 1, 4) is Status.NO_ENTRY


async def test_damage_that_is_found_while_doubt_ends_stays_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster() as store:
        await LedgerManager(store).create(ledger(1, "one", "two"))
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            await write(bookie, 1, list(range(10)))
            await bookie.storage.put_in_limbo([1], fence=False)
        looks: list[bool] = []

        async def lacks_until_scrub_looks(*given: Any) -> bool:
            looks.append(await lacks(*given))
            if len(looks) == 1:
                flip(tmp_path, 1, 4)
                assert bookie.healing is not None
                await bookie.healing.scrubber.cycle()
            return looks[-1]

        monkeypatch.setattr(membership_healing, "lacks", lacks_until_scrub_looks)
        only_healing = replace(EAGER, interval_s=0)
        async with real_bookie(tmp_path, store, bookie_id="one", scrub=only_healing) as bookie:

            async def is_doubt_over() -> bool:
                return not await bookie.storage.scrub.ledgers_in_limbo()

            await until(is_doubt_over)
            assert looks[0] is False, "all was there when it was looked at"
            assert await status_of(bookie, 1, 4) is Status.IO_ERROR
            await until(lambda: marked(store, 1))


async def test_an_open_ledger_keeps_its_damage_until_it_is_closed(tmp_path: Path) -> None:
    async with cluster() as store:
        ledgers = LedgerManager(store)
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            await ledgers.create(ledger(1, "one", last=-1))
            await write(bookie, 1, list(range(10)))
        flip(tmp_path, 1, 4)
        async with real_bookie(tmp_path, store, bookie_id="one", scrub=EAGER) as bookie:
            healing = bookie.healing
            assert healing is not None
            await until(lambda: healing.statistics.damaged_ledgers)
            await until(lambda: marked(store, 1))
            assert await status_of(bookie, 1, 4) is Status.IO_ERROR
            # A recovery adds it again, and closes the ledger.
            await write(bookie, 1, [4])
            found, version = await ledgers.read(1)
            await ledgers.write(found.in_recovery().closed(9, 1), version)
            await until(lambda: healing.statistics.healed_ledgers)
            assert await status_of(bookie, 1, 4) is Status.OK


async def test_r26_a_lost_disk_makes_ledgers_unknown_until_they_are_copied(tmp_path: Path) -> None:
    async with cluster() as store:
        ledgers = LedgerManager(store)
        await ledgers.create(ledger(1, "one", "two"))
        await ledgers.create(ledger(2, "one", "two", last=-1))
        await ledgers.create(ledger(3, "two"))
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            await write(bookie, 1, list(range(10)))
            await write(bookie, 2, list(range(5)))
        for name in ("journal", "ledgers"):
            shutil.rmtree(tmp_path / name)
        with pytest.raises(CookieMissingError, match="stamp_missing_cookies"):
            await Bookie(Env(), options_in(tmp_path, bookie_id="one"), store).start()
        changes: dict[str, Any] = {"scrub": EAGER, "bookie_id": "one"}
        async with real_bookie(tmp_path, store, **changes, stamp_missing_cookies=True) as bookie:
            unknown = Status.UNKNOWN_LEDGER_STATE
            assert await status_of(bookie, 1, 4) is unknown
            assert await status_of(bookie, 2, 4) is unknown
            assert await status_of(bookie, 3, 4) is Status.NO_LEDGER
            await until(lambda: marked(store, 1))
            assert not await marked(store, 2), "its writer may live"
        async with real_bookie(tmp_path, store, **changes) as bookie:
            healing = bookie.healing
            assert healing is not None
            assert await status_of(bookie, 1, 4) is unknown, "over restarts, with its cookie again"
            client = await RawClient.connect(bookie.address[1])
            client.send(v2_adds(2, [5]))
            assert (await client.add_codes(1))[0][1] != 0, "its fences may be lost as well"
            await write(bookie, 1, list(range(9)))
            assert await status_of(bookie, 1, 9) is unknown
            await write(bookie, 1, [9])
            await until(lambda: healing.statistics.healed_ledgers)
            assert await status_of(bookie, 1, 99) is Status.NO_ENTRY, "limbo is over"
            assert await status_of(bookie, 2, 4) is unknown
            found, version = await ledgers.read(2)
            await ledgers.write(found.in_recovery().closed(4, 1), version)
            await until(lambda: marked(store, 2))
            await write(bookie, 2, list(range(5)))
            await until(lambda: healing.statistics.healed_ledgers == 2)
            assert await status_of(bookie, 2, 5) is Status.NO_ENTRY


@pytest.mark.parametrize("lost", ["journal", "ledgers2", "everything"])
async def test_r25_each_directory_may_be_lost(tmp_path: Path, lost: str) -> None:
    async with cluster() as store:
        await LedgerManager(store).create(ledger(1, "one", "two"))
        directories = (str(tmp_path / "ledgers"), str(tmp_path / "ledgers2"))
        changes: dict[str, Any] = {
            "bookie_id": "one", "scrub": EAGER, "ledger_directories": directories
        }  # fmt: skip
        async with real_bookie(tmp_path, store, **changes) as bookie:
            await write(bookie, 1, list(range(10)))
        names = ["journal", "ledgers", "ledgers2"] if lost == "everything" else [lost]
        for name in names:
            shutil.rmtree(tmp_path / name)
        async with real_bookie(tmp_path, store, **changes, stamp_missing_cookies=True) as bookie:
            healing = bookie.healing
            assert healing is not None
            status = await status_of(bookie, 1, 4)
            # Nothing is ever denied: it is here, or unknown, or on record as lost.
            assert status in (Status.OK, Status.UNKNOWN_LEDGER_STATE, Status.IO_ERROR)
            if status is not Status.OK:
                await until(lambda: marked(store, 1))
                await write(bookie, 1, list(range(10)))
                await until(lambda: healing.statistics.healed_ledgers)
            assert await status_of(bookie, 1, 4) is Status.OK
        async with real_bookie(tmp_path, store, **changes) as bookie:
            assert await status_of(bookie, 1, 4) is Status.OK


async def test_r22_a_metadata_store_that_fails_ends_no_doubt(tmp_path: Path) -> None:
    async with cluster() as store:
        await LedgerManager(store).create(ledger(1, "one"))
        async with real_bookie(tmp_path, store, bookie_id="one", scrub=EAGER) as bookie:
            await bookie.storage.put_in_limbo([1], fence=False)
            await write(bookie, 1, list(range(9)))
            healing = bookie.healing
            assert healing is not None
            await until(lambda: marked(store, 1))
            await store.delete(f"{store.ledgers_root}/INSTANCEID")
            assert healing.statistics.healed_ledgers == 0
            assert await status_of(bookie, 1, 9) is Status.UNKNOWN_LEDGER_STATE


def test_what_a_bookie_lacks_follows_from_ensembles_and_stripes() -> None:
    striped = LedgerMetadata(
        ledger_id=1,
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=2,
        state=LedgerState.CLOSED,
        last_entry_id=11,
        length=1,
        fragments=(Fragment(0, ("a", "b", "c")), Fragment(6, ("d", "b", "a"))),
    )
    # Entry e lies at e % 3 and the place behind it.
    assert list(lacking(striped, "a", [])) == [0, 2, 3, 5, 7, 8, 10, 11]
    assert list(lacking(striped, "a", [range(3), range(5, 11)])) == [3, 11]
    assert list(lacking(striped, "d", [range(6, 12)])) == []
    assert list(lacking(striped, "x", [])) == []
    opened = LedgerMetadata(
        ledger_id=1,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        fragments=(Fragment(0, ("a",)), Fragment(4, ("a",))),
    )
    assert list(lacking(opened, "a", [range(3)])) == [3], "the last fragment is not over"
