"""How much the next batch reads, by how long those before took."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pip install 'quorumbook[spark]'")

from quorumbook.spark.source.pressure import FIRST_BYTES, Pressure

S = 1_000_000_000


def after(pressure: Pressure, size: int, took_s: float) -> int:
    pressure.batch_began(0, size)
    pressure.next_wanted(round(took_s * S))
    return pressure.limit_bytes


def test_batches_grow_while_they_are_fast_and_shrink_by_as_much_as_they_are_slow() -> None:
    pressure = Pressure(10)
    assert pressure.limit_bytes == FIRST_BYTES
    assert after(pressure, FIRST_BYTES, 0.1) == 2 * FIRST_BYTES
    assert after(pressure, 2 * FIRST_BYTES, 8) == int(2.5 * FIRST_BYTES)
    assert after(pressure, 2 * FIRST_BYTES, 20) == FIRST_BYTES
    # One entry that is beyond the limit comes alone: it says how slow the sink is, not its limit.
    assert after(pressure, 100 * FIRST_BYTES, 20) == FIRST_BYTES // 2
    for _ in range(30):
        after(pressure, 1, 1e6)
    assert pressure.limit_bytes == 1024


def test_a_batch_of_what_there_was_says_nothing_of_how_much_can_be_done() -> None:
    pressure = Pressure(10)
    assert after(pressure, FIRST_BYTES // 10, 0.1) == FIRST_BYTES


def test_a_query_that_waits_for_records_learns_nothing_from_waiting() -> None:
    pressure = Pressure(10)
    pressure.batch_began(0, FIRST_BYTES)
    pressure.next_wanted(1 * S)
    pressure.next_wanted(1000 * S)
    assert pressure.limit_bytes == 2 * FIRST_BYTES
