"""The thread that owns the connection to a sqlite metadata file.

Operations wait in a mailbox.  All that wait are carried out, in order, inside one transaction and
so share its sync; each is a savepoint of its own, so that one which fails leaves nothing behind
and does not disturb the others.  Nobody hears of a result before the transaction is committed.

Every transaction first ends the sessions whose lease is over, and only then asks whether the own
session still goes on: whoever holds the file's write lock decides, on the machine's clock, and a
process that was paused beyond its lease finds its session gone whatever it believes.  A read
that sees a lease over makes its transaction a writing one, so nobody is shown the ephemeral nodes
of a session that is over.

Between operations the thread extends the lease (a third of its length apart) and, while there
are watches, asks every 50 ms with ``PRAGMA data_version`` whether another process has written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quorumbook.env import Env, logger
from quorumbook.errors import (
    MetadataUnavailableError,
    SessionExpiredError,
)
from quorumbook.metadata.sqlite.file import (
    BUSY_TIMEOUT_S,
    metadata_error,
    open_file,
    sqlite_errors,
)
from quorumbook.metadata.sqlite.rows import SqliteRows, SqliteSessions
from quorumbook.metadata.store import Watch
from quorumbook.metadata.tree import Tree, WatchKind, WatchTable, run_callbacks

_log = logger("metadata")
_POLL_S = 0.05
_CALLS_PER_TRANSACTION = 256
#: A heartbeat that finds the file held by somebody gives up soon, so that reads go on.
_HEARTBEAT_BUSY_TIMEOUT_S = 0.2
_HEARTBEAT_RETRY_NS = 200_000_000
_HELD_LONG_NS = 100_000_000


@dataclass(slots=True)
class SqliteCall:
    """One operation on its way to the thread and back."""

    work: Callable[[], Any]
    future: asyncio.Future[Any]
    is_write: bool = False
    #: Beginning and ending a session do not need one.
    needs_session: bool = True
    result: Any = None
    error: BaseException | None = None

    def carry_out(self) -> None:
        """Do it; an error of SQLite's own is raised, as it is everybody's."""
        self.error = None
        try:
            self.result = self.work()
        except sqlite3.Error:
            raise
        except Exception as error:
            self.error = error

    def fail(self, error: BaseException) -> None:
        """Have an error instead of a result."""
        self.error = error


class SqliteThread:
    """Carries out operations on the file; ``tree`` and ``session_id`` are for its calls only."""

    tree: Tree
    session_id: int

    def __init__(
        self,
        path: str,
        env: Env,
        *,
        uri: str,
        create: bool,
        session_timeout_s: float,
        on_expired: Callable[[], None],
    ) -> None:
        self._path = path
        self._uri = uri
        self._create = create
        self._clock = env.clock
        self._timeout_ns = int(session_timeout_s * 1e9)
        self._on_expired = on_expired
        self._loop = asyncio.get_running_loop()
        self._mailbox: queue.SimpleQueue[SqliteCall | Callable[[], None] | None] = (
            queue.SimpleQueue()
        )
        self._watches = WatchTable()
        self._new_watches: list[tuple[WatchKind, str, Watch, Any]] = []
        self._data_version = -1
        self._is_living = False
        self._beat_at_ns = 0
        #: Since when nobody else can write, in a writing transaction.
        self._held_since_ns: int | None = None
        self._is_stopping = False
        self._lost_file: MetadataUnavailableError | None = None
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)

    def start(self) -> asyncio.Future[None]:
        """Start; the future is done when the file is open and a session begun."""
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()
        return self._started

    def submit(self, call: SqliteCall) -> None:
        """Hand in an operation; from the loop."""
        self._mailbox.put(call)

    def unwatch(self, watch: Watch) -> None:
        """Forget a watch; from the loop."""

        def remove() -> None:
            self._watches.remove(watch)

        self._mailbox.put(remove)

    def stop(self) -> None:
        """Finish what was handed in, then end the session, the thread and the connection."""
        self._mailbox.put(None)

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()

    def watch(self, kind: WatchKind, path: str, watch: Watch | None) -> None:
        """Inside a call: leave a watch, if the transaction is committed."""
        if watch is not None:
            self._new_watches.append((kind, path, watch, self._rows.stamp(path)))

    def renew_session(self) -> int:
        """Inside a call that writes: begin another session if this one is over."""
        if not self._is_living:
            now_ns = self._clock.now_ns()
            self.session_id = self._sessions.begin(now_ns, self._timeout_ns, self._process())
            self._beat_at_ns = now_ns + self._timeout_ns // 3
        return self.session_id

    def _run(self) -> None:
        try:
            self._open()
        except BaseException as error:
            self._tell(self._report_start, error)
            return
        self._tell(self._report_start, None)
        while not self._is_stopping:
            calls = self._take()
            if calls:
                self._transact(calls)
            if not self._is_stopping:
                self._tend()
        self._end()

    def _report_start(self, error: BaseException | None) -> None:
        if self._started.done():
            return
        if error is not None:
            self._started.set_exception(error)
        else:
            self._started.set_result(None)

    def _open(self) -> None:
        self._connection = open_file(self._path, self._uri, create=self._create)
        self._rows = SqliteRows(self._connection)
        self._sessions = SqliteSessions(self._connection, self._clock.boot_id() or "unknown")
        self.tree = Tree(self._rows)
        self._identity = self._file_identity()
        self.session_id = 0
        with sqlite_errors(self._path):
            try:
                self._begin(is_write=True)
                self.renew_session()
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                self._connection.close()
                raise
        self._is_living = True

    def _take(self) -> list[SqliteCall]:
        """Wait for operations, or until something else is due."""
        calls: list[SqliteCall] = []
        try:
            item = self._mailbox.get(timeout=self._wait_s())
            while True:
                if item is None:
                    self._is_stopping = True
                    break
                if isinstance(item, SqliteCall):
                    calls.append(item)
                else:
                    item()
                if len(calls) >= _CALLS_PER_TRANSACTION:
                    break
                item = self._mailbox.get_nowait()
        except queue.Empty:
            pass
        return calls

    def _wait_s(self) -> float:
        until_beat_s = (self._beat_at_ns - self._clock.now_ns()) / 1e9
        return max(0.0, min(until_beat_s, _POLL_S) if self._watches else until_beat_s)

    def _transact(self, calls: list[SqliteCall]) -> None:
        """Carry out operations in one transaction, then tell whoever waits."""
        was_living = self._is_living
        session_before = self.session_id
        try:
            if self._lost_file is not None:
                raise self._lost_file
            self._begin(is_write=any(call.is_write for call in calls))
            for call in calls:
                self._carry_out(call)
            if self._connection.in_transaction:
                self._commit()
            for new in self._new_watches:
                self._watches.add(*new)
        except Exception as error:
            # Whatever it is, those who wait must hear of it and the thread must go on.
            self._roll_back()
            self._is_living = was_living
            self.session_id = session_before
            for call in calls:
                call.fail(self._own_error(error))
        self._new_watches.clear()
        is_expired = was_living and not (self._is_living and self.session_id == session_before)
        self._deliver(calls, self._changed(self.tree.touched), is_expired=is_expired)
        self.tree.touched.clear()

    def _begin(self, *, is_write: bool) -> None:
        """Begin a transaction; a writing one ends the sessions whose lease is over."""
        self._held_since_ns = None
        if not is_write:
            self._connection.execute("BEGIN")
            if not self._sessions.over(self._clock.now_ns()):
                return
            self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN IMMEDIATE")
        # The clock is read after the lock was waited for: what counts is when we hold the file.
        self._held_since_ns = self._clock.now_ns()
        for session_id in self._sessions.over(self._held_since_ns):
            self._sessions.end(session_id)
            self.tree.end_session(session_id)
        self._is_living = self._sessions.is_living(self.session_id)

    def _commit(self) -> None:
        """Commit; others could not extend their leases while this process held the file.

        When that was long, it was paused in between, and its pause is not to cost them theirs.
        """
        if self._held_since_ns is not None:
            held_ns = self._clock.now_ns() - self._held_since_ns
            if held_ns > _HELD_LONG_NS:
                self._sessions.extend_others(self.session_id, held_ns)
        self._connection.execute("COMMIT")

    def _carry_out(self, call: SqliteCall) -> None:
        if call.is_write and call.needs_session and not self._is_living:
            call.fail(SessionExpiredError(f"metadata session {self.session_id} is over"))
            return
        if not call.is_write:
            call.carry_out()
            return
        self._connection.execute("SAVEPOINT call")
        call.carry_out()
        if call.error is not None:
            self._connection.execute("ROLLBACK TO call")
        self._connection.execute("RELEASE call")
        if not call.needs_session:
            self._is_living = self._sessions.is_living(self.session_id)

    def _tend(self) -> None:
        """Extend the lease if that is due, and look whether others changed something."""
        try:
            if self._clock.now_ns() >= self._beat_at_ns:
                self._beat()
            if self._watches:
                self._look()
        except Exception as error:
            # Not an expiry (R31): others may be able to say so, this process cannot.
            self._roll_back()
            _log.warning("metadata heartbeat: %s", self._own_error(error))

    def _beat(self) -> None:
        self._beat_at_ns = self._clock.now_ns() + _HEARTBEAT_RETRY_NS
        if self._lost_file is not None:
            return
        if self._file_identity() != self._identity:
            self._lost_file = MetadataUnavailableError(
                f"metadata file {self._path} was removed or replaced under this process"
            )
            was_living, self._is_living = self._is_living, False
            self._deliver([], self._watches.take_changed(lambda _: None), is_expired=was_living)
            raise self._lost_file
        was_living = self._is_living
        self._busy_timeout(_HEARTBEAT_BUSY_TIMEOUT_S)
        try:
            self._begin(is_write=True)
            now_ns = self._clock.now_ns()
            if self._is_living:
                self._sessions.extend(self.session_id, now_ns + self._timeout_ns)
            self._commit()
            self._beat_at_ns = now_ns + self._timeout_ns // 3
        except BaseException:
            self._is_living = was_living
            raise
        finally:
            self._busy_timeout(BUSY_TIMEOUT_S)
        is_expired = was_living and not self._is_living
        self._deliver([], self._changed(self.tree.touched), is_expired=is_expired)
        self.tree.touched.clear()

    def _look(self) -> None:
        """Call the watches of what others changed; end sessions that are over."""
        if self._sessions.over(self._clock.now_ns()):
            self._transact([])
        ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
        if version != self._data_version:
            self._data_version = version
            self._deliver([], self._changed(None), is_expired=False)

    def _changed(self, paths: set[str] | None) -> Sequence[Watch]:
        if not self._watches:
            return ()
        try:
            return self._watches.take_changed(self._rows.stamp, paths)
        except sqlite3.Error as error:
            # The next look compares all of them again.
            self._data_version = -1
            _log.warning("metadata watches: %s", self._own_error(error))
            return ()

    def _deliver(
        self, calls: Sequence[SqliteCall], watches: Sequence[Watch], *, is_expired: bool
    ) -> None:
        if calls or watches or is_expired:
            self._tell(self._delivered, calls, watches, is_expired)

    def _delivered(
        self, calls: Sequence[SqliteCall], watches: Sequence[Watch], is_expired: bool
    ) -> None:
        """On the loop: the end of the session first, then answers, then watches."""
        if is_expired:
            self._on_expired()
        for call in calls:
            if call.future.done():
                continue
            if call.error is not None:
                call.future.set_exception(call.error)
            else:
                call.future.set_result(call.result)
        run_callbacks(watches)

    def _end(self) -> None:
        try:
            if self._lost_file is None and self._is_living:
                self._begin(is_write=True)
                self._sessions.end(self.session_id)
                self.tree.end_session(self.session_id)
                self._connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            _log.warning("metadata session is left to its lease: %s", self._own_error(error))
        self._connection.close()
        while not self._mailbox.empty():
            item = self._mailbox.get_nowait()
            if isinstance(item, SqliteCall):
                item.error = MetadataUnavailableError(f"metadata store {self._uri} was closed")
                self._deliver([item], (), is_expired=False)

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self.tree.touched.clear()

    def _own_error(self, error: BaseException) -> BaseException:
        return metadata_error(error, self._path) if isinstance(error, sqlite3.Error) else error

    def _busy_timeout(self, timeout_s: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {int(timeout_s * 1000)}").fetchall()

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self._path)
        except OSError:
            return None
        return (stat.st_dev, stat.st_ino)

    def _process(self) -> str:
        return f"{os.getpid()} {os.path.basename(sys.argv[0] or 'python')}"

    def _tell(self, callback: Callable[..., object], *arguments: object) -> None:
        # A loop that is gone has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)
