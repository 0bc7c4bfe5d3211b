"""Counts, sizes and times as people read them.

counted(3, "ledger")          3 ledgers
sized(3_400_000)              3.4 MB
since(at_ms, now_ms)          2 min ago, in 3 h
ago(at(at_ms), now_ms)        the same, of a time as text
lasting(7300)                 2 h
at(at_ms)                     2026-11-22T14:00:05Z
taken(2046.2)                 2,046 ms
of_policy(604800, "retain_time_s")   7 d
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

_SIZES = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
#: What policies that bound something begin with.
_BOUNDS = ("roll_", "retain_", "max_")
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def sized(count: int) -> str:
    """Return a number of bytes in the largest unit that keeps a digit before the point."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.3g} {_SIZES[unit]}"


def taken(took_ms: float) -> str:
    """Return how long something took, to three digits or to the millisecond."""
    return f"{took_ms:,.0f} ms" if took_ms >= 100 else f"{took_ms:.3g} ms"


def since(at_ms: int, now_ms: int) -> str:
    """Return how far a time is from now, in its largest whole unit."""
    if abs(now_ms - at_ms) < _SPANS[-1][0]:
        return "now"
    text = lasting(abs(now_ms - at_ms) / 1000)
    return f"{text} ago" if at_ms < now_ms else f"in {text}"


def ago(text: str, now_ms: int) -> str:
    """Return how far a time in ISO 8601 is from now; the text itself if it is no such time."""
    try:
        return since(round(datetime.fromisoformat(text).timestamp() * 1000), now_ms)
    except (ValueError, OverflowError):
        return text


def lasting(span_s: float) -> str:
    """Return a span of time in its largest whole unit."""
    span_ms = int(span_s * 1000)
    size, unit = next((each for each in _SPANS if span_ms >= each[0]), _SPANS[-1])
    return f"{span_ms // size:,} {unit}"


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


def of_policy(value: object, name: str) -> str:
    """Return a stream policy's value, exactly, in the largest unit that divides it.

    Args:
        value: Bytes or seconds where the name says so; yes or no; anything else as it is. 0 of what
            bounds something is no limit.
        name: The policy's name, whose end is its unit.
    """
    if value == 0 and not isinstance(value, bool) and name.startswith(_BOUNDS):
        return "no limit"
    stem = name.removesuffix("_per_s")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value) or "\N{EN DASH}"
    if value and stem.endswith("_bytes"):
        size, unit = next(((s, u) for s, u in _BINARY if value % s == 0), (1, "B"))
        return f"{value / size:,.15g} {unit}{'/s' if stem != name else ''}"
    if value and name.endswith("_s") and stem == name:
        spans = ((size // 1000, unit) for size, unit in _SPANS)
        size, unit = next(((s, u) for s, u in spans if value % s == 0), (1, "s"))
        return f"{value / size:,.15g} {unit}"
    return f"{value:.15g}"
