"""Cut the power of bookies under load and account for every acknowledged entry.

Each of three bookies, processes over sqlite metadata, keeps its data on an ext4 of its own in a
file.  The shutdown request of ext4 stops that file system as the loss of power does: what was not
synced is gone, writes fail from then on.  The bookie is killed, the file system mounted again,
which replays its journal, and the bookie started on what is left.  A cut hits one, two or all
three bookies at once, of a ledger at E3/Qw3/Qa2 that is written without pause; then the ledger is
opened with recovery and compared, and in the end every ledger once more.

    PYTHONPATH=tests python tests/faults/power_cuts.py --cuts 200      (root on Linux)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import platform
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from faults.accounts import Account, Load, verify
from quorumbook.testing import LocalCluster

BOOKIES = 3
IMAGE_SIZE_BYTES = 512 << 20
#: EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32).
SHUTDOWN = 0x8004587D
#: Keep what the file system's own journal has, or not even that.
LOG_FLUSH, NO_LOG_FLUSH = 1, 2
SMALL = {"journal_file_size_bytes": "16M", "write_cache_size_bytes": "1M", "flush_interval_s": 0.2}


class Disk:
    """An ext4 in a file, whose power can be cut."""

    def __init__(self, image: Path, mount_point: Path) -> None:
        self.image = image
        self.mount_point = mount_point
        with image.open("wb") as file:
            file.truncate(IMAGE_SIZE_BYTES)
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=1,nodiscard", str(image))
        mount_point.mkdir(parents=True)
        self.mount()

    def mount(self) -> None:
        """Power is back."""
        _run("mount", "-o", "loop", str(self.image), str(self.mount_point))

    def cut(self, flag: int) -> None:
        """Power is gone, from one moment to the next."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", flag))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Give the dead file system up; nobody has a file of it open."""
        _run("umount", str(self.mount_point))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def why_impossible() -> str | None:
    """Return what this machine lacks, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "power can be cut by root on Linux only: run the tests as root"
    for tool, package in (("mkfs.ext4", "e2fsprogs"), ("mount", "mount")):
        if shutil.which(tool) is None:
            return f"{tool} is missing; Debian has it in {package}"
    with tempfile.TemporaryDirectory() as name:
        try:
            disk = Disk(Path(name, "image"), Path(name, "disk"))
        except subprocess.CalledProcessError as error:
            return f"no file can be mounted here: {error.stderr.decode().strip()}"
        disk.unmount()
    return None


@contextlib.contextmanager
def _disks(directory: Path) -> Iterator[list[Disk]]:
    disks: list[Disk] = []
    try:
        for number in range(1, BOOKIES + 1):
            image, mount_point = directory / f"image-{number}", directory / f"bookie-{number}"
            disks.append(Disk(image, mount_point))
        yield disks
    finally:
        for disk in disks:
            with contextlib.suppress(subprocess.CalledProcessError):
                disk.unmount()


@contextlib.contextmanager
def _machine(name: str) -> Iterator[None]:
    """Have bookies started from now on run on a machine of ``machines/``."""
    changed = {"PYTHONPATH": str(Path(__file__).parent / "machines" / name), "BOOT_ID": "0"}
    before = {key: os.environ.get(key) for key in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key)
            if value is not None:
                os.environ[key] = value


async def run(cuts: int, directory: Path, seed: int, machine: str = "booting") -> Account:
    """Cut so often; any promise broken raises AssertionError."""
    dice = random.Random(seed)
    account = Account()
    with _machine(machine), _disks(directory) as disks:
        async with LocalCluster(
            bookies=BOOKIES, data_dir=str(directory), processes=True, storage=SMALL
        ) as cluster:
            disk_of = dict(zip(cluster.bookie_ids, disks, strict=True))
            while account.cycles < cuts:
                # A client of its own for each ledger: one that saw bookies fail avoids them.
                async with cluster.connect() as writing, cluster.connect() as reading:
                    load = Load(await writing.create_ledger(), account)
                    await load.wait_acknowledged(dice.randrange(1, 2000), "adds before the cut")
                    victims = dice.sample(cluster.bookie_ids, dice.randint(1, BOOKIES))
                    flag = dice.choice((LOG_FLUSH, NO_LOG_FLUSH))
                    for victim in victims:
                        disk_of[victim].cut(flag)
                    # What a bookie still acknowledges without power counts as acknowledged.
                    await asyncio.sleep(dice.random() * 0.02)
                    for victim in victims:
                        await cluster.kill(victim)
                    await load.stop()
                    for victim in victims:
                        disk_of[victim].unmount()
                        disk_of[victim].mount()
                        os.environ["BOOT_ID"] = str(account.cycles + 1)
                        await cluster.restart(victim)
                    await verify(reading, load.writer.id, account)
                    account.cycles += len(victims)
            async with cluster.connect() as reading:
                for ledger_id in account.acknowledged:
                    await verify(reading, ledger_id, account)
    return account


def report(account: Account, seed: int, took_s: float) -> str:
    """Describe a run in a page."""
    acknowledged = sum(last + 1 for last in account.acknowledged.values())
    return "\n".join(
        [
            "# Power cuts",
            "",
            f"`make torture` with seed {seed} on Linux {platform.release()}, "
            f"Python {platform.python_version()}, {took_s:.0f} s: bookies on file systems of "
            "their own that are shut down under load, one, two or all three at once.",
            "",
            "| what | count |",
            "|---|---|",
            f"| bookies whose power was cut | {account.cycles} |",
            f"| ledgers (E3/Qw3/Qa2 over three bookies) | {len(account.acknowledged)} |",
            f"| entries acknowledged | {acknowledged:,} |",
            f"| entries read back and compared | {account.verified_entries:,} |",
            "| acknowledged entries lost or changed | 0 |",
            "",
        ]
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    reason = why_impossible()
    if reason is not None:
        sys.exit(reason)
    print(f"seed {arguments.seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        account = asyncio.run(run(arguments.cuts, Path(name), arguments.seed))
    page = report(account, arguments.seed, time.monotonic() - began)
    print(page)
    if arguments.report is not None:
        arguments.report.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
