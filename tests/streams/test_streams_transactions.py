"""Appends of many processes in one step: what is there is whole, and what is not leaves nothing."""

from __future__ import annotations

import pytest

from doubles.raw_client import RawClient
from quorumbook.errors import ConfigError, QuorumbookError
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.v2 import packets as v2
from quorumbook.streams import Namespace, StreamPolicy
from quorumbook.streams.errors import (
    CheckpointChangedError,
    StreamNotFoundError,
    StreamSealedError,
    TransactionLostError,
    TransactionTooLargeError,
    TxidOutOfOrderError,
    WriterBusyError,
)
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.stream_context import namespace_store
from quorumbook.streams.transactions import (
    Application,
    CommitOptions,
    DraftOptions,
    Identity,
    Place,
    collect_orphans,
    commit,
    gathering,
)
from quorumbook.testing import LocalCluster
from streams.transactions import (
    OPTIONS,
    application,
    ledger_ids,
    payloads,
    referenced,
    write,
)


async def test_a_batch_of_many_parts_and_streams_appears_in_one_step(
    ns: Namespace, other: Namespace
) -> None:
    for name in "a", "b":
        await ns.create_stream(name)
    async with ns.stream("a").writer() as writer:
        await writer.append_batch([b"before-0", b"before-1"])
    app = await application(ns)
    results = [
        await write(app, 0, part, {"a": [b"a%d" % part] * 3, "b": [b"b%d" % part]})
        for part in (2, 0, 1)
    ]
    assert await payloads(other, "a") == [b"before-0", b"before-1"]
    done = await app.commit(0, results)
    assert (done.was_there, done.record_count) == (False, 12)
    expected = [b"before-0", b"before-1", *[b"a%d" % part for part in range(3) for _ in range(3)]]
    assert await payloads(other, "a") == expected
    assert await payloads(other, "b") == [b"b0", b"b1", b"b2"]
    async with other.stream("a").reader(tail=False) as reader:
        assert [r.sequence_id async for r in reader] == list(range(11))
    # A writer goes on behind it, and the next batch behind that.
    async with other.stream("a").writer() as writer:
        assert (await writer.append(b"after")).sequence_id == 11
    await app.commit(1, [await write(app, 1, 0, {"a": [b"next"]})])
    assert await payloads(other, "a") == [*expected, b"after", b"next"]
    assert await ledger_ids(ns.client) >= await referenced(ns, "a", "b")


async def test_drafts_go_round_ids_that_somebody_guessed(
    ns: Namespace, cluster: LocalCluster
) -> None:
    await ns.create_stream("a")
    app = await application(ns)
    last = await ns.client.reserve_ledger_id()
    guessed = range(last + 1, last + 6)
    sealed = [digester(DigestType.CRC32C, b"").seal(each, 0, -1, 1, b"x") for each in guessed]
    for bookie_id in cluster.bookie_ids:
        stranger = await RawClient.connect(int(bookie_id.rpartition(":")[2]))
        stranger.send(b"".join(v2.encode_adds(master_key(b"a stranger's"), 0, sealed)))
        await stranger.add_codes(len(sealed))
        stranger.close()
    await app.commit(0, [await write(app, 0, 0, {"a": [b"one", b"two"]})])
    assert await payloads(ns, "a") == [b"one", b"two"]
    # Of those that were given up nothing is left in the metadata.
    assert (await ledger_ids(ns.client)).isdisjoint(guessed)


async def test_rows_roll_over_many_entries_and_ledgers_in_order(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(compression="lz4"))
    app = await application(ns)
    rows = [b"%05d" % n * 20 for n in range(2000)]
    small = DraftOptions(entry_bytes=2000, max_ledger_bytes=50_000, max_pending_bytes=100_000)
    writer = app.attempt(0, 0, 0, small, 1000)
    for start in range(0, len(rows), 70):
        await writer.append("s", rows[start : start + 70])
    result = await writer.finish()
    assert len(result.drafts) > 2
    assert sum(draft.record_count for draft in result.drafts) == 2000
    await app.commit(0, [result])
    assert await payloads(ns, "s") == rows


