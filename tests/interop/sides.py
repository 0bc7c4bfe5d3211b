"""Two sides with one face: the peer's client and ours, so that a test is written once for both.

A ledger is written and read through the same calls whichever side has it open, and both sides'
errors carry the peer's number as ``code``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Protocol

import quorumbook
from interop.peer_driver import Peer, PeerError, Seen, payload, seen
from quorumbook.client.client import BookKeeper
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.errors import QuorumbookError
from quorumbook.ledger.metadata import LedgerState
from quorumbook.protocol.digest import DigestType

PASSWORD = "a password with ümlauts"
SIDES = ("java-v2", "java-v3", "own")
#: Whose bookies a cluster has.
BOOKIES = ("own", "java", "mixed")


def has_ours(writer: str, bookies: str, reader: str) -> bool:
    """Say whether a combination is more than the peer among itself."""
    return "own" in (writer, reader) or bookies != "java"


#: Writer, bookies, reader.
TRIPLES = [each for each in product(SIDES, BOOKIES, SIDES) if has_ours(*each)]


@dataclass(frozen=True)
class Shape:
    """What a ledger is created with."""

    ensemble: int = 3
    write: int = 3
    ack: int = 2
    digest: DigestType = DigestType.CRC32C
    password: str = PASSWORD
    custom: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"E{self.ensemble}Qw{self.write}Qa{self.ack}-{self.digest.name}"


@dataclass(frozen=True)
class Known:
    """What the metadata store says of a ledger, as a side reads it."""

    state: str
    digest: DigestType
    quorums: tuple[int, int, int]
    last_entry: int
    length: int
    custom: dict[str, str]
    ensembles: dict[int, list[str]]


class Ledger(Protocol):
    """A ledger that a side has open."""

    id: int

    async def append(
        self, seed: str, sizes: Sequence[int], entry_ids: Sequence[int] | None = None
    ) -> None: ...
    async def force(self) -> None: ...
    async def read(self, first: int, last: int) -> list[Seen]: ...
    async def read_unconfirmed(self, first: int, last: int) -> list[Seen]: ...
    async def batch_read(self, first: int, count: int, size_bytes: int) -> list[Seen]: ...
    async def read_last_entry(self) -> Seen: ...
    async def read_last_add_confirmed(self) -> int: ...
    async def state(self) -> tuple[int, int]: ...
    async def close(self) -> None: ...


class Side(Protocol):
    """A client."""

    name: str

    async def create(
        self,
        shape: Shape,
        *,
        adv: bool = False,
        deferred_sync: bool = False,
        ledger_id: int | None = None,
    ) -> Ledger: ...
    async def open(self, ledger_id: int, shape: Shape, *, recover: bool = True) -> Ledger: ...
    async def delete(self, ledger_id: int) -> None: ...
    async def list(self) -> list[int]: ...
    async def metadata(self, ledger_id: int) -> Known: ...
    async def bookies(self) -> tuple[set[str], set[str]]: ...
    async def close(self) -> None: ...


class JavaLedger:
    """A ledger that the peer's client has open."""

    def __init__(self, peer: Peer, opened: dict[str, Any]) -> None:
        self.peer = peer
        self.handle: int = opened["handle"]
        self.id: int = opened["ledger"]
        self._next = 0

    async def append(
        self, seed: str, sizes: Sequence[int], entry_ids: Sequence[int] | None = None
    ) -> None:
        await self.call(
            "append", seed=seed, sizes=list(sizes), entry_ids=entry_ids, first_index=self._next
        )
        self._next += len(sizes)

    async def read(self, first: int, last: int) -> list[Seen]:
        return await self.entries("read", first=first, last=last)

    async def read_unconfirmed(self, first: int, last: int) -> list[Seen]:
        return await self.entries("read_unconfirmed", first=first, last=last)

    async def batch_read(self, first: int, count: int, size_bytes: int) -> list[Seen]:
        return await self.entries(
            "batch_read", first=first, max_count=count, max_size_bytes=size_bytes
        )

    async def read_last_entry(self) -> Seen:
        (last,) = await self.entries("read_last")
        return last

    async def read_last_add_confirmed(self, way: str = "read") -> int:
        lac: int = (await self.call("read_lac", way=way))["last_add_confirmed"]
        return lac

    async def force(self) -> None:
        await self.call("force")

    async def state(self) -> tuple[int, int]:
        """Return last add confirmed and length as the handle knows them."""
        state = await self.call("state")
        return state["last_add_confirmed"], state["length"]

    async def close(self) -> None:
        await self.call("close")

    async def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        return await self.peer.call(op, handle=self.handle, **arguments)

    async def entries(self, op: str, **arguments: Any) -> list[Seen]:
        return seen_by_java(await self.call(op, **arguments))


