"""What the rooms may ask of the outside world."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Time.  Expiry is decided on ``now_ns`` alone; wall time is for people and the wire."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        ...

    def boot_id(self) -> str:
        """Return what tells one boot of the machine from another, or "" if nothing does.

        Monotonic time begins anew with each, and what was not synced is gone.
        """
        ...


class File(Protocol):
    """An open file; all calls block and belong into a worker's job."""

    path: str

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        """Write all buffers one behind the other; a short write raises."""
        ...

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read up to ``size_bytes``; fewer only at the end of the file."""
        ...

    def read_cached(self, offset: int, size_bytes: int) -> bytes | None:
        """Read like ``read`` if that does not wait for the disk, else return None."""
        ...

    def sync(self) -> None:
        """Make content and length durable; after an error the file must not be synced again."""
        ...

    def allocate(self, size_bytes: int) -> None:
        """Reserve space up to ``size_bytes``, filled with zeros beyond the present end."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut or extend the file."""
        ...

    def size_bytes(self) -> int:
        """Return the length."""
        ...

    def close(self) -> None:
        """Close without syncing."""
        ...


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Space of the file system below a directory."""

    total_bytes: int
    free_bytes: int


class Disk(Protocol):
    """Directories and whole files; all calls block.  Errors are ``StorageError`` or below."""

    def open(
        self, path: str, *, create: bool = False, read_only: bool = False, uncached: bool = False
    ) -> File:
        """Open a file; ``create`` demands that it does not exist yet.

        ``uncached`` keeps what is written or read in large pieces out of the system's page
        cache: it is not read back soon, or by somebody with a cache of his own.
        """
        ...

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, mode 0700; an existing one is fine."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""
        ...

    def exists(self, path: str) -> bool:
        """Tell whether a file or directory of this name is there; raises if it cannot be told."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Rename, replacing the target."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file; a missing one is fine."""
        ...

    def read_file(self, path: str) -> bytes:
        """Return the whole content."""
        ...

    def write_file(self, path: str, pieces: Iterable[bytes]) -> None:
        """Replace a file durably by these pieces, one behind the other.

        Temporary file, sync, rename, directory sync.
        """
        ...

    def usage(self, path: str) -> DiskUsage:
        """Return total and free space."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive lock file and return its release; held elsewhere, it raises."""
        ...


class Worker(Protocol):
    """A thread with a mailbox: jobs run one after the other, in the order submitted."""

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run ``job`` on the thread, then ``done`` with its result or error on the loop."""
        ...

    def call_on_loop(self, callback: Callable[[], None]) -> None:
        """From inside a job: run a callback on the loop."""
        ...

    def stop(self) -> None:
        """Let submitted jobs finish, then end the thread and wait for it."""
        ...


class Threads(Protocol):
    """Where workers come from."""

    def start_worker(self, name: str) -> Worker:
        """Start a worker that reports to the running loop."""
        ...

    def sleep(self, seconds: float) -> None:
        """From inside a job: rest, while the loop and the other workers go on."""
        ...

    def loop_is_busy(self, *, is_busy: bool) -> None:
        """From the loop: it does not rest from now on, so that workers wait for it; or it does."""
        ...


class Programs(Protocol):
    """Other programs of this machine."""

    def run(self, words: Sequence[str], *, timeout_s: float) -> str:
        """Run a program to its end and return what it printed; blocks, so for a worker's job.

        Raises:
            OSError: it cannot be started, took too long, or said that it failed.
        """
        ...


class Asker(Protocol):
    """Somebody with work that waits for a turn of the loop."""

    def go_on(self) -> None:
        """Do more of it."""


class Turns(Protocol):
    """How long a turn of the loop works for connections, and who waits for the next."""

    @property
    def is_over(self) -> bool:
        """Tell whether what can wait should."""

    def wait(self, asker: Asker, size_bytes: int) -> None:
        """Have it go on with so many bytes in a later turn, behind those who came before."""


class Network(Protocol):
    """Streams in Protocol style: ``data_received(bytes)``, ``transport.write(bytes)``."""

    async def address_of(self, host: str) -> str:
        """Return the first address of a host; errors are OSError."""
        ...

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> asyncio.Server:
        """Accept connections."""
        ...

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection; errors are OSError."""
        ...

    def start_tls(
        self,
        transport: asyncio.Transport,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        done: Callable[[Exception | None], None],
        turns: Turns | None = None,
    ) -> asyncio.Transport:
        """Go on with TLS from the next byte on; returns the transport to use from now on."""
        ...


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_time(seconds: int, microseconds: int = 0) -> datetime:
    """Return the time so long after the beginning of 1970.

    Raises:
        ValueError: it is out of the range of years from 1 to 9999.
    """
    try:
        return _EPOCH + timedelta(seconds=seconds, microseconds=microseconds)
    except OverflowError as error:
        raise ValueError(f"a time of {seconds} seconds is out of range") from error
