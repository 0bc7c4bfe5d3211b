"""One round of each of the adversary's attacks; `make adversary` goes on for longer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from security.adversary.__main__ import ATTACKS, attacked
from security.fuzz.run import MODES

SEED = random.SystemRandom().getrandbits(32)


@pytest.mark.parametrize("mode", MODES)
async def test_odd_shapes_times_and_orders_stop_nobody_and_bring_nothing_about(
    tmp_path: Path, mode: str
) -> None:
    print(f"seed {SEED}")
    found = await attacked([*ATTACKS], mode, 0, SEED, tmp_path / "prey")
    assert found.wrong == []
    # It was an attack.
    assert found.rounds == len(ATTACKS)
    assert found.connections > 200
