"""Pipelines: what those of ``quorumbook spark pipeline run`` tell of themselves."""

from __future__ import annotations

from quorumbook.admin.access.roles import Role
from quorumbook.admin.endpoints.records import NAMESPACE
from quorumbook.admin.http.endpoint import Ask, Endpoint
from quorumbook.admin.http.fields import Field
from quorumbook.client.context import client_store
from quorumbook.streams.errors import NamespaceNotBoundError
from quorumbook.streams.metadata.pipeline_nodes import forget, told_of


async def pipelines(ask: Ask) -> dict[str, object]:
    """Return what the pipelines of a namespace tell; none where there is no namespace yet."""
    try:
        namespace = await ask.service.streams.namespace(ask.query["namespace"])
    except NamespaceNotBoundError:
        return {"pipelines": []}
    return {"pipelines": await told_of(client_store(namespace.client), namespace.path)}


async def _forget(ask: Ask) -> object:
    namespace = await ask.service.streams.namespace(ask.query["namespace"])
    name = ask.path["name"]
    await forget(client_store(namespace.client), namespace.path, name)
    return {"name": name, "state": "forgotten"}


_QUERY = {"namespace": NAMESPACE}
_NAMES = {"name": Field("string", "The pipeline's name.", max_length=500, example="orders")}
ENDPOINTS = (
    Endpoint(
        "GET", "/api/v2/pipelines", Role.VIEWER,
        "The pipelines that were run in a namespace: steps, rates, lag, dead letters, restarts.",
        pipelines, query=_QUERY, command="quorumbook spark pipeline ls",
    ),
    Endpoint(
        "DELETE", "/api/v2/pipelines/{name:path}", Role.ADMIN,
        "Forget what a pipeline told that does not run any more; its streams and checkpoints stay.",
        _forget, query=_QUERY, names=_NAMES, command="quorumbook spark pipeline rm {name}",
    ),
)  # fmt: skip
