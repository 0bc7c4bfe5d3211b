"""Rows that are appended as they come: each of them once, whatever is run again."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from spark_helpers import Streams

from quorumbook.errors import ConfigError
from quorumbook.spark.options import Use
from quorumbook.spark.sink.appending import Appender
from quorumbook.spark.sink.options import WriteOptions
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.stream_context import namespace_store
from quorumbook.streams.transactions import (
    Application,
    CommitOptions,
    DraftOptions,
    Identity,
    Place,
)

OPTIONS = DraftOptions(creates_streams=True, entry_bytes=500)
ROWS = [b"%d" % n for n in range(3000)]


@pytest.fixture
def name() -> str:
    return f"appending/{uuid4().hex[:8]}"


@pytest.fixture
def appender(streams: Streams, name: str) -> Any:
    def make(batch: int, *, part: int = 0, attempt: int = 0, query: str = "q") -> Appender:
        who = Identity(query, f"run {attempt}")
        namespace = streams.namespace
        app = Application(Place(namespace.client, namespace), f"{name}-{query}", who)
        return Appender(namespace, app, who, batch, (part, attempt), OPTIONS, 60.0)

    return make


async def payloads(streams: Streams, name: str) -> list[bytes]:
    async with streams.namespace.stream(name).reader(tail=False) as reader:
        return [record.payload async for record in reader]


def test_a_task_that_is_run_again_appends_what_is_missing(
    streams: Streams, name: str, appender: Any
) -> None:
    carried = [Attributes(b"%d" % n) if n % 2 else None for n in range(len(ROWS))]

    async def task(upto: int, attempt: int) -> None:
        one = appender(3, attempt=attempt)
        try:
            for start in range(0, upto, 700):
                part = ROWS[start : min(upto, start + 700)]
                await one.append(name, part, None, carried[start : start + len(part)])
            if upto == len(ROWS):
                result = await one.finish()
                assert (result.batch, result.name, result.drafts) == (3, None, ())
        finally:
            await one.give_up()

    async def work() -> None:
        for attempt, upto in enumerate((0, 1234, 100, len(ROWS), len(ROWS))):
            await task(upto, attempt)
        async with streams.namespace.stream(name).reader(tail=False) as reader:
            found = [record async for record in reader]
        assert [record.payload for record in found] == ROWS
        assert [record.key for record in found] == [each and each.key for each in carried]

    streams.run(work())


def test_rows_larger_than_an_entry_are_appended_once_and_whole(
    streams: Streams, name: str, appender: Any
) -> None:
    rows = [b"a", b"L" * 3_000_000, b"b", b"c", b"M" * 700_000, b"N" * 1_045_000, b"d"]
    carried = [Attributes(b"%d" % n, (("h", b"%d" % n),), n) for n in range(len(rows))]

    async def work() -> None:
        for upto in (2, len(rows), len(rows)):
            one = appender(0)
            await one.append(name, rows[:upto], None, carried[:upto])
            await (one.finish() if upto == len(rows) else one.give_up())
        async with streams.namespace.stream(name).reader(tail=False) as reader:
            found = [record async for record in reader]
        assert [record.payload for record in found] == rows
        assert [record.attributes for record in found] == carried

    streams.run(work())


def test_batches_partitions_and_queries_have_numbers_of_their_own(
    streams: Streams, name: str, appender: Any
) -> None:
    async def task(batch: int, part: int, row: bytes, query: str = "q") -> None:
        one = appender(batch, part=part, query=query)
        await one.append(name, [row])
        await one.finish()

    async def work() -> None:
        for _ in range(2):
            await task(0, 0, b"0.0")
            await task(0, 1, b"0.1")
            await task(1, 0, b"1.0")
        await task(0, 0, b"of another query", query="q2")
        assert await payloads(streams, name) == [b"0.0", b"0.1", b"1.0", b"of another query"]

    streams.run(work())


def test_tasks_that_write_the_same_streams_take_turns_and_do_not_wait_for_each_other(
    streams: Streams, name: str, appender: Any
) -> None:
    a, b = f"{name}/a", f"{name}/b"

    async def task(part: int, order: list[str]) -> None:
        one = appender(0, part=part)
        for number in range(5):
            for stream in order:
                await one.append(stream, [b"%d.%d" % (part, number)])
        await one.finish()

    async def work() -> None:
        await asyncio.gather(task(0, [a, b]), task(1, [b, a]))
        for stream in a, b:
            found = await payloads(streams, stream)
            for part in range(2):
                assert [row for row in found if row.startswith(b"%d." % part)] == [
                    b"%d.%d" % (part, number) for number in range(5)
                ]

    streams.run(work())


def test_an_application_that_is_finished_leaves_no_marks(
    streams: Streams, name: str, appender: Any
) -> None:
    async def work() -> None:
        namespace, who = streams.namespace, Identity("q", "run 0")
        app = Application(Place(namespace.client, namespace), f"{name}-q", who)
        await app.prepare()
        one = appender(0)
        await one.append(name, [b"row"])
        result = await one.finish()
        path = f"{namespace.path}/.transactions"
        mine = {f"{path}/{each}" for each in await namespace_store(namespace).children(path)}
        (mine,) = (each for each in mine if each.endswith(f"{name.rpartition('/')[2]}-q"))
        assert await namespace_store(namespace).children(f"{mine}/appended") == ["0-0"]
        await app.commit(0, [result], CommitOptions(is_final=True))
        assert await namespace_store(namespace).exists(mine) is None

    streams.run(work())


def test_what_cannot_be_appended_is_refused() -> None:
    given = {"metadataServiceUri": "sqlite:///m.db", "delivery": "append"}
    with pytest.raises(ConfigError, match="delivery=append is for streams"):
        WriteOptions.of({**given, "target": "ledger"}, Use.WRITE)
    with pytest.raises(ConfigError, match="one of transaction, append"):
        WriteOptions.of({**given, "delivery": "at once"}, Use.WRITE)
    with pytest.raises(ConfigError, match="numbered up to"):
        Appender(None, "a", Identity("q", "r"), 2**31, (0, 0), OPTIONS, 0)  # type: ignore[arg-type]


def test_a_batch_whose_commit_was_not_taken_down_is_appended_once(
    spark: Any, cluster: Any, streams: Streams, name: str
) -> None:
    def save() -> None:
        frame = spark.range(0, 100, 1, 2).selectExpr("cast(id AS string) AS value")
        (
            frame.write.format("quorumbook").mode("append")
            .options(
                metadataServiceUri=cluster.metadata_uri, delivery="append", createStream="true",
                txnAppId=name, txnVersion="3",
            )
            .save(f"stream:{name}")
        )  # fmt: skip

    async def forget() -> None:
        """Be as if the driver had died before it took the batch down."""
        root = f"{streams.namespace.path}/.transactions"
        store = namespace_store(streams.namespace)
        (application,) = (
            each for each in await store.children(root) if each.endswith(name.rpartition("/")[2])
        )
        assert (await store.get(f"{root}/{application}")).data
        assert await store.children(f"{root}/{application}/appended") == []
        await store.set(f"{root}/{application}", b"")

    save()
    streams.run(forget())
    save()
    found = streams.run(payloads(streams, name))
    # Partitions take turns; within each the order is kept.
    for part in range(2):
        rows = [b"%d" % n for n in range(50 * part, 50 * part + 50)]
        assert [row for row in found if row in rows] == rows
    assert len(found) == 100
