"""Numbers of auto-recovery under the peer's names, so that existing dashboards go on working.

    replication_auditor_<NAME>              what the auditor of this process found and did
    replication_replication_worker_<NAME>   what its worker did

A number that the peer takes anew with each audit is a gauge here: what the last one found.  Times
are summaries in milliseconds without quantiles: these things happen once an hour or once a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quorumbook.metric_texts import text_of


class Numbers:
    """The numbers of one part; a name appears when it is used, so name all of them up front.

    Args:
        prefix: Goes before each name.
        gauges: What rises and falls.
        counters: What only rises.
        times: What takes its time.
    """

    def __init__(
        self,
        prefix: str,
        *,
        gauges: Iterable[str] = (),
        counters: Iterable[str] = (),
        times: Iterable[str] = (),
    ) -> None:
        self._prefix = prefix
        self.gauges = dict.fromkeys(gauges, 0.0)
        self.counters = dict.fromkeys(counters, 0.0)
        #: By name and success: how often, and milliseconds.
        self.times = {(name, good): (0, 0.0) for name in times for good in (True, False)}

    def add(self, name: str, amount: float = 1) -> None:
        """Raise a counter."""
        self.counters[name] += amount

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        self.gauges[name] = value

    def took(self, name: str, seconds: float, *, is_good: bool = True) -> None:
        """Count something that took its time."""
        count, sum_ms = self.times[name, is_good]
        self.times[name, is_good] = (count + 1, sum_ms + seconds * 1000)

    def families(self) -> Iterable[Metric]:
        """Yield everything as metric families."""
        for name, value in self.gauges.items():
            full = f"{self._prefix}_{name}"
            yield GaugeMetricFamily(full, text_of(full), value=value)
        for name, value in self.counters.items():
            full = f"{self._prefix}_{name}"
            # CounterMetricFamily would append "_total" to a name that dashboards know without it.
            family = CounterMetricFamily(full, text_of(full))
            family.add_sample(full, {}, value)
            yield family
        for name in dict.fromkeys(name for name, _ in self.times):
            full = f"{self._prefix}_{name}"
            summary = Metric(full, text_of(full), "summary")
            for is_good in (False, True):
                count, sum_ms = self.times[name, is_good]
                labels = {"success": str(is_good).lower()}
                summary.add_sample(f"{full}_count", labels, count)
                summary.add_sample(f"{full}_sum", labels, sum_ms)
            yield summary


def auditor_numbers() -> Numbers:
    """Return the auditor's numbers."""
    return Numbers(
        "replication_auditor",
        gauges=(
            "IS_AUDITOR",
            "NUM_LOST_BOOKIES",
            "NUM_AWAY_BOOKIES",
            "NUM_UNDER_REPLICATED_LEDGERS",
            "UNDER_REPLICATED_LEDGERS_TOTAL_SIZE",
            "NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
            "NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
            "NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
            "NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
            "NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY",
        ),
        counters=(
            "ELECTION_ATTEMPTS",
            "NUM_LEDGERS_CHECKED",
            "NUM_LEDGERS_MARKED",
            "NUM_LEDGERS_UNREADABLE",
            "NUM_BOOKIE_AUDITS_DELAYED",
            "NUM_DELAYED_BOOKIE_AUDITS_DELAYES_CANCELLED",
            "NUM_SKIPPING_CHECK_TASK_TIMES",
        ),
        times=(
            "AUDIT_BOOKIES_TIME",
            "CHECK_ALL_LEDGERS_TIME",
            "PLACEMENT_POLICY_CHECK_TIME",
            "REPLICAS_CHECK_TIME",
        ),
    )


#: What a worker counts, under the peer's names; the others get their own in capitals.
_WORKER = "replication_replication_worker"
_WORKER_NAMES = {
    "ledgers_healed": "NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED",
    "ledgers_failed": "NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER",
    "entries_copied": "NUM_ENTRIES_WRITTEN",
    "bytes_copied": "NUM_BYTES_WRITTEN",
}
#: And what rises and falls.
_WORKER_GAUGES = {"ledgers_quarantined": "NUM_LEDGERS_IN_QUARANTINE"}


def worker_families(statistics: Mapping[str, int]) -> Iterable[Metric]:
    """Yield what a worker counted."""
    numbers = Numbers(_WORKER)
    for name, value in statistics.items():
        if name in _WORKER_GAUGES:
            numbers.set(_WORKER_GAUGES[name], value)
        else:
            numbers.counters[_WORKER_NAMES.get(name, f"NUM_{name.upper()}")] = value
    return numbers.families()
