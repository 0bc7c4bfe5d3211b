"""What pipelines tell in the metadata, and what of it can be read."""

from __future__ import annotations

from typing import Any

import pytest

from quorumbook.env import Env
from quorumbook.metadata.memory import MemoryStore, MemoryTree
from quorumbook.metadata.nodes import set_or_create
from quorumbook.metadata.store import Node
from quorumbook.streams.errors import PipelineNotFoundError, PipelineRunsError
from quorumbook.streams.metadata.pipeline_nodes import PIPELINES_MAX, forget, tell, told_of

TOLD: dict[str, Any] = {"name": "a/b", "state": "running", "told_every_s": 5.0, "steps": []}


async def test_what_is_told_replaces_what_was_and_damage_hides_nobody_else() -> None:
    store = MemoryStore(MemoryTree(), Env())
    try:
        assert await told_of(store, "/ns") == []
        for steps in [], [{"step": "clean"}]:
            await tell(store, "/ns", "a/b", {**TOLD, "steps": steps})
        damaged = b"", b"[]", b"{}", b'{"version": 2, "state": "ended"}', b'{"version": 1}', b"\xff"
        for number, data in enumerate(damaged):
            await set_or_create(store, f"/ns/.pipelines/damaged{number}", data)
        (found,) = await told_of(store, "/ns")
        now_ms = store.env.clock.wall_ms()
        assert 0 <= now_ms - found.pop("told_at_ms") < 60_000
        assert found == {**TOLD, "steps": [{"step": "clean"}]}
        await tell(store, "/ns", "a/b", {**TOLD, "told_every_s": -1})
        await tell(store, "/ns", "c", {**TOLD, "name": "c", "told_every_s": -1, "state": "ended"})
        states = {each["name"]: each["state"] for each in await told_of(store, "/ns")}
        assert states == {"a/b": "silent", "c": "ended"}
    finally:
        await store.close()


async def test_so_many_pipelines_are_read_and_no_more() -> None:
    store = MemoryStore(MemoryTree(), Env())
    try:
        for number in range(PIPELINES_MAX + 3):
            await tell(store, "/ns", f"{number:04}", {**TOLD, "name": f"{number:04}"})
        names = [each["name"] for each in await told_of(store, "/ns")]
        assert names == [f"{number:04}" for number in range(PIPELINES_MAX)]
    finally:
        await store.close()


async def test_what_a_pipeline_told_is_forgotten_unless_it_runs() -> None:
    store = MemoryStore(MemoryTree(), Env())
    try:
        for name in "runs", "other":
            await tell(store, "/ns", name, {**TOLD, "name": name})
        await tell(store, "/ns", "ended/eu", {**TOLD, "state": "ended"})
        await tell(store, "/ns", "silent", {**TOLD, "told_every_s": -1})
        await set_or_create(store, "/ns/.pipelines/damaged", b"{")
        with pytest.raises(PipelineRunsError, match="pipeline runs runs: stop it first"):
            await forget(store, "/ns", "runs")
        for name in "ended/eu", "silent", "damaged":
            await forget(store, "/ns", name)
            with pytest.raises(PipelineNotFoundError, match=f"no pipeline {name} was run in /ns"):
                await forget(store, "/ns", name)
        assert await store.children("/ns/.pipelines") == ["other", "runs"]
    finally:
        await store.close()


class LateStore(MemoryStore):
    """A pipeline tells, or another one forgets it, between a look at its node and what follows."""

    def __init__(self, *, is_gone: bool) -> None:
        super().__init__(MemoryTree(), Env())
        self._is_gone = is_gone

    async def get(self, path: str, watch: Any = None) -> Node:
        node = await super().get(path, watch)
        if self._is_gone:
            await self.delete(path)
        else:
            await tell(self, "/ns", "late", TOLD)
        return node


async def test_a_pipeline_that_begins_as_it_is_to_be_forgotten_is_kept() -> None:
    for is_gone, error in ((False, PipelineRunsError), (True, PipelineNotFoundError)):
        store = LateStore(is_gone=is_gone)
        try:
            await tell(store, "/ns", "late", {**TOLD, "state": "ended"})
            with pytest.raises(error):
                await forget(store, "/ns", "late")
            assert len(await told_of(store, "/ns")) == (not is_gone)
        finally:
            await store.close()
