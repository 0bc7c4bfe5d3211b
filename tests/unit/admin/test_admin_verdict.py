"""One judgement of a cluster, made of its facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorumbook.admin.facts.bookies import BookieFacts
from quorumbook.admin.facts.cluster import ClusterFacts, LedgerFacts
from quorumbook.admin.facts.verdict import Level, judge, unreachable
from quorumbook.metadata.recovery.quarantine import FailedHealing

WELL = ClusterFacts(
    metadata_uri="sqlite:///x.db",
    instance_id="i",
    at_ms=0,
    metadata_ms=0.1,
    bookies=(BookieFacts("a:1", "writable"), BookieFacts("b:1", "writable")),
    ledgers=LedgerFacts(ledgers=2),
    underreplicated=0,
    quarantined=(),
    auditor="a:1",
    is_recovery_enabled=True,
)


def _bookies(*states: str, **more: object) -> tuple[BookieFacts, ...]:
    return tuple(BookieFacts(f"{n}:1", state, **more) for n, state in enumerate(states))


def test_a_cluster_without_a_reason_is_well():
    judgement = judge(WELL)
    assert (judgement.level, judgement.reasons) == (Level.OK, ())
    assert judgement.sentence().startswith("OK")


@pytest.mark.parametrize(
    ("change", "code", "level"),
    [
        ({"bookies": _bookies("writable", "down")}, "bookie-down", Level.WARNING),
        ({"bookies": _bookies("writable", "read-only")}, "bookie-read-only", Level.WARNING),
        ({"bookies": _bookies("writable", error="no answer")}, "bookie-silent", Level.WARNING),
        ({"bookies": ()}, "no-writable-bookie", Level.CRITICAL),
        ({"bookies": _bookies("read-only")}, "no-writable-bookie", Level.CRITICAL),
        ({"underreplicated": 3}, "under-replicated", Level.WARNING),
        ({"quarantined": (FailedHealing(7, "why", 5, 0, 0),)}, "quarantined", Level.WARNING),
        ({"auditor": None}, "no-auditor", Level.WARNING),
        ({"is_recovery_enabled": False}, "recovery-disabled", Level.WARNING),
        ({"damaged": ("node x",)}, "damaged-metadata", Level.WARNING),
        (
            {"ledgers": LedgerFacts(unreadable=[4], unreadable_count=1)},
            "entries-unreadable",
            Level.CRITICAL,
        ),
        (
            {"ledgers": LedgerFacts(damaged=["ledger 4"], damaged_count=1)},
            "ledger-metadata-damaged",
            Level.CRITICAL,
        ),
        (
            {"bookies": _bookies("writable", directories=({"path": "/d", "used": 0.86},))},
            "disk-nearly-full",
            Level.WARNING,
        ),
    ],
)
def test_each_thing_that_is_wrong_is_a_reason_with_its_level(change, code, level):
    reasons = {reason.code: reason for reason in judge(replace(WELL, **change)).reasons}
    assert reasons[code].level is level
    assert reasons[code].text
    assert reasons[code].fix


def test_the_worst_reason_is_the_verdict_and_comes_first():
    judgement = judge(replace(WELL, bookies=_bookies("down"), underreplicated=1))
    assert judgement.level is Level.CRITICAL
    assert judgement.reasons[0].code == "no-writable-bookie"
    assert "CRITICAL: " in judgement.sentence()


def test_a_disk_that_is_used_below_the_warning_is_no_reason():
    bookies = _bookies("writable", directories=({"path": "/d", "used": 0.84}, {"path": "/e"}))
    assert judge(replace(WELL, bookies=bookies)).reasons == ()


def test_an_unreachable_store_is_critical():
    assert unreachable("metadata-unavailable", "no answer").level is Level.CRITICAL
