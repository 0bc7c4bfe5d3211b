"""How the disks behave on which a bookie would keep its journal and its ledgers.

The probe writes what a journal writes, small blocks each followed by a sync, and then a larger
piece at once.  It runs once for each file system, and removes its file.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quorumbook.admin.facts.verdict import DISK_WARNING, VerdictReason
from quorumbook.admin.facts.words import sized
from quorumbook.cli.diagnosis.checks import failed, fine, warned

_BLOCK = bytes(4096)
_SYNCS_MAX, _SYNCS_S = 50, 1.0
_PIECE, _PIECES = bytes(1 << 20), 32
_SLOW_SYNC_MS, _SLOW_RATE = 20.0, 20e6
_INODES_LOW = 0.05
#: What is there loses everything with the power, or lets several hosts write.
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})


@dataclass(frozen=True, slots=True)
class DiskProbe:
    """What was measured on one file system."""

    directory: str
    #: What the kernel calls the file system; empty if it says nothing.
    kind: str
    used: float
    free_bytes: int
    #: Share of file names that are free; 1 where there is no limit.
    free_inodes: float
    sync_ms: float
    slowest_sync_ms: float
    bytes_per_s: float
    #: Something in this process turns syncs into nothing.
    is_sync_skipped: bool = False


def disk_checks(directories: Sequence[str], *, max_usage: float) -> list[VerdictReason]:
    """Return findings about each file system on which the directories are; blocks.

    Args:
        directories: Of the journal and the ledgers; those that are not there yet would be made.
        max_usage: With so much of its disk used a bookie is read-only.
    """
    checks: list[VerdictReason] = []
    devices: set[int] = set()
    for wanted in directories:
        directory = _existing(wanted)
        device = os.stat(directory).st_dev
        if device in devices and os.access(directory, os.W_OK):
            continue
        devices.add(device)
        try:
            found = probe(directory)
        except OSError as error:
            checks.append(
                failed(
                    "disk",
                    f"{directory} cannot be written: {error.strerror}",
                    f"give this user the right to write there; {wanted} is kept there",
                )
            )
        else:
            checks += judged(found, max_usage=max_usage)
    return checks


def judged(disk: DiskProbe, *, max_usage: float) -> list[VerdictReason]:
    """Return what a probe's numbers mean: the disk itself, and its room."""
    return [_behaviour(disk), _room(disk, max_usage)]


def _behaviour(disk: DiskProbe) -> VerdictReason:
    where = f"{disk.directory} ({disk.kind or 'file system unknown'})"
    numbers = (
        f"a sync takes {disk.sync_ms:.2g} ms, at most {disk.slowest_sync_ms:.2g} ms; "
        f"writes {sized(round(disk.bytes_per_s))}/s"
    )
    if disk.is_sync_skipped:
        fix = "take libeatmydata out of LD_PRELOAD"
        return failed("disk", f"{where}: syncs do nothing in this process", fix)
    if disk.kind in _VOLATILE:
        fix = "keep journal and ledgers on a disk, unless this is a test"
        return warned("disk", f"{where} is memory: it is empty after a restart; {numbers}", fix)
    if disk.kind in _REMOTE:
        fix = "keep journal and ledgers on a disk of this machine"
        return warned("disk", f"{where} is a network file system; {numbers}", fix)
    if disk.sync_ms > _SLOW_SYNC_MS:
        fix = "every append waits for one; put the journal on an SSD, or on a disk of its own"
        return warned("disk", f"{where} syncs slowly: {numbers}", fix)
    if disk.bytes_per_s < _SLOW_RATE:
        fix = "look for what else writes there, or use a faster disk"
        return warned("disk", f"{where} writes slowly: {numbers}", fix)
    return fine("disk", f"{where}: {numbers}")


def _room(disk: DiskProbe, max_usage: float) -> VerdictReason:
    text = f"{disk.directory} is {disk.used:.0%} full, {sized(disk.free_bytes)} are free"
    if disk.used >= max_usage:
        fix = f"free some space: a bookie is read-only from {max_usage:.0%} on"
        return failed("space", text, fix)
    if disk.free_inodes < _INODES_LOW:
        fix = "delete small files, or make the file system with more inodes"
        return warned("space", f"{text}, but few new files can be made there", fix)
    if disk.used >= DISK_WARNING:
        fix = f"free some space: a bookie becomes read-only at {max_usage:.0%}"
        return warned("space", text, fix)
    return fine("space", text)


def probe(directory: str) -> DiskProbe:
    """Measure the file system of a directory; blocks for two seconds or less on a sound disk.

    Raises:
        OSError: Nothing can be written there.
    """
    stat = os.statvfs(directory)
    used = stat.f_blocks - stat.f_bfree
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".quorumbook-doctor-") as file:
        syncs_ms = _syncs_ms(file.fileno())
        bytes_per_s = _rate(file.fileno())
    return DiskProbe(
        directory=directory,
        kind=_kind(directory),
        used=used / max(used + stat.f_bavail, 1),
        free_bytes=stat.f_bavail * stat.f_frsize,
        free_inodes=stat.f_favail / stat.f_files if stat.f_files else 1.0,
        sync_ms=statistics.median(syncs_ms),
        slowest_sync_ms=max(syncs_ms),
        bytes_per_s=bytes_per_s,
        is_sync_skipped=is_sync_skipped(os.environ),
    )


def is_sync_skipped(environment: Mapping[str, str]) -> bool:
    """Tell whether a library is preloaded that makes syncs do nothing."""
    return "eatmydata" in environment.get("LD_PRELOAD", "")


def _syncs_ms(fd: int) -> list[float]:
    found: list[float] = []
    end_s = time.monotonic() + _SYNCS_S
    while len(found) < _SYNCS_MAX and (not found or time.monotonic() < end_s):
        os.write(fd, _BLOCK)
        began_s = time.perf_counter()
        os.fsync(fd)
        found.append((time.perf_counter() - began_s) * 1000)
    return found


def _rate(fd: int) -> float:
    began_s = time.perf_counter()
    written = 0
    for _ in range(_PIECES):
        written += os.write(fd, _PIECE)
        os.fsync(fd)
        if time.perf_counter() - began_s > _SYNCS_S:
            break
    return written / (time.perf_counter() - began_s)


def _existing(path: str) -> str:
    """Return the directory itself, or the nearest one above it that is there."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _kind(directory: str) -> str:
    """Return what kind of file system a directory is on, as far as the kernel tells."""
    try:
        with open("/proc/self/mounts", encoding="utf-8") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return ""
    real = os.path.realpath(directory)
    # A later mount hides an earlier one at the same place.
    above = [
        (len(point), number, kind)
        for number, (point, kind) in enumerate(mounts)
        if os.path.commonpath((real, point)) == point
    ]
    return max(above)[2] if above else ""
