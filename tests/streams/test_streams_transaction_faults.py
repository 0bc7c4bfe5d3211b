"""Every point at which a distributed append can be hit, and everything that can hit it there.

A query as Spark runs it: tasks that are tried again, a driver whose failed commit is followed by an
abort of another process, a checkpoint from which the next driver begins.  Whatever happens where,
in the end each row is there once, in order, and nothing is left over.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from enum import Enum
from typing import Any

import pytest

from quorumbook.client.client import BookKeeper
from quorumbook.errors import QuorumbookError
from quorumbook.metadata.store import Delete, Operation, Set
from quorumbook.streams import Namespace
from quorumbook.streams.stream_context import namespace_store
from quorumbook.streams.transactions import (
    Application,
    AttemptResult,
    DraftOptions,
    Identity,
    Place,
    collect_orphans,
)
from quorumbook.testing import LocalCluster

pytestmark = pytest.mark.faults

BATCHES, PARTS = 2, 2
OPTIONS = DraftOptions(entry_bytes=20)
#: Tasks make no ledgers then, and leave none to be cleaned up; the driver makes one.
HANDED = DraftOptions(entry_bytes=20, handed_bytes=1000)


class Point(Enum):
    """Where it happens; the batch it happens in is the second."""

    BEFORE_CREATE = "before a task makes its ledger"
    AFTER_CREATE = "after a task made its ledger"
    MID_WRITE = "while a task writes"
    AFTER_CLOSE = "after a task sealed its ledger"
    BEFORE_STEP = "before the driver's step"
    AFTER_STEP = "after the driver's step, before it learns of it"
    BEFORE_LOG = "after the commit, before it is in the checkpoint"
    IN_ABORT = "while an abort deletes ledgers"
    IN_CLEAN_UP = "while a commit cleans up behind itself"


class Kind(Enum):
    """What happens."""

    EXCEPTION = "an exception"
    WORKER = "the process is killed"
    EXECUTOR = "all tasks are killed"
    DRIVER = "everything is killed"
    BOOKIE = "a bookie is killed"
    SESSION = "the metadata session is lost"


class Killed(Exception):  # noqa: N818 - an event, not a defect
    """The process is no more."""


class Process:
    """A process of the query."""

    def __init__(self, query: Query, client: BookKeeper, namespace: Namespace) -> None:
        self.query = query
        self.client = client
        self.namespace = namespace
        self.is_dead = False
        self.in_abort = False
        store: Any = namespace_store(namespace)
        for owner, name in (
            (client, "create_ledger"), (client, "delete_ledger"), (client, "reserve_ledger_id"),
            *((store, name) for name in ("multi", "get", "exists", "children", "create", "delete")),
        ):  # fmt: skip
            setattr(owner, name, self._guarded(name, getattr(owner, name)))

    def _guarded(self, name: str, call: Any) -> Any:
        async def guarded(*arguments: Any, **named: Any) -> Any:
            if self.is_dead:
                raise Killed
            is_step = name == "multi" and _is_commit(arguments[0])
            if name == "create_ledger":
                await self.hit(Point.BEFORE_CREATE)
            elif is_step:
                await self.hit(Point.BEFORE_STEP)
            elif name == "delete_ledger":
                await self.hit(Point.IN_ABORT if self.in_abort else Point.IN_CLEAN_UP)
            found = await call(*arguments, **named)
            if name == "create_ledger":
                await self.hit(Point.AFTER_CREATE)
                return self._watched(found)
            if is_step:
                await self.hit(Point.AFTER_STEP)
            return found

        return guarded

    def _watched(self, ledger: Any) -> Any:
        close = ledger.close

        async def closed() -> None:
            if self.is_dead:
                raise Killed
            await close()
            await self.hit(Point.AFTER_CLOSE)

        ledger.close = closed
        return ledger

    async def hit(self, point: Point) -> None:
        """Have it happen if it is due here."""
        await self.query.hit(self, point)
        if self.is_dead:
            raise Killed

    def expire(self) -> None:
        """Have the lease of its metadata session run out."""
        path = self.query.cluster.metadata_uri.removeprefix("sqlite://")
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as file, file:
            session_id = namespace_store(self.namespace).session_id
            file.execute("UPDATE session SET lease_end_ns = 0 WHERE id = ?", (session_id,))

    def kill(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            self.expire()


def _is_commit(operations: list[Operation]) -> bool:
    return isinstance(operations[0], Set) and any(isinstance(each, Delete) for each in operations)


class Query:
    """A query, to which one thing happens."""

    def __init__(
        self, cluster: LocalCluster, name: str, point: Point, kind: Kind, options: DraftOptions
    ) -> None:
        self.options = options
        self.cluster = cluster
        self.name = name
        self.point, self.kind = point, kind
        self.has_happened = False
        self.has_failed = False
        self.done = -1
        self.tasks: list[Process] = []
        self.processes: list[Process] = []
        self.owned = contextlib.AsyncExitStack()

    async def process(self) -> Process:
        client = await self.owned.enter_async_context(self.cluster.connect())
        address = f"{self.cluster.metadata_uri}#/faults"
        namespace = await Namespace.open(address, client=client)
        self.owned.push_async_callback(namespace.close)
        made = Process(self, client, namespace)
        self.processes.append(made)
        return made

    async def hit(self, process: Process, point: Point) -> None:
        if self.has_happened or point is not self.point or self.done < 0:
            return
        self.has_happened = True
        match self.kind:
            case Kind.EXCEPTION:
                raise RuntimeError("something went wrong")
            case Kind.WORKER:
                process.kill()
            case Kind.EXECUTOR | Kind.DRIVER:
                for each in self.tasks if self.kind is Kind.EXECUTOR else self.processes:
                    each.kill()
            case Kind.BOOKIE:
                victim = self.cluster.bookie_ids[0]
                await self.cluster.kill(victim)
            case Kind.SESSION:
                process.expire()

    def application(self, process: Process, run: str) -> Application:
        place = Place(process.client, process.namespace)
        return Application(place, self.name, Identity("q", run))

    async def run(self) -> None:
        for number in range(10):
            driver = await self.process()
            with contextlib.suppress(Killed, RuntimeError, QuorumbookError):
                await self.drive(driver, f"run {number}")
            if self.done == BATCHES - 1:
                return
        raise AssertionError("the query makes no progress")

    async def drive(self, driver: Process, run: str) -> None:
        app = self.application(driver, run)
        await app.prepare()
        while self.done < BATCHES - 1:
            batch = self.done + 1
            # The slower of two copies of a task: its ledger is to be cleaned up.
            with contextlib.suppress(Killed, RuntimeError, QuorumbookError):
                await self.task(run, batch, 0, 9)
            results = [await self.part(driver, run, batch, part) for part in range(PARTS)]
            try:
                if self.point is Point.IN_ABORT and batch == 1 and not self.has_failed:
                    self.has_failed = True
                    raise RuntimeError("the commit fails")
                await app.commit(batch, results)
            except (Killed, RuntimeError, QuorumbookError):
                if not driver.is_dead or self.kind is Kind.WORKER:
                    cleaner = await self.process()
                    cleaner.in_abort = True
                    await self.application(cleaner, run).abort(batch)
                raise
            await driver.hit(Point.BEFORE_LOG)
            self.done = batch

    async def part(self, driver: Process, run: str, batch: int, part: int) -> AttemptResult:
        for attempt in range(4):
            with contextlib.suppress(Killed, RuntimeError, QuorumbookError):
                return await self.task(run, batch, part, attempt)
            if driver.is_dead:
                raise Killed
        raise RuntimeError("a task failed four times")

    async def task(self, run: str, batch: int, part: int, attempt: int) -> AttemptResult:
        process = await self.process()
        self.tasks.append(process)
        app = self.application(process, run)
        if await app.is_committed(batch):
            return app.skipped(batch, part, attempt)
        writer = app.attempt(batch, part, attempt, self.options, 1000)
        for number, payload in enumerate(rows(batch, part)):
            await writer.append(self.name, [payload])
            if number == 5:
                await process.hit(Point.MID_WRITE)
        return await writer.finish()


def rows(batch: int, part: int) -> list[bytes]:
    return [b"%d.%d.%d" % (batch, part, number) for number in range(10)]


@pytest.fixture
async def crowd() -> AsyncIterator[LocalCluster]:
    """Four bookies, so that one may be lost at three copies."""
    async with LocalCluster(bookies=4) as cluster:
        await Namespace.bind(f"{cluster.metadata_uri}#/faults")
        yield cluster


@pytest.mark.parametrize(
    ("point", "options"),
    [
        pytest.param(point, options, id=f"{point.name.lower()}{kind}")
        for options, kind in ((OPTIONS, ""), (HANDED, "-handed"))
        for point in Point
        if options is OPTIONS or point not in (Point.IN_ABORT, Point.IN_CLEAN_UP)
    ],
)
async def test_each_row_is_there_once_whatever_happens_where(
    crowd: LocalCluster, point: Point, options: DraftOptions
) -> None:
    address = f"{crowd.metadata_uri}#/faults"
    async with Namespace.open(address) as ns:
        for kind in Kind:
            name = kind.name.lower()
            await ns.create_stream(name)
            query = Query(crowd, name, point, kind, options)
            async with query.owned:
                await query.run()
                assert query.has_happened, (point, kind)
                for process in query.processes:
                    process.kill()
            if kind is Kind.BOOKIE:
                await crowd.restart(crowd.bookie_ids[0])
        await collect_orphans(Place(ns.client, ns, attempt_ttl_s=0))
        referenced = set()
        for kind in Kind:
            stream = ns.stream(kind.name.lower())
            async with stream.reader(tail=False) as reader:
                found = [record.payload async for record in reader]
            expected = [
                payload for b in range(BATCHES) for p in range(PARTS) for payload in rows(b, p)
            ]
            assert found == expected, kind
            segments = await stream.segments()
            assert [each.metadata.number for each in segments] == list(range(1, len(segments) + 1))
            referenced |= {each.metadata.ledger_id for each in segments}
        assert {each async for each in ns.client.list_ledger_ids()} == referenced
