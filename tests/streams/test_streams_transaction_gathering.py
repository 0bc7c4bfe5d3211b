"""What goes through the driver's hands: few rows of many parts, and ids that would go down."""

from __future__ import annotations

import pytest

from quorumbook.env.tasks import gather_bounded
from quorumbook.streams import Namespace, StreamPolicy, TxId
from quorumbook.streams.errors import (
    StreamNotFoundError,
    TransactionLostError,
    TxidOutOfOrderError,
)
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.stream_context import namespace_store
from quorumbook.streams.transactions import (
    CommitOptions,
    DraftOptions,
    Place,
    collect_orphans,
    gathering,
)
from quorumbook.streams.transactions.application import Application
from quorumbook.streams.transactions.state import Identity
from streams.transactions import application, ledger_ids, payloads, referenced, write

HANDED = DraftOptions(handed_bytes=1000)


async def test_few_rows_of_many_parts_are_one_segment(ns: Namespace) -> None:
    for name in "a", "b":
        await ns.create_stream(name)
    app = await application(ns)
    results = [
        await write(app, 0, part, {"a": [b"%d" % part] * 2, "b": [b"b%d" % part]}, options=HANDED)
        for part in range(200)
    ]
    assert not await ledger_ids(ns.client)  # nothing is made for them
    done = await app.commit(0, results)
    assert done.record_count == 600
    assert [len(await ns.stream(name).segments()) for name in "ab"] == [1, 1]
    assert await payloads(ns, "a") == [b"%d" % part for part in range(200) for _ in range(2)]
    assert await payloads(ns, "b") == [b"b%d" % part for part in range(200)]
    assert await ledger_ids(ns.client) == await referenced(ns, "a", "b")
    assert await namespace_store(ns).children(f"{ns.path}/.transactions/app/attempts") == []


