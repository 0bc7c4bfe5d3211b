"""The machine's file systems behind our interface."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quorumbook.env import RealDisk


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
    assert set(synced) == {f"{tmp_path}/a/b", f"{tmp_path}/a", f"{tmp_path}"}
    synced.clear()
    disk.make_directory(f"{tmp_path}/a/b/current")
    assert synced == []
