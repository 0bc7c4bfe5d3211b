"""Ledger ids out of sequential nodes, as the peer takes them.

``idgen/ID-`` is created ephemeral and sequential, the ten digits of its name are the id, and it is
deleted again: the counter is ``idgen``'s own, which therefore must never be deleted.  The counter
gives 2^31 - 1 ids.  Then, for ever, ``idgen-long`` exists: below it ``HOB-<n>`` nodes stand for
the high 32 bits and count the low ones.
"""

from __future__ import annotations

import asyncio
import contextlib

from quorumbook.errors import (
    LedgerIdOverflowError,
    MetadataError,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
)
from quorumbook.ids import LedgerId
from quorumbook.metadata.cluster import read_layout
from quorumbook.metadata.nodes import create_with_parents, with_living_session
from quorumbook.metadata.paths import FIRST_LONG_LEDGER_ID, LayoutKind, TreePaths
from quorumbook.metadata.store import MetadataStore

_HIGH_BITS_PREFIX = "HOB-"
_KEPT_HIGH_BITS = 3
_MAX_HIGH_BITS = 2**31 - 1


class LedgerIdGenerator:
    """Gives ids that no other generator of the cluster gives."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._paths = TreePaths(store.ledgers_root)
        self._kind: LayoutKind | None = None
        self._is_long = False
        self._deletions: set[asyncio.Task[None]] = set()

    async def next_id(self) -> LedgerId:
        """Return an id that was never given before.

        Raises:
            LedgerIdOverflowError: none is left.
        """
        if self._kind is None:
            self._kind = (await read_layout(self._store)).kind
        return await with_living_session(self._store, self._next_id)

    async def close(self) -> None:
        """Wait until the nodes that ids were taken from are deleted."""
        await asyncio.gather(*self._deletions)

    async def _next_id(self) -> LedgerId:
        if self._kind is LayoutKind.FLAT:
            return self._short(await self._sequence_number(f"{self._paths.root}/ID-"))
        if self._kind is LayoutKind.LEGACY_HIERARCHICAL:
            return self._short(await self._sequence_number(f"{self._paths.idgen}/ID-"))
        if not self._is_long:
            self._is_long = await self._store.exists(self._paths.idgen_long) is not None
        if not self._is_long:
            number = await self._sequence_number(f"{self._paths.idgen}/ID-")
            if 0 <= number < FIRST_LONG_LEDGER_ID:
                return number
            with contextlib.suppress(NodeExistsError):
                await create_with_parents(self._store, self._paths.idgen_long)
            self._is_long = True
        return await self._next_long_id()

    async def _next_long_id(self) -> LedgerId:
        while True:
            known = await self._high_bits()
            high = max(known, default=0)
            if known:
                number = await self._sequence_number(f"{self._paths.high_order_bits(high)}/ID-")
                if 0 <= number < FIRST_LONG_LEDGER_ID:
                    return (high << 32) | number
            if high >= _MAX_HIGH_BITS:
                raise LedgerIdOverflowError("no ledger ids are left")
            with contextlib.suppress(NodeExistsError):
                await create_with_parents(self._store, self._paths.high_order_bits(high + 1))
            for old in sorted(known, reverse=True)[_KEPT_HIGH_BITS - 1 :]:
                # One that somebody is just taking an id from goes the next time.
                with contextlib.suppress(NoSuchNodeError, NodeNotEmptyError):
                    await self._store.delete(self._paths.high_order_bits(old))

    async def _high_bits(self) -> list[int]:
        names = await self._store.children(self._paths.idgen_long)
        digits = [name.removeprefix(_HIGH_BITS_PREFIX) for name in names]
        return [int(each) for each in digits if each.isascii() and each.isdigit()]

    async def _sequence_number(self, prefix: str) -> int:
        path = await create_with_parents(self._store, prefix, ephemeral=True, sequential=True)
        # Nobody waits for the deletion; if it fails, the session's end does it.
        task = asyncio.ensure_future(self._delete(path))
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)
        return int(path[len(prefix) :])

    async def _delete(self, path: str) -> None:
        with contextlib.suppress(MetadataError):
            await self._store.delete(path)

    def _short(self, number: int) -> LedgerId:
        if not 0 <= number < FIRST_LONG_LEDGER_ID:
            raise LedgerIdOverflowError("no ledger ids of 31 bits are left")
        return number
