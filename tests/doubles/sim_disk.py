"""Disks for tests: one in memory that can lose power, and faults for any disk.

``SimDisk`` keeps what was synced apart from what was not.  ``crash`` returns the disk as it may
look after a power cut: of the writes since the last sync any sectors may be there or not, in any
combination; a name that no directory sync covered may be there or not.  What was synced, is.

``Faults`` makes the n-th call of an operation fail, once or from then on, for files whose path
contains a text.  It works in ``SimDisk`` and, through ``FaultyDisk``, on the real disk.
"""

from __future__ import annotations

import posixpath
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quorumbook.env import Disk, DiskUsage, File
from quorumbook.errors import DirectoryLockedError, DiskFullError, ShortReadError, StorageError

SECTOR = 512


@dataclass
class Fault:
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
    planned: list[Fault] = field(default_factory=list)
    on_call: Callable[[str, str], None] | None = None

    def fail(
        self,
        operation: str,
        path_contains: str = "",
        *,
        at: int = 1,
        error: type[StorageError] = StorageError,
        permanent: bool = False,
        written_bytes: int | None = None,
    ) -> Fault:
        """Let the ``at``-th call from now of ``operation`` raise.

        Operations: open create write read sync allocate truncate list make_directory
        sync_directory replace unlink.  ``written_bytes``: a failing write leaves this many bytes.
        """
        fault = Fault(operation, path_contains, at, error, permanent, written_bytes)
        self.planned.append(fault)
        return fault

    def heal(self) -> None:
        """Forget all planned failures."""
        self.planned.clear()

    def count(self, operation: str, path_contains: str = "") -> int:
        """Count calls so far."""
        return sum(1 for name, path in self.calls if name == operation and path_contains in path)

    def check(self, operation: str, path: str) -> Fault | None:
        """Record a call; return the fault that hits it."""
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


