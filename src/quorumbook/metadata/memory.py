"""A metadata store in memory, shared by everybody in the process who names it.

For tests, simulations and clusters that end with their process.  A ``MemoryTree`` holds nodes and
sessions; each ``MemoryStore`` is one session on it, from whichever event loop or thread it was
opened on.  Leases work as on disk: a session whose lease ran out is ended by the first operation
of anybody that sees it, so a paused part of a simulated world loses its session too.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from quorumbook.env import Env
from quorumbook.errors import (
    SessionExpiredError,
)
from quorumbook.metadata.store import (
    DEFAULT_LEDGERS_ROOT,
    DEFAULT_SESSION_TIMEOUT_S,
    Node,
    Operation,
    Watch,
    split,
)
from quorumbook.metadata.tree import (
    DriverStore,
    Row,
    Stamp,
    Tree,
    WatchKind,
    WatchTable,
    run_callbacks,
)

T = TypeVar("T")
MULTI_LIMIT = 10_000


class _MemoryRows:
    """Rows in a dictionary, with an undo list for the transaction under way."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {"/": Row(b"")}
        self._children: dict[str, set[str]] = {"/": set()}
        self._owned: dict[int, set[str]] = {}
        self._last_creation_id = 0
        self._undo: list[tuple[str, Row | None]] = []

    def find(self, path: str) -> Row | None:
        row = self._rows.get(path)
        return None if row is None else row.copy()

    def stamp(self, path: str) -> Stamp | None:
        row = self._rows.get(path)
        return None if row is None else row.stamp

    def insert(self, path: str, row: Row) -> None:
        self._last_creation_id += 1
        row.creation_id = self._last_creation_id
        self._put(path, row)

    def save_data(self, path: str, row: Row) -> None:
        self._put(path, row)

    def save_counts(self, path: str, row: Row) -> None:
        self._put(path, row)

    def remove(self, path: str) -> None:
        self._put(path, None)

    def child_names(self, path: str) -> list[str]:
        return sorted(self._children.get(path, ()))

    def paths_owned_by(self, session_id: int) -> list[str]:
        return sorted(self._owned.get(session_id, ()))

    def commit(self) -> None:
        self._undo.clear()

    def roll_back(self) -> None:
        for path, row in reversed(self._undo):
            self._write(path, row)
        self._undo.clear()

    def _put(self, path: str, row: Row | None) -> None:
        self._undo.append((path, self._rows.get(path)))
        self._write(path, None if row is None else row.copy())

    def _write(self, path: str, row: Row | None) -> None:
        before = self._rows.get(path)
        if before is not None and before.owner:
            self._owned[before.owner].discard(path)
        if row is None:
            self._rows.pop(path, None)
            self._children.pop(path, None)
        else:
            self._rows[path] = row
            self._children.setdefault(path, set())
            if row.owner:
                self._owned.setdefault(row.owner, set()).add(path)
        if path != "/":
            parent_path, name = split(path)
            names = self._children.get(parent_path, set())
            names.discard(name) if row is None else names.add(name)


@dataclass(slots=True)
class _Session:
    store: MemoryStore
    lease_end_ns: int


