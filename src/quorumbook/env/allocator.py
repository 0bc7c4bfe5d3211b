"""The C library's allocator: when it gives memory back, which it decides badly for a server.

    keep_freed_memory()        large buffers are taken from the system, and go back to it, one by
                               one; smaller ones stay with the process up to a limit
    give_back_freed_memory()   what lies free between blocks in use goes back as well
    giving_back()              does that every ten seconds

By itself glibc raises both limits to what was freed last, and never gives back what lies free
below a block in use: a bookie under attack held 150 to 250 MB like that.  Lower limits cost a page
fault for each page that comes and goes.  Where there is no glibc, nothing happens.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: Larger than nearly all that a bookie gets, joins and sends, smaller than its largest frames.
MMAP_THRESHOLD_BYTES = 4 * 1024 * 1024
#: So much may be free at the end of the heap.
TRIM_THRESHOLD_BYTES = 64 * 1024 * 1024
_GIVE_BACK_EVERY_S = 10.0


def keep_freed_memory() -> None:
    """Set both limits, unless the environment of this process sets them."""
    mallopt = _function("mallopt")
    if mallopt is None or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    for name, parameter, size_bytes in (
        ("MALLOC_MMAP_THRESHOLD_", _M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        ("MALLOC_TRIM_THRESHOLD_", _M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
    ):
        if name not in os.environ:
            mallopt(parameter, size_bytes)


def give_back_freed_memory() -> None:
    """Give back every free page; takes a millisecond or two, without the interpreter's lock."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(ctypes.c_size_t(0))


async def giving_back() -> None:
    """Give free pages back every ten seconds, on a thread, until cancelled."""
    while True:
        await asyncio.sleep(_GIVE_BACK_EVERY_S)
        await asyncio.to_thread(give_back_freed_memory)


@cache
def _function(name: str) -> Callable[..., int] | None:
    """Return a function of glibc; other libraries have none of these."""
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return found
