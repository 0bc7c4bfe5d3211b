"""What a bookie does: its counters at one moment, read from ``/metrics``, and rates between two.

The names are those of Apache BookKeeper, so its bookies are read likewise.
"""

from __future__ import annotations

import http.client
import math
import re
import urllib.request
from dataclasses import dataclass

_TIMEOUT_S = 2.0
_BYTES_MAX = 4 << 20
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}\n]*)\})? (\S+)", re.M)
_COUNTERS = {
    "bookkeeper_server_ADD_ENTRY_count": "adds",
    "bookkeeper_server_READ_ENTRY_count": "reads",
    "bookie_WRITE_BYTES": "written_bytes",
    "bookie_READ_BYTES": "read_bytes",
}
_LATENCIES = {
    ("bookkeeper_server_ADD_ENTRY", "0.5"): "add_p50_ms",
    ("bookkeeper_server_ADD_ENTRY", "0.99"): "add_p99_ms",
    ("bookkeeper_server_READ_ENTRY", "0.99"): "read_p99_ms",
}


@dataclass(frozen=True, slots=True)
class BookieCounts:
    """A bookie's counters since its start, and the latencies of its last minutes."""

    adds: float = 0.0
    reads: float = 0.0
    written_bytes: float = 0.0
    read_bytes: float = 0.0
    #: None where nothing happened.
    add_p50_ms: float | None = None
    add_p99_ms: float | None = None
    read_p99_ms: float | None = None


def read_counts(http_address: str) -> BookieCounts:
    """Return a bookie's counters; blocks.

    Raises:
        OSError: It does not answer.
    """
    return counts_in(read_metrics(http_address, max_bytes=_BYTES_MAX, timeout_s=_TIMEOUT_S))


def read_metrics(http_address: str, *, max_bytes: int, timeout_s: float) -> str:
    """Return the beginning of a bookie's metrics, in Prometheus' text form; blocks.

    Raises:
        OSError: It does not answer.
    """
    url = f"{http_address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - a bookie's
            content: bytes = answer.read(max_bytes)
            return content.decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(f"no metrics from {url}: {error!r}") from error


def counts_in(text: str) -> BookieCounts:
    """Return the counters that metrics in Prometheus' text form hold."""
    counters = dict.fromkeys(_COUNTERS.values(), 0.0)
    latencies: dict[str, float] = {}
    for name, labels, number in _SAMPLE.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        if name in _COUNTERS:
            # Those that succeeded and those that failed.
            counters[_COUNTERS[name]] += value
        elif 'success="true"' in labels and math.isfinite(value):
            quantile = re.search(r'quantile="([0-9.]+)"', labels)
            field = _LATENCIES.get((name, quantile[1] if quantile else ""))
            if field is not None:
                latencies[field] = value
    return BookieCounts(**counters, **latencies)


def rate(before: float, after: float, seconds: float) -> float:
    """Return how much more there was a second; a bookie that was started again counts from zero."""
    return max(0.0, after - before) / seconds
