"""Finds ledgers of streams that no metadata refers to, and deletes them: what crashes left.

    <ns>/.orphans/<ledger id>   JSON: since when, and creation id and version of the node
                                ``allocation`` of the ledger's stream then; null if it had none

A ledger is a stream's if it carries the namespace's identity.  One that no segment and no
``allocation`` of any of its streams names is marked first.  Its writer may yet be about to name
it, by setting ``allocation`` at the version that was read before the ledger was made.  So it is
nobody's for certain once that node was set since the mark, or is gone; where nobody holds the
stream's lock it is set here, to what it is.  Only then, and if still nothing refers to it, it is
deleted.  No clock has a part in that proof; the grace is for people.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import NamedTuple, Protocol

from quorumbook.client.client import BookKeeper
from quorumbook.client.writing.unwritten import STREAM_COMPONENT
from quorumbook.errors import (
    MetadataFateUnknownError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchLedgerInMetadataError,
    NoSuchNodeError,
)
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.labels import CUSTOM_KEY
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.store import MetadataStore
from quorumbook.streams.errors import StreamNotFoundError, WriterBusyError
from quorumbook.streams.format.names import ORPHANS_NAME
from quorumbook.streams.metadata.namespace_nodes import NamespaceIdentity
from quorumbook.streams.stream_context import StreamContext, namespace_store, stream_context

#: What a ledger carries that a stream's writer made; where there is more, others have something
#: to do with it as well.
_KEYS = {"application", "component", "namespace", "namespace_id", "stream", "segment", CUSTOM_KEY}


class OrphanState(StrEnum):
    """What became of an orphan."""

    #: Nothing: changes were not wanted.
    FOUND = "found"
    #: It is marked, for not long enough yet, or its writer may still be there.
    MARKED = "marked"
    DELETED = "deleted"


class Orphan(NamedTuple):
    """A ledger that nothing refers to."""

    ledger_id: LedgerId
    #: Whose it was made for.
    stream: str
    #: 0 where its ledger was never closed.
    size_bytes: int
    state: OrphanState


class _Mark(NamedTuple):
    since_ms: int
    #: Creation id and version of the stream's allocation; None: it had none.
    allocation: tuple[int, int] | None


class InNamespace(Protocol):
    """A stream."""

    _context: StreamContext


class StreamsOfNamespace(Protocol):
    """What is looked at in a namespace."""

    _store: MetadataStore

    @property
    def path(self) -> str:
        """Its node."""

    @property
    def client(self) -> BookKeeper:
        """Its client."""

    def streams(self) -> AsyncIterator[str]:
        """Yield the names of its streams."""

    def stream(self, name: str) -> InNamespace:
        """Return one of them, which need not be there."""


class OrphanFinder:
    """One look at a namespace."""

    def __init__(self, namespace: StreamsOfNamespace, identity: NamespaceIdentity) -> None:
        """Take the namespace's."""
        self._namespace = namespace
        self._identity = identity
        self._store = namespace_store(namespace)
        self._root = f"{namespace.path}/{ORPHANS_NAME}"

    async def run(self, *, delete: bool, grace_s: float) -> list[Orphan]:
        """Return the orphans, and what became of them; see ``Namespace.orphans``."""
        identity = await self._identity.read()
        if identity is None:
            return []
        marks = await self._marks()
        ledgers = [
            ledger
            async for ledger in self._namespace.client.list_ledgers(
                custom_metadata={"component": STREAM_COMPONENT, "namespace_id": identity},
                damaged=[],  # nobody knows whose these are, so they stay
            )
            if ledger.custom_metadata.keys() <= _KEYS
        ]
        now_ms = self._store.env.clock.wall_ms()
        nobodys = set()
        for ledger in ledgers if delete else ():
            mark = marks.get(ledger.ledger_id)
            is_due = mark is not None and now_ms - mark.since_ms >= grace_s * 1000
            if mark is not None and is_due and await self._is_shut_out(_stream_of(ledger), mark):
                nobodys.add(ledger.ledger_id)
        # Only now: who names a ledger from here on is none of those whose ledgers are deleted.
        named = await self._named()
        found = []
        for ledger in ledgers:
            if ledger.ledger_id in named:
                continue
            state = OrphanState.FOUND
            if delete:
                state = await self._settle(ledger, now_ms, is_nobodys=ledger.ledger_id in nobodys)
            found.append(Orphan(ledger.ledger_id, _stream_of(ledger), ledger.length, state))
        if delete:
            left = {each.ledger_id for each in found if each.state is OrphanState.MARKED}
            for ledger_id in marks.keys() - left:
                with contextlib.suppress(NoSuchNodeError):
                    await self._store.delete(f"{self._root}/{ledger_id}")
        return found

    async def _marks(self) -> dict[LedgerId, _Mark]:
        try:
            names = await self._store.children(self._root)
        except NoSuchNodeError:
            return {}
        nodes = await asyncio.gather(*(self._store.exists(f"{self._root}/{n}") for n in names))
        found = {}
        for name, node in zip(names, nodes, strict=True):
            if node is not None:
                data = json.loads(node.data)
                allocation = data["allocation"] and tuple(data["allocation"])
                found[int(name)] = _Mark(data["since_ms"], allocation)
        return found

    async def _allocation(self, stream: str) -> tuple[int, int] | None:
        path = stream_context(self._namespace.stream(stream)).nodes.paths.allocation
        node = await self._store.exists(path)
        return None if node is None else (node.creation_id, node.version)

    async def _is_shut_out(self, stream: str, mark: _Mark) -> bool:
        """See to it that whoever made a ledger before it was marked cannot name it any more."""
        if await self._allocation(stream) != mark.allocation or mark.allocation is None:
            return True
        context = stream_context(self._namespace.stream(stream))
        lock, path = context.lock(), context.nodes.paths.allocation
        try:
            await lock.acquire()
        except (WriterBusyError, NoSuchNodeError, StreamNotFoundError):
            return False
        try:
            node = await self._store.get(path)
            await self._store.set(path, node.data, *node.revision)
        except (MetadataVersionConflict, NoSuchNodeError, MetadataFateUnknownError):
            return False
        finally:
            await lock.release()
        return True

    async def _named(self) -> set[LedgerId]:
        """Return all ledgers that streams refer to."""
        while True:
            names = [name async for name in self._namespace.streams()]
            named: set[LedgerId] = set()
            for name in names:
                nodes = stream_context(self._namespace.stream(name)).nodes
                with contextlib.suppress(StreamNotFoundError):
                    named.update(segment.ledger_id for segment in await nodes.segments())
                    allocated = (await nodes.read_state()).allocated
                    if allocated is not None:
                        named.add(allocated)
                    # It may have become a segment between the two.
                    named.update(segment.ledger_id for segment in await nodes.segments())
            if names == [name async for name in self._namespace.streams()]:
                return named  # none was renamed meanwhile

    async def _settle(
        self, ledger: LedgerMetadata, now_ms: int, *, is_nobodys: bool
    ) -> OrphanState:
        if is_nobodys:
            with contextlib.suppress(NoSuchLedgerInMetadataError):
                await self._namespace.client.delete_ledger(ledger.ledger_id)
            return OrphanState.DELETED
        allocation = await self._allocation(_stream_of(ledger))
        data = {"version": 1, "since_ms": now_ms, "allocation": allocation}
        with contextlib.suppress(NodeExistsError):
            await create_with_parents(
                self._store, f"{self._root}/{ledger.ledger_id}", json.dumps(data).encode()
            )
        return OrphanState.MARKED


def _stream_of(ledger: LedgerMetadata) -> str:
    return ledger.custom_metadata["stream"].decode(errors="replace")
