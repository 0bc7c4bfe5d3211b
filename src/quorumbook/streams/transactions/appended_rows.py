"""What one part of a batch appends at once, so that a part that is run again is known; pure.

    {"d": false, "s": {"eu/orders": [1000, "<digest>", 2000, "<digest>"]}, "v": 1}

Rows that are appended as they come are told from those that are there by their numbers alone, which
holds only if the same rows come again in the same order.  So before rows are appended, it is taken
down how many there are then, and a digest of all of them; ``d`` says that there are no more.  Of
each stream the last two such marks are kept: all rows before the first are stored, those between
the two perhaps.  Whoever runs the part again compares at both before it appends what may be new.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from quorumbook.errors import MetadataFormatError
from quorumbook.streams.errors import RowsDifferError
from quorumbook.streams.format.attributes import Attributes

_VERSION = 1
_ROW = struct.Struct("<qqq")
_DIGEST_BYTES = 12


class StreamRows(NamedTuple):
    """Rows of one stream, in order."""

    payloads: Sequence[bytes]
    txids: Sequence[int] | None = None
    attributes: Sequence[Attributes | None] | None = None

    def part(self, first: int, behind: int) -> StreamRows:
        """Return those from one place to another."""
        return StreamRows(
            self.payloads[first:behind],
            self.txids and self.txids[first:behind],
            self.attributes and self.attributes[first:behind],
        )


@dataclass(frozen=True, slots=True)
class RowsMark:
    """So many rows of a stream, and the digest of all of them."""

    count: int = 0
    digest: str = ""


class _Digest:
    """The digest of a stream's rows so far: the same however they come in pieces."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self.count = 0

    def add(self, rows: StreamRows) -> None:
        parts = []
        for place, payload in enumerate(rows.payloads):
            carried = rows.attributes[place] if rows.attributes else None
            extra = b"" if carried is None else carried.encode()
            txid = rows.txids[place] if rows.txids else -1
            parts += [_ROW.pack(len(payload), txid, len(extra)), extra, payload]
        self._hash.update(b"".join(parts))
        self.count += len(rows.payloads)

    def mark(self) -> RowsMark:
        return RowsMark(self.count, self._hash.hexdigest())


class AppendedRows:
    """One attempt's rows, held against what earlier attempts took down."""

    def __init__(self, stored: bytes | None, what: str) -> None:
        """Read what earlier attempts at the part took down.

        Args:
            stored: It; None: nobody did.
            what: The part, for messages.

        Raises:
            MetadataFormatError: it is none of ours.
        """
        self._what = what
        self._marks: dict[str, tuple[RowsMark, RowsMark]] = {}
        self._digests: dict[str, _Digest] = {}
        #: Rows between the two marks of their stream, which are compared before they are appended.
        self._held: dict[str, list[StreamRows]] = {}
        #: Whether earlier attempts have appended all.
        self.is_done = False
        if stored is not None:
            self._decode(stored)

    def count(self, stream: str) -> int:
        """Return how many rows of a stream came so far."""
        return self._digests[stream].count if stream in self._digests else 0

    def room(self, stream: str) -> int:
        """Return how many rows ``known`` takes at most; 0: what comes is new to everybody."""
        count = self.count(stream)
        for mark in self._marks.get(stream, ()):
            if count < mark.count:
                return mark.count - count
        return 0

    def known(self, stream: str, rows: StreamRows) -> list[StreamRows]:
        """Take rows that an earlier attempt took down; return what to append now.

        What is stored already is passed over by its numbers; what may be is here once it is known
        to be the same.

        Raises:
            RowsDifferError: the earlier attempt had others.
        """
        begin, end = self._marks[stream]
        digest = self._digests.setdefault(stream, _Digest())
        is_stored = digest.count < begin.count
        digest.add(rows)
        held = self._held.setdefault(stream, [])
        held.append(rows)
        for mark in begin, end:
            if digest.count == mark.count and digest.mark() != mark:
                raise self._differ(f"rows of {stream} before row {mark.count}")
        if not is_stored and digest.count < end.count:
            return []
        ready = self._held.pop(stream)
        return [] if self.is_done else ready

    def new(self, stream: str, rows: StreamRows) -> bytes:
        """Take rows that nobody took down; return what to take down before they are appended.

        Raises:
            RowsDifferError: earlier attempts had no more.
        """
        if self.is_done:
            raise self._differ(f"there is a row {self.count(stream) + 1} of {stream}")
        digest = self._digests.setdefault(stream, _Digest())
        _, stored = self._marks.get(stream, (RowsMark(), RowsMark()))
        digest.add(rows)
        self._marks[stream] = stored, digest.mark()
        return self._encode()

    def end(self) -> bytes | None:
        """Return what to take down when all rows are stored; None: somebody has.

        Raises:
            RowsDifferError: earlier attempts had more.
        """
        for stream, (_, mark) in self._marks.items():
            if self.count(stream) < mark.count:
                raise self._differ(
                    f"there are {self.count(stream)} rows of {stream}, not {mark.count} or more"
                )
        if self.is_done:
            return None
        self.is_done = True
        return self._encode()

    def _differ(self, how: str) -> RowsDifferError:
        return RowsDifferError(
            f"{self._what} has other rows than an attempt before, which has appended some: {how}. "
            "delivery=append takes frames that are the same when they are computed again: no rows "
            "in the order of a shuffle, no rand() or uuid(). delivery=transaction takes any frame; "
            "if this query goes on with it, rows of this batch that were appended are there twice"
        )

    def _encode(self) -> bytes:
        marks = {
            name: [first.count, first.digest, second.count, second.digest]
            for name, (first, second) in sorted(self._marks.items())
        }
        found = {"d": self.is_done, "s": marks, "v": _VERSION}
        return json.dumps(found, separators=(",", ":")).encode()

    def _decode(self, stored: bytes) -> None:
        try:
            found: dict[str, Any] = json.loads(stored)
            if found["v"] != _VERSION:
                raise MetadataFormatError(f"{self._what}: written by a newer release")
            self.is_done = bool(found["d"])
            for stream, (count, digest, next_count, next_digest) in found["s"].items():
                marks = (
                    RowsMark(int(count), str(digest)),
                    RowsMark(int(next_count), str(next_digest)),
                )
                self._marks[stream] = marks
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MetadataFormatError(f"{self._what}: {stored[:100]!r} are not marks") from error