async def test_what_rows_carry_is_there_with_them(ns: Namespace) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    writer = app.attempt(0, 0, 0, DraftOptions(entry_bytes=2000), 1000)
    rows = [
        Attributes(b"k%d" % n, (("h", b"%d" % n), ("h", b"twice")), 10 * n) if n % 3 else None
        for n in range(200)
    ]
    for start in range(0, len(rows), 7):
        part = rows[start : start + 7]
        await writer.append("s", [b"%d" % (start + n) for n in range(len(part))], None, part)
    await app.commit(0, [await writer.finish()])
    async with ns.stream("s").reader(tail=False) as reader:
        found = [record async for record in reader]
    assert [record.payload for record in found] == [b"%d" % n for n in range(200)]
    assert [record.attributes for record in found] == [each or Attributes() for each in rows]
    # Entries are as full as they are without anything carried.
    assert len({record.position[:2] for record in found}) < 10


async def test_a_batch_that_is_there_is_not_written_again(ns: Namespace) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    await app.commit(0, [await write(app, 0, 0, {"s": [b"0"]})])
    restarted = await application(ns, "r2")
    assert await restarted.is_committed(0)
    assert not await restarted.is_committed(1)
    done = await restarted.commit(0, [restarted.skipped(0, 0, 0)])
    assert done.was_there
    assert await payloads(ns, "s") == [b"0"]


