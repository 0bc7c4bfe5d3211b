"""Bad input met by a real bookie: real sockets, real storage, nothing scripted but the disk."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path

import pytest
from bookie_harness import (
    KEY,
    MIB,
    WRONG_KEY,
    RawClient,
    cluster,
    code_of,
    entry,
    options_in,
    real_bookie,
    running,
    settle,
    v2_adds,
)
from test_bookie_life import FailingDisk

from doubles.waiting import until
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

OK, FENCED, UNAUTHORIZED, NO_LEDGER, NO_ENTRY = (
    V2_CODE[status]
    for status in (
        Status.OK,
        Status.FENCED,
        Status.UNAUTHORIZED,
        Status.NO_LEDGER,
        Status.NO_ENTRY,
    )
)


GOOD_ADD = v2_adds(1, [0], bytes(1000))


@pytest.mark.parametrize(
    "data",
    [
        os.urandom(4096).replace(b"\0\0", b"\xff\xff"),
        b"GET /metrics HTTP/1.1\r\nHost: bookie\r\n\r\n",
        (5 * MIB + 1).to_bytes(4, "big") + bytes(5000),
        (2**31 - 1).to_bytes(4, "big") + bytes(100),
        bytes(4),
        len(GOOD_ADD).to_bytes(4, "big") + bytes(len(GOOD_ADD)),
        GOOD_ADD + b"\xff\xff\xff\xff",
    ],
    ids=["noise", "http", "oversized", "huge", "empty", "zeros", "behind a good frame"],
)
async def test_s86_garbage_ends_one_connection_of_a_real_bookie(
    tmp_path: Path, data: bytes
) -> None:
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        good = await RawClient.connect(bookie.address[1])
        good.send(v2_adds(2, range(10)))
        await good.add_codes(10)
        bad = await RawClient.connect(bookie.address[1])
        bad.send(data)
        assert await bad.is_closed()
        assert bookie.is_ready
        good.send(v2_adds(2, [10]))
        assert await good.add_codes(1) == [(10, OK)]
        for entry_id in range(11):
            assert (await good.ask(v2.encode_read(2, entry_id))).endswith(entry(2, entry_id))


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 30, 40, len(GOOD_ADD) - 1])
async def test_a_frame_cut_off_by_the_end_of_its_connection_is_never_stored(
    tmp_path: Path, cut: int
) -> None:
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        bad = await RawClient.connect(bookie.address[1])
        bad.send(v2_adds(1, [7]) + GOOD_ADD[:cut])
        assert await bad.add_codes(1) == [(7, OK)]
        bad.close()
        await until(lambda: bookie.metrics.connections == 0)
        good = await RawClient.connect(bookie.address[1])
        assert code_of(await good.ask(v2.encode_read(1, 0))) == NO_ENTRY
        assert (await good.ask(v2.encode_read(1, 7))).endswith(entry(1, 7))


async def test_frames_byte_by_byte_are_stored_whole_by_a_real_bookie(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        client = await RawClient.connect(bookie.address[1])
        data = v2_adds(1, [0, 1], b"slowly")
        for position in range(len(data)):
            client.send(data[position : position + 1])
            await client.writer.drain()
            await asyncio.sleep(0)
        assert await client.add_codes(2) == [(0, OK), (1, OK)]
        assert (await client.ask(v2.encode_read(1, 1))).endswith(entry(1, 1, b"slowly"))


async def test_a_wrong_master_key_changes_nothing_on_a_real_bookie(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        client = await RawClient.connect(bookie.address[1])
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        for flags in (0, 2, 6):
            client.send(v2_adds(1, [0, 1], b"forged", flags=flags, key=WRONG_KEY))
            assert await client.add_codes(2) == [(0, UNAUTHORIZED), (1, UNAUTHORIZED)]
        fence = v2.encode_read(1, -1, master_key=WRONG_KEY)
        assert code_of(await client.ask(fence)) == UNAUTHORIZED
        client.send(v2_adds(1, [2]))
        assert await client.add_codes(1) == [(2, OK)]
        assert (await client.ask(v2.encode_read(1, 0))).endswith(entry(1, 0))
        assert code_of(await client.ask(v2.encode_read(1, 1))) == NO_ENTRY


async def test_an_add_to_a_fenced_ledger_is_refused_by_a_real_bookie(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        client = await RawClient.connect(bookie.address[1])
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        await client.ask(v2.encode_read(1, 0, master_key=KEY))
        client.send(v2_adds(1, [1]))
        assert await client.add_codes(1) == [(1, FENCED)]
        assert code_of(await client.ask(v2.encode_read(1, 1))) == NO_ENTRY


async def test_an_unknown_ledger_is_said_to_be_unknown_by_a_real_bookie(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        client = await RawClient.connect(bookie.address[1])
        assert code_of(await client.ask(v2.encode_read(99, 0))) == NO_LEDGER
        v3_client = await RawClient.connect(bookie.address[1])
        assert (await v3_client.ask_v3(v3.encode_read(1, 99, 0))).status is Status.NO_LEDGER
        # The peer's answer to this one is "no entry".
        assert (await v3_client.ask_v3(v3.encode_read_lac(2, 99))).status is Status.NO_ENTRY


async def test_s34_ids_in_any_order_with_gaps_and_twice_are_taken_and_found(
    tmp_path: Path,
) -> None:
    # Which ids make sense is the writer's to know: recovery and replication write any of them.
    ids = [5, 5, 3, 9, 0, 2**40, 9, 4]
    async with cluster() as store, real_bookie(tmp_path, store, bookie_id="one") as bookie:
        client = await RawClient.connect(bookie.address[1])
        client.send(v2_adds(1, ids))
        assert sorted(await client.add_codes(len(ids))) == sorted((n, OK) for n in ids)
        for flushed in (False, True):
            if flushed:
                await bookie.storage.flush()
            for entry_id in ids:
                frame = await client.ask(v2.encode_read(1, entry_id))
                assert frame.endswith(entry(1, entry_id))
            assert code_of(await client.ask(v2.encode_read(1, 1))) == NO_ENTRY


async def test_s84_a_reader_that_never_reads_is_cut_by_a_real_bookie_and_holds_nobody_up(
    tmp_path: Path,
) -> None:
    async with (
        cluster() as store,
        real_bookie(
            tmp_path, store, answer_timeout_s=0.2, high_connection_answer_bytes=64 * 1024
        ) as bookie,
    ):
        deaf, good = (
            await RawClient.connect(bookie.address[1]),
            await RawClient.connect(bookie.address[1]),
        )
        deaf.send(v2_adds(1, [0], bytes(MIB)))
        await deaf.add_codes(1)
        deaf.writer.transport.pause_reading()
        deaf.send(b"".join(v2.encode_read(1, 0) for _ in range(200)))
        for entry_id in range(50):
            good.send(v2_adds(2, [entry_id]))
            assert await good.add_codes(1) == [(entry_id, OK)]
        await until(lambda: bookie.metrics.connections_slow == 1)
        await until(lambda: bookie.metrics.reads_in_progress == 0)
        assert (await good.ask(v2.encode_read(2, 0))).endswith(entry(2, 0))


async def test_a_connection_closed_in_the_middle_of_a_group_costs_others_nothing(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    async with (
        cluster() as store,
        running(Bookie(Env(disk=disk), options_in(tmp_path), store)) as bookie,
    ):
        gone, good = (
            await RawClient.connect(bookie.address[1]),
            await RawClient.connect(bookie.address[1]),
        )
        disk.may_sync.clear()
        # All of these share one group or two; nothing is answered yet.
        good.send(v2_adds(2, range(20)))
        gone.send(v2_adds(1, range(20)))
        good.send(v2_adds(3, range(20)))
        await until(lambda: bookie.metrics.adds_in_progress == 60)
        gone.writer.transport.abort()
        await until(lambda: bookie.metrics.connections == 1)
        await settle()
        disk.may_sync.set()
        assert [code for _, code in await good.add_codes(40)] == [OK] * 40
        await until(lambda: bookie.metrics.adds_in_progress == 0)
        # What was journaled is stored: its writer may count on it through another bookie's ack.
        for ledger_id in (1, 2, 3):
            frame = await good.ask(v2.encode_read(ledger_id, 19))
            assert frame.endswith(entry(ledger_id, 19))


async def test_s87_with_few_files_open_logs_roll_and_reads_go_on_without_a_leak(
    tmp_path: Path,
) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("needs /proc to count open files")
    async with cluster() as store:
        options = options_in(tmp_path)
        options = dataclasses.replace(
            options,
            storage=dataclasses.replace(
                options.storage, entry_log_size_bytes=64 * 1024, journal_file_size_bytes=128 * 1024
            ),
        )
        async with running(Bookie(Env(), options, store)) as bookie:
            client = await RawClient.connect(bookie.address[1])

            async def rolls(first: int) -> int:
                for entry_id in range(first, first + 20):
                    client.send(v2_adds(1, [entry_id], bytes(60_000)))
                    await client.add_codes(1)
                    await bookie.storage.flush()
                return len(list(descriptors.iterdir()))

            before = await rolls(0)
            after = await rolls(20)
            assert len(list((tmp_path / "ledgers" / "current").glob("*.log"))) > 10
            assert after <= before + 2
