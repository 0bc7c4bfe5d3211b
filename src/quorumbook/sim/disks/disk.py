"""A disk in memory that can lose power.

``SimDisk`` keeps what was synced apart from what was not.  ``crash`` returns the disk as it may
look after a power cut: of the writes since the last sync any sectors may be there or not, in any
combination; a name that no directory sync covered may be there or not, be it a file's or a
directory's.  What was synced, is: when a sync returns, what had been written before it was called,
and nothing that came meanwhile.

A sync that fails leaves its data readable and clean: the system drops what it could not write, and
no later sync writes it, through whatever handle.  A power cut finds it on the disk or does not.

A killed process loses nothing that it wrote: ``after_kill`` is the same disk without its locks.
Which calls fail, and what happens at a call, is said to ``Faults``.
"""

from __future__ import annotations

import posixpath
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from quorumbook.env import DiskUsage, File
from quorumbook.env.disk import WholeFiles
from quorumbook.errors import DirectoryLockedError, DiskFullError, StorageError
from quorumbook.sim.disks.faults import Faults
from quorumbook.sim.disks.tables import Stored

SECTOR = 512
#: How much of each file is there after a power cut of what a failed sync was to write: half of it
#: on average, and mostly all or nothing, because the system tries a file's pages together.
_WRITTEN_SHARES = (0.0, 0.5, 1.0)
_Change = TypeVar("_Change")
#: ("write", offset, bytes) or ("size", n, b"")
_FileChange = tuple[str, int, bytes]


class _Changes(Generic[_Change]):
    """Changes in their order that are not durable yet."""

    def __init__(self) -> None:
        self.waiting: deque[_Change] = deque()
        self._settled = 0

    def count(self) -> int:
        """Return how many there were so far: where a sync that begins now will end."""
        return self._settled + len(self.waiting)

    def settle(self, count: int) -> Iterator[_Change]:
        """Yield those up to a count that no other sync took, to be made durable."""
        while self._settled < count:
            self._settled += 1
            yield self.waiting.popleft()


