"""Lines of files and of standard input, as entries.

Lines are handed over as they arrive, so that what somebody types is appended at once, and in
groups, so that a large file is not appended line by line.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Sequence

_CHUNK_BYTES = 256 * 1024


async def groups_of_lines(paths: Sequence[str]) -> AsyncIterator[list[bytes]]:
    """Yield the lines of several files, or of standard input, without their line ends.

    A last line without a line end counts; ``-`` is standard input.
    """
    for path in paths or ("-",):
        rest = b""
        async for chunk in chunks(path, _CHUNK_BYTES):
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            if lines:
                yield lines
        if rest:
            yield [rest]


def refuse_unreadable(paths: Sequence[str]) -> None:
    """Raise the error that reading a file would, before anything is made for its content."""
    for path in paths:
        if path == "-":
            continue
        if stat.S_ISDIR(os.stat(path).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


async def chunks(path: str, size_bytes: int) -> AsyncIterator[bytes]:
    """Yield a file's bytes, or those of standard input as they come."""
    fd = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY)
    try:
        while chunk := await _read(fd, size_bytes):
            yield chunk
    finally:
        if path != "-":
            os.close(fd)


async def _read(fd: int, size_bytes: int) -> bytes:
    """Read in a thread that nobody waits for: a Ctrl-C must not need one more line to be typed."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def settle(chunk: bytes, error: OSError | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(chunk)

    def read() -> None:
        chunk, failure = b"", None
        try:
            chunk = os.read(fd, size_bytes)
        except OSError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed, the command has ended
            loop.call_soon_threadsafe(settle, chunk, failure)

    threading.Thread(target=read, name="input", daemon=True).start()
    return await done
