"""Things in groups by a key, the lowest group first: readers by what they wait for, and how long.

Very many may come, and leave in any order.  Most share their key with others, so a group costs a
look at a heap, and one more of it, or one less, only a place in a dict.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", int, float)
T = TypeVar("T", bound=Hashable)

#: Keys of groups that are gone may stay in the heap, so many beyond those of the others.
_GONE_MAX = 16


class OrderedGroups(Generic[K, T]):
    """The groups; within one, things are in the order in which they came."""

    __slots__ = ("_groups", "_keys")

    def __init__(self) -> None:
        self._groups: dict[K, dict[T, None]] = {}
        #: A heap; keys of groups that are gone too, and some twice.
        self._keys: list[K] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def lowest(self) -> K | None:
        """The key of the first group."""
        while self._keys:
            if self._keys[0] in self._groups:
                return self._keys[0]
            heappop(self._keys)
        return None

    def add(self, key: K, thing: T) -> None:
        """Put a thing into the group of that key."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = {}
            heappush(self._keys, key)
        group[thing] = None

    def remove(self, key: K, thing: T) -> None:
        """Take a thing out of the group of that key, if it is there still."""
        group = self._groups.get(key)
        if group is not None:
            group.pop(thing, None)
            if not group:
                self._drop(key)

    def take(self, count: int | None = None) -> list[T]:
        """Take the first things out of the first group: so many at most, or all."""
        key = self.lowest
        if key is None:
            return []
        group = self._groups[key]
        taken = list(islice(group, count))
        for thing in taken:
            del group[thing]
        if not group:
            self._drop(key)
        return taken

    def _drop(self, key: K) -> None:
        del self._groups[key]
        if len(self._keys) > 2 * len(self._groups) + _GONE_MAX:
            self._keys = list(self._groups)
            heapify(self._keys)
