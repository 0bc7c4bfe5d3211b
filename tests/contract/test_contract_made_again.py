"""Nodes that are deleted, and made again up to the same version, between a read and a change.

Versions begin anew with a node.  A change that goes by the version alone would overwrite, or
delete, what somebody else has made since.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from doubles.contended_changes import CHANGES
from quorumbook.errors import MetadataVersionConflict, QuorumbookError
from quorumbook.metadata.nodes import delete_tree
from quorumbook.metadata.store import ANY_VERSION, Create, Delete, MetadataStore, Operation, Set

#: Changes that make nodes, delete them whatever they are, or belong to a session.
WITHOUT_VERSIONS = {
    "a cluster is made", "a ledger is created", "a stream is created", "a ledger is locked",
    "a cursor is made", "an attempt begins", "an attempt makes a ledger",
    "a table's first batch is decided on", "a namespace's policy is set",
    "auto-recovery is switched off", "auto-recovery is switched on", "a stream is deleted",
}  # fmt: skip


async def make_again(store: MetadataStore, path: str) -> None:
    """Delete a node with what lies below it, and make all of it again, up to the same versions."""

    async def read(path: str) -> list[tuple[str, bytes, int]]:
        node = await store.get(path)
        below = [await read(f"{path}/{name}") for name in await store.children(path)]
        return [(path, node.data, node.version), *(each for some in below for each in some)]

    nodes = await read(path)
    await delete_tree(store, path)
    for each, data, version in nodes:
        await store.create(each, data)
        for _ in range(version):
            await store.set(each, data)


class MadeAgain:
    """A store that has somebody replace nodes right before the first write that names versions."""

    def __init__(self, store: MetadataStore, other: MetadataStore) -> None:
        self._store = store
        self._other = other
        self.is_met = False
        self.refused: Exception | None = None
        self.is_harmless = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def set(
        self, path: str, data: bytes, version: int = ANY_VERSION, creation_id: int | None = None
    ) -> int:
        return await self._meet(
            [Set(path, data, version, creation_id)],
            lambda: self._store.set(path, data, version, creation_id),
        )

    async def delete(
        self, path: str, version: int = ANY_VERSION, creation_id: int | None = None
    ) -> None:
        return await self._meet(
            [Delete(path, version, creation_id)],
            lambda: self._store.delete(path, version, creation_id),
        )

    async def multi(self, operations: list[Operation]) -> list[str | int | None]:
        return await self._meet(operations, lambda: self._store.multi(operations))

    async def _meet(self, operations: list[Operation], write: Callable[[], Awaitable[Any]]) -> Any:
        guarded = [
            each.path
            for each in operations
            if not isinstance(each, Create) and each.version != ANY_VERSION
        ]
        if self.is_met or not guarded:
            return await write()
        self.is_met = True
        for path in guarded:
            await make_again(self._other, path)
        await self._store.exists("/")  # it has seen that
        made = [await self._other.exists(path) for path in guarded]
        try:
            return await write()
        except Exception as error:
            self.refused = error
            self.is_harmless = made == [await self._other.exists(path) for path in guarded]
            raise


@pytest.mark.parametrize("name", CHANGES)
async def test_no_change_takes_a_node_that_was_made_again_for_the_one_it_is_based_on(
    store, other, name
):
    change = CHANGES[name]
    given = await change.prepare(other)
    await store.exists("/")  # it has seen what the change is based on
    between = MadeAgain(store, other)
    with contextlib.suppress(QuorumbookError):
        await change.make(between, "mine", given)
    assert between.is_met == (name not in WITHOUT_VERSIONS)
    if between.is_met:
        assert isinstance(between.refused, MetadataVersionConflict), between.refused
        assert between.is_harmless
