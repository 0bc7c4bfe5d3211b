"""What becomes of the fence of a ledger that was deleted and collected: its old writer comes back.

Bookies live on clocks of the test's; their collector passes when the test says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest
from bookie_harness import (
    KEY,
    WRONG_KEY,
    RawClient,
    cluster,
    options_in,
    running,
    v2_adds,
)

from doubles.records import lac_packet
from doubles.sim_threads import StepClock
from quorumbook.bookie.server import Bookie
from quorumbook.client.client import connect
from quorumbook.env import Env
from quorumbook.errors import LedgerFencedError, MetadataUnavailableError
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.store import MetadataStore
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.storage.index.files import remove_index

MINUTE_NS = 60 * 1_000_000_000
DAY_MS = 86_400_000
OK, FENCED, IO_ERROR = (V2_CODE[each] for each in (Status.OK, Status.FENCED, Status.IO_ERROR))


class Clocked:
    """A bookie whose time the test decides."""

    def __init__(self, root: Path, store: MetadataStore, name: str = "one") -> None:
        self.clock = StepClock()
        self._store = store
        self._options = options_in(root / name, bookie_id=name)
        self.index = root / name / "ledgers" / "current" / "index.sqlite"

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[Bookie]:
        async with running(Bookie(Env(clock=self.clock), self._options, self._store)) as bookie:
            yield bookie

    async def collect(self, bookie: Bookie, passes: int = 3) -> None:
        """Let the collector pass, six minutes apart."""
        assert bookie.collector is not None
        await bookie.storage.flush()
        for _ in range(passes):
            self.clock.now += 6 * MINUTE_NS
            await bookie.collector.collect()


async def create(store: MetadataStore, ledger_id: int, *bookies: str) -> None:
    await LedgerManager(store).create(
        LedgerMetadata(
            ledger_id=ledger_id, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1,
            fragments=(Fragment(0, bookies or ("one",)),), password=b"",
        )
    )  # fmt: skip


async def add(
    bookie: Bookie, ledger_id: int, *ids: int, flags: int = 0, key: bytes = KEY
) -> set[int]:
    """Return the codes that adds got."""
    client = await RawClient.connect(bookie.address[1])
    client.send(v2_adds(ledger_id, ids, flags=flags, key=key))
    codes = {code for _, code in await client.add_codes(len(ids))}
    client.close()
    return codes


async def fence(bookie: Bookie, ledger_id: int) -> None:
    client = await RawClient.connect(bookie.address[1])
    await client.ask(v2.encode_read(ledger_id, 0, master_key=KEY))
    client.close()


@contextlib.asynccontextmanager
async def after_deletion(root: Path, *, fenced: bool = True) -> AsyncIterator[tuple[
    Clocked, Bookie, MetadataStore
]]:  # fmt: skip
    """Give a bookie on which ledger 1 was written, fenced, deleted and collected; 2 is there."""
    async with cluster() as store:
        clocked = Clocked(root, store)
        async with clocked.run() as bookie:
            for ledger_id in (1, 2):
                await create(store, ledger_id)
                assert await add(bookie, ledger_id, *range(6)) == {OK}
            if fenced:
                await fence(bookie, 1)
            await LedgerManager(store).delete(1)
            await clocked.collect(bookie)
            assert bookie.storage.ledger_ids() == [2]
            yield clocked, bookie, store


async def test_s14_a_writer_that_slept_through_recovery_deletion_and_collection_is_refused(
    tmp_path: Path,
) -> None:
    async with cluster() as store, contextlib.AsyncExitStack() as stack:
        members = [Clocked(tmp_path, store, name) for name in ("one", "two", "three")]
        bookies = [await stack.enter_async_context(each.run()) for each in members]
        old = await stack.enter_async_context(connect(store.uri, lac_delay_s=0))
        new = await stack.enter_async_context(connect(store.uri))
        writer = await old.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        for _ in range(6):
            await writer.append(b"entry")
        async with new.open_ledger(writer.id) as reader:
            assert reader.last_add_confirmed == 5
        await new.delete_ledger(writer.id)
        for member, bookie in zip(members, bookies, strict=True):
            await member.collect(bookie)
            assert bookie.storage.ledger_ids() == []
        with pytest.raises(LedgerFencedError):
            await writer.append(b"too late")


@pytest.mark.parametrize("fenced", [True, False])
async def test_s14_whatever_id_an_old_writer_goes_on_with_its_deleted_ledger_refuses_it(
    tmp_path: Path, fenced: bool
) -> None:
    async with after_deletion(tmp_path, fenced=fenced) as (clocked, bookie, _):
        for ids in ([6], [0], [1000], [7, 8, 9]):
            for key in (KEY, WRONG_KEY):
                assert await add(bookie, 1, *ids, key=key) == {FENCED}
            assert await add(bookie, 1, *ids, flags=4) == {FENCED}, "of high priority"
        assert await add(bookie, 2, 6) == {OK}
        # Recovery and replication may still bring entries, and open no door by that.
        assert await add(bookie, 1, 3, flags=2) == {OK}
        assert await add(bookie, 1, 6) == {FENCED}
        client = await RawClient.connect(bookie.address[1])
        answer = await client.ask_v3(v3.encode_write_lac(1, 1, 5, KEY, lac_packet(1, 5)))
        assert answer.status is Status.OK
        assert await add(bookie, 1, 6) == {FENCED}
        client.close()
        await clocked.collect(bookie)
        assert bookie.storage.ledger_ids() == [2]
        assert await add(bookie, 1, 6) == {FENCED}


@pytest.mark.parametrize("loss", ["nothing", "the index"])
async def test_s14_a_restart_forgets_no_deleted_ledger(tmp_path: Path, loss: str) -> None:
    async with after_deletion(tmp_path) as (clocked, bookie, _):
        await bookie.stop()
        if loss == "the index":
            remove_index(str(clocked.index))
        async with clocked.run() as again:
            assert again.storage.ledger_ids() == [2]
            assert await add(again, 1, 6) == {FENCED}
            assert await add(again, 2, 6) == {OK}


async def test_s14_a_deleted_ledger_is_remembered_for_a_week_and_no_longer(tmp_path: Path) -> None:
    async with after_deletion(tmp_path) as (clocked, bookie, _):
        clocked.clock.wall += 7 * DAY_MS
        await clocked.collect(bookie, 1)
        assert await add(bookie, 1, 6) == {FENCED}
        clocked.clock.wall += 1
        await clocked.collect(bookie, 1)
        await bookie.stop()
        async with clocked.run() as again:
            assert await add(again, 1, 6) == {OK}


async def test_s14_a_deleted_id_that_is_in_use_again_takes_adds_of_its_new_writer(
    tmp_path: Path,
) -> None:
    async with after_deletion(tmp_path) as (clocked, bookie, store):
        # Its key is known by whoever was refused, and means nothing.
        assert await add(bookie, 1, 6, key=WRONG_KEY) == {FENCED}
        await create(store, 1)
        assert await add(bookie, 1, *range(10)) == {OK}
        assert await add(bookie, 1, 10, key=WRONG_KEY) == {V2_CODE[Status.UNAUTHORIZED]}
        await bookie.stop()
        async with clocked.run() as again:
            assert await add(again, 1, 10) == {OK}
            # A second life ends as the first one did.
            await fence(again, 1)
            await LedgerManager(store).delete(1)
            await clocked.collect(again)
            assert again.storage.ledger_ids() == [2]
            assert await add(again, 1, 11) == {FENCED}
        # In use elsewhere.
        await create(store, 1, "another")
        async with clocked.run() as again:
            assert await add(again, 1, 11) == {IO_ERROR}


async def test_s14_while_the_metadata_is_away_only_deleted_ledgers_wait_for_it(
    tmp_path: Path,
) -> None:
    async with after_deletion(tmp_path) as (_, bookie, store):
        await create(store, 1)
        away = mock.AsyncMock(side_effect=MetadataUnavailableError("away"))
        with mock.patch.object(LedgerManager, "read", away):
            assert await add(bookie, 1, 6) == {IO_ERROR}
            assert await add(bookie, 2, 6) == {OK}
            assert await add(bookie, 3, 0) == {OK}, "new here"
            assert await add(bookie, 0, 0) == {OK}, "new here, below others"
            assert away.await_count == 1
        assert await add(bookie, 1, 6) == {OK}
