"""Ledger ids out of sequential nodes, as the peer takes them.

``idgen/ID-`` is created ephemeral and sequential, the ten digits of its name are the id, and it is
deleted again: the counter is ``idgen``'s own, which therefore must never be deleted.  Several ids
at once are that node, and others made and deleted in the same step, which raise the counter.
It gives 2^31 - 1 ids.  Then, for ever, ``idgen-long`` exists: below it ``HOB-<n>`` nodes stand for
the high 32 bits and count the low ones.

A cluster that moves to another store takes its counters with it (``IdCounters``).  No store lets
a counter be set, and children made and deleted again raise it one by one; where that would take
too long, ids go on at the next high bits, as they do when a counter is used up.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorumbook.errors import (
    LedgerIdOverflowError,
    LocalProtocolError,
    MetadataError,
    MetadataFateUnknownError,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
    QuorumbookError,
)
from quorumbook.ids import LedgerId
from quorumbook.metadata.cluster import read_layout
from quorumbook.metadata.nodes import create_with_parents, with_living_session, with_parents
from quorumbook.metadata.paths import FIRST_LONG_LEDGER_ID, LayoutKind, TreePaths
from quorumbook.metadata.store import Create, Delete, MetadataStore, Node, Operation

_HIGH_BITS_PREFIX = "HOB-"
_KEPT_HIGH_BITS = 3
_MAX_HIGH_BITS = 2**31 - 1
#: So often a counter is raised by one rather than left behind; a minute, on a slow store.
MAX_STEPS = 1_000_000
#: So many steps within the time for which ids are kept have ids taken ahead, so many of them.
_QUICK_STEPS = 16
_AHEAD_MIN, _AHEAD_MAX = 16, 128
_STOCK_NS = 1_000_000_000
#: The peer's store keeps its last 500 requests in memory.
_STEPS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class IdCounters:
    """How far the id generators of a cluster have come."""

    #: The next number of the counter of short ids; None if it was never used.
    short: int | None
    #: The high 32 bits in use; None while ids are short.
    high_bits: int | None
    #: The next number below them.
    low: int = 0

    def checked(self) -> IdCounters:
        """Return the counters if they can be, else raise ``LocalProtocolError``."""
        for number in (self.short, self.high_bits, self.low):
            if number is not None and (type(number) is not int or not 0 <= number < 2**32):
                raise LocalProtocolError(f"{number!r} is not a counter of ledger ids")
        return self

    def steps(self, kind: LayoutKind, *, leap: bool) -> int | None:
        """Return how often a counter must be raised; None if ids go on at the next high bits.

        Args:
            kind: the cluster's layout.
            leap: ids beyond these counters may have been given by somebody.

        Raises:
            LocalProtocolError: the layout has no high bits to leap to.
            LedgerIdOverflowError: no ids are left in this layout.
        """
        if kind in (LayoutKind.FLAT, LayoutKind.LEGACY_HIERARCHICAL):
            if leap:
                raise LocalProtocolError(
                    f"the ids of a {kind.value} layout cannot leap over those that a cluster in "
                    "use gives meanwhile; stop it first"
                )
            if (self.short or 0) >= FIRST_LONG_LEDGER_ID:
                raise LedgerIdOverflowError("no ledger ids of 31 bits are left")
            return self.short or 0
        steps = self.low if self.high_bits is not None else self.short or 0
        return None if leap or steps > MAX_STEPS else steps


async def read_id_counters(store: MetadataStore) -> IdCounters:
    """Return how far the cluster's id generators have come, without taking an id."""
    paths = TreePaths(store.ledgers_root)
    kind = (await read_layout(store)).kind
    parent = paths.root if kind is LayoutKind.FLAT else paths.idgen
    short = await _created_count(store, parent)
    if kind in (LayoutKind.FLAT, LayoutKind.LEGACY_HIERARCHICAL):
        return IdCounters(short, None)
    try:
        known = _high_bits(await store.children(paths.idgen_long))
    except NoSuchNodeError:
        return IdCounters(short, None)
    high = max(known, default=1)
    return IdCounters(short, high, await _created_count(store, paths.high_order_bits(high)) or 0)