def seen_by_java(answer: dict[str, Any]) -> list[Seen]:
    """Return the entries of an answer."""
    return [(entry_id, size, digest) for entry_id, size, digest in answer["entries"]]


class JavaSide:
    """The peer's client; made by ``open_java``."""

    def __init__(self, peer: Peer, name: str, client: int) -> None:
        self.peer = peer
        self.name = name
        self.client = client

    @classmethod
    async def connect(cls, peer: Peer, uri: str, *, v2: bool = False, **conf: Any) -> JavaSide:
        # Its 5 s are over on a disk that is just busy, and then it gives a bookie up for good.
        options = {"useV2WireProtocol": v2, "addEntryTimeoutSec": 60, **conf}
        words = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in options.items()
        }
        opened = await peer.call("client", uri=uri, conf=words)
        return cls(peer, "java-v2" if v2 else "java-v3", opened["client"])

    async def create(
        self,
        shape: Shape,
        *,
        adv: bool = False,
        deferred_sync: bool = False,
        ledger_id: int | None = None,
    ) -> JavaLedger:
        return JavaLedger(
            self.peer,
            await self.call(
                "create",
                ensemble=shape.ensemble,
                write=shape.write,
                ack=shape.ack,
                digest=_java_digest(shape.digest),
                password=shape.password,
                custom=shape.custom,
                adv=adv,
                deferred_sync=deferred_sync,
                ledger=ledger_id,
            ),
        )

    async def open(self, ledger_id: int, shape: Shape, *, recover: bool = True) -> JavaLedger:
        return JavaLedger(
            self.peer,
            await self.call(
                "open",
                ledger=ledger_id,
                digest=_java_digest(shape.digest),
                password=shape.password,
                recover=recover,
            ),
        )

    async def delete(self, ledger_id: int) -> None:
        await self.call("delete", ledger=ledger_id)

    async def list(self) -> list[int]:
        ids: list[int] = (await self.call("list"))["ledgers"]
        return ids

    async def metadata(self, ledger_id: int) -> Known:
        found = await self.call("metadata", ledger=ledger_id)
        return Known(
            state=found["state"],
            digest=DigestType[found["digest"].replace("MAC", "HMAC")],
            quorums=(found["ensemble"], found["write"], found["ack"]),
            last_entry=found["last_entry"],
            length=found["length"],
            custom=found["custom"],
            ensembles={int(first): members for first, members in found["ensembles"].items()},
        )

    async def bookies(self) -> tuple[set[str], set[str]]:
        found = await self.call("bookies")
        return set(found["writable"]), set(found["readonly"])

    async def close(self) -> None:
        await self.call("close_client")

    async def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        return await self.peer.call(op, client=self.client, **arguments)


def _java_digest(digest: DigestType) -> str:
    return "MAC" if digest is DigestType.HMAC else digest.name


