"""A bookie of the peer becomes ours and the peer's again, on the same directories."""

from __future__ import annotations

import asyncio

import pytest

from interop.handover import Handover
from interop.peer_driver import PeerError, expected
from interop.sides import JavaSide, Shape

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

ALONE = Shape(ensemble=1, write=1, ack=1)
SORTED = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
INTERLEAVED = "org.apache.bookkeeper.bookie.InterleavedLedgerStorage"
DB = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
SIZES = [0, 1, 33, 1000, 65_536, 300_000]
FENCED = -101


def several(directory, name):
    return ",".join(str(directory / f"{name}{number}") for number in range(2))


async def until_found_by(client: JavaSide, bookie_id: str) -> None:
    while bookie_id not in (await client.bookies())[0]:
        await asyncio.sleep(0.05)


class History:
    """Ledgers of every kind, and what must be in them whoever serves them."""

    def __init__(self, client: JavaSide, explicit: JavaSide) -> None:
        self.client = client
        self.explicit = explicit
        self.open: list = []
        self.fenced_writers: list = []
        self.counts: dict[int, int] = {}

    async def write(self, ledger, sizes=SIZES):
        await ledger.append(f"ledger {ledger.id}", sizes)
        self.counts[ledger.id] = self.counts.get(ledger.id, 0) + 1

    async def begin(self):
        """Write ledgers that stay open, closed ones, and one whose writer is fenced."""
        for _ in range(3):
            self.open.append(await self.client.create(ALONE))
            await self.write(self.open[-1])
        for _ in range(2):
            ledger = await self.client.create(ALONE)
            await self.write(ledger)
            await ledger.close()
        for _ in range(3):
            # One for each time that a writer is to find out; it closes itself then.
            writer = await self.client.create(ALONE)
            await self.write(writer)
            other = await self.explicit.open(writer.id, ALONE)
            await other.close()
            self.fenced_writers.append(writer)
        self.published = await self.explicit.create(ALONE)
        await self.write(self.published)
        await self.until_published()
        deleted = await self.client.create(ALONE)
        await deleted.append("deleted", SIZES)
        await deleted.close()
        await self.client.delete(deleted.id)
        self.deleted = deleted.id

    async def until_published(self):
        reader = await self.client.open(self.published.id, ALONE, recover=False)
        while await reader.read_last_add_confirmed("explicit") < len(SIZES) - 1:
            pass
        await reader.close()

    async def until_found(self, bookie_id):
        """Wait until the clients know where the bookie is now."""
        for client in (self.client, self.explicit):
            await until_found_by(client, bookie_id)

    async def go_on(self):
        """The writers that are alive write on."""
        for ledger in self.open:
            await self.write(ledger)
        with pytest.raises(PeerError) as refused:
            await self.fenced_writers.pop().append("too late", [1])
        assert refused.value.code == FENCED

    async def check(self):
        for ledger_id, count in self.counts.items():
            reader = await self.client.open(ledger_id, ALONE, recover=False)
            sizes = SIZES * count
            found = await reader.read_unconfirmed(0, len(sizes) - 1)
            assert found == expected(f"ledger {ledger_id}", sizes), ledger_id
            await reader.close()
        reader = await self.client.open(self.published.id, ALONE, recover=False)
        assert await reader.read_last_add_confirmed("explicit") == len(SIZES) - 1
        await reader.close()


async def check_that_the_peer_refuses(bookie: Handover) -> None:
    """Start it on directories of ours: as it is, and with the options that forgive a cookie."""
    complaints = await bookie.refusals(
        {},
        {"allowStorageExpansion": True},
        {"dataIntegrityCheckingEnabled": True, "dataIntegrityStampMissingCookiesEnabled": True},
    )
    for complaint in complaints:
        assert "InvalidCookie" in complaint
        assert "run `quorumbook bookie give-back --apply`" in complaint


@pytest.fixture
def handover(java, peer, zookeeper, tmp_path):
    made = []

    def make(**conf):
        made.append(Handover(java, peer, zookeeper, tmp_path, **conf))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("storage", "is_killed", "is_several"),
    [
        (SORTED, False, False),
        (SORTED, True, True),
        (INTERLEAVED, True, False),
        (DB, False, False),
        (DB, True, True),
    ],
    ids=["sorted", "sorted-killed-several", "interleaved-killed", "db", "db-killed-several"],
)
async def test_a_bookie_of_the_peer_becomes_ours_and_the_peers_again(
    handover, connect, tmp_path, storage, is_killed, is_several
):
    conf = {"ledgerStorageClass": storage, "flushInterval": 1000}
    if is_several:
        conf["journalDirectories"] = several(tmp_path, "journal")
        conf["ledgerDirectories"] = several(tmp_path, "ledgers")
        conf["indexDirectories"] = several(tmp_path, "index")
    bookie = handover(**conf)
    await bookie.start_java()
    client = await connect("java-v3", bookie.uri)
    explicit = await connect("java-v3", bookie.uri, explicitLacInterval=20)
    history = History(client, explicit)
    await history.begin()
    if is_killed:
        # Something is in its place, and something only in the journals.
        await bookie.stop_java()
        await bookie.start_java()
        await history.until_found(bookie.bookie_id)
        await history.go_on()
        await bookie.kill_java()
    else:
        await bookie.stop_java()

    found = bookie.done("bookie", "adopt")
    assert not found["is_done"]
    assert found["damage"] == []
    assert bookie.done("bookie", "adopt", "--apply")["is_done"]
    if is_several:  # directories that lie alone are refused in the test below
        await check_that_the_peer_refuses(bookie)
    await bookie.start_own()
    await history.until_found(bookie.bookie_id)
    await history.check()
    await history.go_on()
    await history.check()
    await bookie.stop_own(is_kill=is_killed)

    assert not bookie.done("bookie", "give-back")["is_done"]
    assert bookie.done("bookie", "give-back", "--apply")["is_done"]
    await bookie.start_java()
    await history.until_found(bookie.bookie_id)
    await history.check()
    await history.go_on()
    await history.check()
    for ledger in history.open:
        await ledger.close()
    await bookie.stop_java()


async def test_the_peer_starts_on_no_directories_of_ours_before_they_are_given_back(
    handover, connect
):
    bookie = handover(ledgerStorageClass=SORTED)
    await bookie.start_own()
    client = await connect("java-v3", bookie.uri)
    ledger = await client.create(ALONE)
    await ledger.append("acknowledged", SIZES)

    async def entries():
        await until_found_by(client, bookie.bookie_id)
        reader = await client.open(ledger.id, ALONE, recover=False)
        found = await reader.read_unconfirmed(0, len(SIZES) - 1)
        await reader.close()
        return found

    await bookie.stop_own(is_kill=True)
    await check_that_the_peer_refuses(bookie)
    # Earlier releases left cookies that the peer takes for its own.
    versions = [path / "current" / "VERSION" for path in (*bookie.journals, *bookie.ledgers)]
    for version in versions:
        version.write_text(version.read_text().partition("\n")[2])
    await bookie.start_own()
    assert await entries() == expected("acknowledged", SIZES)
    await bookie.stop_own(is_kill=True)
    await check_that_the_peer_refuses(bookie)

    assert bookie.done("bookie", "give-back", "--apply")["is_done"]
    await bookie.start_java()
    assert await entries() == expected("acknowledged", SIZES)
    await bookie.stop_java()
