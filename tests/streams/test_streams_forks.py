"""Streams in a child made by fork: it is told to connect again, and its parent goes on."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from doubles.forks import FORKED, each_in_child, in_child
from quorumbook.errors import LocalProtocolError
from quorumbook.streams import Namespace
from quorumbook.sync.streams import Namespace as BlockingNamespace
from quorumbook.testing import LocalCluster

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
PATIENCE_S = 15.0


async def test_a_child_cannot_use_its_parents_streams_and_the_parent_goes_on(
    ns: Namespace,
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with await stream.writer(max_pending_records=2) as writer:
        await writer.append(b"x")
        reader = await stream.reader()
        await anext(aiter(reader))

        async def read() -> list[Any]:
            return [record async for record in await stream.reader(tail=False)]

        async def append_batch() -> Any:
            return await writer.append_batch([b"y", b"z"])

        tried: list[Callable[[], Any]] = [
            lambda: writer.append(b"y"),
            append_batch,
            writer.flush,
            writer.drain,
            writer.roll,
            writer.close,
            writer.abort,
            read,
            lambda: anext(aiter(reader)),
            stream.info,
            lambda: ns.create_stream("t"),
        ]
        pending = [writer.append_nowait(b"y") for _ in range(2)]

        async def run(work: Callable[[], Any]) -> Any:
            return await work()

        told = each_in_child([lambda work=work: asyncio.run(run(work)) for work in tried])
        assert told == [FORKED] * len(tried)
        assert [(await each).sequence_id for each in pending] == [1, 2]
        assert (await writer.append(b"z")).sequence_id == 3
        await reader.close()
    assert [record.payload async for record in await stream.reader(tail=False)] == [
        b"x",
        b"y",
        b"y",
        b"z",
    ]


def test_forked_workers_are_told_to_connect_again_and_can(
    standing_cluster: LocalCluster,
) -> None:
    """As PySpark's daemon forks its workers, while appends of the parent wait for room."""
    address = f"{standing_cluster.metadata_uri}#/workers"
    with BlockingNamespace.open(address, bind=True) as ns:
        ns.create_stream("s")
        with ns.stream("s").writer(max_pending_records=5) as writer:
            writer.append(b"before")
            writer.flush()
            gate = threading.Event()
            writer._loop_thread.loop.call_soon_threadsafe(gate.wait, PATIENCE_S)  # holds it up
            futures = [writer.append_nowait(b"x") for _ in range(5)]

            def work(number: int) -> tuple[str, list[bytes]]:
                try:
                    writer.append(b"never")
                except LocalProtocolError as error:
                    told = str(error)
                with (
                    BlockingNamespace.open(address) as own,
                    own.stream("s").reader(tail=False) as reader,
                ):
                    return told, [record.payload for record in reader][:1]

            found = [json.loads(in_child(lambda number=number: _shown(work(number))).strip("'"))
                     for number in range(3)]  # fmt: skip
            assert found == [[FORKED, ["before"]]] * 3
            gate.set()
            assert [future.result().sequence_id for future in futures] == list(range(1, 6))


def _shown(found: tuple[str, list[bytes]]) -> str:
    return json.dumps([found[0], [payload.decode() for payload in found[1]]])


def test_a_child_cannot_use_its_parents_blocking_streams(standing_cluster: LocalCluster) -> None:
    address = f"{standing_cluster.metadata_uri}#/forked"
    with BlockingNamespace.open(address, bind=True) as ns:
        ns.create_stream("s")
        with ns.stream("s").writer(max_pending_records=5) as writer:
            gate = threading.Event()
            writer._loop_thread.loop.call_soon_threadsafe(gate.wait, PATIENCE_S)  # holds it up
            futures = [writer.append_nowait(b"x") for _ in range(5)]
            tried: list[Callable[[], Any]] = [
                lambda: writer.append(b"y"),
                lambda: writer.append_nowait(b"y"),
                lambda: writer.append_batch([b"y"]),
                writer.drain,
                writer.flush,
                writer.roll,
                writer.close,
                writer.abort,
                futures[0].result,
                futures[0].exception,
                lambda: futures[0].add_done_callback(print),
                lambda: list(ns.stream("s").reader()),
                lambda: ns.stream("s").info(),
                lambda: ns.create_stream("t"),
                ns.close,
            ]
            told = each_in_child(tried)
            assert told == [FORKED] * len(tried)
            with writer._room:  # the fork comes while another thread has the lock
                assert in_child(lambda: writer.append_nowait(b"y")) == FORKED
            gate.set()
            assert [future.result().sequence_id for future in futures] == list(range(5))
            assert in_child(lambda: futures[0].result().sequence_id) == "0"
            assert writer.append(b"y").sequence_id == 5