class OwnLedger:
    """A ledger that our client has open: its writer, or a reader of it."""

    def __init__(self, bk: BookKeeper, shape: Shape, writer: LedgerWriter | LedgerReader) -> None:
        self._bk = bk
        self._shape = shape
        self.handle = writer
        self.id = writer.id
        self._reader: LedgerReader | None = writer if isinstance(writer, LedgerReader) else None

    @property
    def writer(self) -> LedgerWriter:
        assert isinstance(self.handle, LedgerWriter)
        return self.handle

    async def reader(self) -> LedgerReader:
        if self._reader is None:
            self._reader = await self._bk.open_ledger(
                self.id, password=self._shape.password.encode(), recover=False
            )
        return self._reader

    async def append(
        self, seed: str, sizes: Sequence[int], entry_ids: Sequence[int] | None = None
    ) -> None:
        writer = self.writer
        if entry_ids is not None:
            futures = [
                writer.append_at_nowait(entry_id, payload(seed, entry_id, size))
                for entry_id, size in zip(entry_ids, sizes, strict=True)
            ]
        else:
            first = writer.last_add_pushed + 1
            futures = [
                writer.append_nowait(payload(seed, first + i, size)) for i, size in enumerate(sizes)
            ]
        await asyncio.gather(*futures)

    async def force(self) -> None:
        await self.writer.force()

    async def read(self, first: int, last: int) -> list[Seen]:
        reader = await self.reader()
        return [seen(entry.entry_id, entry.payload) async for entry in reader.read(first, last)]

    async def read_unconfirmed(self, first: int, last: int) -> list[Seen]:
        entries = (await self.reader()).read_unconfirmed(first, last)
        return [seen(entry.entry_id, entry.payload) async for entry in entries]

    async def batch_read(self, first: int, count: int, size_bytes: int) -> list[Seen]:
        reader = await self.reader()
        batch = await reader.read_batch(first, max_count=count, max_size_bytes=size_bytes)
        return [seen(entry.entry_id, entry.payload) for entry in batch]

    async def read_last_entry(self) -> Seen:
        entry = await (await self.reader()).read_last_entry()
        return seen(entry.entry_id, entry.payload)

    async def read_last_add_confirmed(self) -> int:
        return await (await self.reader()).read_last_add_confirmed()

    async def state(self) -> tuple[int, int]:
        """Return last add confirmed and length as the handle knows them."""
        return self.handle.last_add_confirmed, self.handle.length

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
        await self.handle.close()


class OwnSide:
    """Our client."""

    name = "own"

    def __init__(self, bk: BookKeeper) -> None:
        self.bk = bk

    @classmethod
    async def connect(cls, uri: str, **options: Any) -> OwnSide:
        return cls(await quorumbook.connect(uri, **options))

    async def create(
        self,
        shape: Shape,
        *,
        adv: bool = False,
        deferred_sync: bool = False,
        ledger_id: int | None = None,
    ) -> OwnLedger:
        writer = await self.bk.create_ledger(
            ensemble_size=shape.ensemble,
            write_quorum_size=shape.write,
            ack_quorum_size=shape.ack,
            password=shape.password.encode(),
            digest_type=shape.digest,
            custom_metadata={key: value.encode() for key, value in shape.custom.items()},
            explicit_entry_ids=adv,
            deferred_sync=deferred_sync,
            ledger_id=ledger_id,
        )
        return OwnLedger(self.bk, shape, writer)

    async def open(self, ledger_id: int, shape: Shape, *, recover: bool = True) -> OwnLedger:
        reader = await self.bk.open_ledger(
            ledger_id, password=shape.password.encode(), recover=recover
        )
        return OwnLedger(self.bk, shape, reader)

    async def delete(self, ledger_id: int) -> None:
        await self.bk.delete_ledger(ledger_id)

    async def list(self) -> list[int]:
        return [ledger_id async for ledger_id in self.bk.list_ledger_ids()]

    async def metadata(self, ledger_id: int) -> Known:
        found = await self.bk.ledger_metadata(ledger_id)
        assert found.digest_type is not None
        return Known(
            state=LedgerState(found.state).name,
            digest=found.digest_type,
            quorums=(found.ensemble_size, found.write_quorum_size, found.ack_quorum_size),
            last_entry=found.last_entry_id,
            length=found.length,
            custom={key: value.decode() for key, value in found.custom_metadata.items()},
            ensembles={
                fragment.first_entry_id: list(fragment.ensemble) for fragment in found.fragments
            },
        )

    async def bookies(self) -> tuple[set[str], set[str]]:
        writable, read_only = await self.bk.bookies()
        return set(writable), set(read_only)

    async def close(self) -> None:
        await self.bk.close()


async def refusal(work: Awaitable[object]) -> int:
    """Return the peer's number of the error that something must end with on either side."""
    try:
        await work
    except (PeerError, QuorumbookError) as error:
        if error.code is None:
            raise
        return error.code
    raise AssertionError("it was not refused")
