"""What jobs about streams share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from quorumbook.streams import Namespace


async def chosen_streams(namespace: Namespace, names: Sequence[str]) -> AsyncIterator[str]:
    """Yield the streams that a job is about; without names, all.

    Raises:
        StreamNotFoundError: one that is named is not there.
    """
    for name in names:
        await namespace.stream(name).context.nodes.max_txid()  # says so if there is none
        yield name
    if not names:
        async for name in namespace.streams():
            yield name
