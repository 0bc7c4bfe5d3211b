"""``lake-changes``: what changed in a table of a lake, as records of a stream, each change once.

A row's key is the record's; a row that is gone is a record without a payload.  Which version the
stream has got stands in an application of the stream's namespace, whose batches are versions: the
records of a version and that it is done appear in one step.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import uuid
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from quorumbook.client.context import client_store
from quorumbook.errors import ConfigError
from quorumbook.spark.jobs.change_options import LakeChangesOptions
from quorumbook.spark.jobs.streams import stream_name
from quorumbook.spark.lake.versions import TableVersions
from quorumbook.spark.pool import ClusterClient
from quorumbook.streams.errors import DataLossError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.partitions.partition_node import partition_count
from quorumbook.streams.partitions.partitioning import partition_name, partition_of
from quorumbook.streams.transactions import (
    Application,
    CommitOptions,
    DraftOptions,
    Identity,
    Place,
)

#: So many records are handed on at a time.
_ROWS = 1000
_QUERY = "lake-changes"


class LakeChanges:
    """The job, on the driver; it needs no Spark.

    Args:
        cluster: Of the stream.
        table: The table.
        options: What the job was told.
    """

    def __init__(
        self, cluster: ClusterClient, table: TableVersions, options: LakeChangesOptions
    ) -> None:
        self._cluster = cluster
        self._table = table
        self._options = options
        self._stream = stream_name("--to", options.target)
        name = f"{_QUERY}-{hashlib.sha256(options.table.encode()).hexdigest()[:16]}"
        place = Place(cluster.client, cluster.namespace())
        who = Identity(f"{_QUERY}/{self._stream}", str(uuid.uuid4()))
        self._application = Application(place, f"{name}-{self._stream}", who)
        #: Versions that were copied to, and records that came of them.
        self.versions = self.upserts = self.deletions = 0

    def step(self) -> bool:
        """Append what changed since the last time; False: nothing did.

        Raises:
            DataLossError: the version that was copied last, or a file of it, is gone.
            ConfigError: a column is missing, or a key is there twice.
            StreamNotFoundError: there is no such stream.
        """
        newest = self._table.newest()
        self._cluster.run(self._application.prepare)
        last = self._cluster.run(self._application.head).batch
        if newest is None or newest <= last:
            return False
        changes = self._changes(last, newest)
        self._cluster.run(lambda: self._write(newest, changes))
        self.versions += 1
        deletions = sum(not payload for _, payload in changes)
        self.deletions += deletions
        self.upserts += len(changes) - deletions
        return True

    def _changes(self, last: int, newest: int) -> list[tuple[bytes, bytes]]:
        """Return key and payload of each row that changed, in the order of the keys."""
        try:
            before = self._table.files(last) if last >= 0 else {}
            after = self._table.files(newest)  # last: rows are read by its columns
            old = self._by_key([before[key] for key in before if key not in after])
        except DataLossError as error:
            if not self._options.allows_loss:
                raise DataLossError(
                    f"{error}; --allow-data-loss goes on with all rows of the newest version"
                ) from error
            before, old, after = {}, {}, self._table.files(newest)
        new = self._by_key([after[key] for key in after if key not in before])
        found = {key: payload for key, payload in new.items() if old.get(key) != payload}
        return sorted((found | {key: b"" for key in old if key not in new}).items())

    def _by_key(self, files: list[Any]) -> dict[bytes, bytes]:
        table = self._table.rows(files)
        if table is None:
            return {}
        options = self._options
        for name in filter(None, (options.key, options.value)):
            if name not in table.column_names:
                raise ConfigError(f"the table has no column {name}")
        found: dict[bytes, bytes] = {}
        for key, payload in rows_of(table, options.key, options.value):
            if key in found:
                raise ConfigError(
                    f"two rows have the key {key!r}: --key has to be a column whose values are "
                    "there once"
                )
            found[key] = payload
        return found

    async def _by_stream(
        self, changes: list[tuple[bytes, bytes]]
    ) -> dict[str, list[tuple[bytes, bytes]]]:
        """Return changes by the stream, or by the partition that has their keys."""
        count = await partition_count(await self._cluster.opened_namespace(), self._stream)
        if count is None:
            return {self._stream: changes}
        found: dict[str, list[tuple[bytes, bytes]]] = {}
        for key, payload in changes:
            name = partition_name(self._stream, partition_of(key, count))
            found.setdefault(name, []).append((key, payload))
        return found

    async def _write(self, version: int, changes: list[tuple[bytes, bytes]]) -> None:
        app = self._application
        drafts = DraftOptions(creates_streams=self._options.creates_stream)
        now_ms = client_store(self._cluster.client).env.clock.wall_ms()
        attempt = app.attempt(version, 0, 0, drafts, now_ms)
        try:
            for stream, rows in (await self._by_stream(changes)).items():
                for first in range(0, len(rows), _ROWS):
                    some = rows[first : first + _ROWS]
                    payloads = [payload for _, payload in some]
                    attributes = [Attributes(key=key) for key, _ in some]
                    await attempt.append(stream, payloads, None, attributes)
            await app.commit(version, [await attempt.finish()], CommitOptions(), drafts)
        finally:
            await attempt.give_up()


def rows_of(table: pa.Table, key: str, value: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and payload of the rows that have a key.

    Args:
        table: The rows.
        key: The column of the key.
        value: That of the payload; empty: all columns, as an object of JSON.
    """
    for row in table.to_pylist():
        if row[key] is not None:
            yield _bytes(row[key]), _bytes(row[value]) if value else _json(row)


def _bytes(value: Any) -> bytes:
    if value is None:
        return b"null"
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else _json(value)


def _json(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value).encode()
    except ValueError:  # not a number, or infinite, of which JSON has none
        return _ENCODER.encode(_finite(value)).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | uuid.UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_ENCODER = json.JSONEncoder(
    default=_plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
