"""`quorumbook shell` beside the shell of Apache BookKeeper: the same names, options and facts."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess

import pytest

import quorumbook
from doubles.warm_command import run_command
from interop.peer_driver import LEAN
from interop.peer_java import Java
from quorumbook.cli.shell.names import NAMES

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]
#: In its help a command stands at this depth, each of its options deeper.
_COMMAND = re.compile(r"^ {7}([a-z][A-Za-z_-]+)(?: {2,}|$)")
_OPTION = re.compile(r"^\s+(?:\* )?-([A-Za-z]+), --([A-Za-z-]+)")


@pytest.fixture(scope="module")
def listed(java: Java, tmp_path_factory) -> dict[str, set[str]]:
    """What the jar itself lists: its commands, and the names of the options of each."""
    conf = tmp_path_factory.mktemp("shell") / "bk.conf"
    conf.write_text("metadataServiceUri=zk+hierarchical://127.0.0.1:1/none\n")
    shell = ("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(conf), "-help")
    done = subprocess.run(
        java.command(*shell, options=LEAN), capture_output=True, text=True, timeout=100, check=False
    )
    found: dict[str, set[str]] = {}
    name = ""
    for line in (done.stdout + done.stderr).splitlines():
        if command := _COMMAND.match(line):
            name = command[1]
            found[name] = set()
        elif name and (option := _OPTION.match(line)):
            found[name] |= {option[1], option[2]}
    return found


def test_every_command_of_the_jar_is_known_and_no_other(listed):
    assert len(listed) == 48
    assert listed.keys() == NAMES.keys()


def test_every_option_that_the_jar_lists_is_known(listed):
    unknown = {}
    for name, options in listed.items():
        if NAMES[name].instead:
            continue
        known = {each for given in NAMES[name].options for each in given.names}
        if left := options - known - {"h", "help"}:
            unknown[name] = left
    assert unknown == {}


async def ours(uri: str, *words: str) -> str:
    """Run our shell; return what it prints."""
    command = ("-o", "json", "--metadata", uri, "shell", *words)
    done = await asyncio.to_thread(run_command, *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


async def test_reading_commands_agree_in_what_they_say(cluster_of):
    cluster = await cluster_of("own")
    async with quorumbook.connect(cluster.uri) as bk:
        async with bk.create_ledger(password=b"") as writer:
            for size in (10, 20, 30):
                await writer.append(b"x" * size)
    number = str(writer.id)
    theirs = await cluster.shell("listbookies", "-rw")
    rows = json.loads(await ours(cluster.uri, "listbookies", "-rw"))
    assert {row["bookie_id"] for row in rows} == set(re.findall(r"BookieID:([\d.:]+)", theirs))
    theirs = await cluster.shell("ledgermetadata", "-ledgerid", number)
    row = json.loads(await ours(cluster.uri, "ledgermetadata", "-ledgerid", number))
    assert "state=CLOSED" in theirs
    assert row["state"] == "closed"
    assert f"length={row['bytes']}, lastEntryId={row['entries'] - 1}" in theirs
    theirs = await cluster.shell("listledgers")
    rows = json.loads(await ours(cluster.uri, "listledgers"))
    assert {row["ledger_id"] for row in rows} == set(map(int, re.findall(r"=(\d+)", theirs)))
    theirs = await cluster.shell("readledger", "-ledgerid", number)
    lines = (await ours(cluster.uri, "readledger", "-ledgerid", number)).splitlines()
    read = [json.loads(line) for line in lines]
    ids = [int(each) for each in re.findall(r"entryId=(\d+)", theirs)]
    assert [row["entry_id"] for row in read] == ids == [0, 1, 2]
    # One sets it, the other reads it.
    await ours(cluster.uri, "lostbookierecoverydelay", "-s", "7")
    assert "7" in await cluster.shell("lostbookierecoverydelay", "-g")
    assert "7" in await ours(cluster.uri, "lostbookierecoverydelay", "-g")
