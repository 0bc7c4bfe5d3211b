"""Processes that go on one step at a time, each step chosen by a test, and killed between any two.

A process has a metadata session of its own, on one tree in memory, and a client whose ledgers exist
in a dictionary.  Before and after each thing that others can see it waits to be let go on; killed,
it does nothing more, its clean-up included, and its session is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

from doubles.virtual_time import virtual_clock
from quorumbook.env import Env
from quorumbook.errors import LedgerExistsError, NoSuchLedgerInMetadataError
from quorumbook.metadata.memory import MemoryStore, MemoryTree
from quorumbook.streams import Namespace
from quorumbook.streams.format.binding import Binding

NAMESPACE = "/streams"


class Killed(BaseException):
    """The process is no more."""


class Process:
    """One process."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        #: Steps that wait to be let go on, the oldest first; several where it does several things.
        self.waiting: list[asyncio.Future[None]] = []
        self.store = SteppedStore(self)
        self.client = SteppedClient(self)
        self.namespace = Namespace(
            self.client, self.store, NAMESPACE, Binding(),  # type: ignore[arg-type]
            client_id=name, is_read_only=False, owned=contextlib.AsyncExitStack(),
        )  # fmt: skip
        self.task: asyncio.Task[Any] | None = None

    async def step(self) -> None:
        """Wait to be let go on."""
        if self.is_dead:
            raise Killed
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(mine)
        try:
            await mine
        finally:
            if mine in self.waiting:
                self.waiting.remove(mine)
        if self.is_dead:
            raise Killed

    async def stepped(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something that others can see, as two steps: doing it, and learning of it."""
        try:
            await self.step()
        except BaseException:
            work.close()
            raise
        try:
            return await work
        finally:
            await self.step()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.task = asyncio.get_running_loop().create_task(self._run(work))
        # Nobody waits for what a killed driver had started.
        self.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.world.processes.append(self)
        return self.task

    async def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except BaseException:
            if not self.is_dead:
                raise
            return None
        finally:
            self.world.processes.remove(self)
            await self.store.inner.close()

    async def kill(self) -> None:
        self.is_dead = True
        await self.store.inner.close()
        if not self.waiting and self.task is not None:
            self.task.cancel()  # it waits for a lock
        while self.waiting:
            self.go_on()

    def go_on(self) -> None:
        """Let it take its next step."""
        self.waiting.pop(0).set_result(None)


class SteppedStore:
    """A metadata session whose operations are steps."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.inner = MemoryStore(process.world.tree, process.world.env)
        self.env = process.world.env
        self.ledgers_root = self.inner.ledgers_root
        self.multi_limit = self.inner.multi_limit
        self.uri = self.inner.uri

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in {"create", "create_node", "set", "delete", "multi"}:
            return (
                found
                if name not in {"get", "get_many", "exists", "children"}
                else self._read(found)
            )

        def call(*arguments: Any, **named: Any) -> Any:
            return self._process.stepped(found(*arguments, **named))

        return call

    def _read(self, found: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            await self._process.step()
            return await found(*arguments, **named)

        return call


class SteppedLedger:
    """A ledger's writer."""

    def __init__(self, process: Process, ledger_id: int) -> None:
        self._process = process
        self.id = ledger_id
        self._entries = process.world.ledgers[ledger_id]

    @property
    def length(self) -> int:
        return sum(map(len, self._entries))

    def append_nowait(self, data: bytes) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._process.is_dead:
            raise Killed
        self._entries.append(data)
        future.set_result(len(self._entries) - 1)
        return future

    async def close(self) -> None:
        await self._process.step()
        if self.id not in self._process.world.ledgers:
            raise NoSuchLedgerInMetadataError(f"there is no ledger {self.id}")
        self._process.world.closed.add(self.id)

    async def abort(self) -> None:
        if self._process.is_dead:
            raise Killed


class SteppedClient:
    """A client without bookies."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    @property
    def store(self) -> SteppedStore:
        return self._process.store

    async def reserve_ledger_id(self) -> int:
        self._world.last_id += 1
        return self._world.last_id

    async def create_ledger(self, *, ledger_id: int, **options: Any) -> SteppedLedger:
        del options
        return await self._process.stepped(self._create(ledger_id))

    async def _create(self, ledger_id: int) -> SteppedLedger:
        if ledger_id in self._world.ledgers:
            raise LedgerExistsError(f"ledger {ledger_id} exists already")
        self._world.ledgers[ledger_id] = []
        return SteppedLedger(self._process, ledger_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        await self._process.stepped(self._delete(ledger_id))

    async def _delete(self, ledger_id: int) -> None:
        if self._world.ledgers.pop(ledger_id, None) is None:
            raise NoSuchLedgerInMetadataError(f"there is no ledger {ledger_id}")


class World:
    """All processes, the metadata and the ledgers.

    Args:
        dice: Say who goes on and who is killed.
        kills: How often; one step in so many.
        steps: For how long; then everybody goes on in turn.
    """

    def __init__(self, dice: random.Random, kills: int, steps: int) -> None:
        self.tree = MemoryTree()
        self.env = Env(clock=virtual_clock(), random=dice)  # type: ignore[arg-type]
        self.ledgers: dict[int, list[bytes]] = {}
        self.closed: set[int] = set()
        self.last_id = -1
        self.processes: list[Process] = []
        self._dice = dice
        self._kills = kills
        self._steps = steps
        self._turn = 0

    @property
    def is_rough(self) -> bool:
        """Whether anything may still happen."""
        return self._turn < self._steps

    async def settle(self) -> None:
        """Let everybody run up to the next step."""
        for _ in range(8):
            await asyncio.sleep(0)

    async def advance(self) -> None:
        """Let one process go on, or kill one."""
        await self.settle()
        ready = [each for each in self.processes if each.waiting]
        if not ready:
            await asyncio.sleep(0.05)  # somebody waits for a lock, or tries again later
            return
        self._turn += 1
        if not self.is_rough:
            ready[self._turn % len(ready)].go_on()
        elif self._dice.randrange(self._kills):
            self._dice.choice(ready).go_on()
        else:
            await self._dice.choice(ready).kill()

    async def advance_only(self, process: Process) -> None:
        """Let one process go on that nothing happens to."""
        await self.settle()
        if process.waiting:
            process.go_on()
        else:
            await asyncio.sleep(0.05)
