"""A SQLite database whose committed transactions travel through a stream to replicas.

    python examples/sqlite_replication.py demo
    python examples/sqlite_replication.py write METADATA_URI FILE
    python examples/sqlite_replication.py follow METADATA_URI FILE

The demo is the whole story, on a cluster of its own; ``write`` carries out SQL from standard
input, a line each, and ``follow`` keeps a replica.  ``METADATA_URI`` is that of a running cluster
(``quorumbook standalone``).

The stream is the database; every file is a copy of it, that of the writer too.  A transaction is
carried out on the writer's file, its row changes are appended as one record, and only then is it
committed there, together with the record's position.  So it is committed exactly if it was
appended: who is killed before the append rolls back, and who is killed after it finds the record
in the stream when it starts again, as any replica does.  A second writer shuts the first one out
by the fence, before it reads the stream to its end.

What is recorded are rows and not statements, so ``random()`` and the like are the same everywhere.
SQLite's session extension, which is made for this, is not in Python's ``sqlite3``; temporary
triggers, which live in the writer's connection only, put the changes into a temporary table.
Schema changes travel as statements.  Tables need a rowid, and ``VACUUM`` must not renumber one:
give tables an INTEGER PRIMARY KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from processes import Process
from quorumbook.streams import Namespace, Position, Stream, parse_position
from quorumbook.streams.errors import StreamError
from quorumbook.testing import LocalCluster

STREAM = "database"
STATE = "CREATE TABLE IF NOT EXISTS quorumbook_state (position TEXT, sequence_id INTEGER)"


class Copy:
    """One file, and how far it is in the stream."""

    def __init__(self, path: str) -> None:
        # Transactions are begun and ended here, and not by Python.
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA recursive_triggers = ON")  # REPLACE deletes rows: say which
        self.db.execute("PRAGMA journal_mode = WAL")  # others may read meanwhile
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute(STATE)
        row = self.db.execute("SELECT position, sequence_id FROM quorumbook_state").fetchone()
        self.position: Position | None = parse_position(row[0]) if row else None
        self.next_sequence_id: int = row[1] if row else 0

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end, or roll everything back."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    def remember(self, position: Position, sequence_id: int) -> None:
        """Store, within a transaction, that the record there is in the file."""
        self.db.execute("DELETE FROM quorumbook_state")
        row = str(position.next), sequence_id + 1
        self.db.execute("INSERT INTO quorumbook_state VALUES (?, ?)", row)

    def apply(self, payload: bytes) -> None:
        """Make the changes of a record; what does not fit says that the file is no copy."""
        for kind, table, rowid, columns, values in json.loads(payload, object_hook=_decoded):
            if kind == "schema":
                self.db.execute(table)
                continue
            name = _quoted(table)
            if kind == "delete":
                done = self.db.execute(f"DELETE FROM {name} WHERE rowid = ?", (rowid,))
            elif kind == "update":
                sets = ", ".join(f"{_quoted(column)} = ?" for column in columns)
                query = f"UPDATE {name} SET rowid = ?, {sets} WHERE rowid = ?"
                done = self.db.execute(query, (values[0], *values[1:], rowid))
            else:
                names = ", ".join(map(_quoted, columns))
                marks = ", ".join("?" * len(values))
                query = f"INSERT INTO {name} (rowid, {names}) VALUES ({marks})"
                done = self.db.execute(query, values)
            if done.rowcount != 1:
                raise RuntimeError(f"{kind} of row {rowid} of {table} found {done.rowcount} rows")

    async def follow(self, stream: Stream, *, tail: bool) -> None:
        """Apply what the stream has, each record in one transaction with its position."""
        # With the sequence id, a file that lacks what was truncated away is told so.
        async with stream.reader(
            self.position or "earliest", tail=tail, next_sequence_id=self.next_sequence_id
        ) as reader:
            async for record in reader:
                with self.transaction():
                    self.apply(record.payload)
                    self.remember(record.position, record.sequence_id)
                self.position = record.position.next
                self.next_sequence_id = record.sequence_id + 1

    # What the writer's file does beside ----------------------------------------------------

    def tables(self) -> dict[str, list[str]]:
        """Return the columns of each table; generated ones are not among them."""
        query = "SELECT name FROM main.sqlite_schema WHERE type = 'table'"
        names = [name for (name,) in self.db.execute(query)]
        return {
            name: [row[1] for row in self.db.execute(f"PRAGMA main.table_info({_quoted(name)})")]
            for name in names
            if not name.startswith(("sqlite_", "quorumbook_"))
        }

    def watch(self) -> None:
        """Have this connection record the changes of rows, in the order in which they happen."""
        for (name,) in self.db.execute(
            "SELECT name FROM temp.sqlite_schema WHERE type = 'trigger'"
        ).fetchall():
            self.db.execute(f"DROP TRIGGER temp.{_quoted(name)}")
        self.db.execute("DROP TABLE IF EXISTS temp.changes")
        tables = self.tables()
        width = max(map(len, tables.values()), default=0) + 1
        values = "".join(f", v{number}" for number in range(width))
        self.db.execute(f"CREATE TEMP TABLE changes (kind, name, row{values})")
        for table, columns in tables.items():
            new = ["new.rowid", *(f"new.{_quoted(column)}" for column in columns)]
            for kind, row, kept in (
                ("insert", "new", new),
                ("update", "old", new),
                ("delete", "old", []),
            ):
                targets = "".join(f", v{number}" for number in range(len(kept)))
                sources = "".join(f", {value}" for value in kept)
                self.db.execute(
                    f"CREATE TEMP TRIGGER {_quoted(f'{kind} {table}')} AFTER {kind} "
                    f"ON main.{_quoted(table)} BEGIN INSERT INTO changes (kind, name, row{targets})"
                    f" VALUES ('{kind}', {_literal(table)}, {row}.rowid{sources}); END"
                )

    def taken_changes(self) -> list[Any]:
        """Return what was recorded, and forget it."""
        tables = self.tables()
        found = []
        for kind, table, row, *values in self.db.execute("SELECT * FROM changes ORDER BY rowid"):
            columns = [] if kind == "delete" else tables[table]
            count = len(columns) + 1 if columns else 0
            found.append((kind, table, row, columns, [_encoded(v) for v in values[:count]]))
        self.db.execute("DELETE FROM changes")
        return found

    def schema_version(self) -> int:
        """Return a number that every change of the schema changes."""
        return int(self.db.execute("PRAGMA schema_version").fetchone()[0])


class Database:
    """The one that writes; ``execute`` returns when the statement's changes are safe."""

    def __init__(self, stream: Stream, copy: Copy) -> None:
        self._stream = stream
        self._copy = copy

    async def open(self) -> None:
        """Shut out whoever wrote before, and take over what it has appended."""
        # The fence comes first: from here on nobody else appends.
        self._writer = await self._stream.writer(takeover="force")
        await self._copy.follow(self._stream, tail=False)
        self._copy.watch()

    async def close(self) -> None:
        """Write no more."""
        await self._writer.close()

    async def execute(self, sql: str) -> int:
        """Carry one statement out as a transaction; return its record's sequence id."""
        copy = self._copy
        version = copy.schema_version()
        with copy.transaction():
            copy.db.execute(sql)
            is_schema = copy.schema_version() != version
            changes = copy.taken_changes()
            if is_schema and changes:
                raise sqlite3.OperationalError("a statement changes the schema or rows, not both")
            if is_schema:
                changes = [("schema", sql, 0, [], [])]
            where = await self._writer.append(json.dumps(changes).encode())
            assert where.position is not None
            copy.remember(where.position, where.sequence_id)
        if is_schema:
            copy.watch()
        return where.sequence_id


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _encoded(value: Any) -> Any:
    """JSON has no bytes; numbers and texts come back as they were, infinity too."""
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _decoded(value: dict[str, Any]) -> bytes:
    return base64.b64decode(value["bytes"])


