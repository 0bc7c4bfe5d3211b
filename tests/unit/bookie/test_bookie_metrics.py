"""Latency summaries: quantiles from batches, over a moving window."""

from __future__ import annotations

import math

import pytest

from quorumbook.bookie.metrics import BookieMetrics, LatencySummary, exposition

SECOND = 1_000_000_000


@pytest.mark.parametrize("microseconds", [0, 1, 7, 8, 15, 16, 100, 1234, 10**6, 10**9])
def test_a_quantile_is_at_most_an_eighth_above_the_latency(microseconds: int) -> None:
    summary = LatencySummary()
    summary.record(microseconds * 1000, 1, SECOND)
    for quantile in summary.quantiles_ms(SECOND):
        assert microseconds / 1000 < quantile <= max(0.001, microseconds * 1.125 / 1000 + 0.001)


def test_a_batch_counts_as_many_requests() -> None:
    summary = LatencySummary()
    summary.record(1_000_000, 990, SECOND)
    summary.record(500_000_000, 10, SECOND)
    assert summary.count == 1000
    assert summary.sum_ms == pytest.approx(990 + 5000)
    median, _, _, p99, p999, _, highest = summary.quantiles_ms(SECOND)
    assert median < 1.2
    assert p99 < 1.2
    assert p999 > 490
    assert highest > 490


def test_old_latencies_leave_the_window_and_the_count_stays() -> None:
    summary = LatencySummary()
    summary.record(900_000_000, 5, 100 * SECOND)
    assert summary.quantiles_ms(150 * SECOND)[-1] > 890
    summary.record(1_000_000, 5, 161 * SECOND)
    assert summary.quantiles_ms(165 * SECOND)[-1] > 890
    summary.record(1_000_000, 5, 222 * SECOND)
    assert summary.quantiles_ms(223 * SECOND)[-1] < 2
    assert all(math.isnan(quantile) for quantile in summary.quantiles_ms(1000 * SECOND))
    assert summary.count == 15


def test_a_storage_number_has_the_peers_name_or_one_of_its_own() -> None:
    metrics = BookieMetrics()
    numbers = {"journal_syncs@0": 3, "journal_sync_ns@0": 6_000_000, "novel": 7, "text": "no"}
    lines = exposition(lambda: metrics.families(SECOND, numbers)).decode().splitlines()
    label = '{journalIndex="0",success="true"}'
    assert f"bookie_journal_JOURNAL_SYNC_count{label} 3.0" in lines
    assert f"bookie_journal_JOURNAL_SYNC_sum{label} 6.0" in lines
    assert "bookie_storage_novel 7.0" in lines
    assert not [line for line in lines if "text" in line]
