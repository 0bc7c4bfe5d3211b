"""What a bookie counts, under the peer's names, so that existing dashboards go on working.

Counting happens once per batch: a group of a thousand adds is one ``record`` with a count.  A
latency summary keeps logarithmic buckets (eight to a power of two, so a quantile is at most an
eighth off) for the running and the last full window of 60 seconds.

    name                                        type      labels
    bookkeeper_server_<OPERATION>_REQUEST       summary   success; quantiles in milliseconds
    bookkeeper_server_ADD_ENTRY, READ_ENTRY     summary   the same numbers, as the peer has both
    bookkeeper_server_*_IN_PROGRESS, _BLOCKED   gauge
    bookkeeper_server_*_REJECTED                counter
    bookie_WRITE_BYTES, bookie_READ_BYTES ...   counter
    bookie_SERVER_STATUS                        gauge     1 writable, 0 read-only, -1 not registered
    bookie_ledger_dir_usage                     gauge     path
    background_io_bytes                         counter   whom; what work in the background took
    process_*                                   gauge     memory, processor time, open files

``BookieMetrics.families`` turns them into prometheus_client families; the storage's own numbers
come in as a plain mapping from name to value.  Those that the peer has too get its name, the
others ``bookie_storage_<name>``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quorumbook.bookie.slow_operations import SlowOperations
from quorumbook.env import Budget
from quorumbook.metric_texts import text_of

_WINDOW_NS = 60 * 1_000_000_000
_QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")

#: The operations that have a latency summary: attribute and name.
_OPERATIONS = {
    "add": "ADD_ENTRY_REQUEST",
    "read": "READ_ENTRY_REQUEST",
    "batch_read": "BATCH_READ_ENTRY_REQUEST",
    "fence": "READ_ENTRY_FENCE_REQUEST",
    "long_poll": "READ_ENTRY_LONG_POLL_REQUEST",
    "write_lac": "WRITE_LAC_REQUEST",
    "read_lac": "READ_LAC_REQUEST",
    "force": "FORCE_LEDGER_REQUEST",
    "bookie_info": "GET_BOOKIE_INFO_REQUEST",
    "list_entries": "GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST",
}
#: The peer has the processing part beside the whole; here they are one.
_ALIASES = {"add": "ADD_ENTRY", "read": "READ_ENTRY"}
#: The storage's gauges and counters under the peer's names; the journal's carry its number.
_STORAGE_GAUGES = {
    "journal_pending": "bookie_journal_JOURNAL_QUEUE_SIZE",
    "journal_pending_bytes": "bookie_journal_JOURNAL_MEMORY_USED",
    "journal_last_group_enqueued": "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES",
    "journal_last_group_bytes": "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES",
    "write_cache_bytes": "bookie_write_cache_size",
    "read_cache_bytes": "bookie_read_cache_size",
    "gc_held_ledgers": "bookie_HELD_LEDGER_COUNT",
    "gc_active_logs": "bookie_ACTIVE_ENTRY_LOG_COUNT",
    "gc_active_log_bytes": "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES",
}
_STORAGE_COUNTERS = {
    "journal_bytes_written": "bookie_journal_JOURNAL_WRITE_BYTES",
    "read_cache_hits": "bookie_read_cache_hits",
    "read_disk_reads": "bookie_read_cache_misses",
    "flush_bytes_flushed": "bookie_flush_size",
    "gc_deleted_ledgers": "bookie_DELETED_LEDGER_COUNT",
    "gc_minor_compactions": "bookie_MINOR_COMPACTION_COUNT",
    "gc_major_compactions": "bookie_MAJOR_COMPACTION_COUNT",
    "gc_reclaimed_deletion_bytes": "bookie_RECLAIMED_DELETION_SPACE_BYTES",
    "gc_reclaimed_compaction_bytes": "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
}
#: Those that have no name there, and only rise.
_STORAGE_RISING = frozenset(
    (
        "bytes_appended",
        "entries_appended",
        "flush_failed",
        "flush_journals_deleted",
        "flush_runs",
        "gc_compacted_bytes",
        "gc_deleted_logs",
        "gc_dropped_copies",
        "gc_failed_passes",
        "healing_healed_ledgers",
        "healing_marks",
        "journal_enqueued",
        "journal_files_created",
        "read_damaged",
        "read_page_cache_reads",
        "read_read_ahead_runs",
        "read_run_reads",
        "scrub_checked_bytes",
        "scrub_checked_runs",
        "scrub_damaged_entries",
        "scrub_failed_cycles",
        "scrub_redeemed_entries",
    )
)
#: Its times: how often, how long in all (nanoseconds), and the peer's name of both.
_STORAGE_TIMES = (
    ("journal_syncs", "journal_sync_ns", "bookie_journal_JOURNAL_SYNC"),
    ("journal_groups", "journal_write_ns", "bookie_journal_JOURNAL_FLUSH_LATENCY"),
    ("flush_checkpoints", "flush_flush_ns", "bookie_flush"),
    ("gc_passes", "gc_runtime_ns", "bookie_THREAD_RUNTIME"),
    ("scrub_cycles", "scrub_runtime_ns", "bookie_storage_scrub"),
)


def _bucket(microseconds: int) -> int:
    """Return the bucket of a latency: the power of two and the three bits behind it."""
    if microseconds < 8:
        return microseconds
    power = microseconds.bit_length()
    return (power - 3) * 8 + ((microseconds >> (power - 4)) & 7)


def _upper_ms(bucket: int) -> float:
    """Return the upper edge of a bucket."""
    if bucket < 8:
        return (bucket + 1) / 1000
    power, low = divmod(bucket, 8)
    return ((9 + low) << (power - 1)) / 1000


class LatencySummary:
    """How often and how long, kept by batches."""

    __slots__ = ("_last", "_now", "_window_start_ns", "count", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self._now: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._window_start_ns = 0

    def record(self, latency_ns: int, count: int, now_ns: int) -> None:
        """Count ``count`` requests that all took ``latency_ns``."""
        self.count += count
        self.sum_ms += latency_ns * count / 1e6
        if now_ns - self._window_start_ns > _WINDOW_NS:
            self._turn(now_ns)
        bucket = _bucket(latency_ns // 1000)
        self._now[bucket] = self._now.get(bucket, 0) + count

    def quantiles_ms(self, now_ns: int) -> list[float]:
        """Return the quantiles over the last one to two minutes; NaN where nothing happened."""
        if now_ns - self._window_start_ns > _WINDOW_NS:
            self._turn(now_ns)
        buckets = dict(self._last)
        for bucket, count in self._now.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
        total = sum(buckets.values())
        if not total:
            return [math.nan] * len(_QUANTILES)
        found: list[float] = []
        ordered = sorted(buckets)
        position, seen = 0, buckets[ordered[0]]
        for quantile in _QUANTILES:
            while seen < quantile * total and position + 1 < len(ordered):
                position += 1
                seen += buckets[ordered[position]]
            found.append(_upper_ms(ordered[position]))
        return found

    def _turn(self, now_ns: int) -> None:
        stale = now_ns - self._window_start_ns > 2 * _WINDOW_NS
        self._last = {} if stale else self._now
        self._now = {}
        self._window_start_ns = now_ns


class OperationMetrics:
    """One operation: summaries of its successes and failures."""

    __slots__ = ("failed", "succeeded")

    def __init__(self) -> None:
        self.succeeded = LatencySummary()
        self.failed = LatencySummary()

    def record(self, succeeded: bool, latency_ns: int, count: int, now_ns: int) -> None:
        """Count requests that ended now."""
        summary = self.succeeded if succeeded else self.failed
        summary.record(latency_ns, count, now_ns)


class BookieMetrics:
    """All numbers of one bookie's server side; plain attributes, counted in place."""

    def __init__(self) -> None:
        self.operations = {name: OperationMetrics() for name in _OPERATIONS}
        # One attribute look-up less where it is hot.
        self.add = self.operations["add"]
        self.read = self.operations["read"]
        self.batch_read = self.operations["batch_read"]
        #: The slowest, and where their time went.
        self.slow = SlowOperations()
        self.adds_in_progress = 0
        self.reads_in_progress = 0
        self.adds_delayed = 0
        self.adds_delayed_total = 0
        self.adds_rejected = 0
        self.reads_rejected = 0
        self.long_polls_waiting = 0
        self.write_bytes = 0
        self.read_bytes = 0
        self.recovery_adds = 0
        self.last_entry_misses = 0
        self.connections = 0
        self.connections_total = 0
        self.connections_broken_protocol = 0
        self.connections_slow = 0
        self.connections_idle = 0
        self.connections_refused = 0
        self.connections_unauthorized = 0
        self.requests_refused = 0
        self.certificate_errors = 0
        self.pauses = 0
        #: 1 writable, 0 read-only, -1 not registered.
        self.server_status = -1
        self.directory_usage: dict[str, float] = {}
        self.writable_directories = 0

    def families(self, now_ns: int, storage: Mapping[str, object]) -> Iterable[Metric]:
        """Yield everything as metric families."""
        for attribute, name in _OPERATIONS.items():
            operation = self.operations[attribute]
            yield _summary(f"bookkeeper_server_{name}", operation, now_ns)
            if attribute in _ALIASES:
                yield _summary(f"bookkeeper_server_{_ALIASES[attribute]}", operation, now_ns)
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(name, text_of(name), value=value)
        for name, value in self._counters().items():
            yield _counter(name, value)
        yield from self._directories()
        yield from _storage_families(storage)

    def _gauges(self) -> dict[str, float]:
        return {
            "bookie_SERVER_STATUS": self.server_status,
            "bookie_ledger_num_dirs": len(self.directory_usage),
            "bookie_ledger_writable_dirs": self.writable_directories,
            "bookkeeper_server_ADD_ENTRY_IN_PROGRESS": self.adds_in_progress,
            "bookkeeper_server_READ_ENTRY_IN_PROGRESS": self.reads_in_progress,
            "bookkeeper_server_ADD_ENTRY_BLOCKED": self.adds_delayed,
            "bookkeeper_server_READ_ENTRY_LONG_POLL_WAITING": self.long_polls_waiting,
            "bookkeeper_server_CONNECTIONS": self.connections,
        }

    def _counters(self) -> dict[str, float]:
        return {
            "bookie_WRITE_BYTES": self.write_bytes,
            "bookie_READ_BYTES": self.read_bytes,
            "bookie_BOOKIE_RECOVERY_ADD_ENTRY": self.recovery_adds,
            "bookie_throttled_write_requests": self.adds_delayed_total,
            "bookie_rejected_write_requests": self.adds_rejected,
            "bookkeeper_server_ADD_ENTRY_REJECTED": self.adds_rejected,
            "bookkeeper_server_READ_ENTRY_REJECTED": self.reads_rejected,
            "bookkeeper_server_READ_LAST_ENTRY_NOENTRY_ERROR": self.last_entry_misses,
            "bookkeeper_server_CONNECTIONS_OPENED": self.connections_total,
            "bookkeeper_server_CONNECTIONS_BROKEN_PROTOCOL": self.connections_broken_protocol,
            "bookkeeper_server_CONNECTIONS_SLOW_CLOSED": self.connections_slow,
            "bookkeeper_server_CONNECTIONS_IDLE_CLOSED": self.connections_idle,
            "bookkeeper_server_CONNECTIONS_REFUSED": self.connections_refused,
            "bookkeeper_server_CONNECTIONS_PAUSED": self.pauses,
            "bookkeeper_server_CONNECTIONS_UNAUTHORIZED": self.connections_unauthorized,
            "bookkeeper_server_REQUESTS_UNAUTHORIZED": self.requests_refused,
            "bookkeeper_server_CERTIFICATE_ERRORS": self.certificate_errors,
        }

    def _directories(self) -> Iterable[Metric]:
        by_path = GaugeMetricFamily(
            "bookie_ledger_dir_usage", text_of("bookie_ledger_dir_usage"), labels=["path"]
        )
        for path, usage in self.directory_usage.items():
            by_path.add_metric([path], usage)
            name = f"bookie_ledger_dir_{_NOT_IN_NAMES.sub('_', path)}_usage"
            # The peer's name carries the path; boards that exist look for it.
            text = f"how full the disk of {path} is, in percent"
            yield GaugeMetricFamily(name, text, value=usage * 100)
        yield by_path


