"""The library's loggers, and whether a collector is named; handlers are the program's affair.

What others send gets into messages: names, paths, reasons, errors.  So that nobody writes lines of
a log, or commands to a terminal, a message stays on one line and its control characters are
escaped, and the lines of a traceback are indented.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass

_INDENT = "    "
_AGAIN_AFTER_NS = 10 * 1_000_000_000
#: So many lines of one text are written in so many seconds.
_FLOOD_LINES, _FLOOD_S = 200, 10.0
#: Of lines that cost as much as what they tell of, so many are written in a second.
_SPARSE_LINES = 10
#: Control characters, what ends a line for somebody, and what turns the direction of writing.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")

#: Where OpenTelemetry's own variables name a collector.
_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
)


def logger(name: str) -> logging.Logger:
    """Return the library's logger of this name."""
    found = logging.getLogger(f"quorumbook.{name}")
    found.addFilter(_harmless)  # the same one is added once
    return found


def is_telemetry_wanted() -> bool:
    """Tell whether traces, metrics or logs are to be sent.

    Only then ``quorumbook.otel`` is imported, and all that it needs.
    """
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_disabled and any(os.environ.get(name) for name in _ENDPOINTS)


def escaped(text: str) -> str:
    """Return a text without control characters; they look as in a Python string."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class Complaint:
    """A warning about something that is tried again and again: said once, and every 10 s.

    Another text is another warning.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said = ""
        self._said_ns = 0

    def say(self, text: str, now_ns: int) -> None:
        """Say it, unless it has just been said."""
        if text != self._said or now_ns - self._said_ns >= _AGAIN_AFTER_NS:
            self._said, self._said_ns = text, now_ns
            self._log.warning("%s", text)


class Recurrence:
    """Counts what is worth a line, and has it said at once, then every 10 s with its number."""

    def __init__(self) -> None:
        self._next_ns = 0
        self._unsaid = 0

    def due(self, now_ns: int) -> int:
        """Count one more; return how many are to be said now, 0 if they have to wait."""
        self._unsaid += 1
        if now_ns < self._next_ns:
            return 0
        self._next_ns = now_ns + _AGAIN_AFTER_NS
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid


class SparseLines:
    """Says what clients may cause a hundred thousand times a minute: some in a second, all counted.

    It does what ``FloodFilter`` does, before a record is made, which costs as much as a fence.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._since_ns = 0
        self._lines = 0
        self._held_back = 0

    def say(self, now_ns: int, text: str, *values: object) -> None:
        """Say it, or count it; the next one that is said tells of those that were counted."""
        if not 0 <= now_ns - self._since_ns < 1_000_000_000:
            self._since_ns, self._lines = now_ns, 0
        self._lines += 1
        if self._lines > _SPARSE_LINES:
            self._held_back += 1
            return
        if self._held_back:
            text += " (%d lines like this were held back before)"
            values, self._held_back = (*values, self._held_back), 0
        self._log.info(text, *values, stacklevel=2)


@dataclass(slots=True)
class _Flow:
    """Lines of one text since a time."""

    since_s: float
    lines: int = 0
    held_back: int = 0


class FloodFilter(logging.Filter):
    """Keeps what others cause from filling a log: of lines alike, some are written, all counted.

    A client's requests may each be worth a line (a fence is), and it may send a hundred thousand a
    minute.  Alike are lines that differ only in what was put into their text; errors, and what is
    for debugging, are always written.
    """

    def __init__(self) -> None:
        super().__init__()
        self._flows: dict[tuple[str, str], _Flow] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line is written; what was held back is said with the next one like it."""
        if record.levelno >= logging.ERROR or record.levelno <= logging.DEBUG:
            return True
        key = record.name, str(record.msg)
        flow = self._flows.get(key)
        if flow is None or not 0 <= record.created - flow.since_s < _FLOOD_S:
            held_back = 0 if flow is None else flow.held_back
            self._flows = {
                each: other
                for each, other in self._flows.items()
                if other.held_back or record.created - other.since_s < _FLOOD_S
            }
            flow = self._flows[key] = _Flow(record.created)
            if held_back:
                _append(record, f"({held_back} lines like this were held back before)")
        flow.lines += 1
        if flow.lines == _FLOOD_LINES:
            _append(record, f"(lines like this are held back for the rest of {_FLOOD_S:g} s)")
        elif flow.lines > _FLOOD_LINES:
            flow.held_back += 1
        return flow.lines <= _FLOOD_LINES


def _append(record: logging.LogRecord, text: str) -> None:
    record.msg, record.args = f"{record.getMessage()} {text}", ()


def _harmless(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if _CONTROL.search(message):
        record.msg, record.args = escaped(message), ()
    if record.exc_info and not record.exc_text:
        trace = logging.Formatter().formatException(record.exc_info)
        record.exc_text = "\n".join(_INDENT + escaped(line) for line in trace.split("\n"))
    return True
