"""Adds: what is acknowledged when, in which order, and what happens without room."""

from __future__ import annotations

import asyncio

import pytest
from bookie_harness import KEY, MIB, WRONG_KEY, ScriptedStorage, entry, serve, settle, v2_adds

from doubles.inside import connections_of
from doubles.waiting import until
from quorumbook.errors import StorageError
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.storage.states.ledgers import LedgerHandle

OK, FENCED, UNAUTHORIZED, BUSY, READ_ONLY, IO_ERROR = (
    V2_CODE[status]
    for status in (
        Status.OK,
        Status.FENCED,
        Status.UNAUTHORIZED,
        Status.TOO_MANY_REQUESTS,
        Status.READ_ONLY,
        Status.IO_ERROR,
    )
)
RECOVERY, HIGH = 2, 4


async def test_r07_an_add_is_answered_only_when_its_group_is_durable() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2_adds(1, range(5)))
        await until(lambda: len(storage.group) == 1)
        await settle()
        assert server.metrics.adds_in_progress == 5
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.reader.readexactly(1)
        storage.commit()
        assert await client.add_codes(5) == [(entry_id, OK) for entry_id in range(5)]
        assert server.metrics.adds_in_progress == 0


async def test_a_deferred_add_is_answered_without_waiting_for_the_sync() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        client = await server.connect()
        frame = v3.encode_add(1, 7, 0, KEY, entry(7, 0), is_deferred_sync=True)
        assert (await client.ask_v3(frame)).status is Status.OK
        # A recovery add is synced whatever it asks for.
        frame = v3.encode_add(2, 7, 1, KEY, entry(7, 1), is_deferred_sync=True, is_recovery=True)
        client.send(frame)
        await until(lambda: len(storage.group) == 1)
        assert storage.log[-1] == ("append", 1, False)
        storage.commit()
        assert (await client.v3_answer()).txn_id == 2


async def test_r08_a_failed_journal_fails_every_waiting_add_and_acknowledges_none() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2_adds(1, range(3)))
        await until(lambda: bool(storage.group))
        storage.commit(StorageError("the sync failed"))
        assert await client.add_codes(3) == [(entry_id, IO_ERROR) for entry_id in range(3)]
        assert not storage.entries


async def test_all_adds_of_a_chunk_go_into_one_append() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2_adds(1, range(10)) + v2_adds(2, range(10)) + v2_adds(1, range(10, 20)))
        await until(lambda: bool(storage.group))
        assert [item for item in storage.log if item[0] == "append"] == [("append", 3, False)]


async def test_answers_of_a_group_leave_as_one_write_per_connection() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        clients = [await server.connect() for _ in range(3)]
        for number, client in enumerate(clients):
            for start in range(0, 30, 10):
                client.send(v2_adds(number, range(start, start + 10)))
                await until(
                    lambda number=number, start=start: (
                        ("add", number, start, start + 9) in storage.log
                    )
                )
        writes: list[int] = []
        for connection in connections_of(server):
            write = connection._transport.write  # what goes out is counted at the transport

            def counted(data: bytes, write: object = write, number: int = id(connection)) -> None:
                writes.append(number)
                write(data)

            # What goes out is counted at the transport.
            connection._transport = _Counting(connection._transport, counted)
        storage.commit()
        for client in clients:
            assert len(await client.add_codes(30)) == 30
        assert len(writes) == len(set(writes)) == 3


class _Counting:
    """A transport whose writes are counted."""

    def __init__(self, transport: object, write: object) -> None:
        self._transport = transport
        self.write = write

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


async def test_a_connection_that_breaks_in_a_group_delays_nobody() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        broken, client = await server.connect(), await server.connect()
        broken.send(v2_adds(1, range(3)))
        await until(lambda: len(storage.group) == 1)
        client.send(v2_adds(2, range(3)))
        await until(lambda: len(storage.group) == 2)
        # Its transport raises when written to, in the middle of the sweep.
        for connection in connections_of(server):
            if connection.add_bytes and connection.peer.endswith(
                f":{broken.writer.get_extra_info('sockname')[1]}"
            ):
                # What goes out is counted at the transport.
                connection._transport = _Counting(connection._transport, _raise)
        storage.commit()
        assert await client.add_codes(3) == [(0, OK), (1, OK), (2, OK)]
        assert server.connections.adds.used_bytes == 0


def _raise(data: bytes) -> None:
    raise RuntimeError("broken")


