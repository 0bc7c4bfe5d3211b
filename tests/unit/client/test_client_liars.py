"""A bookie that lies: its bytes, ids, ledgers and numbers are checked, and others are asked.

One liar among three never changes what a reader sees; where all of them lie, the error says what
is wrong and with whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from client_harness import QUIET

from doubles.mock_bookie import PATIENCE_S, MockBookie, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client.client import BookKeeper
from quorumbook.errors import (
    DigestMismatchError,
    LedgerRecoveryError,
    NoSuchEntryError,
    QuorumbookError,
    ReadFailedError,
)
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.protocol.requests import BatchRead, Read, ReadLAC, Request
from quorumbook.protocol.status import Status

PAYLOADS = [b"payload %d" % i for i in range(30)]
PASSWORD = b"secret"

Tamper = Callable[[int, bytes], bytes]


def other_ledger(kind: DigestType, password: bytes) -> Tamper:
    seal = digester(kind, password)
    return lambda entry_id, entry: seal.seal(77, entry_id, entry_id - 1, 9, b"of another ledger")


def other_entry(kind: DigestType, password: bytes) -> Tamper:
    seal = digester(kind, password)
    return lambda entry_id, entry: seal.seal(0, entry_id + 1, entry_id, 9, b"another entry")


def wrong_bytes(_kind: DigestType, _password: bytes) -> Tamper:
    return lambda entry_id, entry: entry[:-1] + bytes([entry[-1] ^ 0x40])


def wrong_header(_kind: DigestType, _password: bytes) -> Tamper:
    return lambda entry_id, entry: entry[:23] + bytes([entry[23] ^ 1]) + entry[24:]


def cut(_kind: DigestType, _password: bytes) -> Tamper:
    return lambda entry_id, entry: entry[:20]


def empty(_kind: DigestType, _password: bytes) -> Tamper:
    return lambda entry_id, entry: b""


LIES = [
    (wrong_bytes, "does not match its digest"),
    (wrong_header, "does not match its digest"),
    (other_ledger, "is of ledger 77"),
    (other_entry, "is entry"),
    (cut, "too short"),
    (empty, "too short|impossible size|without entry|no whole header"),
]
SEALED = [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC]


async def written(bk: BookKeeper, kind: DigestType, **shape: Any) -> int:
    async with bk.create_ledger(
        ledger_id=0, digest_type=kind, password=PASSWORD, **shape
    ) as ledger:
        await ledger.append_batch_nowait(PAYLOADS)
    return ledger.id


async def open_all(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    async with bk.open_ledger(ledger_id, password=PASSWORD) as reader:
        return [entry.payload async for entry in reader.read()]


@pytest.mark.parametrize("kind", SEALED)
@pytest.mark.parametrize(("lie", "says"), LIES)
async def test_r32_one_liar_changes_nothing_and_three_are_named(
    lie: Callable[[DigestType, bytes], Tamper], says: str, kind: DigestType
) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger_id = await written(bk, kind)
        tamper = lie(kind, PASSWORD)
        for liar in cluster.bookies:
            liar.tamper = tamper
            assert await open_all(bk, ledger_id) == PAYLOADS
            async with bk.open_ledger(ledger_id, password=PASSWORD) as reader:
                for entry_id in (0, 1, 2, 29):
                    assert (await reader.read_entry(entry_id)).payload == PAYLOADS[entry_id]
                assert (await reader.read_last_entry()).payload == PAYLOADS[-1]
                assert (await reader.read_batch(7)).payloads == PAYLOADS[7:]
            liar.tamper = None
        for liar in cluster.bookies:
            liar.tamper = tamper
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(DigestMismatchError, match=says) as failure:
                await open_all(bk, ledger_id)
        assert all(liar.bookie_id in str(failure.value) for liar in cluster.bookies)


@pytest.mark.parametrize("kind", SEALED)
@pytest.mark.parametrize(("lie", "says"), LIES)
async def test_r17_a_recovery_believes_no_liar_and_copies_nothing_of_it(
    lie: Callable[[DigestType, bytes], Tamper], says: str, kind: DigestType
) -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(ledger_id=0, digest_type=kind, password=PASSWORD)
        await ledger.append_batch_nowait(PAYLOADS)
        for bookie in cluster.bookies:
            await until(lambda b=bookie: b.entry_ids(ledger.id) == list(range(30)))
        cluster.bookies[0].tamper = lie(kind, PASSWORD)
        async with asyncio.timeout(PATIENCE_S):
            assert await open_all(bk, ledger.id) == PAYLOADS
        await ledger.abort()


async def test_a_recovery_among_liars_only_closes_nothing() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(ledger_id=0, password=PASSWORD)
        await ledger.append_batch_nowait(PAYLOADS)
        for bookie in cluster.bookies:
            bookie.tamper = wrong_bytes(DigestType.CRC32C, PASSWORD)
        with pytest.raises(LedgerRecoveryError, match="digest") as failure:
            await open_all(bk, ledger.id)
        assert cluster.bookies[0].bookie_id in str(failure.value)
        assert not (await bk.ledger_metadata(ledger.id)).is_closed
        for bookie in cluster.bookies:
            bookie.tamper = None
        assert await open_all(bk, ledger.id) == PAYLOADS
        await ledger.abort()


def denies(status: Status) -> Callable[[Request], Any]:
    return lambda request: status if isinstance(request, (Read, BatchRead, ReadLAC)) else None


@pytest.mark.parametrize("status", [Status.NO_ENTRY, Status.NO_LEDGER])
async def test_one_bookie_that_denies_an_entry_hides_nothing(status: Status) -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger_id = await written(bk, DigestType.CRC32C)
        open_one = await bk.create_ledger(password=PASSWORD)
        await open_one.append_batch_nowait(PAYLOADS)
        for bookie in cluster.bookies:
            await until(lambda b=bookie: len(b.entry_ids(open_one.id)) == 30)
        cluster.bookies[1].on_request = denies(status)
        assert await open_all(bk, ledger_id) == PAYLOADS
        assert await open_all(bk, open_one.id) == PAYLOADS  # recovered
        for bookie in cluster.bookies:
            bookie.on_request = denies(status)
        with pytest.raises(QuorumbookError, match="no replica has entry"):
            await open_all(bk, ledger_id)
        await open_one.abort()


async def test_unknown_ledger_state_is_never_taken_for_absence() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger_id = await written(bk, DigestType.CRC32C)
        open_one = await bk.create_ledger(password=PASSWORD)
        await open_one.append_batch_nowait(PAYLOADS)
        for bookie in cluster.bookies:
            await until(lambda b=bookie: len(b.entry_ids(open_one.id)) == 30)
        unknown = denies(Status.UNKNOWN_LEDGER_STATE)
        cluster.bookies[0].on_request = unknown
        cluster.bookies[1].on_request = denies(Status.NO_ENTRY)
        assert await open_all(bk, ledger_id) == PAYLOADS
        cluster.bookies[2].on_request = unknown
        async with bk.open_ledger(ledger_id, password=PASSWORD) as reader:
            with pytest.raises(ReadFailedError) as failure:
                await reader.read_entry(3)
            assert not isinstance(failure.value, NoSuchEntryError)
        # Two unknowns cover no ack quorum: neither the last add confirmed nor an end is known.
        with pytest.raises(QuorumbookError):
            await bk.open_ledger(open_one.id, password=PASSWORD, recover=False)
        with pytest.raises(LedgerRecoveryError):
            await bk.open_ledger(open_one.id, password=PASSWORD)
        assert not (await bk.ledger_metadata(open_one.id)).is_closed
        for bookie in cluster.bookies:
            bookie.on_request = None
        assert await open_all(bk, open_one.id) == PAYLOADS
        await open_one.abort()


async def test_a_long_poll_is_believed_only_as_far_as_a_digest_goes() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"confirmed")
        await ledger.append(b"told of it")
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            assert reader.last_add_confirmed == 0
            for bookie in cluster.bookies:
                bookie.claimed_lac = 1  # no entry and no packet says so
            got: list[bytes] = []

            async def tail() -> None:
                async for entry in reader.tail():
                    got.append(entry.payload)  # noqa: PERF401 - seen while it goes on

            tailing = asyncio.create_task(tail())
            await until(lambda: all(b.count(ReadLAC) > 2 for b in cluster.bookies))
            assert got == [b"confirmed"]
            assert reader.last_add_confirmed == 0
            await ledger.append(b"proof")
            await until(lambda: got == [b"confirmed", b"told of it"])
            await ledger.close()
            async with asyncio.timeout(PATIENCE_S):
                await tailing
            assert got[-1] == b"proof"


async def test_a_stale_last_add_confirmed_holds_nobody_back() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger()
        stale = cluster.bookies[0]
        stale.claimed_lac = -1
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            entries = reader.tail()
            for i in range(5):
                await ledger.append(b"%d" % i)
                async with asyncio.timeout(PATIENCE_S):
                    assert (await anext(entries)).payload == b"%d" % i
            await entries.aclose()
        await ledger.close()


async def _swap(cluster: MockCluster, one: int, two: int, bookie: MockBookie) -> None:
    ledgers = bookie.ledgers
    ledgers[one].entries, ledgers[two].entries = ledgers[two].entries, ledgers[one].entries


async def test_a_bookie_that_mixes_two_ledgers_up_is_noticed() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ids = []
        for name in (b"left", b"right"):
            async with bk.create_ledger(password=PASSWORD) as ledger:
                await ledger.append_batch_nowait([name] * 10)
            ids.append(ledger.id)
        for bookie in cluster.bookies[:2]:
            await _swap(cluster, *ids, bookie)
        assert await open_all(bk, ids[0]) == [b"left"] * 10
        assert await open_all(bk, ids[1]) == [b"right"] * 10
        await _swap(cluster, *ids, cluster.bookies[2])
        with pytest.raises(DigestMismatchError, match=f"is of ledger {ids[1]}"):
            await open_all(bk, ids[0])
