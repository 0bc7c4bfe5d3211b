"""One way to write and read streams, by the peer's DistributedLog or by ours."""

from __future__ import annotations

import asyncio
import base64
import itertools
from typing import Any, NamedTuple, Protocol

from interop.peer_driver import Peer, PeerError
from quorumbook.streams import Namespace, Position, StreamWriter

_NAMES = (f"stream-{number}" for number in itertools.count())


def fresh_name() -> str:
    """Return a stream's name that no other test of this process uses."""
    return next(_NAMES)


class Seen(NamedTuple):
    """A record as a reader saw it."""

    position: Position
    sequence_id: int
    txid: int
    payload: bytes


class StreamSide(Protocol):
    """The operations; at most one writer of a stream at a time."""

    async def open(self, name: str) -> None:
        """Become the writer, whatever a crashed one left."""

    async def write(self, name: str, payloads: list[bytes], txid: int) -> list[Position]:
        """Append records with transaction ids that go up from one."""

    async def close(self, name: str) -> None:
        """Write no more."""

    async def crash(self, name: str) -> None:
        """Write no more, and tell nobody."""

    async def seal(self, name: str) -> None:
        """End the stream."""

    async def truncate(self, name: str, before: Position) -> None:
        """Cut off what lies before."""

    async def read(self, name: str, count: int, start: Position = ...) -> list[Seen]:
        """Read so many records, or fewer if the stream is sealed before."""


FIRST = Position(1, 0, 0)


class JavaStreams:
    """The peer's."""

    def __init__(self, peer: Peer, uri: str, **conf: str) -> None:
        self.peer = peer
        self._common: dict[str, Any] = {"uri": uri, "conf": conf}

    async def call(self, op: str, name: str = "", **arguments: Any) -> dict[str, Any]:
        """Have it do something."""
        return await self.peer.call(op, stream=name, **self._common, **arguments)

    async def create(self, name: str) -> None:
        await self.call("create_stream", name)

    async def open(self, name: str) -> None:
        await self.call("open_writer", name)

    async def write(self, name: str, payloads: list[bytes], txid: int) -> list[Position]:
        return await self._write("write_records", name, payloads, txid)

    async def write_set(
        self, name: str, payloads: list[bytes], txid: int, codec: str
    ) -> list[Position]:
        """Append a record set, all of whose members have the same transaction id."""
        return await self._write("write_set", name, payloads, txid, codec=codec)

    async def _write(
        self, op: str, name: str, payloads: list[bytes], txid: int, **more: Any
    ) -> list[Position]:
        encoded = [base64.b64encode(payload).decode() for payload in payloads]
        answer = await self.call(op, name, payloads=encoded, txid=txid, **more)
        return [Position(*each) for each in answer["positions"]]

    async def close(self, name: str) -> None:
        await self.call("close_writer", name)

    async def crash(self, name: str) -> None:
        del name  # all that the process writes
        self.peer.kill()

    async def seal(self, name: str) -> None:
        await self.call("seal_stream", name)

    async def truncate(self, name: str, before: Position) -> None:
        assert (await self.call("truncate_stream", name, before=before))["done"]

    async def read(self, name: str, count: int, start: Position = FIRST) -> list[Seen]:
        is_again = False
        while True:
            try:
                answer = await self.call("read_records", name, count=count, start=start)
                # Rarely it stops in the middle of an entry; what is missing is so a second time.
                if is_again or answer.get("end") != "idle":
                    break
                is_again = True
            except PeerError as error:
                # Its read-ahead at times reads twice, and fails when it closes a segment under
                # the second read (apache/bookkeeper pull request 1973 has the like).
                if error.kind != "ReadCancelledException":
                    raise
        assert answer.get("end") != "idle", f"only {len(answer['records'])} of {count} came"
        return [
            Seen(Position(segment, entry, slot), sequence_id, txid, base64.b64decode(payload))
            for segment, entry, slot, sequence_id, txid, payload in answer["records"]
        ]


class OwnStreams:
    """Ours."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.writers: dict[str, StreamWriter] = {}

    async def open(self, name: str) -> None:
        # A killed Java process has the lock until its session is over; fencing is safe at once.
        self.writers[name] = await self.namespace.stream(name).writer(takeover="force")

    async def write(self, name: str, payloads: list[bytes], txid: int) -> list[Position]:
        txids = [*range(txid, txid + len(payloads))]
        batch = await self.writers[name].append_batch(payloads, txids=txids)
        return [each.position for each in batch]

    async def write_set(
        self, name: str, payloads: list[bytes], txid: int, codec: str
    ) -> list[Position]:
        """Append a record set, compressed as the stream's policy says."""
        del codec
        writer = self.writers[name]
        batch = await writer.append_batch(payloads, txids=[txid] * len(payloads), atomic="set")
        return [each.position for each in batch]

    async def close(self, name: str) -> None:
        await self.writers.pop(name).close()

    async def crash(self, name: str) -> None:
        await self.writers.pop(name).abort()

    async def seal(self, name: str) -> None:
        await self.writers[name].seal()

    async def truncate(self, name: str, before: Position) -> None:
        await self.namespace.stream(name).truncate(before)

    async def read(self, name: str, count: int, start: Position = FIRST) -> list[Seen]:
        records: list[Seen] = []
        async with asyncio.timeout(60), self.namespace.stream(name).reader(start) as reader:
            async for record in reader:
                records.append(Seen(*record[:4]))
                if len(records) == count:
                    break
        return records
