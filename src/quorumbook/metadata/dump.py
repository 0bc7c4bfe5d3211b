"""The file that a cluster's metadata is dumped to, version 1: JSON, one object in each line.

    {"format": "quorumbook metadata", "version": 1, "layout": <text of LAYOUT>,
     "instance_id": <text of INSTANCEID>, "is_online": <bool>}
    {"path": "cookies/b:1", "data": <base64>, "ctime_ms": <int>}      one line for each node
    ...
    {"nodes": <count of the lines above>, "ids": {"short": .., "high_bits": .., "low": ..}}
    {"sha256": <hex digest of all lines before this one, line ends included>}

Paths are relative to the ledgers root, which itself is "".  A parent comes before its children,
siblings are sorted by name.  LAYOUT and INSTANCEID stand in the first line, the id generators as
``ids.IdCounters`` in the last but one, and ephemeral nodes nowhere.  ``is_online``: the cluster
was in use meanwhile, so nodes may be missing and ids beyond the counters may have been given.

The whole file is checked before anything of it is used.  The checksum is against damage, not
against forgery: whoever can write the file can write what is restored.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple, Protocol

from quorumbook.errors import LocalProtocolError, MetadataFormatError
from quorumbook.metadata.cluster import Layout
from quorumbook.metadata.ids import IdCounters
from quorumbook.metadata.paths import is_kept_apart
from quorumbook.metadata.store import check_data, check_path

FORMAT = "quorumbook metadata"
VERSION = 1
#: Longer than any line: the largest value of a node in base64, its path, and some words.
_LINE_SIZE_MAX_BYTES = 2 << 20


class DumpedNode(NamedTuple):
    """One persistent node."""

    #: Below the ledgers root, which itself is "".
    path: str
    data: bytes
    #: When it was created; a store gives its nodes a time of its own.
    ctime_ms: int


class DumpHeader(NamedTuple):
    """What a cluster is, beside its nodes."""

    layout: bytes
    instance_id: bytes
    #: Whether the cluster was in use while it was read.
    is_online: bool


class DumpTarget(Protocol):
    """Where a dump goes."""

    def write(self, data: bytes, /) -> object:
        """Take some bytes."""
        ...


class DumpSource(Protocol):
    """Where a dump comes from; a binary file."""

    def readline(self, size: int, /) -> bytes:
        """Return a line with its end."""
        ...

    def seek(self, offset: int, /) -> object:
        """Go back."""
        ...


class DumpWriter:
    """Writes a dump line by line."""

    def __init__(self, file: DumpTarget, header: DumpHeader) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._nodes = 0
        try:
            texts = {"layout": header.layout.decode(), "instance_id": header.instance_id.decode()}
        except UnicodeDecodeError as error:
            raise MetadataFormatError("LAYOUT or INSTANCEID is not text") from error
        self._line({"format": FORMAT, "version": VERSION, **texts, "is_online": header.is_online})

    def add(self, record: DumpedNode) -> None:
        """Write one node."""
        self._nodes += 1
        data = base64.b64encode(record.data).decode()
        self._line({"path": record.path, "data": data, "ctime_ms": record.ctime_ms})

    def end(self, counters: IdCounters) -> None:
        """Write the last two lines."""
        self._line({"nodes": self._nodes, "ids": asdict(counters)})
        self._line({"sha256": self._sha256.hexdigest()})

    def _line(self, values: dict[str, Any]) -> None:
        line = json.dumps(values, ensure_ascii=False).encode() + b"\n"
        self._sha256.update(line)
        self._file.write(line)


class DumpReader:
    """A dump that was checked from its first to its last byte.

    Raises:
        MetadataFormatError: it is damaged, cut off, of a newer release or no dump at all.
    """

    def __init__(self, file: DumpSource, name: str) -> None:
        self._file = file
        self._name = name
        self.nodes = 0
        self._has_end = False
        for _ in self._read():
            self.nodes += 1
        self._checksum = self._sha256.digest()

    async def records(self) -> AsyncIterator[DumpedNode]:
        """Yield the nodes, once more; at the end the file must still be the one checked."""
        for record in self._read():
            yield record
        if self._sha256.digest() != self._checksum:
            raise self._damaged("it changed while it was read")

    async def finish(self) -> IdCounters:
        """Return how far the id generators had come."""
        return self.counters

    def _read(self) -> Iterator[DumpedNode]:
        """Yield all nodes; what stands before and behind them goes into attributes."""
        self._sha256 = hashlib.sha256()
        self._number = 0
        self._file.seek(0)
        self.header = self._header(self._line())
        order = _WalkOrder()
        count = 0
        while "path" in (values := self._line()):
            count += 1
            yield self._record(values, order)
        try:
            self.counters = IdCounters(**values["ids"]).checked()
            expected = values["nodes"]
        except (KeyError, TypeError, LocalProtocolError) as error:
            raise self._damaged("its last line but one is incomplete") from error
        if expected != count:
            raise self._damaged(f"it announces {expected} nodes and has {count}")
        digest = self._sha256.hexdigest()
        if self._line().get("sha256") != digest:
            raise self._damaged("its checksum is wrong")
        if self._file.readline(1):
            raise self._damaged("something follows its end")

    def _line(self) -> dict[str, Any]:
        self._number += 1
        line = self._file.readline(_LINE_SIZE_MAX_BYTES)
        if not line.endswith(b"\n"):
            raise self._damaged("it is cut off" if len(line) < _LINE_SIZE_MAX_BYTES else "too long")
        self._sha256.update(line)
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise self._damaged("it is not a JSON object")
        return values

    def _header(self, values: dict[str, Any]) -> DumpHeader:
        if values.get("format") != FORMAT:
            raise self._damaged("it is not a dump of metadata")
        if values.get("version") != VERSION:
            raise MetadataFormatError(
                f"{self._name} was written by a newer release (format {values.get('version')!r}, "
                f"this release knows {VERSION})"
            )
        texts = (values.get("layout"), values.get("instance_id"))
        if not all(isinstance(text, str) for text in texts) or not isinstance(
            values.get("is_online"), bool
        ):
            raise self._damaged("it is incomplete")
        try:
            layout, instance_id = (str(text).encode() for text in texts)
        except UnicodeEncodeError as error:
            raise self._damaged("it is not text") from error
        Layout.decode(layout)
        return DumpHeader(layout, instance_id, values["is_online"])

    def _record(self, values: dict[str, Any], order: _WalkOrder) -> DumpedNode:
        try:
            path, ctime_ms = values["path"], values["ctime_ms"]
            data = base64.b64decode(values["data"], validate=True)
            check_path(f"/{path}")
            check_data(path, data)
            path.encode()
        except (AttributeError, KeyError, TypeError, ValueError, LocalProtocolError) as error:
            raise self._damaged("it describes no node") from error
        if not isinstance(ctime_ms, int) or not order.accepts(path) or is_kept_apart(path):
            raise self._damaged(f"node {path!r} is not to be here")
        return DumpedNode(path, data, ctime_ms)

    def _damaged(self, why: str) -> MetadataFormatError:
        return MetadataFormatError(f"{self._name} is damaged at line {self._number}: {why}")


class _WalkOrder:
    """Tells whether paths come in the order of a walk: every parent first, siblings sorted."""

    def __init__(self) -> None:
        self._last: list[str] | None = None

    def accepts(self, path: str) -> bool:
        """Take the next path and tell whether it may follow."""
        names = path.split("/") if path else []
        last, self._last = self._last, names
        if last is None:
            return not names
        return names > last and names[:-1] == last[: len(names) - 1]