@pytest.mark.parametrize(
    ("batch", "plan", "error"),
    [
        (2, "p2", None),
        (2, "", None),  # whoever does not know the plan is believed
        (2, "p3", "from other offsets"),
        (1, "p1", "up to batch 2"),
        (1, "", None),
        (0, "p2", "up to batch 2"),
    ],
)
async def test_a_number_that_means_another_batch_by_now_is_refused(
    ns: Namespace, batch: int, plan: str, error: str | None
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    for number in range(3):
        wrote = await write(app, number, 0, {"s": [b"%d" % number]})
        await app.commit(number, [wrote], plan=f"p{number}")
    restarted = await application(ns, "r2")
    again = [restarted.skipped(batch, 0, 0)]
    if error is None:
        assert (await restarted.commit(batch, again, plan=plan)).was_there
    else:
        with pytest.raises(CheckpointChangedError, match=f"{error}.*Give the newest checkpoint"):
            await restarted.commit(batch, again, plan=plan)
        await restarted.abort(batch)
    await restarted.commit(3, [await write(restarted, 3, 0, {"s": [b"3"]})], plan="p3")
    assert await payloads(ns, "s") == [b"0", b"1", b"2", b"3"]


async def test_a_batch_of_an_unknown_plan_is_taken_for_any(ns: Namespace) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    await app.commit(0, [await write(app, 0, 0, {"s": [b"0"]})])
    again = await application(ns, "r2")
    assert (await again.commit(0, [again.skipped(0, 0, 0)], plan="p0")).was_there


async def test_an_abort_touches_its_own_run_only_and_nothing_that_is_committed(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    mine, theirs = await application(ns, "r1"), await application(other, "r2")
    lost = await write(mine, 0, 0, {"s": [b"0"]})
    won = await write(theirs, 0, 0, {"s": [b"0"]})
    await mine.abort(0)
    await theirs.commit(0, [won])
    with pytest.raises(TransactionLostError, match="another run"):
        await mine.commit(0, [lost])
    await mine.abort(0)
    await theirs.abort(0)  # as Spark does when a commit raises although it took effect
    assert await payloads(ns, "s") == [b"0"]
    assert await ledger_ids(ns.client) == await referenced(ns, "s")


async def test_a_driver_paused_before_its_step_fails_when_it_goes_on(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    paused, second = await application(ns, "r1"), await application(other, "r2")
    results = [await write(paused, 0, part, {"s": [b"%d" % part]}) for part in range(2)]
    found = await collect_orphans(Place(other.client, other, attempt_ttl_s=0))
    assert len(found) == 2
    with pytest.raises(TransactionLostError, match="cleaned up"):
        await paused.commit(0, results)
    again = [await write(second, 0, part, {"s": [b"%d" % part]}) for part in range(2)]
    await second.commit(0, again)
    with pytest.raises(TransactionLostError, match="another run"):
        await paused.commit(0, results)
    await paused.abort(0)
    assert await payloads(ns, "s") == [b"0", b"1"]
    # The garbage of an attempt whose ledgers are all there was deleted with them.
    assert await ledger_ids(ns.client) == await referenced(ns, "s")
    assert await collect_orphans(Place(ns.client, ns, attempt_ttl_s=0)) == []


async def test_of_two_attempts_at_one_part_one_is_there(ns: Namespace) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    first = await write(app, 0, 0, {"s": [b"0", b"1"]}, attempt=0)
    second = app.attempt(0, 0, 1, OPTIONS, 1000)
    await second.append("s", [b"0"])
    await app.commit(0, [first])
    # The other copy is still at work, and its ledger is gone.
    with pytest.raises(TransactionLostError):
        await second.finish()
    await second.give_up()
    assert await payloads(ns, "s") == [b"0", b"1"]
    await app.sweep()
    assert await ledger_ids(ns.client) == await referenced(ns, "s")


async def test_a_new_checkpoint_with_an_old_application_is_an_error(ns: Namespace) -> None:
    await ns.create_stream("s")
    old, new = await application(ns), await application(ns, "r2", query="q2")
    await old.commit(0, [await write(old, 0, 0, {"s": [b"old"]})])
    with pytest.raises(CheckpointChangedError, match="txnAppId"):
        await new.is_committed(0)
    result = await write(new, 0, 0, {"s": [b"new"]})
    with pytest.raises(CheckpointChangedError):
        await new.commit(0, [result])
    await new.commit(0, [result], CommitOptions(may_reset=True))
    # Who was replaced does not go on, at whatever batch it is.
    late = await write(old, 5, 0, {"s": [b"late"]})
    with pytest.raises(CheckpointChangedError):
        await old.commit(5, [late])
    assert await payloads(ns, "s") == [b"old", b"new"]


async def test_a_stream_in_use_is_refused_and_taken_over_if_told(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    writer = await other.stream("s").writer()
    await writer.append(b"written")
    result = await write(app, 0, 0, {"s": [b"0"]})
    with pytest.raises(WriterBusyError):
        await app.commit(0, [result], CommitOptions(lock_wait_s=0.01))
    await writer.abort()  # leaves its segment in progress
    with pytest.raises(WriterBusyError, match="takeover"):
        await app.commit(0, [result])
    await app.commit(0, [result], CommitOptions(takes_over=True))
    assert await payloads(ns, "s") == [b"written", b"0"]


async def test_who_takes_over_gets_the_stream_of_a_writer_that_goes_on(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    writer = await other.stream("s").writer()
    await writer.append(b"written")
    result = await write(app, 0, 0, {"s": [b"0"]})
    with pytest.raises(WriterBusyError, match=r"writes stream s; .*over with takeover=true"):
        await app.commit(0, [result], CommitOptions(lock_wait_s=0.01))
    await app.commit(0, [result], CommitOptions(lock_wait_s=0.01, takes_over=True))
    with pytest.raises(QuorumbookError):
        await writer.append(b"late")
    await writer.abort()
    assert await payloads(ns, "s") == [b"written", b"0"]


async def test_what_cannot_be_written_is_said_at_once(ns: Namespace, other: Namespace) -> None:
    app = await application(ns)
    with pytest.raises(StreamNotFoundError):
        await write(app, 0, 0, {"missing": [b"0"]})
    await app.commit(
        0, [await write(app, 0, 0, {"made": [b"0"]}, options=DraftOptions(creates_streams=True))]
    )
    assert await payloads(ns, "made") == [b"0"]
    async with ns.stream("made").writer() as writer:
        await writer.seal()
    with pytest.raises(StreamSealedError):
        await write(app, 1, 0, {"made": [b"0"]})
    with pytest.raises(ConfigError, match="outside of"):
        await application(ns, root=f"{namespace_store(ns).ledgers_root}/transactions")


async def test_transaction_ids_of_the_user_keep_their_order(ns: Namespace) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    # Partitions are ordered by them, whatever their numbers are.
    late = await write(app, 0, 0, {"s": [b"2", b"3"]}, txids=[20, 30])
    early = await write(app, 0, 1, {"s": [b"0", b"1"]}, txids=[1, 20])
    await app.commit(0, [late, early])
    assert await payloads(ns, "s") == [b"0", b"1", b"2", b"3"]
    with pytest.raises(TxidOutOfOrderError, match="below 9"):
        await write(app, 1, 0, {"s": [b"x", b"y"]}, txids=[9, 8])
    over = await write(app, 1, 0, {"s": [b"x", b"y"]}, txids=[31, 40])
    lap = await write(app, 1, 1, {"s": [b"x", b"y"]}, txids=[35, 50])
    with pytest.raises(TxidOutOfOrderError, match="ranges"):
        await app.commit(1, [over, lap])
    low = await write(app, 1, 0, {"s": [b"x"]}, txids=[29])
    with pytest.raises(TxidOutOfOrderError, match="up to 30"):
        await app.commit(1, [low])
    assert await payloads(ns, "s") == [b"0", b"1", b"2", b"3"]


async def test_a_batch_too_large_for_one_step_is_refused(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    results = [await write(app, 0, part, {"s": [b"x"]}) for part in range(3)]
    monkeypatch.setattr(gathering, "SMALL_BYTES", 0)
    # 3 segments, 3 attempts, 2 nodes, the head
    monkeypatch.setattr(namespace_store(ns), "multi_limit", 8)
    with pytest.raises(TransactionTooLargeError, match="coalesce"):
        await app.commit(0, results)
    monkeypatch.setattr(namespace_store(ns), "multi_limit", 9)
    await app.commit(0, results)
    assert await payloads(ns, "s") == [b"x"] * 3


async def test_ledgers_of_rows_are_listed_by_what_was_committed(cluster: LocalCluster) -> None:
    async with cluster.connect() as bk:
        app = Application(Place(bk), "rows", Identity("q", "r"))
        await app.prepare()
        for batch in range(2):
            results = [
                await write(
                    app, batch, part, {"": [b"%d.%d.%d" % (batch, part, n) for n in range(3)]}
                )
                for part in range(2)
            ]
            await app.commit(batch, results)
        stray = await write(app, 2, 0, {"": [b"never committed"]})
        found = [each async for each in app.ledgers()]
        assert [each.batch for each in found] == [1, 1, 0, 0]
        rows = []
        for each in found:
            async with bk.open_ledger(each.ledger_id) as reader:
                rows.append([entry.payload async for entry in reader.read()])
        assert rows[2:] == [[b"0.%d.%d" % (part, n) for n in range(3)] for part in range(2)]
        await app.abort(2)
        assert stray.drafts[0].ledger_id not in await ledger_ids(bk)
        assert len(await ledger_ids(bk)) == 4 + 2  # and two manifests


async def test_an_application_whose_last_batch_is_committed_leaves_no_nodes(ns: Namespace) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    result = await write(app, 0, 0, {"s": [b"0"]})
    await write(app, 0, 0, {"s": [b"0"]}, attempt=1)
    await app.commit(0, [result], CommitOptions(is_final=True))
    assert await namespace_store(ns).children(f"{ns.path}/.transactions") == []
    with pytest.raises(TransactionLostError):
        await write(app, 0, 0, {"s": [b"0"]}, attempt=2)
    with pytest.raises(TransactionLostError):
        await app.is_committed(0)
    assert await namespace_store(ns).children(f"{ns.path}/.transactions") == []
    assert await payloads(ns, "s") == [b"0"]
    assert await ledger_ids(ns.client) == await referenced(ns, "s")


async def test_a_stream_of_too_many_segments_is_refused_and_says_what_to_do(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commit.MAX_SEGMENTS == 10_000
    await ns.create_stream("s")
    app = await application(ns)
    monkeypatch.setattr(commit, "MAX_SEGMENTS", 2)
    results = [await write(app, 0, part, {"s": [b"x"]}) for part in range(3)]
    with pytest.raises(TransactionTooLargeError, match=r"spark compact-segments.*stream retention"):
        await app.commit(0, results)
    await app.abort(0)
    await app.commit(0, [await write(app, 0, part, {"s": [b"x"]}) for part in range(2)])
    assert await payloads(ns, "s") == [b"x", b"x"]


async def test_x2_producers_are_remembered_behind_any_number_of_transactions(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumbook.streams.writing.numbering._MAX_FOREIGN", 2)
    await ns.create_stream("s")
    async with ns.stream("s").writer(producer="p") as writer:
        await writer.append(b"p", producer_seq=7)
    app = await application(ns)
    for batch in range(7):
        await app.commit(batch, [await write(app, batch, 0, {"s": [b"x"]})])
    async with other.stream("s").writer(producer="p") as writer:
        assert writer.last_number() == 7
        assert (await writer.append(b"p", producer_seq=7)).duplicate
    assert await payloads(ns, "s") == [b"p", *[b"x"] * 7]
