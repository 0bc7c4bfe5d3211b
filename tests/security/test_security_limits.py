"""Attacks by volume on real bookies: none ends them, none takes more memory than is promised.

How long they hold the loop up and what they cost an honest writer's latency is measured, not
asserted: ``make limits`` does, and writes docs/reports/limits.md.
"""

from __future__ import annotations

import asyncio

import pytest

from security.limits.measure import MEMORY_BYTES_MAX, measure

#: Each sends all that it has within a few seconds, also where four of them share the machine.
SECONDS = 16
MIXED_SECONDS = 120


async def check(attack: str, seconds: float) -> None:
    outcome = await measure(attack, seconds, quiet_s=0)
    assert not outcome.has_ended
    assert outcome.peak_bytes <= MEMORY_BYTES_MAX
    assert outcome.appended > 0


async def test_an_attack_ends_no_bookie_and_takes_no_more_memory_than_is_promised() -> None:
    """Each has a bookie of its own."""
    async with asyncio.TaskGroup() as group:
        for attack in ("handshakes", "large-adds", "half-frames", "batches"):
            group.create_task(check(attack, SECONDS), name=attack)


@pytest.mark.timeout(300)
async def test_all_attacks_at_once_end_no_bookie_and_take_no_more_memory() -> None:
    await check("mixed", MIXED_SECONDS)
