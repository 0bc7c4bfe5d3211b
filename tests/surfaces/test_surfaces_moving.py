"""``quorumbook bookie recover``, ``drain`` and their kin, as an operator uses them."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest

from doubles.clusters import local_cluster
from doubles.replicas import assert_fully_replicated
from doubles.waiting import until
from quorumbook.autorecovery.copying.balance import BookieDisk
from quorumbook.autorecovery.copying.moving import Moved, MoveOptions, Mover, Share
from quorumbook.cli.bookie import moving, state
from quorumbook.cli.explained.advice import ADVICE
from quorumbook.cli.main import main
from quorumbook.client.context import client_store
from quorumbook.errors import MetadataUnavailableError
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.metadata.paths import LayoutKind, TreePaths
from quorumbook.metadata.recovery.locks import ReplicationLocks
from quorumbook.metadata.recovery.queue import Mark, UnderreplicationQueue
from quorumbook.testing import LocalCluster

PATIENCE_S = 30.0

PAYLOADS = [b"entry %d" % n for n in range(50)]


cluster = local_cluster(bookies=4)


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys):
    def run(cluster, *words, code=0):
        capsys.readouterr()
        words = ["bookie", *words, "--metadata", cluster.metadata_uri, "-o", "json"]
        found = main([*words, "--set", "recovery.open_ledger_grace_s=0"])
        captured = capsys.readouterr()
        assert found == code, captured.err
        return json.loads(captured.out) if captured.out else captured.err

    return run


@pytest.fixture
def say(capsys):
    """Return what a command says beside its result."""

    def say(cluster, *words, code):
        capsys.readouterr()
        words = ["bookie", *words, "--metadata", cluster.metadata_uri, "-o", "json"]
        assert main([*words, "--set", "recovery.open_ledger_grace_s=0"]) == code
        return capsys.readouterr().err

    return say


def do(cluster, work):
    """Run a coroutine function with a client of the cluster."""

    async def with_client():
        async with _connect(cluster) as client:
            return await work(client)

    return asyncio.run(with_client())


def _connect(cluster):
    import quorumbook

    return quorumbook.connect(cluster.metadata_uri)


def write(cluster, **shape):
    async def work(client):
        async with client.create_ledger(**shape) as ledger:
            await ledger.append_batch_nowait(PAYLOADS)
        return ledger.id

    return do(cluster, work)


def ensemble(cluster, ledger_id):
    return do(cluster, lambda client: client.ledger_metadata(ledger_id)).ensemble


def cookies(cluster):
    return do(cluster, lambda client: CookieStore(client_store(client)).list())


def test_a_dry_run_says_what_would_be_moved_and_moves_nothing(cluster, run):
    ledger_id = write(cluster, ensemble_size=4, write_quorum_size=2, ack_quorum_size=2)
    lost = ensemble(cluster, ledger_id)[0]
    size = sum(map(len, PAYLOADS))
    cluster.stop(lost)
    for command in ("recover", "decommission"):
        (row,) = run(cluster, command, lost, "--dry-run")
        assert row == {
            "ledger_id": ledger_id, "state": "closed", "size_bytes": size // 2, "bookies": [lost],
        }  # fmt: skip
    assert lost in ensemble(cluster, ledger_id)
    assert lost in cookies(cluster)


def test_s80_a_cookie_goes_only_when_nothing_names_its_bookie_any_more(cluster, run):
    whole = write(cluster)
    lost = ensemble(cluster, whole)[0]
    single = None
    while single is None or ensemble(cluster, single) != (lost,):
        single = write(cluster, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    cluster.stop(lost)
    found = run(cluster, "decommission", lost, code=4)
    assert list(found["blocked"]) == [str(single)]
    assert "entry 0" in found["blocked"][str(single)]
    assert found["forgotten"] == []
    assert lost in cookies(cluster)
    assert lost not in ensemble(cluster, whole)
    do(cluster, lambda client: assert_fully_replicated(client, whole, PAYLOADS))

    do(cluster, lambda client: client.delete_ledger(single))
    assert run(cluster, "decommission", lost)["forgotten"] == [lost]
    assert lost not in cookies(cluster)


def test_a_lost_bookies_copies_are_made_anew_and_marks_of_it_go(cluster, run):
    ledgers = [write(cluster) for _ in range(3)]
    lost = ensemble(cluster, ledgers[0])[0]
    cluster.stop(lost)

    async def mark(client):
        queue = UnderreplicationQueue(client_store(client))
        for ledger_id in ledgers:
            if lost in (await client.ledger_metadata(ledger_id)).ensemble:
                await queue.mark(ledger_id, [lost])

    do(cluster, mark)
    run(cluster, "recover", lost)

    async def look(client):
        for ledger_id in ledgers:
            assert lost not in (await client.ledger_metadata(ledger_id)).ensemble
            await assert_fully_replicated(client, ledger_id, PAYLOADS)
        return [mark async for mark in UnderreplicationQueue(client_store(client)).list()]

    assert do(cluster, look) == []
    assert lost in cookies(cluster)


def test_a_mark_that_names_nobody_is_left_to_a_worker(cluster, run):
    ledger_id = write(cluster)
    lost = ensemble(cluster, ledger_id)[0]
    cluster.stop(lost)
    do(cluster, lambda client: UnderreplicationQueue(client_store(client)).mark(ledger_id, []))
    run(cluster, "recover", lost)
    assert lost not in ensemble(cluster, ledger_id)

    async def look(client):
        queue = UnderreplicationQueue(client_store(client))
        return [(mark, await queue.worker_of(ledger_id)) async for mark in queue.list()]

    assert do(cluster, look) == [(Mark(ledger_id, ()), None)]


def test_who_waits_is_told_how_long_it_takes_yet(cluster, monkeypatch, capsys):
    monkeypatch.setattr(moving, "_LINE_EVERY_S", 0.0)
    ledgers = [write(cluster) for _ in range(4)]
    lost = ensemble(cluster, ledgers[0])[0]
    count = sum(lost in ensemble(cluster, ledger_id) for ledger_id in ledgers)
    cluster.stop(lost)
    assert main(["bookie", "recover", lost, "--metadata", cluster.metadata_uri]) == 0
    size = sum(map(len, PAYLOADS)) * count
    told = [line for line in capsys.readouterr().err.splitlines() if " left" in line]
    assert len(told) == count
    assert told[-1] == f"{count} of {count} ledgers, {size:,} of {size:,} bytes, about 0 s left"


def test_open_ledgers_are_left_alone_or_closed(cluster, run):
    async def leave_open(client):
        ledger = await client.create_ledger()
        await ledger.append_batch_nowait(PAYLOADS)
        await ledger.abort()
        return ledger.id

    ledger_id = do(cluster, leave_open)
    lost = ensemble(cluster, ledger_id)[0]
    cluster.stop(lost)
    found = run(cluster, "recover", lost, "--skip-open", code=4)
    assert found["blocked"] == {str(ledger_id): "it is being written"}
    run(cluster, "recover", lost)
    do(cluster, lambda client: assert_fully_replicated(client, ledger_id, PAYLOADS))


@pytest.mark.parametrize(("command", "hint"), [("recover", "drain"), ("drain", "recover")])
def test_a_command_for_the_other_case_says_so(cluster, run, command, hint):
    bookie = cluster.bookie_ids[0]
    if command == "drain":
        # Nobody is sent to another command for a bookie that nobody knows.
        assert "nothing is known" in run(cluster, "drain", "10.0.0.7:1", code=3)
        cluster.stop(bookie)
    assert f"bookie {hint}" in run(cluster, command, bookie, code=2)


def test_can_stop_names_what_would_be_endangered(cluster, run):
    safe = write(cluster)
    first, second = ensemble(cluster, safe)[:2]
    thin = None
    while thin is None or set(ensemble(cluster, thin)) != {first, second}:
        thin = write(cluster, ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
    assert run(cluster, "can-stop", first) == []
    rows = run(cluster, "can-stop", first, "--copies", "2", code=5)
    assert thin in {row["ledger_id"] for row in rows}
    assert safe not in {row["ledger_id"] for row in rows}
    cluster.stop(second)
    rows = run(cluster, "can-stop", first, code=5)
    assert {row["ledger_id"]: row["copies_left"] for row in rows}[thin] == 0
    assert safe not in {row["ledger_id"] for row in rows}


def test_a_damaged_ledger_is_named_and_keeps_nobody_from_the_others(cluster, run, capsys):
    first, damaged, last = (write(cluster) for _ in range(3))
    do(cluster, lambda client: _damage_ledger(client, damaged))
    lost = ensemble(cluster, first)[0]
    said = f"ledger {damaged}: 1 bytes are not ledger metadata"

    assert main(["ledger", "ls", "--metadata", cluster.metadata_uri, "-o", "jsonl"]) == 1
    listed = capsys.readouterr()
    found = [json.loads(line)["ledger_id"] for line in listed.out.splitlines()]
    assert found == [first, last]
    assert said in listed.err

    (row,) = run(cluster, "can-stop", lost, code=5)
    assert (row["ledger_id"], said in row["why"]) == (damaged, True)
    cluster.stop(lost)
    moved = run(cluster, "decommission", lost, code=4)
    assert moved["blocked"] == {str(damaged): said}
    assert moved["forgotten"] == []
    assert lost not in ensemble(cluster, first) + ensemble(cluster, last)
    do(cluster, lambda client: client.delete_ledger(damaged))
    assert run(cluster, "decommission", lost)["forgotten"] == [lost]


async def _damage_ledger(client, ledger_id):
    store = client_store(client)
    path = TreePaths(store.ledgers_root).ledger(LayoutKind.HIERARCHICAL, ledger_id)
    await store.set(path, b"\xff")


def test_what_making_a_bookie_read_only_means_for_writers_is_said_before(cluster, run):
    bookie = cluster.bookie_ids[0]
    write(cluster)
    foreseen = run(cluster, "readonly", "on", bookie, "--dry-run")
    assert foreseen == {
        "bookie_id": bookie, "was_writable": True, "writable_bookies": 3,
        "ledgers_written_here": 0, "largest_ensemble": 0,
    }  # fmt: skip

    async def leave_open(client):
        ledger = await client.create_ledger(ensemble_size=4)
        await ledger.append(b"open")
        await ledger.abort()

    do(cluster, leave_open)
    foreseen = run(cluster, "readonly", "on", bookie, "--dry-run", code=5)
    assert (foreseen["ledgers_written_here"], foreseen["largest_ensemble"]) == (1, 4)
    assert "nothing is known" in run(cluster, "readonly", "on", "10.0.0.7:1", "--dry-run", code=3)


@pytest.mark.parametrize("words", ["gc", "gc-hold", "explain-gc", "scrub", "readonly status"])
def test_an_id_that_nothing_knows_is_not_there_for_who_asks_a_bookie(cluster, run, words):
    told = run(cluster, *words.split(), "10.0.0.7:1", code=3)
    assert "nothing is known of a bookie 10.0.0.7:1" in told
    assert "(quorumbook help no-such-bookie)" in told
    # One that is known and away may come again.
    cluster.stop(cluster.bookie_ids[0])
    assert "is not registered" in run(cluster, *words.split(), cluster.bookie_ids[0], code=4)


@pytest.mark.parametrize("command", ["recover", "decommission", "can-stop"])
def test_an_id_that_nothing_knows_is_taken_for_a_mistake(cluster, run, command):
    whole = write(cluster)
    known = ensemble(cluster, whole)[0]
    assert "nothing is known of a bookie 10.0.0.7:1" in run(cluster, command, "10.0.0.7:1", code=3)
    cluster.stop(known)
    run(cluster, command, known)


def test_r28_what_somebody_is_at_is_moved_when_the_lock_is_free(cluster, monkeypatch):
    ledger_id = write(cluster)
    lost = ensemble(cluster, ledger_id)[0]
    cluster.stop(lost)
    monkeypatch.setattr("quorumbook.autorecovery.copying.moving._LOCKED_PAUSE_S", 0.001)
    attempts = 0
    take_this = UnderreplicationQueue.take_this

    async def count(queue, wanted):
        nonlocal attempts
        attempts += 1
        return await take_this(queue, wanted)

    monkeypatch.setattr(UnderreplicationQueue, "take_this", count)

    async def move(client):
        async with _connect(cluster) as other:
            locks = ReplicationLocks(client_store(other), "somebody")
            assert await locks.take(ledger_id)
            mover = Mover(client, [lost], MoveOptions(name="we"))
            moving = asyncio.create_task(mover.run([Share(ledger_id, "closed", 1, (lost,))]))
            while attempts < 5:
                await asyncio.sleep(0.001)
            assert lost in (await client.ledger_metadata(ledger_id)).ensemble
            await locks.release_all()
            assert (await moving).ledgers == 1

    do(cluster, move)
    assert lost not in ensemble(cluster, ledger_id)


@pytest.mark.parametrize("fails", ["release", "a cancelled release"])
def test_a_ledger_that_could_not_be_released_is_free_while_its_mover_goes_on(
    cluster, monkeypatch, fails
):
    ledger_id = write(cluster)
    lost = ensemble(cluster, ledger_id)[0]
    cluster.stop(lost)
    is_asked = asyncio.Event()

    async def move(client):
        store = client_store(client)
        lock = TreePaths(store.ledgers_root).underreplicated_lock(ledger_id)

        async def fail(path, *arguments, **options):
            if path == lock and not is_asked.is_set():
                is_asked.set()
                if fails != "release":
                    await asyncio.Event().wait()
                raise MetadataUnavailableError("the store is away")
            await delete(path, *arguments, **options)

        delete = store.delete
        monkeypatch.setattr(store, "delete", fail)
        async with _connect(cluster) as other:
            mover = Mover(client, [lost], MoveOptions(name="we"))
            # Only what the mover itself does may give the lock back.
            monkeypatch.setattr(mover._queue, "close", lambda: None)
            moving = asyncio.create_task(mover.run([Share(ledger_id, "closed", 1, (lost,))]))
            await is_asked.wait()
            if fails != "release":
                moving.cancel()
            await asyncio.wait([moving])
            locks = ReplicationLocks(client_store(other), "somebody")

            async def is_free():
                return await locks.take(ledger_id)

            await until(is_free)

    do(cluster, move)


def test_full_disks_give_to_empty_ones(cluster, run, monkeypatch):
    ledgers = [
        write(cluster, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) for _ in range(8)
    ]
    held = {ledger_id: ensemble(cluster, ledger_id)[0] for ledger_id in ledgers}
    full = held[ledgers[0]]
    empty = next(b for b in cluster.bookie_ids if b != full)
    total = 100 * sum(map(len, PAYLOADS))

    async def disks(_client):
        yield full, BookieDisk(total, total // 2)
        yield empty, BookieDisk(total, total - total // 4)

    monkeypatch.setattr("quorumbook.autorecovery.copying.balance_plan._disks", disks)
    rows = run(cluster, "balance", "--dry-run")
    assert rows
    assert {(row["source"], row["target"]) for row in rows} == {(full, empty)}
    assert {i: ensemble(cluster, i)[0] for i in ledgers} == held
    assert run(cluster, "balance")["ledgers"] == len(rows)
    for row in rows:
        assert ensemble(cluster, row["ledger_id"]) == (empty,)
        do(cluster, lambda client, i=row["ledger_id"]: assert_fully_replicated(client, i, PAYLOADS))


def listed_once_read_only(ls, bookie):
    """Return the rows by bookie once one of them is registered as read-only, right after it is."""
    ends_at = time.monotonic() + PATIENCE_S
    while True:
        rows = {row["bookie_id"]: row for row in ls()}
        if rows[bookie]["state"] != "writable":
            return rows
        assert time.monotonic() < ends_at, rows


@pytest.mark.faults
def test_a_bookie_is_drained_decommissioned_and_forgotten(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    with LocalCluster(bookies=4, processes=True) as cluster:
        ledgers = [write(cluster) for _ in range(4)]
        bookie = ensemble(cluster, ledgers[0])[0]
        run(cluster, "drain", bookie)
        for ledger_id in ledgers:
            assert bookie not in ensemble(cluster, ledger_id)
            do(cluster, lambda client, i=ledger_id: assert_fully_replicated(client, i, PAYLOADS))
        state = run(cluster, "readonly", "status", bookie)
        assert state["read_only"]
        assert [reason.rpartition(":")[0] for reason in state["reasons"]] == [
            f"operator: drained by {socket.gethostname()}"
        ]
        cluster.restart(bookie)
        assert run(cluster, "readonly", "status", bookie)["read_only"]
        assert run(cluster, "readonly", "off", bookie, "--dry-run")["writable_bookies"] == 4
        assert run(cluster, "readonly", "status", bookie)["read_only"]
        assert not run(cluster, "readonly", "off", bookie)["read_only"]
        state = run(cluster, "readonly", "on", bookie, "--reason", "new disks & more")
        assert state["reasons"] == ["operator: new disks & more"]
        listed = listed_once_read_only(lambda: run(cluster, "ls"), bookie)
        assert listed[bookie]["reasons"] == state["reasons"]
        assert all("reasons" not in row for i, row in listed.items() if i != bookie)

        run(cluster, "decommission", bookie, code=4)
        assert bookie in cookies(cluster)
        cluster.stop(bookie)
        assert run(cluster, "decommission", bookie)["forgotten"] == [bookie]
        assert bookie not in cookies(cluster)


def _read_only_says_what_new_ledgers_lack(cluster, say, bookie):
    foreseen = say(cluster, "readonly", "on", bookie, "--dry-run", code=5)
    for told in (foreseen, say(cluster, "readonly", "on", bookie, code=0)):
        assert "2 bookies can be written to, and a new ledger has an ensemble of 3" in told
        assert f"`quorumbook bookie readonly off {bookie}`" in told
    assert say(cluster, "readonly", "off", bookie, code=0) == ""


@pytest.mark.faults
def test_a_drain_that_fails_leaves_the_bookie_as_it_was(tmp_path, monkeypatch, run, say):
    monkeypatch.chdir(tmp_path)
    with LocalCluster(bookies=3, processes=True) as cluster:
        ledger_id = write(cluster, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        bookie = ensemble(cluster, ledger_id)[0]
        # Nobody is left to move it to, which is said before anything is changed.
        err = say(cluster, "drain", bookie, code=4)
        assert f"ledger {ledger_id} has an ensemble of 3" in err
        assert "Nothing was changed" in err
        assert err.count("start another bookie") == 1
        assert "read-only" not in err
        # Its advice is for whoever drains, not only for a writer.
        assert "quorumbook help not-enough-bookies" in err
        advice = " ".join(ADVICE["not-enough-bookies"])
        assert "Start another bookie" in advice
        assert "--skip-open" in advice
        assert not run(cluster, "readonly", "status", bookie)["read_only"]
        _read_only_says_what_new_ledgers_lack(cluster, say, bookie)
        cluster.add()

        async def blocked(*_):
            return Moved(blocked={ledger_id: "somebody is at it"})

        with monkeypatch.context() as patched:
            patched.setattr(Mover, "run", blocked)
            err = say(cluster, "drain", bookie, code=4)
        assert f"ledger {ledger_id} is in the way" in err
        assert f"{bookie} takes new ledgers again, as it did before" in err
        assert not run(cluster, "readonly", "status", bookie)["read_only"]

        async def ended(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Mover, "run", ended)
            assert "as it did before" in say(cluster, "drain", bookie, code=130)
        assert not run(cluster, "readonly", "status", bookie)["read_only"]

        ask = state.change

        def interrupted(*words, **options):
            ask(*words, **options)
            patched.setattr(state, "change", ask)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            # Between what the bookie did and its answer.
            patched.setattr(state, "change", interrupted)
            assert "as it did before" in say(cluster, "drain", bookie, code=130)
        assert not run(cluster, "readonly", "status", bookie)["read_only"]

        run(cluster, "readonly", "on", bookie, "--reason", "new disks")
        with monkeypatch.context() as patched:
            patched.setattr(Mover, "run", blocked)
            err = say(cluster, "drain", bookie, code=4)
        assert f"{bookie} was made read-only before, and stays so" in err
        assert "as it did before" not in err
        assert run(cluster, "readonly", "status", bookie)["reasons"] == ["operator: new disks"]


@pytest.mark.faults
def test_a_drain_that_fails_leaves_alone_what_an_operator_said_meanwhile(monkeypatch, run, say):
    with LocalCluster(bookies=4, processes=True) as cluster:
        ledger_id = write(cluster)
        bookie = ensemble(cluster, ledger_id)[0]

        async def blocked(*_):
            words = ("readonly", "on", bookie, "--reason", "bad disk")
            await asyncio.to_thread(run, cluster, *words)
            return Moved(blocked={ledger_id: "somebody is at it"})

        monkeypatch.setattr(Mover, "run", blocked)
        err = say(cluster, "drain", bookie, code=4)
        assert f"{bookie} was made read-only by somebody else meanwhile, and stays so" in err
        assert "as it did before" not in err
        assert run(cluster, "readonly", "status", bookie)["reasons"] == ["operator: bad disk"]
