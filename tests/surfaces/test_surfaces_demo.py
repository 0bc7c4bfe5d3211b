"""``quorumbook demo`` as a user starts it, and what it would say of copies that are wrong."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import signal
import time
import urllib.request

import pytest

from quorumbook.autorecovery.copying import verified_reads
from quorumbook.autorecovery.copying.verified_reads import read_verified
from quorumbook.cli.demo import flights
from quorumbook.cli.demo.healing import (
    HealingDemo,
    verify_copies,
    wait_for_last_copies,
    watch,
)
from quorumbook.cli.errors import DifferenceFoundError
from quorumbook.client.context import client_context
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import NoSuchEntryError
from quorumbook.protocol.digest import digester, master_key
from quorumbook.protocol.status import Status
from quorumbook.protocol.v3 import client as v3
from quorumbook.testing import LocalCluster
from surfaces.conftest import CommandLine

#: A killed bookie is missed when its session ends.
QUICK = ("--set", "metadata.session_timeout_s=3")


@pytest.mark.timeout(300)
def test_the_demo_gets_every_event_back(tmp_path):
    try:
        flights.path()
    except Exception:
        pytest.skip("the demo's events are missing; pip install 'quorumbook[demo]'")
    done = CommandLine("", str(tmp_path))("demo", "-o", "json", *QUICK)
    story, told = json.loads(done.out), done.err
    assert story["is_same"] is True
    assert story["events"] == story["acknowledged"] == story["events_read"] == flights.COUNT
    assert story["sha256_written"] == story["sha256_read"]
    assert len(story["fragments"]) == 2
    for fragment in story["fragments"]:
        assert len(set(fragment["ensemble"])) == 3
        assert story["killed_bookie"] not in fragment["ensemble"]
    healing = story["healing"]
    assert healing["copied"] == healing["lacking"] == story["fragments"][1]["first_entry_id"]
    assert healing["noticed_s"] <= healing["healed_s"]
    assert story["copies_verified"] == 3 * flights.COUNT
    assert "What was read is what was written" in told
    assert "`quorumbook demo --keep` leaves the cluster running with its console" in told
    assert re.search(r"after the kill the ledger was healed: [\d,]+ entries were copied", told)
    assert f"Every copy of every entry was read from its bookie, {3 * flights.COUNT:,} in" in told


@pytest.fixture
def few_flights(tmp_path, monkeypatch):
    """A demo of 3000 events, below ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    events = [b'{"flight": %d}' % number for number in range(3000)]
    monkeypatch.setattr(flights, "path", lambda: "events")
    monkeypatch.setattr(flights, "events", lambda _: iter(events))
    monkeypatch.setattr(flights, "COUNT", len(events))


@pytest.mark.usefixtures("few_flights")
def test_a_demo_that_is_kept_goes_on_and_says_how_to_look_at_it_and_stop_it(tmp_path, capfd):
    from quorumbook.cli.main import main

    assert main(["demo", "--keep", *QUICK]) == 0
    told, quorumbook = capfd.readouterr().out, CommandLine("", str(tmp_path))
    pids = [int(pid) for pid in told.partition("stop it with: kill ")[2].split()]
    # Three bookies, auto-recovery and the console.
    assert len(pids) == 5
    pages = dict(re.findall(r"^  (http://\S+)  (.*)$", told, re.MULTILINE))
    try:
        look = shlex.split(re.search("^  quorumbook (.*)$", told, re.MULTILINE)[1])
        assert json.loads(quorumbook(*look, "-o", "json").out)["entries"] == 3000
        assert len(quorumbook("ledger", "read", *look[2:]).out.splitlines()) == 3000
        shown = {address: urllib.request.urlopen(address).read().decode() for address in pages}
        assert [address.split("/ui/")[1] for address in pages] == [
            "ledgers/0", "bookies", "recovery",
        ]  # fmt: skip
        killed = re.search(r"bookies; (\S+) is down", told)[1]
        of_ledger, of_bookies, _ = shown.values()
        assert killed in of_bookies
        assert killed not in of_ledger
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
    while json.loads(quorumbook("bookie", "ls", "--registered", *look[-2:], "-o", "json").out):
        time.sleep(0.1)


