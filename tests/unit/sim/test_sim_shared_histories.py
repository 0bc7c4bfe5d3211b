"""What members of a group and rivals with batches are told cannot be true in some cases."""

from __future__ import annotations

from quorumbook.sim.histories.groups import GroupHistory
from quorumbook.sim.histories.ledgers import History
from quorumbook.sim.histories.transactions import TransactionHistory
from quorumbook.sim.kernel import Kernel


def _group() -> tuple[GroupHistory, list[str]]:
    history = History(Kernel(0))
    return GroupHistory(history), history.violations


def _batches() -> tuple[TransactionHistory, list[str]]:
    history = History(Kernel(0))
    return TransactionHistory(history), history.violations


def _commit(group: GroupHistory, member: str, sequence_id: int) -> None:
    group.committed(member, 0, sequence_id, group.committing(0, sequence_id))


def test_a_partition_goes_over_behind_what_was_committed():
    group, violations = _group()
    for sequence_id in (0, 1):
        group.acked("q0", 0, sequence_id, b"%d" % sequence_id)
        group.handed("m0", 0, sequence_id, b"%d" % sequence_id)
    _commit(group, "m0", 0)
    group.assigned("m1", 0)
    group.handed("m1", 0, 1, b"1")
    group.judged("m1", 0, 1)
    assert violations == []
    assert group.is_read()


def test_a_record_that_is_skipped_is_noticed():
    group, violations = _group()
    group.handed("m0", 0, 0, b"0")
    group.handed("m0", 0, 2, b"2")
    assert violations == ["I14 group_skips_nothing: m0 got 2 of 0, not 1"]
    _commit(group, "m0", 0)
    group.assigned("m1", 0)
    group.handed("m1", 0, 3, b"3")
    assert violations[1:] == ["I14 group_skips_nothing: m1 begins partition 0 at 3, not 0"]


def test_another_record_in_a_place_is_noticed():
    group, violations = _group()
    group.acked("q0", 0, 0, b"a")
    group.handed("m0", 0, 0, b"b")
    assert violations == [
        "I14 group_has_one_record_a_place: m0 knows 0 of 0 as b'b', others as b'a'"
    ]


def test_a_cursor_that_is_put_back_is_noticed():
    group, violations = _group()
    _commit(group, "m0", 5)
    before = group.committing(0, 3)
    group.committed("m1", 0, 3, before)
    assert violations == ["I14 group_keeps_commits: m1 put 0 back from 5 to 3"]
    group.judged("m2", 0, 4)
    assert violations[1:] == ["I14 group_keeps_commits: m2 got 4 of 0 again, committed up to 5"]


def test_what_nobody_got_is_not_read():
    group, _ = _group()
    group.acked("q0", 1, 0, b"a")
    assert not group.is_read()


def test_batches_that_are_whole_and_in_order_are_well():
    batches, violations = _batches()
    batches.tried(0, "x0", {"eu": [b"0 x0 0", b"0 x0 1"], "us": [b"0 x0 0"]})
    batches.committed(0, "x0")
    batches.tried(1, "x1", {"eu": [b"1 x1 0"], "us": []})
    batches.found(0)
    batches.read_all({"eu": [b"0 x0 0", b"0 x0 1", b"1 x1 0"], "us": [b"0 x0 0"]})
    assert violations == []


def test_half_a_batch_is_noticed():
    batches, violations = _batches()
    batches.tried(0, "x0", {"eu": [b"0 x0 0", b"0 x0 1"], "us": [b"0 x0 0"]})
    batches.read_all({"eu": [b"0 x0 0"], "us": []})
    assert violations == [
        "I14 batch_is_whole: eu has other rows of batch 0 than x0 wrote",
        "I14 batch_is_whole: batch 0 is in ['eu'], not in ['eu', 'us']",
    ]


def test_a_batch_that_is_there_twice_is_noticed():
    batches, violations = _batches()
    for who in ("x0", "x1"):
        batches.tried(0, who, {"eu": [f"0 {who} 0".encode()]})
    batches.committed(0, "x0")
    batches.committed(0, "x1")
    assert violations == ["I14 batch_is_there_once: batch 0 was committed by x0 and by x1"]
    batches.read_all({"eu": [b"0 x0 0", b"0 x1 0"]})
    assert violations[1:] == [
        "I14 batches_keep_order: eu has batch 0 behind batch 0",
        "I14 batch_is_there_once: batch 0 is there from ['x0', 'x1']",
        "I14 batches_are_kept: batch 0 was committed by x0, and is not there",
    ]


def test_a_batch_that_was_reported_and_is_not_there_is_noticed():
    batches, violations = _batches()
    for batch in (0, 1):
        batches.tried(batch, "x0", {"eu": [b"%d x0 0" % batch]})
    batches.committed(0, "x0")
    batches.found(1)
    batches.read_all({"eu": []})
    assert violations == [
        "I14 batches_are_kept: batch 0 was committed by x0, and is not there",
        "I14 batches_are_kept: batch 1 was said to be there, and is not",
    ]
