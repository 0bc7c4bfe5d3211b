"""Counters of a bookie, read from what a bookie really answers."""

from __future__ import annotations

import pytest

from quorumbook.admin.activity.counts import BookieCounts, counts_in, rate, read_counts
from quorumbook.bookie.metrics import BookieMetrics, exposition


def test_counters_of_a_bookie_are_read_from_its_own_metrics():
    metrics = BookieMetrics()
    metrics.add.record(True, 2_000_000, 30, 0)
    metrics.add.record(False, 90_000_000, 4, 0)
    metrics.read.record(True, 8_000_000, 5, 0)
    metrics.write_bytes, metrics.read_bytes = 3000, 700
    found = counts_in(exposition(lambda: metrics.families(1, {})).decode())
    assert (found.adds, found.reads) == (34, 5)
    assert (found.written_bytes, found.read_bytes) == (3000, 700)
    # Of those that succeeded alone, at most an eighth off.
    assert found.add_p50_ms == found.add_p99_ms == pytest.approx(2, rel=0.13)
    assert found.read_p99_ms == pytest.approx(8, rel=0.13)


def test_what_did_not_happen_or_is_no_number_counts_nothing():
    nothing = exposition(lambda: BookieMetrics().families(1, {})).decode()
    assert counts_in(nothing) == BookieCounts()
    assert counts_in("bookie_WRITE_BYTES what\n# HELP x y\n") == BookieCounts()
    assert counts_in("bookie_WRITE_BYTES 1.2e+03\n") == BookieCounts(written_bytes=1200)


def test_a_bookie_that_is_away_is_an_error_and_one_that_was_restarted_is_at_rest():
    with pytest.raises(OSError, match="refused"):
        read_counts("http://127.0.0.1:1")
    assert rate(10, 30, 2) == 10
    assert rate(10, 3, 2) == 0
