"""Strangers who know the grammar, and all attacks by volume at once: a part of what commands do.

``make fuzz`` and ``make limits`` go on for longer.  Both take two minutes here whatever the
machine does, each with bookies of its own, so they take them together.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from security.fuzz.conversations import KINDS
from security.fuzz.run import MODES, Round, fuzz_round
from security.limits.measure import MEMORY_BYTES_MAX, measure

SEED = random.SystemRandom().getrandbits(32)
SECONDS = 120


async def _fuzzed(directory: Path) -> list[Round]:
    """Attack a bookie of each kind in turn; what is sent meanwhile is up to the machine."""
    print(f"seed {SEED}")
    seconds = SECONDS / len(MODES)
    return [
        await fuzz_round(directory / str(number), mode, SEED, 0, frames=10**9, seconds=seconds)
        for number, mode in enumerate(MODES)
    ]


@pytest.mark.timeout(300)
async def test_nothing_that_strangers_send_stops_a_bookie_or_costs_an_acknowledged_entry(
    tmp_path: Path,
) -> None:
    async with asyncio.TaskGroup() as group:
        fuzzing = group.create_task(_fuzzed(tmp_path))
        mixed = group.create_task(measure("mixed", SECONDS, quiet_s=0))
    for done in fuzzing.result():
        assert done.violations == [], done.mode
        # It was an attack of every kind, and somebody was at work.
        assert {*done.seen["frames"]} >= {*KINDS} - {"handshake over TLS"}
        assert done.frames > 2000
        assert done.acknowledged > 200
        assert sum(done.seen["answers"].values()) > 200
    outcome = mixed.result()
    assert not outcome.has_ended
    assert outcome.peak_bytes <= MEMORY_BYTES_MAX
    assert outcome.appended > 0
