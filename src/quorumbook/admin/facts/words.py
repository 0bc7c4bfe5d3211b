"""Counts, sizes and times as people read them.

counted(3, "ledger")          3 ledgers
sized(3_400_000)              3.4 MB
since(at_ms, now_ms)          2 min ago, in 3 h
at(at_ms)                     2026-11-22T14:00:05Z
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

_SIZES = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def sized(count: int) -> str:
    """Return a number of bytes in the largest unit that keeps a digit before the point."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.3g} {_SIZES[unit]}"


def since(at_ms: int, now_ms: int) -> str:
    """Return how far a time is from now, in its largest whole unit."""
    distance = abs(now_ms - at_ms)
    for size, unit in _SPANS:
        if distance >= size:
            text = f"{distance // size} {unit}"
            return f"{text} ago" if at_ms < now_ms else f"in {text}"
    return "now"


def at(at_ms: int) -> str:
    """Return a time in ISO 8601, in UTC; the bare number where no calendar has the year."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def listed(names: Sequence[object], limit: int = 3) -> str:
    """Return the first few names, and how many more there are."""
    shown = ", ".join(map(str, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit:,} more"
