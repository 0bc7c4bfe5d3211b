"""What the end of an ``async with`` block does to something that has to be closed."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from quorumbook.errors import QuorumbookError


class Closing:
    """Something that the end of the block closes."""

    __slots__ = ()

    async def close(self) -> None:
        """Let go of everything."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end_block(exc)

    async def _end_block(self, error: BaseException | None) -> None:
        del error
        await self.close()


class ClosingQuietly(Closing):
    """Something whose closing has nothing to say where the block failed already."""

    __slots__ = ()

    async def _end_block(self, error: BaseException | None) -> None:
        if error is None:
            await self.close()
            return
        with contextlib.suppress(QuorumbookError):
            await self.close()
