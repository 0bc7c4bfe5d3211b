"""How long a stream's reader hears nothing before it says so, on virtual time (L1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from doubles.virtual_time import run_virtually
from quorumbook.errors import MetadataUnavailableError
from quorumbook.streams.errors import ReaderIdleError
from quorumbook.streams.reading.options import ReaderOptions
from quorumbook.streams.reading.scanner import StreamScanner

#: Looks come at 10 and 20 s of silence, and the third is an error.
OPTIONS = ReaderOptions(idle_warn_s=10.0, idle_error_s=30.0)


class Segment:
    """A segment in progress: a batch every 25 s, or none; bookies give some looks an answer."""

    def __init__(self, batches: int, answers: set[int]) -> None:
        self.segment = SimpleNamespace(number=1)
        self.ledger = self
        self.next_entry, self.last_add_confirmed = 0, -1
        self._batches = batches
        self._answers = answers
        self.looks = 0

    async def tail(self, _first: int) -> AsyncGenerator[int, None]:
        for number in range(self._batches):
            await asyncio.sleep(25)
            yield number
        if not self._batches:
            await asyncio.sleep(65)

    async def read_last_add_confirmed(self) -> int:
        self.looks += 1
        if self.looks in self._answers:
            return -1
        raise MetadataUnavailableError("nobody answers")


def scanner() -> Any:
    context: Any = SimpleNamespace(name="s", numbers=lambda: None)
    made: Any = StreamScanner(context, None, OPTIONS)

    async def refresh(_first: int) -> None:
        pass

    made._list = SimpleNamespace(refresh=refresh)  # one step, without a stream around it
    return made


@pytest.mark.parametrize("what", ["batches", "answers"])
def test_a_record_that_comes_is_the_end_of_being_idle(what: str) -> None:
    """So is an answer that says that there is none."""
    segment = Segment(3, set()) if what == "batches" else Segment(0, {2, 4, 6})

    async def read() -> list[int]:
        # One step, without a stream around it.
        return [batch async for batch in scanner()._tail(segment)]

    assert run_virtually(read()) == ([0, 1, 2] if what == "batches" else [])
    assert segment.looks == 6


def test_silence_that_nobody_explains_is_an_error() -> None:
    async def read() -> None:
        async for _ in scanner()._tail(Segment(0, {1})):  # one step, without a stream around it
            pass

    with pytest.raises(ReaderIdleError, match="30 s"):
        run_virtually(read())
