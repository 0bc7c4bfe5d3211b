"""What is left of the real index, an SQLite file, after kills and power cuts.

These are the outcomes that ``test_storage_index_place.py`` demands of the simulator's model: every
commit that returned is there, and no half of any other.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from quorumbook.storage.index.place import IndexPlace
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.index.tables import Index
from quorumbook.storage.states.state_file import StoredLedger

_PLACE = IndexPlace()
_SECTOR = 512
_LEDGERS = range(30)
#: Pages until SQLite moves its log of changes into the file: often, or never here.
_CHECKPOINTS = {"often": 20, "never": 0}


def _open(path: str, checkpoints: str, *, create: bool = False) -> Index:
    index = _PLACE.open(path, create=create)
    # SQLite's own setting; 4 MB are too many for a test.
    index._connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINTS[checkpoints]}")
    return index


def _run(number: int) -> StoredRun:
    sizes = [number + 1, 0] * 50 + [number + 2]
    last = 200 * number + len(sizes) - 1
    return StoredRun(number % 3, 200 * number, last, number, 1024, sizes, 7, last)


def _states(number: int) -> list[StoredLedger]:
    return [StoredLedger(each, b"key %d" % number, born_at=number) for each in _LEDGERS]


def _commit(index: Index, number: int) -> None:
    """Change all that is there, over several pages, and add to it."""
    index.commit(runs=[_run(number)], states=_states(number), meta=[("number", str(number))])


def _found(path: str) -> int:
    """Return which commit is the last one, when nothing of another one is there."""
    _PLACE.settle(path)
    index = _PLACE.open(path)
    index.check_whole()
    number = int(index.meta("number") or 0)
    assert list(index.ledger_states()) == _states(number)
    runs = sorted(run for each in _LEDGERS for run in index.runs(each))
    expected = sorted(map(_run, range(number + 1)))
    assert [run[:5] for run in runs] == [run[:5] for run in expected]
    assert [list(run.sizes) for run in runs] == [run.sizes for run in expected]
    index.close()
    return number


def _commit_until_killed(path: str, checkpoints: str, number: int, steps: int, told: int) -> None:
    """Make commit after commit and tell of each; die after some steps of SQLite's, if not 0."""
    index = _open(path, checkpoints)
    left = steps

    def step() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    if steps:
        # SQLite calls it in the middle of statements.
        index._connection.set_progress_handler(step, 1)
    while True:
        number += 1
        _commit(index, number)
        os.write(told, b"%d\n" % number)


def _told_by_a_killed_child(path: str, checkpoints: str, last: int, rng: random.Random) -> int:
    """Return the last commit of which a child told before SIGKILL struck in the midst of others."""
    steps = rng.choice((0, 1 + rng.randrange(3000)))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _commit_until_killed(path, checkpoints, last, steps, writing)
        finally:
            os._exit(1)
    os.close(writing)
    told = [last]
    with open(reading, "rb") as pipe:
        if not steps:
            before_s = time.perf_counter()
            told += [int(pipe.readline()) for _ in range(1 + rng.randrange(4))]
            # So long a few commits took, so it comes in the midst of the next one or two.
            time.sleep(rng.random() * (time.perf_counter() - before_s) / 2)
            os.kill(child, signal.SIGKILL)
        told += map(int, pipe.read().split())
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    return told[-1]


@pytest.mark.parametrize("checkpoints", _CHECKPOINTS)
def test_a_killed_process_leaves_whole_commits_and_each_that_returned(
    tmp_path: Path, checkpoints: str
):
    path, rng = f"{tmp_path}/index", random.Random(checkpoints)
    index = _open(path, checkpoints, create=True)
    _commit(index, 0)
    index.close()
    last = 0
    for _ in range(8):
        told = _told_by_a_killed_child(path, checkpoints, last, rng)
        last = _found(path)
        # It may have died between a commit and its word of it.
        assert last in (told, told + 1)


def _files(path: str) -> dict[str, bytes]:
    return {
        end: Path(path + end).read_bytes() for end in ("", "-wal") if os.path.exists(path + end)
    }


def _torn(before: bytes, after: bytes, rng: random.Random) -> bytes:
    """Return a file after a power cut: each of its sectors as it was, or as it was to be."""
    share = rng.choice((0.0, 0.5, 0.9, 1.0))
    content = bytearray(before)
    for at in range(0, len(after), _SECTOR):
        if rng.random() < share:
            content.extend(bytes(max(at - len(content), 0)))
            content[at : at + _SECTOR] = after[at : at + _SECTOR]
    return bytes(content)


def _cut(before: bytes, after: bytes, rng: random.Random) -> bytes:
    """Return a log of changes that grew, up to some place behind what was synced."""
    same = next((i for i, byte in enumerate(before) if after[i] != byte), len(before))
    end = rng.randrange(same, len(after) + 1)
    return after[:end] + before[end:]


@pytest.mark.parametrize("checkpoints", _CHECKPOINTS)
def test_a_power_cut_leaves_whole_commits_and_each_that_returned(tmp_path: Path, checkpoints: str):
    """A commit is synced in the log; only then the file is changed, and synced before the log goes.

    So of the writes since the last sync either those of the log or those of the file may be there.
    """
    path, copy, rng = f"{tmp_path}/index", f"{tmp_path}/copy", random.Random(checkpoints)
    index = _open(path, checkpoints, create=True)
    _commit(index, 0)
    before = _files(path)
    outcomes = set()
    for number in range(1, 11):
        _commit(index, number)
        after = _files(path)
        for attempt in range(4):
            tear = _cut if attempt % 2 else _torn
            left = {"": before[""], "-wal": tear(before["-wal"], after["-wal"], rng)}
            _PLACE.remove(copy)
            for end, content in left.items():
                Path(copy + end).write_bytes(content)
            found = _found(copy)
            assert found in (number - 1, number)
            outcomes.add(found - number)
        _PLACE.remove(copy)
        Path(copy).write_bytes(_torn(before[""], after[""], rng))
        Path(f"{copy}-wal").write_bytes(after["-wal"])
        assert _found(copy) == number
        before = after
    index.close()
    assert outcomes == {-1, 0}
    assert (len(before[""]) > 4096) is (checkpoints == "often")
