"""Pipelines: what those of ``quorumbook spark pipeline run`` tell of themselves."""

from __future__ import annotations

from quorumbook.admin.access.roles import Role
from quorumbook.admin.endpoints.records import NAMESPACE
from quorumbook.admin.http.endpoint import Ask, Endpoint
from quorumbook.client.context import client_store
from quorumbook.streams.errors import NamespaceNotBoundError
from quorumbook.streams.metadata.pipeline_nodes import told_of


async def pipelines(ask: Ask) -> dict[str, object]:
    """Return what the pipelines of a namespace tell; none where there is no namespace yet."""
    try:
        namespace = await ask.service.streams.namespace(ask.query["namespace"])
    except NamespaceNotBoundError:
        return {"pipelines": []}
    return {"pipelines": await told_of(client_store(namespace.client), namespace.path)}


ENDPOINTS = (
    Endpoint(
        "GET", "/api/v2/pipelines", Role.VIEWER,
        "The pipelines that were run in a namespace: steps, rates, lag, dead letters, restarts.",
        pipelines, query={"namespace": NAMESPACE}, command="quorumbook spark pipeline ls",
    ),
)  # fmt: skip
