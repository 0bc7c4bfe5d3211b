"""Counts, sizes and times as people read them."""

from __future__ import annotations

import pytest

from quorumbook.admin.facts.words import (
    ago,
    at,
    counted,
    lasting,
    listed,
    of_policy,
    since,
    sized,
    taken,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (999_600, "1 MB"),
        (3_456_000, "3.46 MB"),
        (10**30, "1e+12 EB"),
    ],
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


def test_a_time_that_is_none_stays_as_it_is():
    assert ago("2026-11-22T14:00:05Z", 1_795_366_805_000) == "3 h ago"
    assert ago(at(10**30), 0) == str(10**30)


def test_spans():
    assert [lasting(s) for s in (0, 0.4, 59, 86_394, 86_400 * 4000)] == [
        "0 s", "0 s", "59 s", "23 h", "4,000 d",
    ]  # fmt: skip


def test_counts_lists_and_times():
    assert (counted(1, "ledger"), counted(1200, "ledger")) == ("1 ledger", "1,200 ledgers")
    assert listed([1, 2, 3, 4, 5]) == "1, 2, 3 and 2 more"
    assert at(1_700_000_000_000) == "2023-11-14T22:13:20Z"
    assert at(10**30) == str(10**30)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("roll_bytes", 1 << 20, "1 MiB"),
        ("max_record_bytes", 1_040_364, "1,040,364 B"),
        ("max_bytes_per_s", 1048576.0, "1 MiB/s"),
        ("retain_time_s", 604800.0, "7 d"),
        ("roll_interval_s", 5400, "90 min"),
        ("roll_interval_s", 0.25, "0.25 s"),
        ("retain_time_s", 0.0, "no limit"),
        ("ack_delay_s", 0.0, "0"),
        ("max_records_per_s", 100.0, "100"),
        ("ensemble_size", 3, "3"),
        ("retain_unconsumed", False, "no"),
        ("placement", "", "\N{EN DASH}"),
        ("compression", "lz4", "lz4"),
    ],
)
def test_a_policy_is_shown_exactly_in_the_unit_of_its_name(name, value, text):
    assert of_policy(value, name) == text


@pytest.mark.parametrize(
    ("took_ms", "text"),
    [(2046.2, "2,046 ms"), (99.96, "100 ms"), (34.16, "34.2 ms"), (0.0912, "0.0912 ms")],
)
def test_how_long_something_took(took_ms, text):
    assert taken(took_ms) == text