@pytest.mark.usefixtures("few_flights")
def test_the_demo_fails_when_something_else_came_back(monkeypatch, capfd):
    from quorumbook.cli.demo import commands as demo
    from quorumbook.cli.main import main

    read = demo._read_elsewhere  # it dies between two steps

    async def read_with_one_bit_flipped(call, story):
        await read(call, story)
        story.sha256_read = f"{int(story.sha256_read, 16) ^ 1:064x}"

    monkeypatch.setattr(demo, "_read_elsewhere", read_with_one_bit_flipped)
    assert main(["demo", *QUICK]) == 6
    captured = capfd.readouterr()
    assert "What was read is what was written" not in captured.out
    assert "3000 came back" in captured.err


async def test_a_copy_that_is_not_what_was_written_is_noticed_on_each_bookie():
    lines = [b"event %d" % number for number in range(20)]
    sha256 = hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:
        async with bk.create_ledger(ack_quorum_size=3) as ledger:
            await ledger.append_batch_nowait(lines)
        count, fragments = await verify_copies(bk, ledger.id, sha256)
        assert (count, len(fragments)) == (60, 1)

        # An entry with a digest that is right, but other bytes than the two other copies have.
        metadata = await bk.ledger_metadata(ledger.id)
        seal = digester(metadata.digest_type, metadata.password)
        forged = seal.seal(ledger.id, 7, 6, 64, b"event 8")
        last = metadata.ensemble[2]
        await (
            client_context(bk)
            .bookies.control(last)
            .request(
                "a forged copy",
                lambda txn_id: v3.encode_add(
                    txn_id, ledger.id, 7, master_key(metadata.password), forged, is_recovery=True
                ),
            )
        )
        with pytest.raises(
            DifferenceFoundError, match=r"copies at position 2 .* not what was written"
        ):
            await verify_copies(bk, ledger.id, sha256)

        await cluster.stop(metadata.ensemble[1])
        with pytest.raises(
            DifferenceFoundError, match=f"bookie {metadata.ensemble[1]} does not give"
        ):
            await verify_copies(bk, ledger.id, sha256)


async def test_a_writer_is_not_left_before_all_bookies_have_its_last_entry(monkeypatch):
    """On a slow machine a bookie lacked what the other two had acknowledged: the demo failed."""
    refused, given = [], set()

    async def watched(*asked):
        try:
            entries = await read_verified(*asked)
            given.add(asked[3])
            return entries
        except NoSuchEntryError:
            if not refused:
                await writer.append(b"1")
            refused.append(asked)
            raise

    monkeypatch.setattr(verified_reads, "read_verified", watched)
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:
        async with bk.create_ledger() as writer:
            await writer.append(b"0")
            await wait_for_last_copies(bk, writer, 1, "")
            for bookie_id in writer.metadata.last_fragment.ensemble:
                assert await read_row(bk, writer.id, bookie_id) == Status.OK
    assert refused
    assert given == set(writer.metadata.last_fragment.ensemble)


async def test_what_the_killed_bookie_lacks_is_not_waited_for_and_counted_as_lacking():
    """On a slow machine it is in the last ensemble still: the demo could not connect to it."""
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:
        # With nobody to replace it, it keeps its place as surely as on a slow machine.
        writer = await bk.create_ledger(ack_quorum_size=2)
        await writer.append(b"0")
        killed = writer.metadata.ensemble[0]
        await cluster.stop(killed)
        await writer.append(b"1")
        await wait_for_last_copies(bk, writer, 1, killed)
        assert killed in writer.metadata.ensemble
        for bookie_id in {*writer.metadata.ensemble} - {killed}:
            assert await read_row(bk, writer.id, bookie_id) == Status.OK
        await writer.abort()
        async with await bk.open_ledger(writer.id) as reader:
            assert killed in reader.metadata.last_fragment.ensemble
        seen = HealingDemo()
        watching = asyncio.create_task(watch(bk, writer.id, killed, seen))
        while not seen.lacking:
            await asyncio.sleep(0.01)
        await cancel_and_wait([watching])
        assert (seen.lacking, seen.copied) == (2, 0)


async def read_row(bk, ledger_id, bookie_id):
    """Ask one bookie for the second entry, and return the code of its answer."""
    channel = client_context(bk).bookies.fast(bookie_id)
    return (await channel.read_run(ledger_id, 1, 1, 10_000)).code