async def test_a_connection_closed_before_its_group_is_durable_gives_its_budget_back() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2_adds(1, range(3)))
        await until(lambda: len(storage.group) == 1)
        client.writer.transport.abort()
        await until(lambda: len(server.connections) == 0)
        storage.commit()
        assert server.connections.adds.used_bytes == 0
        assert server.metrics.adds_in_progress == 0
        # What was journaled is stored: the writer may have sent it elsewhere with success.
        assert (1, 2) in storage.entries


async def test_r11_s08_a_fence_splits_the_adds_of_a_chunk_at_its_place() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        client = await server.connect()
        fence = v2.encode_read(1, -1, master_key=KEY)
        client.send(v2_adds(1, [0, 1]) + fence + v2_adds(1, [2, 3]))
        await until(lambda: len(storage.group) == 2)
        await settle()
        # Before the fence in the journal, or refused; nothing behind it.
        assert storage.log == [("add", 1, 0, 1), ("append", 1, False), ("fence", 1)]
        assert await client.add_codes(2) == [(2, FENCED), (3, FENCED)]
        storage.commit()
        assert await client.add_codes(2) == [(0, OK), (1, OK)]


async def test_s08_add_and_fence_of_an_unknown_ledger_meet_on_one_handle() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage) as server:
        writer, recoverer = await server.connect(), await server.connect()
        for ledger_id in range(50):
            recoverer.send(v2.encode_read(ledger_id, -1, master_key=KEY))
            writer.send(v2_adds(ledger_id, [0]))
        # ``create_handle`` of the scripted storage asserts that there is one handle each.
        await until(lambda: len([item for item in storage.log if item[0] == "fence"]) == 50)
        await settle()
        # An add is in the journal ahead of its ledger's fence, or it is refused.
        taken = set()
        for index, item in enumerate(storage.log):
            if item[0] == "add":
                assert ("fence", item[1]) not in storage.log[:index]
                taken.add(item[1])
        storage.commit()
        for _ in range(50):
            ledger_id = None
            frame = await writer.frame()
            _, _, code, ledger_id, _ = v2.ANSWER.unpack_from(frame)
            assert code == (OK if ledger_id in taken else FENCED)


async def test_r12_recovery_adds_pass_a_fence_and_normal_ones_do_not() -> None:
    async with serve() as server:
        client = await server.connect()
        await client.ask(v2.encode_read(1, -1, master_key=KEY))
        client.send(v2_adds(1, [0]))
        assert await client.add_codes(1) == [(0, FENCED)]
        client.send(v2_adds(1, [0], flags=RECOVERY))
        assert await client.add_codes(1) == [(0, OK)]
        # Writing the same entry again as a plain add is refused all the same.
        client.send(v2_adds(1, [0]))
        assert await client.add_codes(1) == [(0, FENCED)]


async def test_r12_recovery_adds_do_not_stand_behind_delayed_normal_ones() -> None:
    storage = ScriptedStorage()
    storage.room, storage.reserve = 0, MIB
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0]))
        await until(lambda: server.metrics.adds_delayed == 1)
        client.send(v2_adds(1, [1], flags=RECOVERY | HIGH))
        assert await client.add_codes(1) == [(1, OK)]
        storage.make_room(MIB)
        assert await client.add_codes(1) == [(0, OK)]


async def test_r13_another_key_is_refused_and_never_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    async with serve() as server:
        client = await server.connect()
        client.send(v2_adds(1, [0]))
        assert await client.add_codes(1) == [(0, OK)]
        client.send(v2_adds(1, [1], key=WRONG_KEY))
        assert await client.add_codes(1) == [(1, UNAUTHORIZED)]
        answer = await client.ask(v2.encode_read(1, -1, master_key=WRONG_KEY))
        assert v2.ANSWER.unpack_from(answer)[2] == UNAUTHORIZED
        assert not server.storage.handles[1].is_fenced
        for key in (KEY, WRONG_KEY):
            assert key.hex() not in caplog.text
            assert repr(key) not in caplog.text


async def test_r14_adding_an_entry_again_is_accepted_and_the_last_copy_wins() -> None:
    async with serve() as server:
        client = await server.connect()
        for payload in (b"one", b"one", b"two"):
            client.send(v2_adds(1, [0], payload))
            assert await client.add_codes(1) == [(0, OK)]
        answer = await client.ask(v2.encode_read(1, 0))
        assert answer.endswith(b"two")


