"""Places in a stream as people write them; the command line and the HTTP API read the same.

earliest  latest  1:0:7  seq:100  txid:100
2026-11-22T14:00   in local time if it names no zone
-90s  -30min  -1h  -2d  -1w   so long ago
today 14:00  yesterday  yesterday 14:00   in local time
"""

from __future__ import annotations

import contextlib
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast

from quorumbook.errors import LocalProtocolError, QuorumbookError

if TYPE_CHECKING:
    from quorumbook.streams.reading.seek import Start

WHERE = (
    "earliest, latest, a position as 1:0:2, seq:N, txid:N, or a time: 2026-11-22T14:00, -1h, "
    "yesterday"
)
_AGO = re.compile(r"-([0-9]{1,9}(?:\.[0-9]{1,3})?)(s|min|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DAY = re.compile(r"(today|yesterday)(?:[ T]+([0-9]{1,2}):([0-9]{2}))?")


def parse_place(text: str, now: datetime | None = None) -> Start:
    """Read where to begin.

    Args:
        text: What somebody wrote.
        now: The time it is; the clock's if not given.

    Raises:
        LocalProtocolError: It is no place; the message says which forms there are.
    """
    from quorumbook.streams import SequenceId, TxId, parse_position  # noqa: PLC0415 - slow

    if text in ("earliest", "latest"):
        return cast("Start", text)
    kind, _, number = text.partition(":")
    if kind in ("seq", "txid") and number.isascii() and number.isdigit() and len(number) <= 19:
        return SequenceId(number) if kind == "seq" else TxId(number)
    time = parse_time(text, now or datetime.now().astimezone())
    if time is not None:
        return time
    try:
        return parse_position(text)
    except (QuorumbookError, ValueError):
        raise LocalProtocolError(f"{text[:80]!r} is not a place in a stream; use {WHERE}") from None


def parse_time(text: str, now: datetime) -> datetime | None:
    """Read a time; None if it is none."""
    with contextlib.suppress(ValueError, OverflowError):
        if found := _AGO.fullmatch(text):
            return now - timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
        if found := _DAY.fullmatch(text):
            midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
            day = midnight - timedelta(days=found[1] == "yesterday")
            return day.replace(hour=int(found[2] or 0), minute=int(found[3] or 0))
        time = datetime.fromisoformat(text)
        return time if time.tzinfo else time.astimezone()
    return None