def budget_families(budget: Budget) -> Iterable[Metric]:
    """Yield what background work may take of the disks, and what it took."""
    gauges = {
        "background_io_rate_bytes": budget.rate_bytes,
        "background_io_spare_bytes": budget.spare_bytes,
        "background_io_waiting_bytes": budget.waiting_bytes,
    }
    for name, value in gauges.items():
        yield GaugeMetricFamily(name, text_of(name), value=value)
    family = CounterMetricFamily("background_io_bytes", text_of("background_io_bytes"))
    for whom, taken_bytes in sorted(budget.taken_bytes.items()):
        family.add_sample("background_io_bytes", {"whom": whom}, taken_bytes)
    yield family


_COUNTER_HEAD = re.compile(rb"^# (HELP|TYPE) (\w+)_total\b", re.MULTILINE)


def _summary(name: str, operation: OperationMetrics, now_ns: int) -> Metric:
    family = Metric(name, text_of(name), "summary")
    for success, summary in (("false", operation.failed), ("true", operation.succeeded)):
        for quantile, value in zip(_QUANTILES, summary.quantiles_ms(now_ns), strict=True):
            labels = {"success": success, "quantile": str(quantile)}
            family.add_sample(name, labels, value)
        family.add_sample(f"{name}_count", {"success": success}, summary.count)
        family.add_sample(f"{name}_sum", {"success": success}, summary.sum_ms)
    return family


