"""Processes on one metadata file, killed and paused for real."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from doubles.etcd_server import EtcdServer
from quorumbook.metadata.cluster import init_cluster, read_instance_id, read_layout
from quorumbook.metadata.store import Create
from quorumbook.metadata.uri import open_store

pytestmark = pytest.mark.faults

SCRIPT = Path(__file__).with_name("metadata_process.py")


class Process:
    """One run of the script."""

    @classmethod
    async def start(cls, *arguments):
        process = cls()
        # The process is run under another program here.
        process._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return process

    async def line(self):
        async with asyncio.timeout(60):
            return (await self._process.stdout.readline()).decode().strip()

    async def ask(self, line):
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def kill(self):
        """Kill the process and return what it had said in whole lines, unread so far."""
        self.signal(signal.SIGKILL)
        rest = await self._process.stdout.read()
        await self._process.wait()
        return rest.decode().split("\n")[:-1]


@pytest.fixture
async def start():
    processes = []

    async def start(*arguments):
        processes.append(await Process.start(*arguments))
        return processes[-1]

    yield start
    for process in processes:
        process.signal(signal.SIGCONT)
        await process.kill()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    server = EtcdServer(tmp_path_factory.mktemp("etcd"), "--unsafe-no-fsync")
    yield server
    server.kill()


@pytest.fixture(params=["sqlite"])
def uri(request, tmp_path):
    if request.param == "etcd":
        server = request.getfixturevalue("etcd")
        server.wipe()
        return server.uri()
    return f"sqlite:///{tmp_path}/metadata.db"


on_both = pytest.mark.parametrize("uri", ["sqlite", "etcd"], indirect=True)


@pytest.fixture
async def store(uri):
    store = await open_store(uri, create=True)
    yield store
    await store.close()


async def gone(store, path):
    """Wait until a node is gone."""
    async with asyncio.timeout(60):
        while True:
            event = asyncio.Event()
            if await store.exists(path, event.set) is None:
                return
            await event.wait()


async def test_a_process_killed_in_the_middle_of_writes_leaves_all_or_nothing(uri, start):
    """And what it was told is done, is done."""
    store = await open_store(uri, create=True)
    await store.multi(
        [
            Create("/left", b"0"),
            Create("/right", b"0"),
            Create("/log"),
            *(Create(f"/log/{number:09d}") for number in range(-19, 1)),
        ]
    )
    await store.close()
    dice = random.Random(9)
    told = 0
    for _ in range(8):
        process = await start("write", uri)
        # Two at a time fight for the file.
        await process.line()
        for _ in range(dice.randrange(200)):
            await process.line()
        await asyncio.sleep(dice.random() / 200)
        lines = await process.kill()
        store = await open_store(uri)
        left = int((await store.get("/left")).data)
        right = int((await store.get("/right")).data)
        names = await store.children("/log")
        assert left == right
        assert names == [f"{number:09d}" for number in range(left - 19, left + 1)]
        assert (await store.get(f"/log/{left:09d}")).data == b"%d" % left * 100
        node = await store.get("/log")
        assert node.children_count == 20
        assert node.child_version == 20 + 2 * left
        told = max([told, *map(int, lines)])
        assert left >= told
        await store.close()


@on_both
async def test_writers_killed_beside_others_disturb_nobody(uri, store, start):
    await store.create("/counter", b"0")
    processes = [await start("count", uri, "150") for _ in range(3)]
    victims = [await start("count", uri, "1000000") for _ in range(2)]
    await asyncio.sleep(0)
    for number, victim in enumerate(victims):
        async with asyncio.timeout(60):
            while int((await store.get("/counter")).data) < 50 * (number + 1):
                await asyncio.sleep(0.005)
        await victim.kill()
    for process in processes:
        assert await process.line() == "150"
    node = await store.get("/counter")
    # Every increment is one version, whoever made it.
    assert int(node.data) == node.version >= 450


async def test_a_process_killed_while_it_holds_the_file_is_got_over(uri, store, start, tmp_path):
    path = str(tmp_path / "metadata.db")
    code = (
        "import os, signal, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "connection.execute('UPDATE node SET version = 77')\n"
        "os.write(1, b'held\\n')\n"
        "signal.pause()\n"
    )
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, path, stdout=asyncio.subprocess.PIPE
    )
    assert await holder.stdout.readline() == b"held\n"
    creating = asyncio.ensure_future(store.create("/a"))
    assert (await asyncio.wait({creating}, timeout=0.1))[0] == set()
    holder.kill()
    await holder.wait()
    assert await creating == "/a"
    assert (await store.get("/")).version == 0


async def test_a_cluster_whose_making_was_killed_can_be_made(tmp_path, start):
    dice = random.Random(10)
    began = asyncio.get_running_loop().time()
    first = await start("init", f"sqlite:///{tmp_path}/whole.db")
    assert await first.line()
    whole_s = asyncio.get_running_loop().time() - began
    outcomes = set()
    for number in range(12):
        uri = f"sqlite:///{tmp_path}/{number}.db"
        process = await start("init", uri)
        await asyncio.sleep(whole_s * (0.5 + dice.random() / 2))
        said = [line for line in await process.kill() if line]
        store = await open_store(uri, create=True)
        present = await store.exists("/ledgers")
        if present is None:
            assert not said
            instance_id = await init_cluster(store)
        else:
            instance_id = await read_instance_id(store)
            assert said in ([], [instance_id])
        outcomes.add(present is not None)
        assert await read_instance_id(store) == instance_id
        await read_layout(store)
        assert await store.children("/ledgers") == ["INSTANCEID", "LAYOUT", "available"]
        await store.close()


@on_both
async def test_the_ephemeral_nodes_of_a_killed_process_go_when_its_lease_is_over(uri, store, start):
    process = await start("hold", uri, "1.0")
    session_id = int(await process.line())
    assert (await store.get("/held")).owner == session_id
    await process.kill()
    await gone(store, "/held")
    await store.create("/held", ephemeral=True)


@on_both
async def test_a_process_that_ends_in_good_order_takes_its_nodes_with_it(uri, store, start):
    process = await start("hold", uri, "1000")
    await process.line()
    # The process is run under another program here.
    process._process.stdin.close()
    await process._process.wait()
    assert await store.exists("/held") is None


@on_both
async def test_r31_a_process_paused_beyond_its_lease_finds_its_session_over(uri, store, start):
    process = await start("hold", uri, "1.0")
    session_id = int(await process.line())
    process.signal(signal.SIGSTOP)
    await gone(store, "/held")
    # The place is taken by another one; the paused process must not believe it is still its own.
    await store.create("/held", b"another", ephemeral=True)
    await process.ask("/written")
    process.signal(signal.SIGCONT)
    assert await process.line() == "expired"
    assert await process.line() == "SessionExpiredError"
    assert await store.exists("/written") is None
    assert (await store.get("/held")).data == b"another"
    # Heartbeats go on and revive nothing.
    await process.ask("/written")
    assert await process.line() == "SessionExpiredError"
    await process.ask("renew")
    assert int(await process.line()) > session_id
    await process.ask("/written")
    assert await process.line() == "created"
    assert (await store.get("/held")).data == b"another"


async def test_r31_a_renewal_under_way_when_the_process_was_paused_revives_nothing(
    uri, store, start, tmp_path
):
    """Pauses at arbitrary moments, heartbeats included, of a process with a very short lease."""
    dice = random.Random(31)
    for _ in range(5):
        process = await start("hold", uri, "0.5")
        session_id = int(await process.line())
        await asyncio.sleep(dice.random() / 5)
        process.signal(signal.SIGSTOP)
        await gone(store, "/held")
        process.signal(signal.SIGCONT)
        assert await process.line() == "expired"
        with contextlib.closing(sqlite3.connect(tmp_path / "metadata.db")) as connection:
            found = connection.execute("SELECT id FROM session WHERE id = ?", (session_id,))
            assert found.fetchall() == []
        assert await store.exists("/held") is None
        await process.kill()


@on_both
async def test_a_process_paused_for_less_than_its_lease_goes_on(uri, store, start):
    process = await start("hold", uri, "1000")
    session_id = int(await process.line())
    process.signal(signal.SIGSTOP)
    await store.create("/meanwhile")
    process.signal(signal.SIGCONT)
    await process.ask("/written")
    assert await process.line() == "created"
    assert (await store.get("/held")).owner == session_id


async def test_a_process_paused_while_it_writes_holds_up_nobody_for_ever(uri, store, start):
    """A paused process may hold the file; when it is gone, the others go on."""
    await store.create("/counter", b"0")
    process = await start("count", uri, "1000000")
    async with asyncio.timeout(60):
        while int((await store.get("/counter")).data) < 20:
            await asyncio.sleep(0.005)
    process.signal(signal.SIGSTOP)
    writing = asyncio.ensure_future(store.create("/a"))
    await asyncio.wait({writing}, timeout=0.1)
    await process.kill()
    assert await writing == "/a"


async def test_several_processes_make_one_cluster(tmp_path, start):
    uri = f"sqlite:///{tmp_path}/metadata.db"
    processes = [await start("init", uri) for _ in range(4)]
    lines = [line for process in processes if (line := await process.line())]
    store = await open_store(uri)
    assert lines == [await read_instance_id(store)]
    await store.close()
