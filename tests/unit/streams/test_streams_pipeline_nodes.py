"""What pipelines tell in the metadata, and what of it can be read."""

from __future__ import annotations

from typing import Any

from quorumbook.env import Env
from quorumbook.metadata.memory import MemoryStore, MemoryTree
from quorumbook.metadata.nodes import set_or_create
from quorumbook.streams.metadata.pipeline_nodes import PIPELINES_MAX, tell, told_of

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
