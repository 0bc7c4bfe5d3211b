"""An index that is rebuilt from damaged entry logs claims nothing it cannot know."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize("is_fence", [True, False])
@pytest.mark.parametrize("later", [True, False])
async def test_s53_what_was_deleted_stays_deleted_when_its_ledger_is_touched_again(
    tmp_path: Path, is_fence: bool, later: bool
) -> None:
    """A late writer or a recovery may speak of a ledger that is gone; its entries stay gone."""
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(10), lac=3), run_of(2, range(10)))
    await world.storage.flush()
    await world.storage.delete_ledgers([1])
    if later:
        await world.restart()
    if is_fence:
        await world.fence(1)
    else:
        await world.append(run_of(1, [12], lac=-1))
    await world.storage.stop()
    for count in (10, 11):
        Path(world.index_path).unlink()
        report = await world.start()
        assert report.is_index_rebuilt
        assert not report.needs_limbo_start
        assert await world.ids(1) == ([] if is_fence else [12])
        handle = world.handle(1)
        assert handle.is_fenced == is_fence
        assert handle.last_add_confirmed == -1
        assert await world.ids(2) == list(range(count)), "others keep theirs"
        await world.append(run_of(2, [count]))
        await world.storage.stop()
