"""Places for files that are being sent: so many at a time, as each holds some MiB.

A sender that stops is given up, and where others wait for a place so is one that drips.  Slow ones
are otherwise left alone: Spark sends the changes of a state while it computes them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from quorumbook.admin.http.problems import ApiError
from quorumbook.env import patience

_AT_ONCE = 32
#: So long one waits for a place.
_PLACE_S = 45.0
#: So long the next piece of a file may take.
_PIECE_S = 30.0
#: Where others wait, so many come in each second of waiting for them, but for the first seconds.
_BYTES_PER_S = 1024
_GRACE_S = 30.0


class Uploads:
    """The places of one server."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place for a block.

        Raises:
            ApiError: None became free.
        """
        self._waiting += 1
        try:
            async with patience.timeout(_PLACE_S):
                await self._places.acquire()
        except TimeoutError:
            raise ApiError(
                503, "busy", f"{_AT_ONCE} other files are being sent at the moment; try again"
            ) from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()

    async def pieces(self, sent: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a file that has a place.

        Raises:
            ApiError: No more come, or too few where others wait.
        """
        clock = asyncio.get_running_loop().time
        size, waited_s = 0, 0.0
        while True:
            began_s = clock()
            try:
                async with patience.timeout(_PIECE_S):
                    piece = await anext(sent, None)
            except TimeoutError:
                raise ApiError(
                    408, "body-timeout", f"nothing of the file came for {_PIECE_S:.0f} s"
                ) from None
            if piece is None:
                return
            size += len(piece)
            waited_s += clock() - began_s
            if self._waiting and size < (waited_s - _GRACE_S) * _BYTES_PER_S:
                raise ApiError(
                    408, "body-timeout",
                    f"{size} bytes of the file came in {waited_s:.0f} s, and others wait to send",
                )  # fmt: skip
            yield piece