async def raise_id_counters(
    store: MetadataStore,
    kind: LayoutKind,
    counters: IdCounters,
    *,
    leap: bool,
    report: Callable[[int], None],
) -> None:
    """Have a cluster that is being made give ids beyond all that these counters gave.

    Raises:
        LocalProtocolError: the layout has no high bits to leap to.
        LedgerIdOverflowError: no ids are left beyond.
    """
    paths = TreePaths(store.ledgers_root)
    steps = counters.steps(kind, leap=leap)
    if kind is LayoutKind.FLAT:
        await _raise_counter(store, paths.root, steps or 0, report)
        return
    if counters.short is not None:
        await create_with_parents(store, paths.idgen)
    if steps is not None and counters.high_bits is None:
        if steps:
            await _raise_counter(store, paths.idgen, steps, report)
        return
    high = (counters.high_bits or 0) + (steps is None)
    if high > _MAX_HIGH_BITS:
        raise LedgerIdOverflowError("no ledger ids are left")
    await create_with_parents(store, paths.high_order_bits(high))
    await _raise_counter(store, paths.high_order_bits(high), steps or 0, report)


async def _raise_counter(
    store: MetadataStore, parent: str, count: int, report: Callable[[int], None]
) -> None:
    child = f"{parent}/step"
    missing = count - (await _created_count(store, parent) or 0)
    while missing > 0:
        steps = min(missing, _STEPS_AT_ONCE, store.multi_limit // 2)
        operations = [step for _ in range(steps) for step in (Create(child), Delete(child))]
        try:
            await store.multi(operations)
        except MetadataFateUnknownError:
            missing = count - (await _created_count(store, parent) or 0)
            continue
        missing -= steps
        report(steps)


async def _created_count(store: MetadataStore, path: str) -> int | None:
    node = await store.exists(path)
    return None if node is None else created_count(node)


def created_count(node: Node) -> int:
    """Return how many children the node ever had, which is the next sequential number.

    Some stores keep child versions in 32 bits; a counter below 2^31 comes out right all the same.
    """
    # Every child still there was created and not deleted, any other was both.
    both = node.child_version + node.children_count
    return both // 2 if both >= 0 else both % 2**32 // 2


def _high_bits(names: list[str]) -> list[int]:
    digits = [name.removeprefix(_HIGH_BITS_PREFIX) for name in names]
    return [int(each) for each in digits if each.isascii() and each.isdigit()]


class LedgerIdGenerator:
    """Gives ids that no other generator of the cluster gives.

    Those that are asked for while ids are being taken get theirs together, in one step of the
    store.  Who goes on to ask quickly has the next ones taken ahead, while the ledgers before are
    created, so that most of them wait for no step: what is asked for during two steps, or a few
    more.  Of these nobody gets what was not asked for within a second.  Otherwise nothing is taken
    that nobody asked for.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._paths = TreePaths(store.ledgers_root)
        self._kind: LayoutKind | None = None
        self._is_long: bool | None = None
        self._deletions: set[asyncio.Task[None]] = set()
        #: Who waits for an id, and what takes ids for them.
        self._waiting: list[asyncio.Future[LedgerId]] = []
        self._taking: asyncio.Task[None] | None = None
        #: Taken ahead, when that was, how many are to be, and how many ids were asked for during
        #: this step.
        self._stock: deque[LedgerId] = deque()
        self._stocked_ns = 0
        self._ahead = 0
        self._asked = 0
        #: When the last steps began.
        self._steps_ns: deque[int] = deque(maxlen=_QUICK_STEPS)

    async def next_id(self) -> LedgerId:
        """Return an id that was never given before.

        Raises:
            LedgerIdOverflowError: none is left.
        """
        self._asked += 1
        ledger_id = self._from_stock()
        if ledger_id is not None:
            return ledger_id
        answer: asyncio.Future[LedgerId] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        if self._taking is None:
            self._taking = asyncio.ensure_future(self._take())
        return await answer

    def _from_stock(self) -> LedgerId | None:
        if not self._stock:
            return None
        if self._store.env.clock.now_ns() - self._stocked_ns > _STOCK_NS:
            self._stock.clear()
            return None
        ledger_id = self._stock.popleft()
        if self._taking is None and self._is_stock_low():
            self._taking = asyncio.ensure_future(self._take())
        return ledger_id

    async def close(self) -> None:
        """Wait until the nodes that ids were taken from are deleted."""
        if self._taking is not None:
            await self._taking
        await asyncio.gather(*self._deletions)

    async def _take(self) -> None:
        """Take ids for those who wait, for those who come meanwhile, and ahead."""
        most = self._store.multi_limit // 2
        try:
            while self._waiting or self._is_stock_low():
                is_quick = self._begin_step()
                waiting = self._waiting[:most]
                count = min(most, len(waiting) + max(0, self._ahead - len(self._stock)))
                if not count:
                    break
                try:
                    ids = await self._next_ids(count)
                except QuorumbookError as error:
                    self._ahead = 0
                    del self._waiting[: len(waiting)]
                    for answer in waiting:
                        if not answer.done():
                            answer.set_exception(copy.copy(error))
                    continue
                # A run may end early, where its counter ends; the others are next.
                self._stock += ids
                served = self._waiting[: len(self._stock)]
                del self._waiting[: len(served)]
                for answer in served:
                    ledger_id = self._stock.popleft()
                    if not answer.done():
                        answer.set_result(ledger_id)
                self._stocked_ns = self._store.env.clock.now_ns()
                self._ahead = min(max(_AHEAD_MIN, 2 * self._asked), _AHEAD_MAX) if is_quick else 0
        finally:
            self._taking = None
            for answer in self._waiting:
                answer.cancel()

    def _is_stock_low(self) -> bool:
        return self._ahead > 0 and 2 * len(self._stock) <= self._ahead

    def _begin_step(self) -> bool:
        """Note that a step begins; return whether ids are asked for so quickly that it pays."""
        now_ns = self._store.env.clock.now_ns()
        steps_ns = self._steps_ns
        steps_ns.append(now_ns)
        is_quick = len(steps_ns) == _QUICK_STEPS and now_ns - steps_ns[0] <= _STOCK_NS
        if not is_quick:
            self._ahead = 0
        self._asked = 0
        return is_quick

    async def _next_ids(self, count: int) -> Sequence[LedgerId]:
        if self._kind is None:
            self._kind = (await read_layout(self._store)).kind
        if count > 1:
            # After a lost answer it is not known which numbers were taken: others are.
            with contextlib.suppress(MetadataFateUnknownError):
                return await with_living_session(self._store, lambda: self._run_of_ids(count))
        return await with_living_session(self._store, lambda: self._run_of_ids(1))

    async def _run_of_ids(self, count: int) -> Sequence[LedgerId]:
        first = await self._next_id(count)
        left = FIRST_LONG_LEDGER_ID - (first & 0xFFFFFFFF)
        return range(first, first + min(count, left))

    async def _next_id(self, count: int) -> LedgerId:
        """Return the first of so many ids that follow each other, as far as the counter goes."""
        if self._kind is LayoutKind.FLAT:
            return self._short(await self._sequence_number(self._paths.root, count))
        if self._kind is LayoutKind.LEGACY_HIERARCHICAL:
            return self._short(await self._sequence_number(self._paths.idgen, count))
        if self._is_long is None:
            # Asked once: short ids stay unique also after others have gone on to long ones.
            self._is_long = await self._store.exists(self._paths.idgen_long) is not None
        if not self._is_long:
            number = await self._sequence_number(self._paths.idgen, count)
            if 0 <= number < FIRST_LONG_LEDGER_ID:
                return number
            with contextlib.suppress(NodeExistsError):
                await create_with_parents(self._store, self._paths.idgen_long)
            self._is_long = True
        return await self._next_long_id(count)

    async def _next_long_id(self, count: int) -> LedgerId:
        while True:
            known = await self._high_bits()
            high = max(known, default=0)
            if known:
                number = await self._sequence_number(self._paths.high_order_bits(high), count)
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
        return _high_bits(await self._store.children(self._paths.idgen_long))

    async def _sequence_number(self, parent: str, count: int) -> int:
        prefix = f"{parent}/ID-"
        if count == 1:
            path = await create_with_parents(self._store, prefix, ephemeral=True, sequential=True)
        else:
            # Only the first number is needed by name; the others are counted behind it.
            step = f"{parent}/step"
            others: list[Operation] = [Create(step), Delete(step)]
            first = Create(prefix, ephemeral=True, sequential=True)
            made = await with_parents(
                self._store, prefix, lambda: self._store.multi([first, *others * (count - 1)])
            )
            path = str(made[0])
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