class _Node:
    """A file's content: what is visible, what is durable, and the writes between."""

    def __init__(self, content: bytes = b"") -> None:
        self.data = bytearray(content)
        self.durable = bytes(content)
        #: ("write", offset, bytes), ("size", n, b"")
        self.pending: list[tuple[str, int, bytes]] = []

    def put(self, offset: int, data: bytes) -> None:
        _put(self.data, offset, data)
        self.pending.append(("write", offset, data))

    def resize(self, size: int) -> None:
        _resize(self.data, size)
        self.pending.append(("size", size, b""))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.pending.clear()

    def after_crash(self, rng: random.Random, keep: float) -> bytes:
        """Return the durable content plus a random part of what came later."""
        content = bytearray(self.durable)
        for kind, at, data in self.pending:
            if kind == "size":
                if rng.random() < keep:
                    _resize(content, at)
                continue
            position = at
            while position < at + len(data):
                end = min(at + len(data), (position // SECTOR + 1) * SECTOR)
                if rng.random() < keep:
                    _put(content, position, data[position - at : end - at])
                position = end
        return bytes(content)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class SimFile:
    """An open file of a ``SimDisk``."""

    def __init__(self, disk: SimDisk, path: str, node: _Node, read_only: bool) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._read_only = read_only
        self._sync_failed = False
        self.is_open = True

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
        assert self.is_open
        assert not self._read_only
        fault = self._disk.faults.check("write", self.path)
        data = b"".join(buffers)
        with self._disk.guard:
            if fault is not None:
                if fault.written_bytes:
                    self._node.put(offset, data[: fault.written_bytes])
                raise fault.error("injected failure of write", path=self.path)
            self._disk.check_room(self._node, offset + len(data))
            self._node.put(offset, data)

    def read(self, offset: int, size_bytes: int) -> bytes:
        assert self.is_open
        self._disk.faults.run("read", self.path)
        with self._disk.guard:
            return bytes(self._node.data[offset : offset + size_bytes])

    def read_cached(self, offset: int, size_bytes: int) -> bytes | None:
        return self.read(offset, size_bytes) if self._disk.reads_without_waiting else None

    def sync(self) -> None:
        assert self.is_open
        assert not self._sync_failed, "a file was synced again after a failed sync"
        try:
            self._disk.faults.run("sync", self.path)
        except StorageError:
            self._sync_failed = True
            raise
        with self._disk.guard:
            self._node.sync()

    def allocate(self, size_bytes: int) -> None:
        assert self.is_open
        self._disk.faults.run("allocate", self.path)
        with self._disk.guard:
            self._disk.check_room(self._node, size_bytes)
            if size_bytes > len(self._node.data):
                self._node.resize(size_bytes)

    def truncate(self, size_bytes: int) -> None:
        assert self.is_open
        self._disk.faults.run("truncate", self.path)
        with self._disk.guard:
            self._node.resize(size_bytes)

    def size_bytes(self) -> int:
        return len(self._node.data)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._disk.open_files -= 1


class SimDisk:
    """A disk in memory.  ``capacity_bytes`` bounds the sum of all file lengths."""

    #: Whether the operating system has everything in memory, or nothing.
    reads_without_waiting = False

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.faults = Faults()
        self.capacity_bytes = capacity_bytes
        self.guard = threading.RLock()
        self.open_files = 0
        self._names: dict[str, _Node] = {}
        self._durable_names: dict[str, _Node] = {}
        self._directories: set[str] = {"/"}
        self._locks: set[str] = set()

    # --- the Disk interface ---

    def open(
        self, path: str, *, create: bool = False, read_only: bool = False, uncached: bool = False
    ) -> File:
        self.faults.run("create" if create else "open", path)
        with self.guard:
            if create:
                if path in self._names:
                    raise StorageError("file exists", path=path)
                if posixpath.dirname(path) not in self._directories:
                    raise StorageError("no such directory", path=path)
                self._names[path] = _Node()
            elif path not in self._names:
                raise StorageError("no such file", path=path)
            self.open_files += 1
            return SimFile(self, path, self._names[path], read_only)

    def list_directory(self, path: str) -> list[str]:
        self.faults.run("list", path)
        with self.guard:
            if path not in self._directories:
                raise StorageError("no such directory", path=path)
            inside = [*self._names, *self._directories]
            return sorted(
                posixpath.basename(name)
                for name in inside
                if posixpath.dirname(name) == path and name != path
            )

    def make_directory(self, path: str) -> None:
        self.faults.run("make_directory", path)
        with self.guard:
            while path not in self._directories:
                self._directories.add(path)
                path = posixpath.dirname(path)

    def sync_directory(self, path: str) -> None:
        self.faults.run("sync_directory", path)
        with self.guard:
            for name in set(self._names) | set(self._durable_names):
                if posixpath.dirname(name) != path:
                    continue
                if name in self._names:
                    self._durable_names[name] = self._names[name]
                else:
                    del self._durable_names[name]

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def replace(self, source: str, target: str) -> None:
        self.faults.run("replace", target)
        with self.guard:
            self._names[target] = self._names.pop(source)

    def unlink(self, path: str) -> None:
        self.faults.run("unlink", path)
        with self.guard:
            self._names.pop(path, None)

    def read_file(self, path: str) -> bytes:
        file = self.open(path, read_only=True)
        try:
            size = file.size_bytes()
            data = file.read(0, size)
        finally:
            file.close()
        if len(data) != size:
            raise ShortReadError("file ends early", path=path, offset=len(data))
        return data

    def write_file(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        self.unlink(temporary)
        file = self.open(temporary, create=True)
        try:
            file.write([data], 0)
            file.sync()
        finally:
            file.close()
        self.replace(temporary, path)
        self.sync_directory(posixpath.dirname(path))

    def usage(self, path: str) -> DiskUsage:
        capacity = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return DiskUsage(capacity, max(capacity - self.used_bytes(), 0))

    def lock(self, path: str) -> Callable[[], None]:
        if path in self._locks:
            raise DirectoryLockedError("another bookie runs on this directory", path=path)
        self._locks.add(path)
        return lambda: self._locks.discard(path)

    # --- for tests ---

    def used_bytes(self) -> int:
        """Return the sum of all file lengths."""
        return sum(len(node.data) for node in self._names.values())

    def check_room(self, node: _Node, size: int) -> None:
        """Raise if the disk cannot hold the file at this length."""
        more = size - len(node.data)
        capacity = self.capacity_bytes
        if capacity is not None and more > 0 and self.used_bytes() + more > capacity:
            raise DiskFullError("no space left on device")

    def put(self, path: str, data: bytes) -> None:
        """Place a durable file, with its directory."""
        self.make_directory(posixpath.dirname(path))
        self._names[path] = self._durable_names[path] = _Node(data)

    def get(self, path: str) -> bytes:
        """Return a file's visible content."""
        return bytes(self._names[path].data)

    def files(self) -> list[str]:
        """Return the paths of all files."""
        return sorted(self._names)

    def copy(self) -> SimDisk:
        """Return an independent disk with the same visible content, all of it durable."""
        other = SimDisk(capacity_bytes=self.capacity_bytes)
        other._directories = set(self._directories)
        for path, node in self._names.items():
            other._names[path] = other._durable_names[path] = _Node(bytes(node.data))
        return other

    def crash(self, rng: random.Random | None = None, *, keep: float = 0.0) -> SimDisk:
        """Return the disk after a power cut.

        Args:
            rng: Decides what of the unsynced is there; without it nothing is.
            keep: The probability for each unsynced sector, length and name.
        """
        rng = rng or random.Random(0)
        other = SimDisk(capacity_bytes=self.capacity_bytes)
        with self.guard:
            other._directories = set(self._directories)
            names = dict(self._durable_names)
            for path in sorted(set(self._names) | set(names)):
                if self._names.get(path) is not names.get(path) and rng.random() < keep:
                    if path in self._names:
                        names[path] = self._names[path]
                    else:
                        names.pop(path, None)
            for path in sorted(names):
                other.put(path, names[path].after_crash(rng, keep))
        return other


class _FaultyFile:
    def __init__(self, file: File, faults: Faults) -> None:
        self._file = file
        self._faults = faults
        self.path = file.path

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
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

    def write_file(self, path: str, data: bytes) -> None:
        self.faults.run("create", path)
        self.faults.run("write", path)
        self.faults.run("sync", path)
        self.faults.run("replace", path)
        self._disk.write_file(path, data)

    def usage(self, path: str) -> DiskUsage:
        return self._disk.usage(path)

    def lock(self, path: str) -> Callable[[], None]:
        return self._disk.lock(path)
