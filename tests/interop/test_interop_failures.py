"""Writers and bookies of both sides that are killed, and old writers that go on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from doubles.raw_client import RawClient
from interop.peer_driver import Peer, expected, payload
from interop.sides import BOOKIES, SIDES, TRIPLES, JavaSide, Shape, refusal
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.v2 import packets as v2

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

FENCED = -101
CLOSED = -11
NOT_ENOUGH_BOOKIES = -6


async def go_on(ledger) -> None:
    while True:
        await ledger.append("late", [50])


@pytest.mark.parametrize(("writer", "bookies", "other"), TRIPLES)
async def test_a_writer_that_goes_on_while_the_other_side_recovers_is_fenced(
    connect, cluster_of, writer, bookies, other
):
    cluster = await cluster_of(bookies)
    writing, taking = await connect(writer, cluster.uri), await connect(other, cluster.uri)
    shape = Shape(digest=DigestType.CRC32)
    ledger = await writing.create(shape)
    await ledger.append("late", [50] * 20)
    going_on = asyncio.create_task(refusal(go_on(ledger)))
    taken = await taking.open(ledger.id, shape)
    # The peer says "closed" if a late answer told it of the fence between two adds, and "not enough
    # bookies" if the next add began meanwhile: it takes who answered for failed, and replaces it.
    races = set() if writer == "own" else {NOT_ENOUGH_BOOKIES}
    assert await going_on in {FENCED, CLOSED, *races}
    confirmed = (await ledger.state())[0]
    last, length = await taken.state()
    # Nothing that was confirmed is lost; what was under way may be there or not.
    assert last >= confirmed >= 19
    check_length(other, length, last, 50)
    assert await taken.read(0, last) == expected("late", [50] * (last + 1))
    await taken.close()


def check_length(recoverer: str, length: int, last: int, size: int) -> None:
    """Ours is exact; the peer may count an entry that told the end and that it did not find."""
    if recoverer == "own":
        assert length == size * (last + 1)
    else:
        assert length >= size * (last + 1)
        assert length % size == 0


@pytest.mark.parametrize("other", SIDES)
async def test_the_length_of_an_entry_that_nobody_finds_is_counted_by_the_peer_only(
    connect, new_cluster, other
):
    """The peer's length comes with the newest entry seen while it fences, found later or not.

    Entry 4 is where nobody looks for it, so that what else is a race of answers is certain: of
    three bookies the first tells of the entry, the second stands still, the third denies it.
    """
    cluster = await new_cluster()
    await cluster.start(own=3)
    writing, taking = await connect("own", cluster.uri), await connect(other, cluster.uri)
    shape = Shape(write=2, digest=DigestType.CRC32)
    ledger = await writing.create(shape)
    await ledger.append("lost", [50] * 4)
    ensemble = (await writing.metadata(ledger.id)).ensembles[0]
    lone = await RawClient.connect(int(ensemble[0].rpartition(":")[2]))
    key = shape.password.encode()
    entry = digester(shape.digest, key).seal(ledger.id, 4, 3, 250, payload("lost", 4, 50))
    lone.send(b"".join(v2.encode_adds(master_key(key), 0, [entry])))
    assert await lone.add_codes(1) == [(4, 0)]
    lone.close()
    paused = cluster.pid(ensemble[1])
    os.kill(paused, signal.SIGSTOP)
    try:
        taken = await taking.open(ledger.id, shape)
        known = await taking.metadata(ledger.id)
        await taken.close()
    finally:
        os.kill(paused, signal.SIGCONT)
    assert (known.state, known.last_entry) == ("CLOSED", 3)
    assert known.length == (200 if other == "own" else 250)


async def recovered(connect, cluster, ledger_id: int, other: str, at_least: int) -> None:
    """Take a ledger over whose writer is dead, and compare what is found."""
    taking = await connect(other, cluster.uri)
    taken = await taking.open(ledger_id, Shape())
    last, length = await taken.state()
    assert last >= at_least
    check_length(other, length, last, 100)
    assert await taken.read(0, last) == expected("killed", [100] * (last + 1))
    known = await taking.metadata(ledger_id)
    assert (known.state, known.last_entry, known.length) == ("CLOSED", last, length)
    await taken.close()


@pytest.mark.parametrize("bookies", ["own", "mixed"])
@pytest.mark.parametrize("other", SIDES)
async def test_a_ledger_of_a_killed_java_writer_is_recovered_and_closed(
    connect, cluster_of, java, tmp_path, bookies, other
):
    cluster = await cluster_of(bookies)
    doomed = Peer(java, tmp_path)
    try:
        writing = await JavaSide.connect(doomed, cluster.uri)
        ledger = await writing.create(Shape())
        await ledger.append("killed", [100] * 200)
        under_way = asyncio.create_task(ledger.append("killed", [100] * 5000))
        await asyncio.sleep(0)
    finally:
        await asyncio.to_thread(doomed.kill)
    await asyncio.wait([under_way])
    assert under_way.exception() is not None
    await recovered(connect, cluster, ledger.id, other, 199)


@pytest.mark.parametrize("bookies", BOOKIES)
@pytest.mark.parametrize("other", ["java-v2", "java-v3"])
async def test_a_ledger_of_a_killed_writer_of_ours_is_recovered_and_closed(
    connect, cluster_of, bookies, other
):
    cluster = await cluster_of(bookies)
    doomed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "interop.doomed_writer", cluster.uri),
        cwd=Path(__file__).parents[1],
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        ledger_id = int(await doomed.stdout.readline())
        confirmed = -1
        while confirmed < 1000:
            confirmed = int(await doomed.stdout.readline())
    finally:
        doomed.kill()
        await doomed.communicate()
    await recovered(connect, cluster, ledger_id, other, confirmed)


@pytest.mark.parametrize("writer", SIDES)
@pytest.mark.parametrize("victim", ["own", "java"])
async def test_a_killed_bookie_of_either_kind_is_replaced(connect, new_cluster, writer, victim):
    cluster = await new_cluster()
    await cluster.start(own=1, java=1)
    start = cluster.start_own() if victim == "own" else cluster.start_java(is_mortal=True)
    doomed = await start
    writing = await connect(writer, cluster.uri)
    shape = Shape()
    ledger = await writing.create(shape)
    await ledger.append("change", [100] * 20)
    await cluster.start(own=1, java=1)
    while len((await writing.bookies())[0]) < 5:
        await asyncio.sleep(0.05)
    await cluster.kill(doomed)
    count = 20
    # The two left make an ack quorum: what they acknowledge may come before the failure is seen.
    while len((await writing.metadata(ledger.id)).ensembles) == 1:
        await ledger.append("change", [100] * 20)
        count += 20
    await ledger.close()
    for name in SIDES:
        reading = await connect(name, cluster.uri)
        ensembles = (await reading.metadata(ledger.id)).ensembles
        assert doomed in ensembles[0]
        assert doomed not in ensembles[max(ensembles)]
        other = await reading.open(ledger.id, shape)
        assert await other.read(0, count - 1) == expected("change", [100] * count)
        await other.close()
