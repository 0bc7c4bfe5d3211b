"""What two looks at a cluster say together."""

from __future__ import annotations

from quorumbook.admin.activity.counts import BookieCounts
from quorumbook.admin.activity.looks import Look, activity
from quorumbook.admin.facts.bookies import BookieFacts
from quorumbook.ledger.metadata import Fragment, LedgerMetadata

DISKS = ({"path": "/d", "use": "journal", "used": 0.25, "sync_ms_mean": 1.5},)


def ledger(ledger_id, stream=""):
    custom = {"component": b"stream", "namespace": b"/streams", "stream": stream.encode()}
    return LedgerMetadata(
        ledger_id=ledger_id, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1,
        fragments=(Fragment(0, ("b1",)),), custom_metadata=custom if stream else {},
    )  # fmt: skip


def look(at_s, counts, confirmed, ledgers=()):
    bookies = tuple(BookieFacts(name, "writable", directories=DISKS) for name in ("b1", "b2"))
    return Look(at_s, bookies, counts, confirmed, {each.ledger_id: each for each in ledgers})


def test_rates_are_of_the_time_between_two_looks():
    before = look(10.0, {"b1": BookieCounts(adds=100, written_bytes=5000)}, {})
    after = look(12.0, {"b1": BookieCounts(adds=160, written_bytes=9000, add_p99_ms=4.0)}, {})
    first, second = activity(before, after, 10).bookies
    assert (first["adds_per_s"], first["written_bytes_per_s"]) == (30.0, 2000.0)
    assert (first["add_p99_ms"], first["read_p99_ms"]) == (4.0, None)
    assert (first["fullest_disk"], first["used"], first["sync_ms_mean"]) == ("/d", 0.25, 1.5)
    # It did not answer: nothing is known, which is not nothing.
    assert "adds_per_s" not in second


def test_a_bookie_that_was_started_again_has_no_negative_rate():
    before = look(0.0, {"b1": BookieCounts(adds=100)}, {})
    after = look(1.0, {"b1": BookieCounts(adds=3)}, {})
    assert activity(before, after, 10).bookies[0]["adds_per_s"] == 0.0


def test_the_busiest_ledgers_and_streams_come_first():
    ledgers = [ledger(1), ledger(2, "orders"), ledger(3, "orders"), ledger(4, "clicks"), ledger(5)]
    before = look(0.0, {}, {1: 9, 2: 0, 3: 0, 4: 0}, ledgers)
    after = look(2.0, {}, {1: 9, 2: 20, 3: 30, 4: 40}, ledgers)
    seen = activity(before, after, 2)
    assert [(row["ledger_id"], row["entries_per_s"]) for row in seen.ledgers] == [(4, 20), (3, 15)]
    assert seen.streams == [
        {"stream": "/streams/orders", "entries_per_s": 25.0},
        {"stream": "/streams/clicks", "entries_per_s": 20.0},
    ]
    assert (seen.open_ledgers, seen.unasked_ledgers) == (5, 1)


def test_a_ledger_that_is_new_counts_from_its_first_entry():
    seen = activity(look(0.0, {}, {}), look(1.0, {}, {7: 4}, [ledger(7)]), 10)
    assert seen.ledgers == [
        {"ledger_id": 7, "entries_per_s": 5.0, "last_entry_id": 4, "stream": ""}
    ]
