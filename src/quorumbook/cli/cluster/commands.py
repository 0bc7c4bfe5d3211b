"""``quorumbook cluster``: lay out the metadata of a new cluster, say where its bookies stand."""

from __future__ import annotations

import click

from quorumbook.cli.call import Call
from quorumbook.cli.cluster.racks import racks
from quorumbook.cli.cluster.status import status
from quorumbook.cli.command import ClusterCommand, Commands


@click.group(cls=Commands)
def cluster() -> None:
    """Make a new cluster, say how it is, and where its bookies stand."""


cluster.add_command(racks)
cluster.add_command(status, "health")


@cluster.command(cls=ClusterCommand)
@click.option(
    "--if-missing", is_flag=True, help="Succeed without a change if there is a cluster already."
)
@click.pass_obj
def init(call: Call, if_missing: bool) -> None:
    """Make a new cluster where the metadata URI points to."""
    call.run(init_cluster(call, is_existing_fine=if_missing))
    call.output.record({"metadata": call.metadata_uri})


async def init_cluster(call: Call, *, is_existing_fine: bool) -> bool:
    """Make a cluster and tell whether it is new.

    Raises:
        ClusterExistsError: there is one, and that is not fine.
    """
    from quorumbook.env import Env
    from quorumbook.errors import ClusterExistsError
    from quorumbook.metadata.cluster import Layout
    from quorumbook.metadata.cluster import init_cluster as initialize
    from quorumbook.metadata.uri import named_layout, open_store

    store = await open_store(call.metadata_uri, Env(), create=True)
    try:
        kind = named_layout(call.metadata_uri)
        await initialize(store, layout=None if kind is None else Layout(kind))
    except ClusterExistsError:
        if not is_existing_fine:
            raise
        return False
    finally:
        await store.close()
    return True
