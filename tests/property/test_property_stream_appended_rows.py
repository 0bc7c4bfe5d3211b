"""Tasks that append at once, killed at any step and run again: with the same rows, or with others.

The real ``Appender`` and its marks, on metadata and writers that end wherever they are told to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumbook.errors import MetadataVersionConflict
from quorumbook.metadata.store import Node
from quorumbook.spark.sink import appending
from quorumbook.spark.sink.appending import Appender
from quorumbook.streams.errors import RowsDifferError, WriterBusyError
from quorumbook.streams.transactions import AppendedPart, DraftOptions, Identity


class KilledError(Exception):
    """Where a process ends."""


class World:
    """What outlives the tasks: stored rows, and the node of one part of a batch."""

    def __init__(self) -> None:
        self.stored: dict[str, list[bytes]] = {}
        self.last_numbers: dict[str, int] = {}
        self.node: Node | None = None
        self.steps_left = -1
        self.written = 0

    def step(self) -> None:
        if not self.steps_left:
            raise KilledError
        self.steps_left -= 1

    # As ``TransactionNodes`` ---------------------------------------------------------------

    application = "app"

    async def write_appended(
        self, batch: int, partition: int, data: bytes, known: Node | None
    ) -> Node:
        del batch, partition
        self.step()
        if (self.node and self.node.revision) != (known and known.revision):
            raise MetadataVersionConflict("another attempt was first")
        self.written += 1
        self.node = Node(data, self.written, 0, 1, 0, 0, 0, 0)
        self.step()
        return self.node

    # As a namespace ------------------------------------------------------------------------

    def stream(self, name: str) -> Any:
        async def writer(**_: Any) -> Writer:
            return Writer(self, name)

        return SimpleNamespace(writer=writer)

    def appender(self) -> Appender:
        async def appended(batch: int, partition: int) -> AppendedPart:
            return AppendedPart(self, batch, partition, self.node)  # type: ignore[arg-type]

        application: Any = SimpleNamespace(name="app", appended=appended)
        who = Identity("q", "r")
        namespace: Any = self
        return Appender(namespace, application, who, 0, (0, 0), DraftOptions(), 0.0)


class Writer:
    """Stores what has new numbers, record by record."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    async def append_batch(self, payloads: Sequence[bytes], *, producer_seq: int, **_: Any) -> None:
        world = self._world
        for number, payload in enumerate(payloads, producer_seq):
            world.step()
            if number > world.last_numbers.get(self._name, -1):
                world.stored.setdefault(self._name, []).append(payload)
                world.last_numbers[self._name] = number
        world.step()

    async def append(self, payload: bytes, *, producer_seq: int, **_: Any) -> None:
        await self.append_batch([payload], producer_seq=producer_seq)

    async def close(self) -> None:
        pass


Pieces = list[tuple[str, list[bytes]]]
#: What a task is given: pieces of rows, each for one stream.  Few values, so that rows are alike.
pieces_of_rows = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.lists(st.sampled_from([b"", b"x", b"y", b"yy"]), max_size=7)
    ),
    max_size=5,
)


def rows_of(pieces: Pieces) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for stream, payloads in pieces:
        if payloads:
            found.setdefault(stream, []).extend(payloads)
    return found


async def attempt(world: World, pieces: Pieces, steps: int = -1) -> None:
    world.steps_left = steps
    task = world.appender()
    for stream, payloads in pieces:
        if payloads:
            await task.append(stream, payloads)
    await task.finish()


def run(world: World, pieces: Pieces, steps: int = -1) -> bool:
    """Run an attempt; tell whether it went to its end."""
    try:
        asyncio.run(attempt(world, pieces, steps))
    except KilledError:
        return False
    return True


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appending, "_CHUNK_ROWS", 3)
        patch.setattr(appending, "_LARGE_BYTES", 1)
        yield


@given(pieces_of_rows, st.lists(st.integers(0, 60), max_size=5), st.data())
def test_a_task_killed_anywhere_and_run_again_appends_each_row_once(
    pieces: Pieces, kills: list[int], data: st.DataObject
) -> None:
    world = World()
    for steps in kills:
        run(world, pieces, steps)
    again = pieces
    if data.draw(st.booleans()):  # the same rows come in other pieces
        again = [(stream, [row]) for stream, rows in pieces for row in rows]
    assert run(world, again)
    assert world.stored == rows_of(pieces)


def test_rows_that_were_taken_down_and_not_stored_come_with_their_own_numbers() -> None:
    world = World()
    assert not run(world, [("a", [b"x", b"y", b"yy"])], 1)  # ends behind its first mark
    assert world.node is not None
    assert not world.stored
    assert run(world, [("a", [b"x"]), ("a", [b"y"]), ("a", [b"yy"])])
    assert (world.stored, world.last_numbers) == ({"a": [b"x", b"y", b"yy"]}, {"a": 2})


@given(pieces_of_rows, pieces_of_rows, st.integers(0, 60), st.data())
def test_a_task_that_is_run_again_with_other_rows_appends_none_of_them(
    pieces: Pieces, others: Pieces, steps: int, data: st.DataObject
) -> None:
    if data.draw(st.booleans()):  # others that begin alike
        others = pieces[: data.draw(st.integers(0, len(pieces)))] + others
    world = World()
    is_done = run(world, pieces, steps)
    before = {name: list(rows) for name, rows in world.stored.items()}
    marks = json.loads(world.node.data)["s"] if world.node else {}
    had, has = rows_of(pieces), rows_of(others)
    try:
        run(world, others)
    except RowsDifferError:
        for name, rows in world.stored.items():
            taken_down = marks[name][2] if name in marks else 0
            if is_done or has.get(name, [])[:taken_down] != had.get(name, [])[:taken_down]:
                assert rows == before.get(name, [])
            else:  # another stream's rows told
                assert rows == has[name][: len(rows)]
    else:
        assert world.stored == has
        assert not is_done or has == had


@given(pieces_of_rows)
def test_of_two_attempts_at_once_the_one_behind_stops(pieces: Pieces) -> None:
    world = World()

    async def both() -> None:
        behind = world.appender()
        todo = [(stream, rows) for stream, rows in pieces if rows]
        for stream, rows in todo[:1]:
            await behind.append(stream, rows)
        await attempt(world, pieces)
        try:
            for stream, rows in todo[1:]:
                await behind.append(stream, rows)
            await behind.finish()
        except WriterBusyError:
            pass

    asyncio.run(both())
    assert world.stored == rows_of(pieces)