class MemoryTree:
    """Nodes and sessions of one tree; usable from several threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._rows = _MemoryRows()
        self.tree = Tree(self._rows)
        self._sessions: dict[int, _Session] = {}
        self._last_session_id = 0
        self._stores: list[MemoryStore] = []

    @contextlib.contextmanager
    def transaction(self, now_ns: int) -> Iterator[Tree]:
        """Hold the tree: all that happens inside is one step, or none if it raises."""
        with self.lock:
            self._end_over_sessions(now_ns)
            try:
                yield self.tree
            except BaseException:
                self._rows.roll_back()
                self.tree.touched.clear()
                raise
            finally:
                self._finish()

    def stamp(self, path: str) -> Stamp | None:
        """Return what changes when the node does."""
        return self._rows.stamp(path)

    def attach(self, store: MemoryStore) -> None:
        """Let a store's watches hear of changes."""
        with self.lock:
            self._stores.append(store)

    def detach(self, store: MemoryStore) -> None:
        """Forget a store."""
        with self.lock, contextlib.suppress(ValueError):
            self._stores.remove(store)

    def begin_session(self, store: MemoryStore, lease_end_ns: int) -> int:
        """Begin a session and return its id."""
        with self.lock:
            self._last_session_id += 1
            self._sessions[self._last_session_id] = _Session(store, lease_end_ns)
            return self._last_session_id

    def is_living(self, session_id: int) -> bool:
        """Tell whether the session goes on."""
        return session_id in self._sessions

    def extend(self, session_id: int, lease_end_ns: int) -> None:
        """Extend the lease of a session, if it goes on; nothing revives one that is over."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.lease_end_ns = lease_end_ns

    def end_session(self, session_id: int, *, tell: bool = True) -> None:
        """End a session and remove its ephemeral nodes; the owner is told unless it asked."""
        with self.lock:
            session = self._sessions.pop(session_id, None)
            if session is None:
                return
            self.tree.end_session(session_id)
            self._finish()
            if tell:
                session.store.tell_expired()

    def _end_over_sessions(self, now_ns: int) -> None:
        over = [key for key, value in self._sessions.items() if value.lease_end_ns <= now_ns]
        for session_id in over:
            self.end_session(session_id)

    def _finish(self) -> None:
        self._rows.commit()
        if self.tree.touched:
            touched = set(self.tree.touched)
            self.tree.touched.clear()
            for store in self._stores:
                store.tell_touched(touched)


_trees: dict[str, MemoryTree] = {}
_trees_lock = threading.Lock()


def memory_tree(name: str) -> MemoryTree:
    """Return the tree of this name, the same for everybody in the process."""
    with _trees_lock:
        return _trees.setdefault(name, MemoryTree())


def forget_memory_tree(name: str) -> None:
    """Drop the tree of this name; stores that are open keep what they have."""
    with _trees_lock:
        _trees.pop(name, None)


class MemoryStore(DriverStore):
    """One session on a ``MemoryTree``; implements ``store.MetadataStore``."""

    def __init__(
        self,
        tree: MemoryTree,
        env: Env,
        *,
        uri: str = "memory://",
        session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_S,
        ledgers_root: str = DEFAULT_LEDGERS_ROOT,
    ) -> None:
        super().__init__(uri, env, ledgers_root, MULTI_LIMIT)
        self.session_timeout_s = session_timeout_s
        self._shared = tree
        self._loop = asyncio.get_running_loop()
        self._timeout_ns = int(session_timeout_s * 1e9)
        self._watches = WatchTable()
        tree.attach(self)
        self.session_id = tree.begin_session(self, self._lease_end_ns())
        self._heartbeat = self._loop.call_later(session_timeout_s / 3, self._beat)

    async def renew_session(self) -> int:
        """Begin another session if the present one is over."""

        def renew() -> int:
            with self._shared.transaction(self.env.clock.now_ns()):
                if not self._shared.is_living(self.session_id):
                    self.session_id = self._shared.begin_session(self, self._lease_end_ns())
                return self.session_id

        return await self._carry_out(renew, is_write=True)

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        """Return a node."""
        row = await self._read(path, watch, must_exist=True)
        assert row is not None
        return row.node

    async def exists(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return a node or None."""
        row = await self._read(path, watch, must_exist=False)
        return None if row is None else row.node

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children, sorted."""

        def read() -> list[str]:
            with self._shared.transaction(self.env.clock.now_ns()) as tree:
                names = tree.children(path)
                if watch is not None:
                    stamp = self._shared.stamp(path)
                    self._watches.add(WatchKind.CHILDREN, path, watch, stamp)
            return names

        return await self._carry_out(read, is_write=False)

    async def _write_one(self, operation: Operation) -> str | int | None:
        return await self._write(lambda tree: tree.apply(operation, self.session_id, self._ms()))

    async def replace(self, path: str, data: bytes, ephemeral: bool) -> None:
        """Delete the node, if there is one, and create it anew."""
        await self._write(
            lambda tree: tree.replace(path, data, ephemeral, self.session_id, self._ms())
        )

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """Carry out all operations or none."""
        self._check_size(operations)
        return await self._write(
            lambda tree: [tree.apply(each, self.session_id, self._ms()) for each in operations]
        )

    def unwatch(self, watch: Watch) -> None:
        """Forget a callback wherever it waits."""
        with self._shared.lock:
            self._watches.remove(watch)

    async def close(self) -> None:
        """End the session."""
        if self._is_closed:
            return
        self._is_closed = True
        self._heartbeat.cancel()
        self._on_expired.clear()
        self._shared.detach(self)
        self._shared.end_session(self.session_id, tell=False)

    def tell_expired(self) -> None:
        """From any thread: the session is over."""
        self._on_loop(self._call, self._on_expired.present())

    def tell_touched(self, paths: Collection[str]) -> None:
        """From any thread, the tree being held: nodes changed."""
        changed = self._watches.take_changed(self._shared.stamp, paths)
        if changed:
            self._on_loop(self._call, changed)

    async def _read(self, path: str, watch: Watch | None, *, must_exist: bool) -> Row | None:
        def read() -> Row | None:
            with self._shared.transaction(self.env.clock.now_ns()) as tree:
                row = tree.get(path) if must_exist else tree.find(path)
                if watch is not None:
                    stamp = None if row is None else row.stamp
                    self._watches.add(WatchKind.NODE, path, watch, stamp)
            return row

        return await self._carry_out(read, is_write=False)

    async def _write(self, change: Callable[[Tree], T]) -> T:
        def write() -> T | SessionExpiredError:
            with self._shared.transaction(self.env.clock.now_ns()) as tree:
                if self._shared.is_living(self.session_id):
                    return change(tree)
            return SessionExpiredError(f"metadata session {self.session_id} is over")

        result = await self._carry_out(write, is_write=True)
        if isinstance(result, SessionExpiredError):
            raise result
        return result

    async def _carry_out(self, step: Callable[[], T], *, is_write: bool) -> T:
        """Do something in the tree, in one step of its own; a simulation has it travel far."""
        del is_write
        self._check_open()
        # As with any store that is elsewhere, nothing happens in the loop step that asks for it.
        await asyncio.sleep(0)
        result = step()
        # The answer travels too, behind the news of a session that ended.
        await asyncio.sleep(0)
        return result

    def _beat(self) -> None:
        self._extend()
        self._heartbeat = self._loop.call_later(self.session_timeout_s / 3, self._beat)

    def _extend(self) -> None:
        with self._shared.transaction(self.env.clock.now_ns()):
            self._shared.extend(self.session_id, self._lease_end_ns())

    def _lease_end_ns(self) -> int:
        return self.env.clock.now_ns() + self._timeout_ns

    def _ms(self) -> int:
        return self.env.clock.wall_ms()

    def _on_loop(
        self, callback: Callable[[Sequence[Watch]], None], watches: Sequence[Watch]
    ) -> None:
        # A loop that is gone has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, watches)

    def _call(self, callbacks: Sequence[Watch]) -> None:
        if not self._is_closed:
            run_callbacks(callbacks)
