"""The log of a command that runs for long: on standard error, as text, or a JSON object a line.

    {"time": "2026-11-22T14:00:05.123Z", "level": "info", "logger": "quorumbook.bookie",
     "message": "...", "trace": "..."}

``trace`` is there after an error, ``process`` where several bookies write one log.  What is
written, and at which level, the sections of the rooms say: ``info,storage=debug`` is everything
from ``info`` on, and of the storage from ``debug`` on.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from quorumbook.config.load import Settings
from quorumbook.env.log import FloodFilter
from quorumbook.errors import ConfigError

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
#: What has loggers of its own; what stands below one goes with it.
ROOMS = ("admin", "auth", "autorecovery", "bookie", "client", "config", "metadata", "pulsar",
         "spark", "storage", "streams")  # fmt: skip
_PACKAGE = "quorumbook"


@dataclass(frozen=True, slots=True)
class Levels:
    """From which level on lines are written."""

    #: Where no room says otherwise.
    everywhere: int
    rooms: Mapping[str, int]

    @classmethod
    def parse(cls, texts: Sequence[str], usual: int) -> Levels:
        """Read ``LEVEL`` and ``ROOM=LEVEL``; the last about one thing holds.

        Raises:
            ConfigError: There is no such level or room.
        """
        everywhere, rooms = usual, {}
        for text in texts:
            room, equals, level = text.rpartition("=")
            number = LEVELS.get(level.strip().lower())
            if number is None:
                raise ConfigError(f"log.level: {level!r} is not a level; use {', '.join(LEVELS)}")
            room = room.strip()
            if not equals:
                everywhere = number
            elif room.split(".")[0] in ROOMS:
                rooms[room] = number
            else:
                raise ConfigError(
                    f"log.level: there is no room {room!r}; use one of {', '.join(ROOMS)}, or what "
                    "is below, such as storage.journal"
                )
        return cls(everywhere, rooms)


class JsonLines(logging.Formatter):
    """Writes a line as a JSON object."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._named = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, on one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            **self._named,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["trace"] = record.exc_text
        return json.dumps(line)


def begin_log(
    settings: Settings, *, is_verbose: bool, usual: str = "info", process: str = ""
) -> None:
    """Send the log to standard error as the configuration says.

    Args:
        settings: The section ``log``.
        is_verbose: Write from ``debug`` on, where nothing is said.
        usual: From which level on otherwise.
        process: The name of this one where several processes write one log.

    Raises:
        ConfigError: There is no such level or room.
    """
    levels = Levels.parse(settings.texts("log.level"), LEVELS["debug" if is_verbose else usual])
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(FloodFilter())
    is_json = settings.text("log.format") == "json"
    named = f"{process} " if process else ""
    text = logging.Formatter(f"%(asctime)s %(levelname)s {named}%(name)s: %(message)s")
    handler.setFormatter(JsonLines(process) if is_json else text)
    # What another command of this process began, it says no more.
    logging.basicConfig(level=levels.everywhere, handlers=[handler], force=True)
    for room, level in levels.rooms.items():
        logging.getLogger(f"{_PACKAGE}.{room}").setLevel(level)
