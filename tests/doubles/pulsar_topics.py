"""Entries and topics of Apache Pulsar, laid out by hand: what a broker would have stored."""

from __future__ import annotations

import contextlib
import zlib
from typing import Any

import google_crc32c
import lz4.block
import pyarrow as pa

from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.errors import NodeExistsError, NoSuchNodeError
from quorumbook.pulsar.formats import make
from quorumbook.pulsar.names import TopicName

NUMBERS = {"none": 0, "lz4": 1, "zlib": 2, "zstd": 3, "snappy": 4}


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def compressed(codec: str, data: bytes) -> bytes:
    if codec == "lz4":
        return lz4.block.compress(data, store_size=False)
    if codec == "zlib":
        return zlib.compress(data)
    return data if codec == "none" else pa.Codec(codec).compress(data, asbytes=True)


def metadata(**fields: Any) -> dict[str, Any]:
    return {"producer_name": b"p", "sequence_id": 7, "publish_time": 1_700_000_000_000, **fields}


def properties(**values: str) -> list[Any]:
    return [make("KeyValue", key=k.encode(), value=v.encode()) for k, v in values.items()]


def entry(payload: bytes, *, codec: str = "none", checksum: bool = True, **fields: Any) -> bytes:
    """Return an entry with one payload."""
    if codec != "none":
        fields = {"compression": NUMBERS[codec], "uncompressed_size": len(payload), **fields}
    said = make("MessageMetadata", **metadata(**fields)).SerializeToString()
    body = sized(said) + compressed(codec, payload)
    if not checksum:
        return body
    return b"\x0e\x01" + google_crc32c.value(body).to_bytes(4, "big") + body


def single(payload: bytes, **fields: Any) -> bytes:
    """Return one message of a batch."""
    said = make("SingleMessageMetadata", payload_size=len(payload), **fields)
    return sized(said.SerializeToString()) + payload


def batch(*singles: bytes, **fields: Any) -> bytes:
    return entry(b"".join(singles), **{"num_messages_in_batch": len(singles), **fields})


def chunks(payload: bytes, count: int, uuid: bytes, codec: str = "none", **fields: Any) -> Any:
    """Return the entries of a message in chunks."""
    stored = compressed(codec, payload)
    size = -(-len(stored) // count)
    how = {"compression": NUMBERS[codec], "uncompressed_size": len(payload)}
    return [
        entry(
            stored[n * size : (n + 1) * size], uuid=uuid, chunk_id=n, num_chunks_from_msg=count,
            total_chunk_msg_size=len(stored), **how, **fields,
        )
        for n in range(count)
    ]  # fmt: skip


async def put(client: BookKeeper, path: str, data: bytes) -> None:
    """Make a node, and those above it, or replace its data."""
    store = client_store(client)
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts)):
        with contextlib.suppress(NodeExistsError):
            await store.create("/" + "/".join(parts[:depth]))
    try:
        await store.set(path, data)
    except NoSuchNodeError:
        await store.create(path, data)


class TopicOnDisk:
    """A topic without a broker: writes its ledgers and the list of them."""

    def __init__(self, client: BookKeeper, name: str) -> None:
        self.client = client
        self.name = TopicName.parse(name)
        self.infos: list[dict[str, Any]] = []
        self.writer: Any = None

    async def save(self) -> None:
        ledgers = [make("LedgerInfo", **info) for info in self.infos]
        data = make("ManagedLedgerInfo", ledgerInfo=ledgers).SerializeToString()
        await put(self.client, self.name.node, data)

    async def roll(self) -> int:
        """Close the ledger that is written, and begin another."""
        await self.close()
        self.writer = await self.client.create_ledger()
        self.infos.append({"ledgerId": self.writer.id, "timestamp": 0})
        await self.save()
        return int(self.writer.id)

    async def close(self) -> None:
        """Close the ledger that is written, as where a topic is unloaded."""
        if self.writer is not None:
            last = self.writer.last_add_confirmed
            await self.writer.close()
            self.infos[-1] |= {"entries": last + 1, "timestamp": 1}
            self.writer = None

    async def add(self, *entries: bytes) -> None:
        if self.writer is None:
            await self.roll()
        for data in entries:
            await self.writer.append(data)

    async def trim(self, count: int = 1) -> None:
        """Delete the first ledgers, as where they are consumed."""
        gone, self.infos = self.infos[:count], self.infos[count:]
        await self.save()
        for info in gone:
            await self.client.delete_ledger(info["ledgerId"])

    async def delete(self) -> None:
        """Delete the topic with its ledgers."""
        await self.close()
        gone, self.infos = self.infos, []
        await client_store(self.client).delete(self.name.node)
        for info in gone:
            await self.client.delete_ledger(info["ledgerId"])
