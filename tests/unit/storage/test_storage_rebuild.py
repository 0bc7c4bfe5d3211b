"""An index that is rebuilt from damaged entry logs claims nothing it cannot know."""

from __future__ import annotations

from pathlib import Path

from doubles.storage_world import World, run_of
from quorumbook.errors import UnknownLedgerStateError


async def test_r09_after_a_rebuild_over_damage_what_is_missing_is_unknown(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(10)))
    await world.append(run_of(2, range(10)))
    await world.storage.stop()
    (log,) = [path for path in world.disk.files() if path.endswith(".log")]
    content = bytearray(world.disk.get(log))
    place = content.index(run_of(1, range(10)).data)
    content[place : place + 200] = b"\xa5" * 200
    world.disk.put(log, bytes(content))
    Path(world.index_path).unlink()
    report = await world.start()
    assert report.is_index_rebuilt
    assert report.needs_limbo_start
    whole = await world.read_one(2, 3)
    assert whole == run_of(2, range(10)).entry(3)
    for ledger_id, entry_id in ((1, 0), (1, 9), (2, 10)):
        (answer,) = await world.read((ledger_id, entry_id))
        assert isinstance(answer, UnknownLedgerStateError), (ledger_id, entry_id)
    handles = [world.storage.handle(ledger_id) for ledger_id in (1, 2)]
    assert all(handle is not None and handle.is_in_limbo for handle in handles)
    await world.storage.stop()
