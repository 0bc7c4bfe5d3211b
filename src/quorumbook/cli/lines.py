"""Lines of files and of standard input, as entries.

Lines are handed over as they arrive, so that what somebody types is appended at once, and in
groups, so that a large file is not appended line by line.
"""

from __future__ import annotations

import asyncio
import os
import sys
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


async def chunks(path: str, size_bytes: int) -> AsyncIterator[bytes]:
    """Yield a file's bytes, or those of standard input as they come."""
    fd = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY)
    try:
        while chunk := await asyncio.to_thread(os.read, fd, size_bytes):
            yield chunk
    finally:
        if path != "-":
            os.close(fd)
