"""The node that makes streams the partitions of one, and what is found by it.

    <ns>/<name>/<partitions>    JSON: {"version": 1, "partitions": 8, "hash": "crc32"}
      …/groups                  who consumes it together, see ``group_nodes``
    <ns>/<name>/p0, p1, …       the partitions, streams like any other

``<partitions>`` is literal, and no name that a stream can have.  A key's partition is the CRC-32
of the key modulo their number, which is what librdkafka's clients of Kafka do.  The number may
grow, which takes keys elsewhere from then on, and never shrinks: records stay where they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from quorumbook.errors import NoSuchNodeError
from quorumbook.metadata.store import Revision, Watch
from quorumbook.streams.errors import (
    CorruptRecordsError,
    StreamNotFoundError,
    UnsupportedFormatError,
)
from quorumbook.streams.namespace import Namespace
from quorumbook.streams.stream import Stream
from quorumbook.streams.stream_context import stream_context

_VERSION = 1
_HASH = "crc32"


async def partition_count(namespace: Namespace, name: str) -> int | None:
    """Return how many partitions a name has; None: it is no partitioned stream's."""
    plain = namespace.stream(name)
    return (await read_partition_count(plain))[0] if await _exists(plain) else None


async def check_stream_exists(namespace: Namespace, name: str) -> None:
    """Raise StreamNotFoundError unless there is such a stream, with partitions or without."""
    if not await _exists(namespace.stream(name)):
        await stream_context(namespace.stream(name)).nodes.read_state()


async def partitioned_among(namespace: Namespace, names: Iterable[str]) -> list[str]:
    """Return the names of partitioned streams whose partitions are among some streams."""
    parts = (name.rpartition("/") for name in names)
    above = sorted({above for above, slash, part in parts if slash and part == "p0"})
    return [name for name in above if await _exists(namespace.stream(name))]


def node_of(plain: Stream) -> str:
    """Return the path of the node."""
    return stream_context(plain).nodes.paths.partitions


async def _exists(plain: Stream) -> bool:
    return await stream_context(plain).store.exists(node_of(plain)) is not None


def encoded(partition_count: int) -> bytes:
    """Return the node's data."""
    found = {"version": _VERSION, "partitions": partition_count, "hash": _HASH}
    return json.dumps(found).encode()


async def read_partition_count(plain: Stream, watch: Watch | None = None) -> tuple[int, Revision]:
    """Return how many partitions there are, and the revision of the node that says so."""
    path = node_of(plain)
    try:
        node = await stream_context(plain).store.get(path, watch)
    except NoSuchNodeError as error:
        raise StreamNotFoundError(
            f"there is no partitioned stream {plain.name}; "
            "`quorumbook stream create --partitions` makes one"
        ) from error
    try:
        found = json.loads(node.data)
        version, hashed, count = found["version"], found["hash"], found["partitions"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordsError(f"metadata node {path} holds {node.data!r}") from error
    if (version, hashed) != (_VERSION, _HASH):
        raise UnsupportedFormatError(
            f"stream {plain.name} is partitioned by {hashed}, version {version}, which this "
            f"release does not know"
        )
    return int(count), node.revision
