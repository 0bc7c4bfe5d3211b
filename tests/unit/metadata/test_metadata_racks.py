"""The table of racks."""

from __future__ import annotations

import asyncio

import pytest

from quorumbook.errors import ClusterNotInitializedError, ConfigError, MetadataFormatError
from quorumbook.metadata.bookies.racks import RackTable, location_in, row_of
from quorumbook.metadata.cluster import init_cluster


@pytest.fixture
async def store(open_memory):
    store = await open_memory()
    await init_cluster(store)
    return store


async def test_rows_are_put_in_changed_and_taken_out(store):
    table = RackTable(store)
    assert await table.read() == {}
    await table.set({"h1": "/west/1", "h1:3181": "/west/2/"})
    await table.set({"h2": "/east/1", "h1": "/west/3"})
    assert await table.read() == {"h1": "/west/3", "h1:3181": "/west/2", "h2": "/east/1"}
    await table.remove(["h2", "nobody"])
    assert await table.read() == {"h1": "/west/3", "h1:3181": "/west/2"}
    node = await store.get("/ledgers/racks")
    assert node.data == b'{"racks": {"h1": "/west/3", "h1:3181": "/west/2"}, "version": 1}'


async def test_a_bookies_own_row_counts_before_that_of_its_host():
    table = {"h1": "/r1", "h1:3181": "/r2", "named": "/r3"}
    assert location_in(table, "h1:3181") == "/r2"
    assert location_in(table, "h1:3182") == "/r1"
    assert location_in(table, "named") == "/r3"
    assert location_in(table, "h2:3181") is None
    assert row_of(table, "h1:3182") == "h1"
    assert row_of(table, "h1:x") is None


async def test_changes_at_the_same_time_are_all_kept(store):
    table = RackTable(store)
    await asyncio.gather(*(table.set({f"h{n}": f"/r{n}"}) for n in range(8)))
    assert await table.read() == {f"h{n}": f"/r{n}" for n in range(8)}


async def test_the_watch_tells_that_the_table_begins_changes_and_ends(store):
    table = RackTable(store)
    for change in (
        lambda: table.set({"h1": "/r1"}),
        lambda: table.set({"h1": "/r2"}),
        lambda: store.delete("/ledgers/racks"),
    ):
        rang = asyncio.Event()
        await table.read(rang.set)
        await change()
        await asyncio.wait_for(rang.wait(), 10)


async def test_nonsense_is_refused_and_changes_nothing(store, open_memory):
    table = RackTable(store)
    await table.set({"h1": "/west/1"})
    with pytest.raises(ConfigError, match="write /rack or /region/rack"):
        await table.set({"h2": "west"})
    with pytest.raises(ConfigError, match="the same way"):
        await table.set({"h2": "/r2"})
    assert await table.read() == {"h1": "/west/1"}
    for data in (b"", b"[]", b'{"racks": {}, "version": 2}', b'{"racks": {"h": 1}, "version": 1}'):
        await store.set("/ledgers/racks", data)
        with pytest.raises(MetadataFormatError, match="/ledgers/racks"):
            await table.read()


async def test_without_a_cluster_there_is_no_table(open_memory):
    with pytest.raises(ClusterNotInitializedError):
        await RackTable(await open_memory()).set({"h1": "/r1"})
