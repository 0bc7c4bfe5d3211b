"""A call of a bookie's storage fails, in each of its operations: nothing acknowledged is lost.

A spread over operations, calls and N; ``make torture`` tries all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.failing_calls import OPERATIONS, Fault, run, why_impossible

SPREAD = [
    Fault("group", "fdatasync", "EIO", 1),
    Fault("group", "fdatasync", "ENOSPC", 7),
    Fault("group", "pwrite64", "EIO", 5),
    Fault("checkpoint", "fdatasync", "EIO", 3),
    Fault("checkpoint", "rename", "ENOSPC", 1),
    Fault("roll", "fdatasync", "EIO", 20),
    Fault("roll", "pwrite64", "ENOSPC", 20),
    Fault("roll", "fallocate", "EIO", 2),
    Fault("compaction", "fdatasync", "EIO", 2),
    Fault("compaction", "pwrite64", "ENOSPC", 3),
    Fault("compaction", "unlink", "EIO", 1),
    Fault("stop", "fdatasync", "EIO", 1),
    Fault("stop", "rename", "EIO", 1),
    Fault("start", "fdatasync", "EIO", 2),
    Fault("start", "pwrite64", "ENOSPC", 1),
]


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_r08_calls_that_fail_lose_nothing_and_nothing_is_acknowledged_after_them(
    tmp_path: Path,
) -> None:
    reason = why_impossible()
    if reason is not None:
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    account = await run(SPREAD, tmp_path)
    assert account.tried == account.outcomes.total() == len(SPREAD)
    # A stop that failed is no success.
    assert account.outcomes["stop", "stops as asked"] == 0
    assert {operation for operation, _ in account.outcomes} == set(OPERATIONS)