async def test_rows_keep_their_order_and_what_they_carry_beside_parts_with_ledgers(
    ns: Namespace,
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    results, expected = [], []
    for part, count in enumerate([2, 1, 90, 3, 3, 80, 70, 1]):
        writer = app.attempt(0, part, 0, HANDED, 1000)
        for number in range(count):
            row, carried = b"%d.%d" % (part, number), Attributes(b"k%d" % part, (("h", b"v"),), 7)
            await writer.append("s", [row, row], None, [None, carried] if number % 2 else None)
            expected += [(row, Attributes()), (row, carried if number % 2 else Attributes())]
        results.append(await writer.finish())
    assert [bool(result.handed) for result in results] == [n in (0, 1, 3, 4, 7) for n in range(8)]
    await app.commit(0, results)
    async with ns.stream("s").reader(tail=False) as reader:
        assert [(r.payload, r.attributes) async for r in reader] == expected
    # Parts that follow each other share a ledger.
    assert len(await ns.stream("s").segments()) == 6


async def test_what_is_held_of_all_streams_is_bounded(ns: Namespace) -> None:
    for number in range(5):
        await ns.create_stream(f"s{number}")
    app = await application(ns)
    rows = {f"s{number}": [b"x" * 300] for number in range(5)}
    result = await write(app, 0, 0, rows, options=HANDED)
    assert [each.stream for each in result.handed] == ["s0", "s1", "s2"]
    assert [draft.stream for draft in result.drafts] == ["s3", "s4"]
    await app.commit(0, [result])
    assert [await payloads(ns, name) for name in rows] == [[b"x" * 300]] * 5


async def test_rows_of_many_streams_are_written_at_once_within_the_same_bound(
    ns: Namespace,
) -> None:
    names = [f"s{number}" for number in range(20)]
    for name in names:
        await ns.create_stream(name)
    app = await application(ns)
    results = []
    # What is too much is written with the next rows, which would hide it.
    for part, turns in enumerate([range(3), range(3, 4)]):
        writer = app.attempt(0, part, 0, HANDED, 1000)
        for turn in turns:
            row = b"%d" % turn * 100
            await gather_bounded(lambda name, row=row, to=writer: to.append(name, [row]), names)
        result = await writer.finish()
        assert 0 < sum(len(row) for each in result.handed for row in each.payloads) <= 1000
        assert {each.stream for each in (*result.handed, *result.drafts)} == set(names)
        results.append(result)
    await app.commit(0, results)
    for name in names:
        assert await payloads(ns, name) == [b"%d" % turn * 100 for turn in range(4)]
    assert await ledger_ids(ns.client) == await referenced(ns, *names)


async def test_one_stream_of_many_that_refuses_rows_leaves_nothing(ns: Namespace) -> None:
    names = [f"s{number}" for number in range(20)]
    for name in names[:-1]:
        await ns.create_stream(name)
    app = await application(ns)
    writer = app.attempt(0, 0, 0, DraftOptions(), 1000)
    with pytest.raises(StreamNotFoundError):
        await gather_bounded(lambda name: writer.append(name, [b"x"]), names)
    await writer.give_up()
    await app.abort(0)
    assert not await ledger_ids(ns.client)


async def test_own_transaction_ids_order_what_is_handed_over_too(ns: Namespace) -> None:
    await ns.create_stream("s")
    app = await application(ns)

    async def part(number: int, *txids: int) -> object:
        rows = {"s": [b"%d" % txid for txid in txids]}
        return await write(app, 0, number, rows, options=HANDED, txids=list(txids))

    late, early = await part(0, 20, 30), await part(1, 1, 20)
    await app.commit(0, [late, early])
    assert await payloads(ns, "s") == [b"1", b"20", b"20", b"30"]
    with pytest.raises(TxidOutOfOrderError, match="below 9"):
        await part(0, 9, 8)
    with pytest.raises(TxidOutOfOrderError, match="ranges"):
        await app.commit(1, [await part(0, 31, 40), await part(1, 35, 50)])
    with pytest.raises(TxidOutOfOrderError, match=r"up to 30.*leave the column txid out"):
        await app.commit(1, [await part(0, 29)])


@pytest.mark.parametrize("options", [DraftOptions(), HANDED], ids=["ledgers", "handed"])
async def test_transaction_ids_never_go_down_whichever_application_commits_first(
    ns: Namespace, options: DraftOptions
) -> None:
    await ns.create_stream("s")
    early = await application(ns)
    late = Application(Place(ns.client, ns), "late", Identity("l", "r"))
    await late.prepare()
    first = await write(early, 0, 0, {"s": [b"early"] * 3}, options=options)  # planned at 1000
    own = await write(late, 0, 0, {"s": [b"own"] * 3}, options=options, txids=[5000] * 3)
    await late.commit(0, [own])
    await early.commit(0, [first])
    async with ns.stream("s").reader(tail=False) as reader:
        found = [(record.payload, record.txid) async for record in reader]
    assert [payload for payload, _ in found] == [b"own"] * 3 + [b"early"] * 3
    assert [txid for _, txid in found] == sorted(txid for _, txid in found)
    for number, (_, txid) in enumerate(found):
        async with ns.stream("s").reader(TxId(txid), tail=False) as reader:
            assert (await anext(aiter(reader))).sequence_id == number - number % 3
    assert await ledger_ids(ns.client) == await referenced(ns, "s")
    assert await namespace_store(ns).children(f"{ns.path}/.transactions/app/attempts") == []


async def test_ids_in_any_order_stay_what_they_are_where_the_policy_says_so(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(txid="free"))
    app = await application(ns)
    await app.commit(0, [await write(app, 0, 0, {"s": [b"0"]}, txids=[5000])])
    result = await write(app, 1, 0, {"s": [b"1"]}, txids=[7])
    await app.commit(1, [result])
    segments = await ns.stream("s").segments()
    assert segments[-1].metadata.ledger_id == result.drafts[0].ledger_id


async def test_an_attempt_of_which_a_part_was_copied_leaves_the_rest_to_be_cleaned_up(
    ns: Namespace,
) -> None:
    for name in "a", "b":
        await ns.create_stream(name)
    app = await application(ns)
    result = await write(app, 0, 0, {"a": [b"a"], "b": [b"b"]})
    async with ns.stream("a").writer() as writer:
        await writer.append(b"x", txid=10**15)
    await app.commit(0, [result])
    assert await payloads(ns, "a") == [b"x", b"a"]
    assert await ledger_ids(ns.client) == await referenced(ns, "a", "b")
    assert await namespace_store(ns).children(f"{ns.path}/.transactions/app/attempts") == []


async def test_more_ledgers_than_one_step_takes_become_few(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    results = [await write(app, 0, part, {"s": [b"%d" % part]}) for part in range(30)]
    monkeypatch.setattr(namespace_store(ns), "multi_limit", 10)
    await app.commit(0, results)
    assert len(await ns.stream("s").segments()) == 1
    assert await payloads(ns, "s") == [b"%d" % part for part in range(30)]
    assert await ledger_ids(ns.client) == await referenced(ns, "s")


async def test_what_was_cleaned_up_while_it_was_copied_is_said_and_nothing_is_there(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    result = await write(app, 0, 0, {"s": [b"row"]})
    async with ns.stream("s").writer() as writer:
        await writer.append(b"x", txid=10**15)
    drafts = gathering.Gathering.drafts

    async def late(*given: object, **named: object) -> object:
        await collect_orphans(Place(other.client, other, attempt_ttl_s=0))
        return await drafts(*given, **named)

    monkeypatch.setattr(gathering.Gathering, "drafts", late)
    with pytest.raises(TransactionLostError, match="cleaned up"):
        await app.commit(0, [result], CommitOptions())
    await app.abort(0)
    assert await payloads(ns, "s") == [b"x"]
    assert await ledger_ids(ns.client) == await referenced(ns, "s")
