"""Reads, fencing reads, batch reads: who answers what, how much is under way at a time."""

from __future__ import annotations

import asyncio

from bookie_harness import KEY, MIB, ScriptedStorage, code_of, entry, serve, settle, v2_adds

from doubles.inside import connections_of, unsent_bytes_of
from doubles.waiting import until
from quorumbook.errors import BookieIOError, StorageError
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.storage.states.ledgers import LedgerHandle


async def test_cached_reads_of_a_chunk_are_answered_in_one_write() -> None:
    async with serve() as server:
        client = await server.connect()
        client.send(v2_adds(1, range(100)))
        await client.add_codes(100)
        (connection,) = connections_of(server)
        writes: list[int] = []
        transport = connection._transport  # what goes out is counted at the transport

        class Counting:
            def write(self, data: bytes) -> None:
                writes.append(len(data))
                transport.write(data)

            def __getattr__(self, name: str) -> object:
                return getattr(transport, name)

        connection._transport = Counting()  # what goes out is counted at the transport
        client.send(b"".join(v2.encode_read(1, entry_id) for entry_id in range(100)))
        for entry_id in range(100):
            assert (await client.frame()).endswith(entry(1, entry_id))
        assert len(writes) == 1
        assert not [item for item in server.storage.log if item[0] == "read"]


async def test_reads_that_no_cache_has_go_to_the_storage_as_one_job() -> None:
    storage = ScriptedStorage()
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        for entry_id in range(10, 20):
            storage.on_disk[1, entry_id] = entry(1, entry_id)
        client.send(b"".join(v2.encode_read(1, entry_id) for entry_id in (0, *range(10, 20))))
        for entry_id in (0, *range(10, 20)):
            assert (await client.frame()).endswith(entry(1, entry_id))
        assert [item for item in storage.log if item[0] == "read"] == [("read", 10)]


async def test_r09_s06_only_proven_absence_is_called_absence() -> None:
    storage = ScriptedStorage()
    async with serve(storage) as server:
        client = await server.connect()
        assert code_of(await client.ask(v2.encode_read(1, 0))) == V2_CODE[Status.NO_LEDGER]
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        assert code_of(await client.ask(v2.encode_read(1, 5))) == V2_CODE[Status.NO_ENTRY]
        # The index knows it, the entry log cannot give it back.
        storage.on_disk[1, 5] = BookieIOError("unreadable")
        assert code_of(await client.ask(v2.encode_read(1, 5))) == V2_CODE[Status.IO_ERROR]
        storage.on_disk[1, 6] = RuntimeError("a bug")
        assert code_of(await client.ask(v2.encode_read(1, 6))) == V2_CODE[Status.IO_ERROR]


async def test_r09_a_ledger_in_limbo_is_unknown_where_it_would_say_no() -> None:
    storage = ScriptedStorage()
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        storage.handles[1].is_in_limbo = True
        # What is here is here.
        assert code_of(await client.ask(v2.encode_read(1, 0))) == 0
        # 107 would break the peer's v2 clients.
        assert code_of(await client.ask(v2.encode_read(1, 5))) == V2_CODE[Status.IO_ERROR]
        v3_client = await server.connect()
        unknown = Status.UNKNOWN_LEDGER_STATE
        assert (await v3_client.ask_v3(v3.encode_read(1, 1, 5))).status is unknown
        assert (await v3_client.ask_v3(v3.encode_read(2, 1, -1))).status is unknown
        assert (await v3_client.ask_v3(v3.encode_read_lac(3, 1))).status is unknown
        # A list says what is here, and leaves the rest to whoever copies it.
        assert (await v3_client.ask_v3(v3.encode_list_entries(4, 1))).status is Status.OK
        poll = v3.encode_read(5, 1, previous_lac=9, timeout_ms=60_000, is_piggyback=True)
        assert (await v3_client.ask_v3(poll)).status is unknown