def _counter(name: str, value: float, labels: dict[str, str] | None = None) -> Metric:
    # CounterMetricFamily would append "_total" to a name that dashboards know without it.
    family = CounterMetricFamily(name, text_of(name))
    family.add_sample(name, labels or {}, value)
    return family


def _storage_families(storage: Mapping[str, object]) -> Iterable[Metric]:
    # By name, then by journal ("" where it is nothing of one journal).
    numbers: dict[str, dict[str, float]] = {}
    for key, value in storage.items():
        if isinstance(value, int | float):
            own, _, journal = key.partition("@")
            numbers.setdefault(own, {})[journal] = value
    for count, nanoseconds, name in _STORAGE_TIMES:
        if count in numbers and nanoseconds in numbers:
            family = Metric(name, text_of(name), "summary")
            sums = numbers.pop(nanoseconds)
            for journal, value in numbers.pop(count).items():
                labels = _journal_labels(journal) | {"success": "true"}
                family.add_sample(f"{name}_count", labels, value)
                family.add_sample(f"{name}_sum", labels, sums[journal] / 1e6)
            yield family
    for own, values in sorted(numbers.items()):
        name = _STORAGE_COUNTERS.get(own) or _STORAGE_GAUGES.get(own, f"bookie_storage_{own}")
        is_rising = own in _STORAGE_COUNTERS or own in _STORAGE_RISING
        kind = CounterMetricFamily if is_rising else GaugeMetricFamily
        family = kind(name, text_of(name))
        for journal, value in values.items():
            family.add_sample(name, _journal_labels(journal), value)
        yield family


def _journal_labels(journal: str) -> dict[str, str]:
    return {"journalIndex": journal} if journal else {}


class _Collector:
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def exposition(families: Callable[[], Iterable[Metric]]) -> bytes:
    """Render families in the Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(families))
    page = generate_latest(registry)
    # The library puts "_total" behind the names of all counters in the lines above the samples.
    page = _COUNTER_HEAD.sub(rb"# \1 \2", page)
    of_process = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=of_process)
    return page + generate_latest(of_process)
