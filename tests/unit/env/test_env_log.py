"""What floods a log is counted instead of written."""

from __future__ import annotations

import logging

import pytest

from quorumbook.env import SparseLines, logger
from quorumbook.env.log import FloodFilter


class Log:
    """Lines of a handler with the filter, at times of our own."""

    def __init__(self) -> None:
        self._filter = FloodFilter()
        self.written: list[str] = []

    def say(self, text: str, *values: object, at_s: float = 0.0, level: int = logging.INFO) -> None:
        record = logging.LogRecord("quorumbook.x", level, "", 0, text, values, None)
        record.created = 1e9 + at_s
        if self._filter.filter(record):
            self.written.append(record.getMessage())


@pytest.fixture
def log() -> Log:
    return Log()


def test_of_lines_alike_some_are_written_and_the_others_counted(log: Log) -> None:
    for number in range(5000):
        log.say("ledger %d is fenced", number, at_s=number / 1000)
    assert log.written[:199] == [f"ledger {number} is fenced" for number in range(199)]
    assert log.written[199:] == [
        "ledger 199 is fenced (lines like this are held back for the rest of 10 s)"
    ]
    log.say("ledger %d is fenced", 7777, at_s=10)
    assert log.written[200:] == [
        "ledger 7777 is fenced (4800 lines like this were held back before)"
    ]
    log.say("ledger %d is fenced", 7778, at_s=10)
    assert log.written[201:] == ["ledger 7778 is fenced"]


def test_a_flood_holds_no_other_line_back(log: Log) -> None:
    for number in range(1000):
        log.say("ledger %d is fenced", number)
    log.say("ledger %d is closed", 1)
    log.say("ledger %d is fenced", 1, level=logging.ERROR)
    assert log.written[200:] == ["ledger 1 is closed", "ledger 1 is fenced"]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR, logging.CRITICAL])
def test_errors_and_what_is_for_debugging_are_never_held_back(log: Log, level: int) -> None:
    for number in range(1000):
        log.say("%d", number, level=level)
    assert len(log.written) == 1000


def test_texts_that_nobody_repeats_are_forgotten(log: Log) -> None:
    for number in range(3000):
        log.say(f"text {number}", at_s=number)
    assert len(log.written) == 3000
    assert len(log._filter._flows) <= 11  # how much it remembers


def test_what_was_held_back_is_said_however_late_the_next_line_comes(log: Log) -> None:
    for number in range(300):
        log.say("ledger %d is fenced", number)
    log.say("another", at_s=5000)
    log.say("ledger %d is fenced", 1, at_s=9000)
    assert log.written[-1] == "ledger 1 is fenced (100 lines like this were held back before)"


def test_a_clock_that_is_put_back_holds_nothing_back(log: Log) -> None:
    for number in range(300):
        log.say("ledger %d is fenced", number, at_s=1000)
    log.say("ledger %d is fenced", 1, at_s=0)
    assert len(log.written) == 201


def test_of_lines_that_are_dear_some_a_second_are_made_and_the_others_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    lines = SparseLines(logger("x"))
    for number in range(3000):
        lines.say(10**15 + number * 1_000_000, "ledger %d is fenced", number)
    said = [f"ledger {number} is fenced" for number in (*range(10), *range(1000, 1010))]
    said[10] += " (990 lines like this were held back before)"
    assert caplog.messages[:20] == said
    assert len(caplog.messages) == 30
    # A clock that was put back holds nothing up.
    lines.say(5, "ledger %d is fenced", 7)
    assert caplog.messages[30:] == [
        "ledger 7 is fenced (990 lines like this were held back before)"
    ]
    assert caplog.records[0].filename == "test_env_log.py"
