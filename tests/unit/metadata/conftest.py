"""Worlds with a clock that stands still, and stores in them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from quorumbook.env import Env
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.memory import forget_memory_tree
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store

_numbers = itertools.count()


@dataclass
class StillClock:
    """A clock that only a test moves."""

    ns: int = 1_000_000_000_000
    ms: int = 1_600_000_000_000
    boot: str = "a boot"

    def now_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return self.ms

    def boot_id(self) -> str:
        return self.boot

    def advance(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def env(clock: StillClock) -> Env:
    return Env(clock=clock)


@pytest.fixture
async def open_memory(env: Env) -> AsyncIterator[Callable[..., object]]:
    """Open one more session on a fresh tree in memory."""
    name = f"unit-{next(_numbers)}"
    stores: list[MetadataStore] = []

    async def open_one(**options: float) -> MetadataStore:
        stores.append(await open_store(f"memory://{name}", env, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()
    forget_memory_tree(name)


@pytest.fixture
async def store(open_memory: Callable[..., object]) -> MetadataStore:
    """A session on a fresh tree in memory."""
    return await open_memory()


@pytest.fixture
async def initialised(store: MetadataStore) -> MetadataStore:
    """A session on a tree that is a cluster's."""
    await init_cluster(store)
    return store
