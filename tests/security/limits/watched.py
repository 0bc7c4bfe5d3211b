"""``python watched.py FILE BOOKIE-COMMAND...``: a bookie that keeps its loop's longest stall.

FILE is 16 bytes that whoever measures reads and zeroes: two float64, the longest time between two
looks of the loop at the clock, by the thread's own processor time and by the wall.  The first says
what the bookie did, the second includes what the machine did meanwhile.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time

from quorumbook.cli import call, main

_LONGEST = struct.Struct("dd")
_LOOK_EVERY_S = 0.004


def watch(path: str) -> None:
    """Have every loop that the command makes look at the clock."""
    with open(path, "r+b") as file:
        longest = mmap.mmap(file.fileno(), _LONGEST.size)
    inner = call._loop_factory()  # its loop is watched from within

    def factory():
        loop = inner()
        last = (0.0, 0.0)

        def look() -> None:
            nonlocal last
            now = (time.thread_time(), time.monotonic())
            if last[1]:
                own, wall = _LONGEST.unpack_from(longest)
                took = now[0] - last[0], now[1] - last[1] - _LOOK_EVERY_S
                _LONGEST.pack_into(longest, 0, max(own, took[0]), max(wall, took[1]))
            last = now
            loop.call_later(_LOOK_EVERY_S, look)

        loop.call_soon(look)
        return loop

    call._loop_factory = lambda: factory  # its loop is watched from within


if __name__ == "__main__":
    watch(sys.argv.pop(1))
    sys.exit(main())