class _Node:
    """A file's content: what is visible, what is durable, and the writes between."""

    def __init__(self, content: bytes = b"") -> None:
        self.data = bytearray(content)
        self.durable = bytearray(content)
        self.changes: _Changes[_FileChange] = _Changes()
        #: From the first sync on that failed: what syncs settled, and whether that sync failed.
        self._unsure: list[tuple[_FileChange, bool]] = []
        #: By their number, what sectors held before they were written last.
        self.older: dict[int, bytes] = {}

    def put(self, offset: int, data: bytes) -> None:
        _put(self.data, offset, data)
        self.changes.waiting.append(("write", offset, data))

    def resize(self, size: int) -> None:
        _resize(self.data, size)
        self.changes.waiting.append(("size", size, b""))

    def sync(self, count: int) -> None:
        for change in self.changes.settle(count):
            self._settle(change)

    def fail_sync(self, count: int) -> None:
        """Take the data for clean: no later sync writes them, and they may never be written."""
        self._unsure += [(change, True) for change in self.changes.settle(count)]

    def damage(self, offset: int, data: bytes) -> None:
        """Hold other bytes, on the disk and in what is read."""
        _put(self.data, offset, data)
        if self._unsure or offset + len(data) <= len(self.durable):
            self._settle(("write", offset, data))

    def _settle(self, change: _FileChange) -> None:
        if self._unsure:
            # What comes later lies over what may be lost.
            self._unsure.append((change, False))
            return
        _, at, data = change
        for sector in range(at // SECTOR, -(-(at + len(data)) // SECTOR)):
            before = bytes(self.durable[sector * SECTOR : (sector + 1) * SECTOR])
            if before.count(0) < len(before):
                self.older[sector] = before
        _apply(self.durable, change)

    def after_crash(self, rng: random.Random, keep: float, shares: Sequence[float]) -> _Node:
        """Return the durable content plus a random part of the rest.

        Args:
            rng: Decides.
            keep: The probability for each sector that came after the last sync.
            shares: Such probabilities for what a failed sync was to write; one of them it is.
        """
        content = bytearray(self.durable)
        if self._unsure:
            share = rng.choice(shares)
            for change, is_doubtful in self._unsure:
                if is_doubtful:
                    _apply_partly(content, change, rng, share)
                else:
                    _apply(content, change)
        for change in self.changes.waiting:
            _apply_partly(content, change, rng, keep)
        node = _Node(bytes(content))
        node.older = dict(self.older)
        return node


def _apply(content: bytearray, change: _FileChange) -> None:
    kind, at, data = change
    if kind == "size":
        _resize(content, at)
    else:
        _put(content, at, data)


def _apply_partly(content: bytearray, change: _FileChange, rng: random.Random, keep: float) -> None:
    """Make a change of a length or not; of a write, each sector or not."""
    kind, at, data = change
    if kind == "size":
        if rng.random() < keep:
            _resize(content, at)
        return
    position = at
    while position < at + len(data):
        end = min(at + len(data), (position // SECTOR + 1) * SECTOR)
        if rng.random() < keep:
            _put(content, position, data[position - at : end - at])
        position = end


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


#: What a name is that is a directory's.
_DIRECTORY = _Node()


class SimFile:
    """An open file of a ``SimDisk``."""

    def __init__(self, disk: SimDisk, path: str, node: _Node, read_only: bool) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._read_only = read_only
        self._sync_failed = False
        self.is_open = True

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
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
        count = self._node.changes.count()
        try:
            # What this raises itself is the end of the process, and the system goes on.
            fault = self._disk.faults.check("sync", self.path)
        except StorageError:
            self._sync_failed = True
            raise
        with self._disk.guard:
            if fault is not None:
                self._sync_failed = True
                self._node.fail_sync(count)
                raise fault.error("injected failure of sync", path=self.path)
            self._node.sync(count)

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
            self._disk.handles[self.path] -= 1


class SimDisk(WholeFiles):
    """A disk in memory.  ``capacity_bytes`` bounds the sum of all file lengths."""

    #: Whether the operating system has everything in memory, or nothing.
    reads_without_waiting = False

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.faults = Faults()
        self.capacity_bytes = capacity_bytes
        self.guard = threading.RLock()
        #: By path, how often it is open.
        self.handles: Counter[str] = Counter()
        self._names: dict[str, _Node] = {}
        self._durable_names: dict[str, _Node] = {}
        #: By directory: a path and what it is from then on.
        self._name_changes: dict[str, _Changes[tuple[str, _Node | None]]] = {}
        self._directories: set[str] = {"/"}
        self._durable_directories: set[str] = {"/"}
        self._locks: set[str] = set()
        #: Of a bookie, by path: a model of what is an SQLite file elsewhere.
        self.indexes: dict[str, Stored] = {}

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
                self._name(path, _Node())
            elif path not in self._names:
                raise StorageError("no such file", path=path)
            self.handles[path] += 1
            return SimFile(self, path, self._names[path], read_only)

    @property
    def open_files(self) -> int:
        """How many there are in all."""
        return self.handles.total()

    @property
    def handles_of_nothing(self) -> int:
        """How many there are of files that are gone, or have another name."""
        with self.guard:
            return sum(n for path, n in self.handles.items() if path not in self._names)

    def list_directory(self, path: str) -> list[str]:
        self.faults.run("list", path)
        with self.guard:
            if path not in self._directories:
                raise StorageError("no such directory", path=path)
            start = path.rstrip("/") + "/"
            inside = [
                name[len(start) :]
                for name in (*self._names, *self._directories)
                if name.startswith(start)
            ]
            return sorted(name for name in inside if name and "/" not in name)

    def make_directory(self, path: str) -> None:
        """Make it and its parents, and sync what they lie in, step by step as ``RealDisk`` does."""
        self.faults.run("make_directory", path)
        missing = []
        with self.guard:
            while path not in self._directories:
                missing.append(path)
                path = posixpath.dirname(path)
        self.sync_directory(posixpath.dirname(path))
        for made in reversed(missing):
            parent = posixpath.dirname(made)
            with self.guard:
                self._directories.add(made)
                self._changes_in(parent).waiting.append((made, _DIRECTORY))
            self.sync_directory(parent)

    def sync_directory(self, path: str) -> None:
        changes = self._changes_in(path)
        count = changes.count()
        self.faults.run("sync_directory", path)
        with self.guard:
            for name, node in changes.settle(count):
                if node is _DIRECTORY:
                    self._durable_directories.add(name)
                elif node is not None:
                    self._durable_names[name] = node
                else:
                    self._durable_names.pop(name, None)

    def exists(self, path: str) -> bool:
        self.faults.run("exists", path)
        return path in self._names or path in self._directories

    def replace(self, source: str, target: str) -> None:
        self.faults.run("replace", target)
        with self.guard:
            node = self._names[source]
            self._name(source, None)
            self._name(target, node)

    def unlink(self, path: str) -> None:
        self.faults.run("unlink", path)
        with self.guard:
            if path in self._names:
                self._name(path, None)

    def usage(self, path: str) -> DiskUsage:
        capacity = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return DiskUsage(capacity, max(capacity - self.used_bytes(), 0))

    def lock(self, path: str) -> Callable[[], None]:
        if path in self._locks:
            raise DirectoryLockedError("another bookie runs on this directory", path=path)
        self._locks.add(path)
        return lambda: self._locks.discard(path)

    def _changes_in(self, directory: str) -> _Changes[tuple[str, _Node | None]]:
        return self._name_changes.setdefault(directory, _Changes())

    def _name(self, path: str, node: _Node | None) -> None:
        if node is not None:
            self._names[path] = node
        else:
            del self._names[path]
        self._changes_in(posixpath.dirname(path)).waiting.append((path, node))

    # --- for tests ---

    def used_bytes(self) -> int:
        """Return the sum of all file lengths."""
        return sum(len(node.data) for node in self._names.values())

    def check_room(self, node: _Node, size: int) -> None:
        """Raise if the disk cannot hold the file at this length."""
        self.check_free(size - len(node.data))

    def check_free(self, size_bytes: int) -> None:
        """Raise if the disk cannot hold so much more."""
        capacity = self.capacity_bytes
        if capacity is not None and size_bytes > 0 and self.used_bytes() + size_bytes > capacity:
            raise DiskFullError("no space left on device")

    def put(self, path: str, data: bytes) -> None:
        """Place a durable file, with its directory."""
        self._place(path, _Node(data))

    def _place(self, path: str, node: _Node) -> None:
        self._place_directory(posixpath.dirname(path))
        self._names[path] = self._durable_names[path] = node
        changes = self._changes_in(posixpath.dirname(path))
        for index, (name, _) in enumerate(changes.waiting):
            if name == path:
                changes.waiting[index] = (path, node)

    def _place_directory(self, path: str) -> None:
        while path not in self._durable_directories:
            self._directories.add(path)
            self._durable_directories.add(path)
            path = posixpath.dirname(path)

    def get(self, path: str) -> bytes:
        """Return a file's visible content."""
        return bytes(self._names[path].data)

    def older_sectors(self, path: str) -> dict[int, bytes]:
        """Return by their number what sectors of a file held before they were written last."""
        return self._names[path].older

    def files(self) -> list[str]:
        """Return the paths of all files."""
        return sorted(self._names)

    def copy(self, moved: tuple[str, str] = ("", "")) -> SimDisk:
        """Return an independent disk with the same visible content, all of it durable.

        Args:
            moved: What the paths begin with here, and there.
        """
        old, new = moved
        other = SimDisk(capacity_bytes=self.capacity_bytes)
        for path in self._directories:
            if path.startswith(old):
                other._place_directory(new + path[len(old) :])
        for path, node in self._names.items():
            other.put(new + path[len(old) :], bytes(node.data))
        for path, stored in self.indexes.items():
            other.indexes[new + path[len(old) :]] = stored.written()
        return other

    def damage(self, path: str, offset: int, data: bytes) -> None:
        """Put other bytes where a file's are, as a failing disk does."""
        self._names[path].damage(offset, data)

    def after_kill(self) -> SimDisk:
        """Return the disk as the next process finds it; this one is not to be used any more."""
        other = SimDisk(capacity_bytes=self.capacity_bytes)
        other.reads_without_waiting = self.reads_without_waiting
        other._directories = self._directories
        other._durable_directories = self._durable_directories
        other._names, other._durable_names = self._names, self._durable_names
        other._name_changes = self._name_changes
        other.indexes = self.indexes
        return other

    def crash(self, rng: random.Random | None = None, *, keep: float = 0.0) -> SimDisk:
        """Return the disk after a power cut.

        Args:
            rng: Decides what of the unsynced is there; without it nothing is.
            keep: The probability for each unsynced sector, length and name.
        """
        shares = _WRITTEN_SHARES if rng is not None else (0.0,)
        rng = rng or random.Random(0)
        other = SimDisk(capacity_bytes=self.capacity_bytes)
        other.reads_without_waiting = self.reads_without_waiting
        with self.guard:
            for path in sorted(self._directories):
                # Parents come first, and nobody finds what lies in one that is gone.
                is_reachable = posixpath.dirname(path) in other._directories
                is_durable = path in self._durable_directories
                if is_reachable and (is_durable or rng.random() < keep):
                    other._place_directory(path)
            names = dict(self._durable_names)
            for path in sorted(set(self._names) | set(names)):
                if self._names.get(path) is not names.get(path) and rng.random() < keep:
                    if path in self._names:
                        names[path] = self._names[path]
                    else:
                        names.pop(path, None)
            for path in sorted(names):
                if posixpath.dirname(path) in other._directories:
                    other._place(path, names[path].after_crash(rng, keep, shares))
            for path in sorted(self.indexes):
                if posixpath.dirname(path) in other._directories:
                    other.indexes[path] = self.indexes[path].after_crash(rng, keep, shares)
        return other
