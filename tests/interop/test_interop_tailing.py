"""Readers that follow a writer: explicit last add confirmed and long polls, in both directions."""

from __future__ import annotations

import asyncio

import pytest

from interop.peer_driver import PeerError, Seen, expected, seen
from interop.sides import BOOKIES, TRIPLES, JavaLedger, Shape, seen_by_java

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

#: Only the peer's v3 client has long polls.
FOLLOWERS = [each for each in TRIPLES if each[2] != "java-v2"]
NO_SUCH_LEDGER = -7
SIZES = [10, 0, 2000, 30]


def options_of(writer: str) -> dict[str, object]:
    """Return what makes a side publish its last add confirmed when it is idle."""
    return {} if writer == "own" else {"explicitLacInterval": 20}


async def follow(ledger, count: int) -> list[Seen]:
    """Return the first entries as they are confirmed."""
    found: list[Seen] = []
    if not isinstance(ledger, JavaLedger):
        async for entry in (await ledger.reader()).tail():
            found.append(seen(entry.entry_id, entry.payload))
            if len(found) == count:
                break
        return found
    while len(found) < count:
        try:
            news = await ledger.call("poll", entry=len(found), timeout_ms=5000, parallel=False)
        except PeerError as error:
            # Bookies of both sides say so of a ledger in which nothing was written yet.
            if error.code == NO_SUCH_LEDGER and not found:
                continue
            raise
        found += seen_by_java(news)
        if len(found) <= news["last_add_confirmed"]:
            found += await ledger.read(len(found), news["last_add_confirmed"])
    return found


@pytest.mark.parametrize(("writer", "bookies", "reader"), FOLLOWERS)
async def test_a_reader_follows_a_writer_that_pauses_after_each_entry(
    connect, cluster_of, writer, bookies, reader
):
    cluster = await cluster_of(bookies)
    writing = await connect(writer, cluster.uri, **options_of(writer))
    reading = await connect(reader, cluster.uri)
    shape = Shape()
    ledger = await writing.create(shape)
    tail = await reading.open(ledger.id, shape, recover=False)
    following = asyncio.create_task(follow(tail, len(SIZES)))
    for count, size in enumerate(SIZES, 1):
        await ledger.append("tail", [size])
        # The next one comes when this one was made known without it.
        while await tail.read_last_add_confirmed() < count - 1:
            await asyncio.sleep(0.02)
    assert await following == expected("tail", SIZES)
    await ledger.close()
    await tail.close()


@pytest.mark.parametrize("bookies", BOOKIES)
async def test_an_explicit_last_add_confirmed_of_ours_is_what_the_peer_reads(
    connect, cluster_of, bookies
):
    cluster = await cluster_of(bookies)
    ours = await connect("own", cluster.uri)
    peers = await connect("java-v3", cluster.uri)
    ledger = await ours.create(Shape())
    reader = await peers.open(ledger.id, Shape(), recover=False)
    await ledger.append("explicit", [1, 2, 3])
    while await reader.read_last_add_confirmed("explicit") < 2:
        await asyncio.sleep(0.02)
    assert await reader.read_last_add_confirmed("try") == 2
    assert await reader.read(0, 2) == expected("explicit", [1, 2, 3])
    await ledger.close()


@pytest.mark.parametrize(("writer", "bookies", "reader"), TRIPLES)
async def test_unconfirmed_entries_are_read_by_who_asks_for_them(
    connect, cluster_of, writer, bookies, reader
):
    cluster = await cluster_of(bookies)
    quiet = {"lac_delay_s": 0.0} if writer == "own" else {}
    writing = await connect(writer, cluster.uri, **quiet)
    reading = await connect(reader, cluster.uri)
    ledger = await writing.create(Shape())
    for size in SIZES:
        await ledger.append("unconfirmed", [size])
    other = await reading.open(ledger.id, Shape(), recover=False)
    # An entry carries what was confirmed when it was sent, so the last one is not known to be.
    assert (await other.state())[0] == len(SIZES) - 2
    whole = expected("unconfirmed", SIZES)
    assert await other.read_unconfirmed(0, len(SIZES) - 1) == whole
    await ledger.close()
    await other.close()
