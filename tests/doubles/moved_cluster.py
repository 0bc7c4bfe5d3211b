"""Take a running cluster with its data to another metadata store, as an operator would."""

from __future__ import annotations

from quorumbook.metadata.transfer import Summary, copy_metadata
from quorumbook.metadata.uri import open_store
from quorumbook.testing import LocalCluster


async def move_cluster(cluster: LocalCluster, uri: str) -> Summary:
    """Stop the bookies of a cluster, copy its metadata to a URI, and start them there.

    Afterwards ``cluster.metadata_uri`` is the new one; the bookies keep ids, ports and data.
    """
    for bookie_id in cluster.bookie_ids:
        await cluster.stop(bookie_id)
    source = await open_store(cluster.metadata_uri)
    target = await open_store(uri, create=True)
    try:
        summary = await copy_metadata(source, target)
    finally:
        await target.close()
        await source.close()
    cluster.metadata_uri = uri
    for member in cluster._members.values():
        member._uri = uri  # type: ignore[attr-defined] # both kinds of members have one
        await member.start()
    return summary