async def test_an_add_without_room_waits_in_order_and_is_then_taken() -> None:
    storage = ScriptedStorage()
    storage.room = 0
    async with serve(storage) as server:
        client = await server.connect()
        for ids in ([0, 1], [2, 3]):
            client.send(v2_adds(1, ids))
        await until(lambda: server.metrics.adds_delayed >= 1)
        await until(lambda: server.metrics.adds_in_progress == 4)
        storage.make_room(None)
        assert await client.add_codes(4) == [(entry_id, OK) for entry_id in range(4)]
        adds = [item for item in storage.log if item[0] == "add"]
        assert adds == sorted(adds)
        assert server.metrics.adds_delayed == 0


async def test_later_adds_stand_behind_delayed_ones_even_if_they_would_fit() -> None:
    storage = ScriptedStorage()
    storage.room = 500
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0], bytes(1000)))
        await until(lambda: server.metrics.adds_delayed == 1)
        client.send(v2_adds(1, [1]))
        await until(lambda: server.metrics.adds_in_progress == 2)
        await settle()
        assert not storage.log
        storage.make_room(None)
        assert await client.add_codes(2) == [(0, OK), (1, OK)]


async def test_s85_an_add_that_waited_too_long_gets_too_many_requests() -> None:
    storage = ScriptedStorage()
    storage.room = 0
    async with serve(storage, max_add_delay_s=0.02) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0, 1]))
        assert await client.add_codes(2) == [(0, BUSY), (1, BUSY)]
        assert server.metrics.adds_rejected == 2
        assert server.connections.adds.used_bytes == 0


async def test_s09_delayed_adds_fail_promptly_after_a_fence() -> None:
    storage = ScriptedStorage()
    storage.room = 0
    async with serve(storage) as server:
        writer, recoverer = await server.connect(), await server.connect()
        writer.send(v2_adds(1, [0, 1]))
        await until(lambda: server.metrics.adds_delayed == 1)
        # The fence needs no room and is not held up by those who wait for some.
        await recoverer.ask(v2.encode_read(1, -1, master_key=KEY))
        storage.make_room(MIB)
        assert await writer.add_codes(2) == [(0, FENCED), (1, FENCED)]
        assert not [item for item in storage.log if item[0] == "add"]


async def test_a_connection_over_its_budget_is_not_read_until_answers_leave() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage, max_connection_add_bytes=100_000) as server:
        client, other = await server.connect(), await server.connect()
        payload = bytes(10_000)
        for entry_id in range(200):
            client.send(v2_adds(1, [entry_id], payload))
        await until(lambda: server.metrics.pauses == 1)
        await settle()
        held = server.connections.adds.used_bytes
        # What one chunk brings beyond the budget, and no more.
        assert held < 100_000 + 512 * 1024
        await settle()
        assert server.connections.adds.used_bytes == held
        # Others are served meanwhile.
        other.send(v2_adds(2, [0]))
        await until(lambda: ("add", 2, 0, 0) in storage.log)
        answered = 0
        while answered < 200:
            await until(lambda: bool(storage.group))
            before = server.metrics.add.succeeded.count
            storage.commit()
            count = server.metrics.add.succeeded.count - before
            if answered == 0:
                assert await other.add_codes(1) == [(0, OK)]
                count -= 1
            assert len(await client.add_codes(count)) == count
            answered += count
        assert server.connections.adds.used_bytes == 0


async def test_a_frame_of_maximal_size_gets_in_however_small_the_budgets_are() -> None:
    async with serve(max_connection_add_bytes=1000, max_add_bytes=1000) as server:
        client = await server.connect()
        for entry_id in range(3):
            client.send(v2_adds(1, [entry_id], bytes(5 * MIB - 256)))
        assert await client.add_codes(3) == [(0, OK), (1, OK), (2, OK)]


async def test_the_bookies_budget_pauses_who_is_over_it_and_lets_all_go_on_later() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage, max_add_bytes=200_000) as server:
        clients = [await server.connect() for _ in range(4)]
        for number, client in enumerate(clients):
            for entry_id in range(60):
                client.send(v2_adds(number, [entry_id], bytes(5000)))
        await until(lambda: server.metrics.pauses >= 1)
        fencer = await server.connect()
        fencer.send(v2.encode_read(99, -1, master_key=KEY))
        await until(lambda: ("fence", 99) in storage.log)

        async def commit_often() -> None:
            while True:
                storage.commit()
                await asyncio.sleep(0.001)

        task = asyncio.create_task(commit_often())
        for client in clients:
            assert len(await client.add_codes(60)) == 60
        task.cancel()
        assert server.connections.adds.used_bytes == 0


