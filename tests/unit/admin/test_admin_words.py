"""Counts, sizes and times as people read them."""

from __future__ import annotations

import pytest

from quorumbook.admin.facts.words import at, counted, listed, since, sized


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 KB"), (3_456_000, "3.46 MB"), (10**30, "1e+12 EB")],
)
def test_sizes(count, text):
    assert sized(count) == text


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [(0, "now"), (-999, "now"), (-1000, "1 s ago"), (-119_000, "1 min ago"),
     (3_600_000, "in 1 h"), (-86_400_000 * 3, "3 d ago")],
)  # fmt: skip
def test_how_far_a_time_is_from_now(at_ms, text):
    assert since(at_ms, 0) == text


def test_counts_lists_and_times():
    assert (counted(1, "ledger"), counted(1200, "ledger")) == ("1 ledger", "1,200 ledgers")
    assert listed([1, 2, 3, 4, 5]) == "1, 2, 3 and 2 more"
    assert at(1_700_000_000_000) == "2023-11-14T22:13:20Z"
    assert at(10**30) == str(10**30)
