"""Planned failures of a disk's calls, in ``SimDisk`` and, through ``FaultyDisk``, on the real one.

``Faults`` makes the n-th call of an operation fail, once or from then on, for files whose path
contains a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from quorumbook.env import Disk, DiskUsage, File
from quorumbook.errors import StorageError


@dataclass
class DiskFault:
    """One planned failure."""

    operation: str
    path_contains: str
    countdown: int
    error: type[StorageError]
    is_permanent: bool
    written_bytes: int | None
    hits: int = 0


@dataclass
class Faults:
    """Planned failures and a log of all calls as (operation, path)."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    planned: list[DiskFault] = field(default_factory=list)
    on_call: Callable[[str, str], None] | None = None
    #: Whether ``calls`` grows.
    keeps_calls: bool = True

    def fail(
        self,
        operation: str,
        path_contains: str = "",
        *,
        at: int = 1,
        error: type[StorageError] = StorageError,
        permanent: bool = False,
        written_bytes: int | None = None,
    ) -> DiskFault:
        """Let the ``at``-th call from now of ``operation`` raise.

        Operations: open create write read sync allocate truncate list exists make_directory
        sync_directory replace unlink.  ``written_bytes``: a failing write leaves this many bytes.
        """
        fault = DiskFault(operation, path_contains, at, error, permanent, written_bytes)
        self.planned.append(fault)
        return fault

    def outlive(self, other: Faults) -> None:
        """Have another life of this disk fail where this one does for good."""
        other.planned += [each for each in self.planned if each.is_permanent]

    def heal(self) -> None:
        """Forget all planned failures."""
        self.planned.clear()

    def count(self, operation: str, path_contains: str = "") -> int:
        """Count calls so far."""
        return sum(1 for name, path in self.calls if name == operation and path_contains in path)

    def check(self, operation: str, path: str) -> DiskFault | None:
        """Record a call; return the fault that hits it."""
        if self.keeps_calls:
            self.calls.append((operation, path))
        if self.on_call is not None:
            self.on_call(operation, path)
        for fault in list(self.planned):
            if fault.operation != operation or fault.path_contains not in path:
                continue
            fault.countdown -= 1
            if fault.countdown == 0 or (fault.is_permanent and fault.countdown < 0):
                fault.hits += 1
                return fault
        return None

    def run(self, operation: str, path: str) -> None:
        """Record a call and raise if it is to fail."""
        fault = self.check(operation, path)
        if fault is not None:
            raise fault.error(f"injected failure of {operation}", path=path)


class _FaultyFile:
    def __init__(self, file: File, faults: Faults) -> None:
        self._file = file
        self._faults = faults
        self.path = file.path

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        fault = self._faults.check("write", self.path)
        if fault is not None:
            if fault.written_bytes:
                self._file.write([b"".join(buffers)[: fault.written_bytes]], offset)
            raise fault.error("injected failure of write", path=self.path)
        self._file.write(buffers, offset)

    def read(self, offset: int, size_bytes: int) -> bytes:
        self._faults.run("read", self.path)
        return self._file.read(offset, size_bytes)

    def read_cached(self, offset: int, size_bytes: int) -> bytes | None:
        self._faults.run("read", self.path)
        return self._file.read_cached(offset, size_bytes)

    def sync(self) -> None:
        self._faults.run("sync", self.path)
        self._file.sync()

    def allocate(self, size_bytes: int) -> None:
        self._faults.run("allocate", self.path)
        self._file.allocate(size_bytes)

    def truncate(self, size_bytes: int) -> None:
        self._faults.run("truncate", self.path)
        self._file.truncate(size_bytes)

    def size_bytes(self) -> int:
        return self._file.size_bytes()

    def close(self) -> None:
        self._file.close()


class FaultyDisk:
    """Any disk, with faults."""

    def __init__(self, disk: Disk, faults: Faults | None = None) -> None:
        self._disk = disk
        self.faults = faults or Faults()

    def open(
        self, path: str, *, create: bool = False, read_only: bool = False, uncached: bool = False
    ) -> File:
        self.faults.run("create" if create else "open", path)
        return _FaultyFile(self._disk.open(path, create=create, read_only=read_only), self.faults)

    def list_directory(self, path: str) -> list[str]:
        self.faults.run("list", path)
        return self._disk.list_directory(path)

    def make_directory(self, path: str) -> None:
        self.faults.run("make_directory", path)
        self._disk.make_directory(path)

    def sync_directory(self, path: str) -> None:
        self.faults.run("sync_directory", path)
        self._disk.sync_directory(path)

    def exists(self, path: str) -> bool:
        self.faults.run("exists", path)
        return self._disk.exists(path)

    def replace(self, source: str, target: str) -> None:
        self.faults.run("replace", target)
        self._disk.replace(source, target)

    def unlink(self, path: str) -> None:
        self.faults.run("unlink", path)
        self._disk.unlink(path)

    def read_file(self, path: str) -> bytes:
        self.faults.run("open", path)
        self.faults.run("read", path)
        return self._disk.read_file(path)

    def write_file(self, path: str, pieces: Iterable[bytes]) -> None:
        self.faults.run("create", path)
        self.faults.run("write", path)
        self.faults.run("sync", path)
        self.faults.run("replace", path)
        self._disk.write_file(path, pieces)

    def usage(self, path: str) -> DiskUsage:
        return self._disk.usage(path)

    def lock(self, path: str) -> Callable[[], None]:
        return self._disk.lock(path)