async def test_r10_the_read_of_a_fencing_read_runs_when_the_fence_is_durable() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        writer, recoverer = await server.connect(), await server.connect()
        writer.send(v2_adds(1, [0]))
        await until(lambda: len(storage.group) == 1)
        recoverer.send(v2.encode_read(1, -1, master_key=KEY))
        await until(lambda: len(storage.group) == 2)
        await settle()
        assert not [item for item in storage.log if item[0] == "read"]
        storage.commit()
        # The add that was ahead of the fence is acknowledged, so the fencing read has it.
        assert (await recoverer.frame()).endswith(entry(1, 0))
        assert await writer.add_codes(1) == [(0, 0)]


async def test_r10_a_fence_that_could_not_be_journaled_is_an_io_error() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2.encode_read(1, -1, master_key=KEY))
        await until(lambda: bool(storage.group))
        storage.commit(StorageError("the sync failed"))
        assert code_of(await client.frame()) == V2_CODE[Status.IO_ERROR]
        # It stays refused in memory all the same.
        client.send(v2_adds(1, [0]))
        assert await client.add_codes(1) == [(0, V2_CODE[Status.FENCED])]


async def test_s07_an_unknown_ledger_is_fenced_by_its_first_contact() -> None:
    async with serve() as server:
        client = await server.connect()
        answer = await client.ask(v2.encode_read(1, -1, master_key=KEY))
        assert code_of(answer) == V2_CODE[Status.NO_ENTRY]
        client.send(v2_adds(1, [0]))
        assert await client.add_codes(1) == [(0, V2_CODE[Status.FENCED])]


async def test_answers_of_a_normal_v3_read_carry_the_known_lac_and_fencing_ones_do_not() -> None:
    async with serve() as server:
        client = await server.connect()
        client.send(v2_adds(1, [5], lac=4))
        await client.add_codes(1)
        other = await server.connect()
        assert (await other.ask_v3(v3.encode_read(1, 1, 5))).max_lac == 4
        assert (await other.ask_v3(v3.encode_read(2, 1, 5, master_key=KEY))).max_lac is None
        assert (await other.ask_v3(v3.encode_read(3, 1, 9))).max_lac is None


async def test_a_fence_without_a_key_is_unauthorized() -> None:
    async with serve() as server:
        client = await server.connect()
        answer = await client.ask_v3(v3.encode_read(1, 1, -1, master_key=b""))
        assert answer.status is Status.UNAUTHORIZED
        assert not server.storage.handles


async def test_reads_under_way_are_bounded_in_bytes() -> None:
    storage = ScriptedStorage()
    storage.held_reads = []
    async with serve(storage, max_read_bytes=MIB) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        body = entry(1, 1, bytes(1000))
        for entry_id in range(1, 1001):
            storage.on_disk[1, entry_id] = body
        client.send(b"".join(v2.encode_read(1, entry_id) for entry_id in range(1, 1001)))
        await until(lambda: bool(storage.held_reads))
        await settle()
        # Nothing is known yet about the size of its entries: four at a time, then many.
        assert [item[1] for item in storage.log if item[0] == "read"] == [4]
        seen = 0
        while seen < 1000:
            await until(lambda: bool(storage.held_reads))
            (job,) = storage.held_reads
            storage.held_reads.clear()
            count = storage.log[-1][1]
            job()
            for _ in range(count):
                assert code_of(await client.frame()) == 0
            seen += count
        assert len([item for item in storage.log if item[0] == "read"]) < 15
        assert server.metrics.reads_in_progress == 0
        (connection,) = connections_of(server)
        assert connection.read_bytes == 0


async def test_cached_reads_pause_while_the_peer_does_not_take_answers() -> None:
    storage = ScriptedStorage()
    async with serve(storage, high_connection_answer_bytes=256 * 1024) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0], bytes(100_000)))
        await client.add_codes(1)
        client.writer.transport.pause_reading()
        client.send(b"".join(v2.encode_read(1, 0) for _ in range(1000)))
        await until(lambda: server.metrics.pauses >= 1)
        await settle()
        (connection,) = connections_of(server)
        # 100 MB were asked for; a few high-water marks are held.
        assert unsent_bytes_of(connection) < 2 * MIB
        assert connection.reads
        client.writer.transport.resume_reading()
        for _ in range(1000):
            assert len(await client.frame()) > 100_000
        await until(lambda: server.metrics.reads_in_progress == 0)