# The commands --------------------------------------------------------------------------------


async def write(uri: str, path: str) -> None:
    """Carry out what standard input says; print how many transactions there are by now."""
    async with Namespace.open(uri, bind=True) as ns:
        await ns.create_stream(STREAM, exist_ok=True)
        copy = Copy(path)
        database = Database(ns.stream(STREAM), copy)
        await database.open()
        print("writing", copy.next_sequence_id, flush=True)
        while sql := (await asyncio.to_thread(sys.stdin.readline)).strip():
            try:
                print("committed", await database.execute(sql), flush=True)
            except sqlite3.Error as error:  # nothing was appended, and nothing is committed
                print("refused", error, flush=True)
        await database.close()


async def follow(uri: str, path: str) -> None:
    """Keep a replica up to date until the process is stopped."""
    async with Namespace.open(uri, bind=True) as ns:
        await ns.create_stream(STREAM, exist_ok=True)
        await Copy(path).follow(ns.stream(STREAM), tail=True)


def digest(path: str) -> tuple[int, str]:
    """Return how many records a file has seen, and a digest of all else that is in it."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        # A replica that was killed at once has not come to making it.
        made = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'quorumbook_state'").fetchone()
        row = made and db.execute("SELECT sequence_id FROM quorumbook_state").fetchone()
        lines = "\n".join(line for line in db.iterdump() if "quorumbook_state" not in line)
        return (row[0] if row else 0), hashlib.sha256(lines.encode()).hexdigest()


# The demo ------------------------------------------------------------------------------------


def statements(count: int) -> list[str]:
    """Return a day of a bank: accounts, transfers, strange values, a change of the schema."""
    dice = random.Random(7)
    made = [
        "CREATE TABLE account (id INTEGER PRIMARY KEY, name TEXT UNIQUE, cents INTEGER)",
        "CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, token, at TEXT)",
    ]
    made += [f"INSERT INTO account VALUES ({n}, 'name-{n}', 1000)" for n in range(20)]
    for number in range(count - len(made)):
        one, other = dice.sample(range(20), 2)
        made.append(
            dice.choice(
                [
                    f"UPDATE account SET cents = cents + CASE id WHEN {one} THEN 1 ELSE -1 END "
                    f"WHERE id IN ({one}, {other})",
                    "INSERT INTO log (token, at) VALUES (randomblob(8), datetime('now'))",
                    "INSERT INTO log (token, at) VALUES (random() / 3e300, NULL)",
                    f"REPLACE INTO account (id, name, cents) VALUES ({one}, 'name-{one}', "
                    f"(SELECT cents FROM account WHERE id = {one}))",
                    f"DELETE FROM log WHERE id % 7 = {number % 7}",
                ]
            )
        )
    made[count // 2] = "ALTER TABLE account ADD COLUMN note TEXT DEFAULT 'it''s new'"
    return made


def demo(uri: str, directory: str, count: int, stack: contextlib.ExitStack) -> None:
    """Write, kill everybody several times, and compare."""
    files = [os.path.join(directory, name) for name in ("writer.db", "one.db", "two.db")]
    replicas = [Process(__file__, "follow", uri, file) for file in files[1:]]
    writer = Process(__file__, "write", uri, files[0])
    for process in *replicas, writer:
        stack.callback(process.kill)
    todo = statements(count)
    kills = 0
    due = {count // 3 - 1, 2 * count // 3 - 1, count - 1}
    done = int(writer.hear().split()[1])
    while done < count:
        writer.say(todo[done])
        if done in due:  # the writer is killed with a transaction on its way
            due.remove(done)
            replica = replicas[len(due) % 2]
            replica.kill()
            writer.kill()
            kills += 2
            writer.start()
            done = int(writer.hear().split()[1])
            replica.start()
            continue
        word, number = writer.hear().split()[:2]
        assert (word, number) == ("committed", str(done)), (word, number, done)
        done += 1
    writer.say("")
    writer.end()
    expected = digest(files[0])
    while any(digest(file)[0] < expected[0] for file in files[1:]):
        if any(replica.process.poll() is not None for replica in replicas):
            raise SystemExit("a replica ended")
        time.sleep(0.05)
    for replica in replicas:
        replica.kill()
    found = [digest(file) for file in files]
    for file, (seen, sha256) in zip(files, found, strict=True):
        print(f"{os.path.basename(file):<10} {seen} transactions, {sha256[:16]}")
    with contextlib.closing(sqlite3.connect(files[2])) as db:
        (cents,) = db.execute("SELECT sum(cents) FROM account").fetchone()
    if set(found) != {(count, expected[1])} or cents != 20_000:
        raise SystemExit("the copies differ")
    print(f"all copies are identical after {kills} kills with SIGKILL")


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in "write", "follow":
        command = commands.add_parser(name)
        command.add_argument("uri")
        command.add_argument("file")
    command = commands.add_parser("demo")
    command.add_argument("--metadata", help="of a running cluster; without it one is started")
    command.add_argument("--transactions", type=int, default=400)
    options = parser.parse_args()
    if options.command == "demo":
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            uri = options.metadata or stack.enter_context(LocalCluster(bookies=3)).metadata_uri
            demo(uri, directory, options.transactions, stack)
        return
    run = write if options.command == "write" else follow
    try:
        asyncio.run(run(options.uri, options.file))
    except StreamError as error:  # another one writes now, say
        raise SystemExit(f"sqlite_replication: {error}") from error


if __name__ == "__main__":
    main()