async def test_with_the_budget_used_up_by_others_a_connection_still_gets_one_frame_at_a_time() -> (
    None
):
    storage = ScriptedStorage(automatic=False)
    async with serve(storage, max_add_bytes=1000) as server:
        greedy, modest = await server.connect(), await server.connect()
        greedy.send(v2_adds(1, [0], bytes(100_000)))
        await until(lambda: len(storage.group) == 1)
        stuck = storage.group.pop()
        for entry_id in range(5):
            modest.send(v2_adds(2, [entry_id], bytes(5 * MIB - 256)))
        for entry_id in range(5):
            await until(lambda: bool(storage.group))
            storage.commit()
            assert await modest.add_codes(1) == [(entry_id, OK)]
        storage.group.append(stuck)
        storage.commit()
        assert await greedy.add_codes(1) == [(0, OK)]


async def test_a_read_only_bookie_refuses_plain_adds_but_takes_recovery_adds() -> None:
    async with serve() as server:
        client = await server.connect()
        server.disks.writability.is_read_only = True
        client.send(v2_adds(1, [0]))
        assert await client.add_codes(1) == [(0, READ_ONLY)]
        client.send(v2_adds(1, [0], flags=RECOVERY | HIGH))
        assert await client.add_codes(1) == [(0, OK)]
        server.disks.writability.takes_high_priority = False
        client.send(v2_adds(1, [1], flags=RECOVERY | HIGH))
        assert await client.add_codes(1) == [(1, READ_ONLY)]


async def test_s10_a_read_only_bookie_takes_a_fence() -> None:
    storage = ScriptedStorage()
    async with serve(storage) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        server.disks.writability.is_read_only = True
        server.disks.writability.takes_high_priority = False
        answer = await client.ask(v2.encode_read(1, -1, master_key=KEY))
        assert v2.ANSWER.unpack_from(answer)[2] == OK
        assert storage.handles[1].is_fence_durable


async def test_s88_refused_adds_leave_nothing_behind() -> None:
    storage = ScriptedStorage()
    async with serve(storage) as server:
        client = await server.connect()
        await client.ask(v2.encode_read(1, -1, master_key=KEY))
        for _ in range(50):
            client.send(v2_adds(1, range(20)))
        assert {code for _, code in await client.add_codes(1000)} == {FENCED}
        assert server.connections.adds.used_bytes == 0
        assert server.metrics.adds_in_progress == 0
        assert server.metrics.add.failed.count == 1000


async def test_ids_below_zero_are_refused_because_the_files_use_them() -> None:
    storage = ScriptedStorage()
    async with serve(storage) as server:
        client = await server.connect()
        for ledger_id, entry_id in ((1, -1), (1, -0x1000), (-1, 0), (-(2**63), -(2**63))):
            client.send(v2_adds(ledger_id, [entry_id]))
            assert await client.add_codes(1) == [(entry_id, V2_CODE[Status.BAD_REQUEST])]
        assert not storage.log
        fence = await client.ask(v2.encode_read(-1, -1, master_key=KEY))
        assert v2.ANSWER.unpack_from(fence)[2] == V2_CODE[Status.BAD_REQUEST]
        client.send(v2_adds(2**63 - 1, [2**63 - 1]))
        assert await client.add_codes(1) == [(2**63 - 1, OK)]


async def test_r09_adds_of_a_ledger_that_the_index_cannot_tell_of_hold_no_budget() -> None:
    """An index that fails costs answers with an I/O error, not the bookie its whole budget."""

    class Broken(ScriptedStorage):
        def handle(self, ledger_id: int) -> LedgerHandle | None:
            if ledger_id == 2:
                raise StorageError("the index failed")
            return super().handle(ledger_id)

    async with serve(Broken()) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0, 1]) + v2_adds(2, [0]) + v2_adds(1, [2]))
        assert sorted(await client.add_codes(4)) == [(0, OK), (0, IO_ERROR), (1, OK), (2, OK)]
        assert server.connections.adds.used_bytes == 0
        assert server.metrics.adds_in_progress == 0
        fenced = await client.ask(v2.encode_read(2, 0, master_key=KEY))
        assert v2.ANSWER.unpack_from(fenced)[2] == IO_ERROR
        client.close()
