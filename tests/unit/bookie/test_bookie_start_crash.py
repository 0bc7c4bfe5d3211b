"""A crash at any step of a bookie's start: what may be lost here is never denied, nor unfenced.

The disk is simulated, the index a real SQLite file.  A start is cut off at its n-th disk call or
commit of the index, for each n, and the next one has to make up for it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bookie_harness import KEY, RawClient, cluster, options_in, v2_adds

from doubles.sim_threads import StepThreads
from doubles.storage_world import PowerLostError
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.store import MetadataStore
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.index.tables import Index

OK, NO_LEDGER, NO_ENTRY, FENCED = (
    V2_CODE[each] for each in (Status.OK, Status.NO_LEDGER, Status.NO_ENTRY, Status.FENCED)
)
OPEN, CLOSED, RECOVERED = 1, 2, 3
LAST = 9
#: Between two of these a crash leaves the same.
CHANGES = frozenset(
    ("create", "write", "sync", "truncate", "make_directory", "sync_directory", "replace", "unlink")
)
#: Of what was not synced, a kill leaves all, and a loss of power none or some.
KEPT = (1.0, 0.0, 0.5)
#: How often a start may be cut off before one of them is through.
STEPS_MAX = 2000


class Machine:
    """A bookie's disk and index, to be started from as often as the test likes."""

    def __init__(self, root: Path, store: MetadataStore) -> None:
        self.root = root
        self.store = store
        self.disk = SimDisk()
        self.index_directory = root / "ledgers" / "current"
        self.index_directory.mkdir(parents=True)
        self.on_call: Callable[[], None] = lambda: None

    async def start(self) -> Bookie:
        self.disk.faults.on_call = lambda operation, _: (
            self.on_call() if operation in CHANGES else None
        )
        options = options_in(
            self.root,
            bookie_id="one",
            ledger_directories=(f"{self.root}/ledgers", f"{self.root}/ledgers2"),
            stamp_missing_cookies=True,
        )
        bookie = Bookie(Env(disk=self.disk, threads=StepThreads()), options, self.store)
        await bookie.start()
        return bookie

    async def start_until(self, call: int) -> bool:
        """Cut a start off at a disk call or commit; tell whether it got there."""
        left = call

        def count() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise PowerLostError("no power")

        self.on_call = count
        try:
            bookie = await self.start()
        except PowerLostError:
            self.on_call = lambda: None
            return True
        self.on_call = lambda: None
        await bookie.stop()
        return False

    def saved(self) -> Callable[[], None]:
        """Return what brings all of it back as it is now."""
        disk, copy = self.disk.copy(), self.root / "saved"
        shutil.copytree(self.index_directory, copy)

        def restore() -> None:
            self.disk = disk.copy()
            shutil.rmtree(self.index_directory)
            shutil.copytree(copy, self.index_directory)

        return restore

    def lose(self, *texts: str) -> None:
        """Remove the files whose path contains one of these texts."""
        for path in self.disk.files():
            if any(text in path for text in texts):
                self.disk.unlink(path)
        for path in {path.rpartition("/")[0] for path in self.disk.files()}:
            self.disk.sync_directory(path)

    def lose_index(self) -> None:
        for file in self.index_directory.iterdir():
            file.unlink()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    """Count each commit of the index as a step of the machine in the list, before and after."""
    machines: list[Machine] = []
    commit = Index.commit

    def counted(self: Index, **what: Any) -> Any:
        for machine in machines:
            machine.on_call()
        result = commit(self, **what)
        for machine in machines:
            machine.on_call()
        return result

    monkeypatch.setattr(Index, "commit", counted)
    return machines


async def written(root: Path, store: MetadataStore) -> Machine:
    """Return the machine of a bookie with an open, a closed and a recovered ledger."""
    machine = Machine(root, store)
    bookie = await machine.start()
    for ledger_id in (OPEN, CLOSED, RECOVERED):
        is_closed = ledger_id != OPEN
        await LedgerManager(store).create(
            LedgerMetadata(
                ledger_id=ledger_id, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1,
                state=LedgerState.CLOSED if is_closed else LedgerState.OPEN,
                last_entry_id=LAST if is_closed else -1, length=90 if is_closed else 0,
                fragments=(Fragment(0, ("one",)),), password=b"",
            )
        )  # fmt: skip
        assert await add(bookie, ledger_id, *range(LAST + 1)) == {OK}
    client = await RawClient.connect(bookie.address[1])
    await client.ask(v2.encode_read(RECOVERED, 0, master_key=KEY))
    client.close()
    await bookie.stop()
    return machine


async def add(bookie: Bookie, ledger_id: int, *ids: int) -> set[int]:
    client = await RawClient.connect(bookie.address[1])
    client.send(v2_adds(ledger_id, ids))
    codes = {code for _, code in await client.add_codes(len(ids))}
    client.close()
    return codes


async def check(bookie: Bookie) -> None:
    """Nothing acknowledged is denied, and old writers of all that is not new are refused."""
    client = await RawClient.connect(bookie.address[1])
    for ledger_id in (OPEN, CLOSED, RECOVERED):
        for entry_id in (0, LAST):
            answer = await client.ask(v2.encode_read(ledger_id, entry_id))
            code = v2.ANSWER.unpack_from(answer)[2]
            assert code not in (NO_LEDGER, NO_ENTRY), f"entry {entry_id} of {ledger_id} is denied"
        if ledger_id != CLOSED or code != OK:
            # Nobody was refused before where a ledger was closed by its own writer.
            assert await add(bookie, ledger_id, LAST + 1) == {FENCED}
    client.close()


def lose_everything_but_cookies(machine: Machine) -> None:
    machine.lose("ledger-states", ".log")
    machine.lose_index()


def lose_a_directory(machine: Machine) -> None:
    machine.lose("/ledgers2/", ".log")


def lose_everything(machine: Machine) -> None:
    machine.lose("/")
    machine.lose_index()


@pytest.mark.parametrize("loss", [lose_everything_but_cookies, lose_a_directory, lose_everything])
async def test_r22_r26_a_crash_at_any_step_of_a_start_denies_and_unfences_nothing(
    tmp_path: Path, watched: list[Machine], loss: Callable[[Machine], None]
) -> None:
    async with cluster() as store:
        machine = await written(tmp_path, store)
        loss(machine)
        restore = machine.saved()
        cookies = CookieStore(store)
        cookie = (await cookies.read("one"))[0]
        watched.append(machine)
        for step in range(1, STEPS_MAX):
            restore()
            if loss is lose_everything:
                await cookies.delete("one")
            was_cut = await machine.start_until(step)
            machine.disk = machine.disk.crash(random.Random(step), keep=KEPT[step % 3])
            bookie = await machine.start()
            await check(bookie)
            await bookie.stop()
            if not was_cut:
                break
        assert 10 < step < STEPS_MAX - 1
        assert (await cookies.read("one"))[0] == cookie
