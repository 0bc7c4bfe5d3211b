"""What ledgers can do beyond being written in order: given ids, late syncs, batches, deletion."""

from __future__ import annotations

import pytest

from interop.peer_driver import expected
from interop.sides import TRIPLES, Shape, refusal

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

NO_SUCH_LEDGER = -25
UNAUTHORIZED = -102


@pytest.mark.parametrize(("writer", "bookies", "reader"), TRIPLES)
async def test_entries_with_given_ids_come_in_any_order(
    connect, cluster_of, writer, bookies, reader
):
    cluster = await cluster_of(bookies)
    writing, reading = await connect(writer, cluster.uri), await connect(reader, cluster.uri)
    ledger = await writing.create(Shape(), adv=True)
    sizes = [100, 0, 300, 7, 50, 60]
    ids = [3, 0, 1, 5, 4, 2]
    await ledger.append("adv", [sizes[i] for i in ids], ids)
    await ledger.close()
    other = await reading.open(ledger.id, Shape())
    assert (await other.state())[0] == 5
    assert await other.read(0, 5) == expected("adv", sizes)
    await other.close()


#: Around the ends of the two trees of the metadata, and the largest there is.
@pytest.mark.parametrize("ledger_id", [2**31 - 2, 2**31 - 1, 2**40 + 7, 2**63 - 1])
@pytest.mark.parametrize(
    ("writer", "bookies", "reader"), [("own", "mixed", "java-v3"), ("java-v3", "own", "own")]
)
async def test_a_ledger_may_have_any_id(connect, cluster_of, writer, bookies, reader, ledger_id):
    cluster = await cluster_of(bookies)
    first, second = await connect(writer, cluster.uri), await connect(reader, cluster.uri)
    ledger = await first.create(Shape(), adv=True, ledger_id=ledger_id)
    assert ledger.id == ledger_id
    await ledger.append("any", [9, 9], [0, 1])
    other = await second.open(ledger_id, Shape())
    assert await other.read(0, 1) == expected("any", [9, 9])
    await other.close()
    assert ledger_id in await first.list()
    assert ledger_id in await second.list()
    await second.delete(ledger_id)
    assert ledger_id not in await first.list()


@pytest.mark.parametrize(
    ("writer", "bookies", "reader"), [each for each in TRIPLES if each[0] != "java-v2"]
)
async def test_a_deferred_sync_confirms_what_was_forced(
    connect, cluster_of, writer, bookies, reader
):
    cluster = await cluster_of(bookies)
    writing, reading = await connect(writer, cluster.uri), await connect(reader, cluster.uri)
    ledger = await writing.create(Shape(), deferred_sync=True)
    await ledger.append("deferred", [10] * 30)
    assert (await ledger.state())[0] == -1
    await ledger.force()
    assert (await ledger.state())[0] == 29
    await ledger.append("deferred", [10] * 5)
    await ledger.force()
    await ledger.close()
    other = await reading.open(ledger.id, Shape())
    assert await other.state() == (34, 350)
    assert await other.read(0, 34) == expected("deferred", [10] * 35)
    await other.close()


#: Only the peer's v2 client has batch reads.
@pytest.mark.parametrize(
    ("writer", "bookies", "reader"), [each for each in TRIPLES if each[2] != "java-v3"]
)
async def test_a_batch_read_ends_where_its_limits_say(connect, cluster_of, writer, bookies, reader):
    cluster = await cluster_of(bookies)
    writing, reading = await connect(writer, cluster.uri), await connect(reader, cluster.uri)
    sizes = [1000] * 50
    ledger = await writing.create(Shape())
    await ledger.append("batch", sizes)
    await ledger.close()
    other = await reading.open(ledger.id, Shape())
    whole = expected("batch", sizes)
    assert await other.batch_read(0, 7, 1 << 20) == whole[:7]
    assert await other.batch_read(45, 100, 1 << 20) == whole[45:]
    # An entry takes its header and digest beside its payload, and four bytes for its size.
    assert await other.batch_read(10, 50, 36 + 3 * (4 + 36 + 1000)) == whole[10:13]
    assert await other.batch_read(10, 50, 1) == whole[10:11]
    assert await other.read_last_entry() == whole[-1]
    await other.close()


@pytest.mark.parametrize(("writer", "bookies", "other"), TRIPLES)
async def test_a_ledger_that_one_side_deletes_is_gone_for_both(
    connect, cluster_of, writer, bookies, other
):
    cluster = await cluster_of(bookies)
    first, second = await connect(writer, cluster.uri), await connect(other, cluster.uri)
    ledger = await first.create(Shape())
    await ledger.append("deleted", [10])
    await ledger.close()
    assert ledger.id in await second.list()
    assert await first.list() == await second.list()
    await second.delete(ledger.id)
    for side in (first, second):
        assert ledger.id not in await side.list()
        assert await refusal(side.open(ledger.id, Shape())) == NO_SUCH_LEDGER


@pytest.mark.parametrize(("writer", "bookies", "other"), TRIPLES)
async def test_a_wrong_password_opens_nothing(connect, cluster_of, writer, bookies, other):
    cluster = await cluster_of(bookies)
    first, second = await connect(writer, cluster.uri), await connect(other, cluster.uri)
    ledger = await first.create(Shape())
    await ledger.append("secret", [10])
    assert await refusal(second.open(ledger.id, Shape(password="wrong"))) == UNAUTHORIZED
    await ledger.append("secret", [10])
    await ledger.close()
