"""What a factory returns that opens something: ``async with`` opens and closes it, ``await`` opens.

async with stream.writer() as writer:    # closed at the end of the block
    ...
writer = await stream.writer()           # closed by its owner, with ``await writer.close()``
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])


class Opening(Generic[T]):
    """Something that is opened by ``await``, or by ``async with``, which closes it too."""

    __slots__ = ("_opened", "_opener")

    def __init__(self, opener: Callable[[], Awaitable[T]]) -> None:
        """Take what opens it."""
        self._opener = opener
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._opener().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opener()
        entered: T = await self._opened.__aenter__()
        return entered

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(exc_type, exc, traceback)
