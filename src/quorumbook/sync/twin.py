"""What every object of the blocking twin is, and what ends with its ``with`` block."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Generic, Self, TypeVar

from quorumbook.errors import QuorumbookError
from quorumbook.loop_thread import LoopBound

A = TypeVar("A")


class Twin(LoopBound, Generic[A]):
    """The twin of an object of asyncio that lives on the loop thread, and does the work there."""

    def __init__(self, of: A) -> None:
        """Wrap what was made on the loop thread."""
        super().__init__()
        self._aio = of

    def __repr__(self) -> str:
        return f"<sync {self._aio!r}>"


def unwrapped(twin: Twin[A]) -> A:
    """Return what does the work of a twin."""
    return twin._aio  # noqa: SLF001 - of this module


class Ending(Twin[A]):
    """A twin that the end of a ``with`` block ends, one way or another."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_block(exc)

    def _end_block(self, error: BaseException | None) -> None:
        """End it; ``error`` is what ended the block."""
        raise NotImplementedError


class Closing(Ending[A]):
    """A twin that the end of a ``with`` block closes."""

    def close(self) -> None:
        """Let go of everything."""
        raise NotImplementedError

    def _end_block(self, error: BaseException | None) -> None:
        del error
        self.close()


class ClosingQuietly(Closing[A]):
    """A twin whose closing has nothing to say where the block failed already."""

    def _end_block(self, error: BaseException | None) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(QuorumbookError):
            self.close()
