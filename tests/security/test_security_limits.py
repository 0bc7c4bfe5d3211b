"""Attacks by volume on real bookies: none ends them, none takes more memory than is promised.

How long they hold the loop up and what they cost an honest writer's latency is measured, not
asserted: ``make limits`` does, and writes docs/reports/limits.md.
"""

from __future__ import annotations

import pytest

from security.limits.measure import MEMORY_BYTES_MAX, measure

SECONDS = 8
MIXED_SECONDS = 120


@pytest.mark.parametrize("attack", ["handshakes", "large-adds", "half-frames", "batches"])
async def test_an_attack_ends_no_bookie_and_takes_no_more_memory_than_is_promised(
    attack: str,
) -> None:
    outcome = await measure(attack, SECONDS)
    assert not outcome.has_ended
    assert outcome.peak_bytes <= MEMORY_BYTES_MAX
    assert outcome.appended > 0


@pytest.mark.timeout(300)
async def test_all_attacks_at_once_end_no_bookie_and_take_no_more_memory() -> None:
    outcome = await measure("mixed", MIXED_SECONDS)
    assert not outcome.has_ended
    assert outcome.peak_bytes <= MEMORY_BYTES_MAX
    assert outcome.appended > 0
