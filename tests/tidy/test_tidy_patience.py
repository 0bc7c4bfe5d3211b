"""Limits on the time of others are kept by ``env/patience.py``, which reads before it judges."""

from __future__ import annotations

import ast
from pathlib import Path

from sources import tree_of

SOURCE = Path(__file__).parents[2] / "src" / "quorumbook"
_TIMERS = {"timeout", "timeout_at", "wait_for", "call_later", "call_at"}
#: Where a time is only when to do something oneself next, or how long an application wants to wait.
_OWN = {
    "autorecovery/audits/bookie_audits.py",
    "autorecovery/audits/checks.py",
    "autorecovery/copying/worker.py",
    "bookie/connections/answer_budget.py",
    "bookie/disks.py",
    "bookie/http/metrics_text.py",
    "bookie/membership/healing.py",
    "cli/cluster/zookeeper.py",
    "client/cluster/bookies.py",
    "client/writing/adds.py",
    "client/writing/ensemble.py",
    "client/writing/explicit_lac.py",
    "client/recovery.py",
    "env/patience.py",
    "metadata/memory.py",
    "metadata/zookeeper/session.py",
    "sim/actors/ledgers.py",
    "sim/actors/streams.py",
    "sim/loop.py",
    "sim/metadata/etcd.py",
    "storage/checkpoint/schedule.py",
    "storage/collection/collector.py",
    "storage/scrub/scrubber.py",
    "streams/cursors/reader.py",
    "streams/partitions/consumer.py",
    "streams/partitions/reader.py",
    "streams/partitions/redelivery.py",
    "streams/reading/segment_list.py",
    "streams/writing/pump.py",
}


def _has_timer(path: Path) -> bool:
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        is_asyncio = isinstance(owner, ast.Name) and owner.id == "asyncio"
        if name in _TIMERS and (is_asyncio or name.startswith("call_")):
            return True
    return False


def test_limits_on_others_are_judged_after_reading() -> None:
    found = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if _has_timer(path)
    }
    assert found == _OWN
