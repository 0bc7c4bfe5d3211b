"""What Spark's checkpoint says of a batch: the offsets between which its rows are.

    <checkpoint>/offsets/<batch>    a line with a version, a line with times and settings, and
                                    a line for each source: where the batch ends in it

Spark writes this file before it plans the batch, and reads it when it does the batch again.  So a
batch whose offsets are others than those it was committed with is another one under an old number,
as a checkpoint has it that lost its newest files or was put back.  The sink is told by Spark where
the checkpoint is, but not how Spark reads it: what cannot be read here has no digest.  A checkpoint
that the cluster itself keeps (``webhdfs://``) is read from it, not over HTTP.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from quorumbook.admin.files.tree import FileTree
from quorumbook.errors import ConfigError
from quorumbook.spark.pool import ClusterClient
from quorumbook.streams.tier.places import below, file_system

_DIGEST_BYTES = 16
#: The lines of the version, and of what two plans of one batch may have different.
_HEAD_LINES = 2
_IN_CLUSTER = re.compile("s?webhdfs://[^/]*(/.*)")


def batch_digest(checkpoint: str, batch: int, cluster: ClusterClient | None = None) -> str:
    """Return a digest of a batch's offsets, where it begins and ends; empty: they are not known.

    Args:
        checkpoint: Where it is, as Spark was told.
        batch: The batch.
        cluster: The one that the query writes to, which may have the checkpoint, too.
    """
    if not checkpoint:
        return ""
    in_cluster = _IN_CLUSTER.fullmatch(checkpoint)
    try:
        if in_cluster is None:
            read = _of_file_system(below(re.sub("^file:/+", "/", checkpoint), "offsets"))
        elif cluster is not None:
            read = _of_cluster(cluster, f"{in_cluster[1].rstrip('/')}/offsets")
        else:
            return ""
        ends = [_sources(read, number) for number in (batch - 1, batch)]
    except (ConfigError, OSError):
        return ""
    if ends[1] is None:
        return ""
    return hashlib.blake2b(repr(ends).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _of_file_system(place: str) -> Callable[[str], bytes]:
    system, path = file_system(place)

    def read(name: str) -> bytes:
        with system.open_input_stream(f"{path}/{name}") as file:
            found: bytes = file.read()
        return found

    return read


def _of_cluster(cluster: ClusterClient, path: str) -> Callable[[str], bytes]:
    tree = FileTree(cluster.client)

    async def read(name: str) -> bytes:
        info = await tree.info(f"{path}/{name}")
        return b"".join([piece async for piece in tree.read(info)])

    return lambda name: cluster.run(lambda: read(name))


def _sources(read: Callable[[str], bytes], batch: int) -> list[bytes] | None:
    """Return the lines of all sources; None: there is no such batch."""
    try:
        found = read(str(batch))
    except FileNotFoundError:
        return None
    return found.splitlines()[_HEAD_LINES:]