class RunStorage(ScriptedStorage):
    """Has the entries of each ledger in memory as runs of given lengths."""

    def __init__(self, *runs: EntryRun) -> None:
        super().__init__()
        self.runs = runs
        for run in runs:
            handle = self.handles.setdefault(run.ledger_id, LedgerHandle(run.ledger_id, KEY))
            handle.last_entry_id = run.last_entry_id

    def cached_run(self, ledger_id: int, entry_id: int) -> tuple[EntryRun, int] | None:
        for run in self.runs:
            if run.ledger_id == ledger_id and run.has(entry_id):
                return run, run.last_entry_id
        return None


async def test_a_row_of_reads_is_answered_like_its_reads_one_by_one() -> None:
    bodies = [entry(1, i, b"x" * (100 if i < 150 else i)) for i in range(300)]
    holes = {*range(190, 200), *range(202, 300, 5)}
    sizes = [0 if i in holes else len(bodies[i]) for i in range(200, 300)]
    parts = [size.to_bytes(4, "big") + bodies[i] for i, size in enumerate(sizes, 200) if size]
    storage = RunStorage(
        EntryRun.of(1, 0, bodies[:100]),
        EntryRun.of(1, 100, bodies[100:180]),
        EntryRun(1, 200, 299, sizes, b"".join(parts)),
    )
    storage.on_disk = {(1, i): bodies[i] for i in range(180, 190)}
    async with serve(storage) as server:
        client = await server.connect()
        wanted = [range(300), range(0, 300, 3)]
        for ids in wanted:
            client.send(v2.encode_reads(1, ids))
            answers = [await client.frame() for _ in ids]
            found = {v2.ANSWER.unpack_from(answer)[4]: answer for answer in answers}
            assert found.keys() == set(ids)
            for i in ids:
                if i in holes:
                    assert code_of(found[i]) == V2_CODE[Status.NO_ENTRY]
                else:
                    assert found[i] == v2.encode_read_answer(1, i, 0, bodies[i])
            # The same in v3, on a connection of its own.
            reader = await server.connect()
            reader.send(b"".join(v3.encode_read(i + 100, 1, i) for i in ids))
            responses = {r.txn_id - 100: r for r in [await reader.v3_answer() for _ in ids]}
            assert responses.keys() == set(ids)
            for i, response in responses.items():
                is_here = i not in holes
                assert response.status is (Status.OK if is_here else Status.NO_ENTRY)
                assert response.entry_id == i
                assert response.body == (bodies[i] if is_here else None)
                assert response.max_lac == (-1 if is_here else None)
        metrics = server.metrics
        assert metrics.reads_in_progress == 0
        given = [bodies[i] for ids in wanted for i in ids if i not in holes] * 2
        assert metrics.read.succeeded.count == len(given)
        assert metrics.read.failed.count == 2 * sum(map(len, wanted)) - len(given)
        assert metrics.read_bytes == sum(map(len, given))


async def test_a_row_of_reads_pauses_while_the_peer_does_not_take_answers() -> None:
    storage = RunStorage(EntryRun.of(1, 0, [entry(1, 0, bytes(100_000))] * 1000))
    async with serve(storage, high_connection_answer_bytes=256 * 1024) as server:
        clients = [await server.connect() for _ in range(2)]
        for client in clients:
            client.writer.transport.pause_reading()
            client.send(v2.encode_reads(1, range(1000)))
        await until(lambda: server.metrics.pauses >= 2)
        await settle()
        for connection in connections_of(server):
            assert unsent_bytes_of(connection) < 2 * MIB
        assert server.metrics.reads_in_progress > 1500
        clients[0].writer.transport.resume_reading()
        for entry_id in range(1000):
            assert v2.ANSWER.unpack_from(await clients[0].frame())[4] == entry_id
        clients[1].writer.transport.abort()
        await until(lambda: server.metrics.reads_in_progress == 0)


