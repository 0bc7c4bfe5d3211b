"""The library's loggers; handlers are the program's affair.

What others send gets into messages: names, paths, reasons, errors.  So that nobody writes lines of
a log, or commands to a terminal, a message stays on one line and its control characters are
escaped, and the lines of a traceback are indented.
"""

from __future__ import annotations

import logging
import re

_INDENT = "    "
_AGAIN_AFTER_NS = 10 * 1_000_000_000
#: Control characters, what ends a line for somebody, and what turns the direction of writing.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def logger(name: str) -> logging.Logger:
    """Return the library's logger of this name."""
    found = logging.getLogger(f"quorumbook.{name}")
    found.addFilter(_harmless)  # the same one is added once
    return found


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


def _harmless(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if _CONTROL.search(message):
        record.msg, record.args = escaped(message), ()
    if record.exc_info and not record.exc_text:
        trace = logging.Formatter().formatException(record.exc_info)
        record.exc_text = "\n".join(_INDENT + escaped(line) for line in trace.split("\n"))
    return True
