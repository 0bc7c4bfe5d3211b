"""The machine's file systems behind our interface."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quorumbook.env import RealDisk
from quorumbook.errors import StorageError


def test_r21_a_new_directory_is_durable_with_all_parents_that_were_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal whose own directory vanishes in a power cut takes acknowledged entries along."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    disk = RealDisk()
    disk.make_directory(f"{tmp_path}/a/b/current")
    # Each is durable before the next is made, so a kill leaves one at most that is not.
    assert synced == [f"{tmp_path.parent}", f"{tmp_path}", f"{tmp_path}/a", f"{tmp_path}/a/b"]
    synced.clear()
    disk.make_directory(f"{tmp_path}/a/b/current")
    assert synced == [f"{tmp_path}/a/b"]


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="Linux can read without waiting")
def test_a_read_that_does_not_wait_gives_what_lies_there_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(256)) * 64)
    file = RealDisk().open(str(tmp_path / "f"), read_only=True)
    file.read(0, 16_384)
    assert file.read_cached(250, 10) in (bytes([*range(250, 256), 0, 1, 2, 3]), None)
    assert file.read_cached(16_380, 10) in (bytes([252, 253, 254, 255]), None)
    file.close()
    assert file.read_cached(0, 1) is None


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
def test_what_cannot_be_looked_at_is_not_taken_for_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A note that holds deletions, or a promise, must not be forgotten for a cable's sake."""
    note, unmade, stat = f"{tmp_path}/GC_HOLD", f"{tmp_path}/unmade", os.stat
    Path(note).write_bytes(b"{}")
    disk = RealDisk()
    assert disk.exists(note)
    assert not disk.exists(f"{tmp_path}/other")
    assert not disk.exists(f"{note}/below")

    def failing(path: str, *given: object, **named: object) -> object:
        if path in (note, unmade):
            raise OSError(code, os.strerror(code))
        return stat(path, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(StorageError) as caught:
        disk.exists(note)
    assert caught.value.path == note
    with pytest.raises(StorageError):
        disk.make_directory(unmade)
    assert disk.list_directory(f"{tmp_path}") == ["GC_HOLD"]