async def test_queued_reads_go_with_their_connection() -> None:
    storage = ScriptedStorage()
    storage.held_reads = []
    async with serve(storage, max_read_bytes=MIB) as server:
        client = await server.connect()
        client.send(b"".join(v2.encode_read(1, entry_id) for entry_id in range(100)))
        await until(lambda: bool(storage.held_reads))
        client.writer.transport.abort()
        # A connection that is not read is found broken when it is written to.
        while len(server.connections):
            jobs, storage.held_reads = storage.held_reads, []
            for job in jobs:
                job()
            await asyncio.sleep(0.001)
        for job in storage.held_reads:
            job()
        assert server.metrics.reads_in_progress == 0
        assert len([item for item in storage.log if item[0] == "read"]) < 10


async def test_high_priority_reads_go_to_the_front() -> None:
    storage = ScriptedStorage()
    storage.held_reads = []
    async with serve(storage, max_read_bytes=MIB) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        for entry_id in range(1, 100):
            storage.on_disk[1, entry_id] = entry(1, entry_id)
        # One chunk: five normal reads (four go at once), then an urgent one.
        client.send(
            b"".join(v2.encode_read(1, entry_id) for entry_id in range(1, 20))
            + v2.encode_read(1, 50, is_high_priority=True)
        )
        await until(lambda: bool(storage.held_reads))
        storage.held_reads[0]()
        answered = [v2.ANSWER.unpack_from(await client.frame())[4] for _ in range(4)]
        assert 50 in answered


async def test_a_batch_read_ends_at_a_hole_at_its_count_and_at_its_size() -> None:
    async with serve() as server:
        client = await server.connect()
        client.send(v2_adds(1, [0, 1, 2, 4], bytes(1000)))
        await client.add_codes(4)
        size = len(entry(1, 0, bytes(1000))) + 4

        async def batch(first: int, count: int, size_max: int) -> list[int]:
            frame = await client.ask(v2.encode_batch_read(1, first, 77, count, size_max))
            assert code_of(frame) == 0
            assert int.from_bytes(frame[28:36], "big") == 77
            return [
                int.from_bytes(frame[36 + index * size + 12 :][:8], "big")
                for index in range((len(frame) - 36) // size)
            ]

        assert await batch(0, 10, MIB) == [0, 1, 2]
        assert await batch(0, 0, MIB) == [0, 1, 2]
        assert await batch(1, 1, MIB) == [1]
        # Its frame is counted as the peer counts it: 36 bytes and the entries.
        assert await batch(0, 10, 36 + 2 * size) == [0, 1]
        assert await batch(0, 10, 35 + 2 * size) == [0]
        # The first comes however large it is.
        assert await batch(4, 10, 1) == [4]
        missing = await client.ask(v2.encode_batch_read(1, 3, 78, 10, MIB))
        assert code_of(missing) == V2_CODE[Status.NO_ENTRY]


async def test_a_fencing_batch_read_fences_first() -> None:
    storage = ScriptedStorage()
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0, 1]))
        await client.add_codes(2)
        frame = await client.ask(v2.encode_batch_read(1, 0, 5, 10, MIB, KEY))
        assert code_of(frame) == 0
        assert storage.handles[1].is_fence_durable


async def test_a_bug_in_one_request_costs_its_connection_and_not_the_bookie() -> None:
    storage = ScriptedStorage()
    async with serve(storage) as server:
        client, other = await server.connect(), await server.connect()
        handle = storage.handle

        def broken(ledger_id: int) -> object:
            if ledger_id == 666:
                raise RuntimeError("a bug")
            return handle(ledger_id)

        storage.handle = broken  # type: ignore[method-assign,assignment]
        client.send(v2_adds(666, [0]))
        assert await client.is_closed()
        other.send(v2_adds(1, [0]))
        assert await other.add_codes(1) == [(0, 0)]
        await asyncio.sleep(0)
