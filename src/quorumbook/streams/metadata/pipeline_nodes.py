"""What running pipelines tell of themselves: a node for each, which whoever looks reads.

    <ns>/.pipelines/<name>    JSON, as ``spark.pipeline.telling`` makes it and nobody else

A pipeline writes its node again every few seconds.  What it says of its own state is as old as the
node: one that stands still, or was killed, says no more.  The node stays until somebody has it
forgotten; no run needs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import MetadataVersionConflict, NoSuchNodeError
from quorumbook.metadata.nodes import set_or_create
from quorumbook.metadata.store import MetadataStore, Node
from quorumbook.streams.errors import PipelineNotFoundError, PipelineRunsError
from quorumbook.streams.format.names import PIPELINES_NAME

_VERSION = 1
#: Times that a pipeline may fail to tell before it counts as silent.
_MISSED = 4
#: So many are read.
PIPELINES_MAX = 200


async def tell(
    store: MetadataStore, namespace_path: str, name: str, told: Mapping[str, object]
) -> None:
    """Write what a pipeline tells in the place of what it told before."""
    data = json.dumps({"version": _VERSION, **told}, separators=(",", ":")).encode()
    await set_or_create(store, _path(namespace_path, name), data)


async def told_of(store: MetadataStore, namespace_path: str) -> list[dict[str, Any]]:
    """Return what the pipelines of a namespace tell, by name, the first ``PIPELINES_MAX``.

    Each has ``told_at_ms`` besides, and its ``state`` is ``silent`` where it says that it runs, but
    has not told for long.  What cannot be understood, or is of a later version, is left out.

    Args:
        store: The metadata store.
        namespace_path: Where the namespace is.
    """
    root = _root(namespace_path)
    try:
        names = sorted(await store.children(root))[:PIPELINES_MAX]
    except NoSuchNodeError:
        return []
    now_ms = store.env.clock.wall_ms()
    nodes = await gather_bounded(lambda name: store.exists(f"{root}/{name}"), names)
    rows = (_read(node, now_ms) for node in nodes if node is not None)
    return [row for row in rows if row is not None]


async def forget(store: MetadataStore, namespace_path: str, name: str) -> None:
    """Delete what a pipeline told, also what cannot be understood.

    Raises:
        PipelineNotFoundError: it told nothing, or is forgotten already.
        PipelineRunsError: it has told lately that it runs.
    """
    path = _path(namespace_path, name)
    runs = PipelineRunsError(f"pipeline {name} runs: stop it first, and it says that it has ended")
    try:
        node = await store.get(path)
        found = _read(node, store.env.clock.wall_ms())
        if found is not None and found["state"] == "running":
            raise runs
        await store.delete(path, node.version, node.creation_id)
    except NoSuchNodeError as error:
        raise PipelineNotFoundError(f"no pipeline {name} was run in {namespace_path}") from error
    except MetadataVersionConflict as error:  # it has just told
        raise runs from error


def _read(node: Node, now_ms: int) -> dict[str, Any] | None:
    try:
        told = json.loads(node.data)
        if told.pop("version") != _VERSION:
            return None
        is_late = now_ms - node.mtime_ms > _MISSED * 1000 * float(told["told_every_s"])
        state = "silent" if told["state"] == "running" and is_late else told["state"]
        return {**told, "state": state, "told_at_ms": node.mtime_ms}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _root(namespace_path: str) -> str:
    return f"{namespace_path}/{PIPELINES_NAME}"


def _path(namespace_path: str, name: str) -> str:
    return f"{_root(namespace_path)}/{quote(name, safe='')}"
