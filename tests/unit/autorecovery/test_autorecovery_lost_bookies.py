"""Which bookies are lost, by scripts and against a model."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quorumbook.autorecovery.audits.lost_bookies import LostBookies

S = 1_000_000_000


def bookies(*names):
    return frozenset(names)


def audit(machine, ledgers, at_s):
    """Look through all ledgers at one moment; return what is marked."""
    machine.begin_audit(at_s * S)
    marked = {}
    for ledger_id, names in ledgers.items():
        lost = machine.look(names, at_s * S)
        if lost:
            marked[ledger_id] = set(lost)
    machine.end_audit(at_s * S)
    return marked


def made(*registered, delay_s=0, settle_s=10, interval_s=86400):
    return LostBookies(
        bookies(*registered), 0, delay_s=delay_s, settle_s=settle_s, interval_s=interval_s
    )


def due_s(machine):
    due_ns = machine.next_audit_ns()
    return None if due_ns is None else due_ns / S


LEDGERS = {1: ("a", "b", "c"), 2: ("b", "c", "d"), 3: ("a", "c", "e")}


def test_s70_a_bookie_that_died_before_the_auditor_began_is_lost():
    machine = made("a", "b", "c", "d")
    assert due_s(machine) == 10
    assert audit(machine, LEDGERS, 10) == {3: {"e"}}
    assert due_s(machine) == 10 + 86400


def test_s70_with_a_delay_it_is_lost_that_long_after_the_auditor_began():
    machine = made("a", "b", "c", "d", delay_s=60)
    assert audit(machine, LEDGERS, 10) == {}
    assert due_s(machine) == 60
    assert audit(machine, LEDGERS, 60) == {3: {"e"}}
    assert due_s(machine) == 60 + 86400


def test_a_bookie_that_goes_is_lost_after_the_delay():
    machine = made(*"abcde", delay_s=300)
    assert audit(machine, LEDGERS, 10) == {}
    machine.on_registered(bookies(*"abcd"), 1000 * S)
    assert machine.waiting == {"e"}
    assert due_s(machine) == 1300
    assert audit(machine, LEDGERS, 1300) == {3: {"e"}}
    assert machine.waiting == frozenset()


def test_s67_a_bookie_that_comes_back_in_time_is_not_lost():
    machine = made(*"abcde", delay_s=300)
    audit(machine, LEDGERS, 10)
    machine.on_registered(bookies(*"abcd"), 1000 * S)
    machine.on_registered(bookies(*"abcde"), 1299 * S)
    assert due_s(machine) == 10 + 86400
    # And its next absence counts from anew.
    machine.on_registered(bookies(*"abcd"), 1400 * S)
    assert due_s(machine) == 1700


def test_s67_a_bookie_that_comes_back_during_the_audit_is_marked_no_further():
    machine = made(*"abde")
    machine.begin_audit(10 * S)
    assert machine.look(LEDGERS[1], 10 * S) == {"c"}
    machine.on_registered(bookies(*"abcde"), 11 * S)
    assert machine.look(LEDGERS[2], 11 * S) == frozenset()
    machine.end_audit(12 * S)
    machine.on_registered(bookies(*"abde"), 13 * S)
    assert audit(machine, LEDGERS, due_s(machine)) == {1: {"c"}, 2: {"c"}, 3: {"c"}}


def test_two_that_are_away_at_once_still_have_their_delay():
    machine = made(*"abcde", delay_s=300)
    audit(machine, LEDGERS, 10)
    machine.on_registered(bookies(*"abc"), 1000 * S)
    assert due_s(machine) == 1300
    assert audit(machine, LEDGERS, 1001) == {}
    machine.on_registered(bookies(*"abcd"), 1299 * S)
    assert audit(machine, LEDGERS, 1300) == {3: {"e"}}


def test_a_delay_that_changes_counts_for_who_is_away_already():
    machine = made(*"abcde", delay_s=300)
    audit(machine, LEDGERS, 10)
    machine.on_registered(bookies(*"abcd"), 1000 * S)
    machine.delay_s = 3600
    assert due_s(machine) == 4600
    machine.delay_s = 20
    assert due_s(machine) == 1020
    machine.delay_s = -5
    assert due_s(machine) == 1000


def test_a_bookie_lost_in_the_middle_of_an_audit_is_looked_for_in_another():
    machine = made(*"abcde")
    machine.begin_audit(10 * S)
    assert machine.look(LEDGERS[1], 10 * S) == frozenset()
    machine.on_registered(bookies(*"abde"), 11 * S)
    assert machine.look(LEDGERS[2], 11 * S) == {"c"}
    machine.end_audit(12 * S)
    assert due_s(machine) == 11
    assert audit(machine, LEDGERS, 12) == {1: {"c"}, 2: {"c"}, 3: {"c"}}


def test_a_delay_lowered_in_the_middle_of_an_audit_leaves_no_ledger_out():
    machine = made(*"abde", delay_s=300)
    machine.begin_audit(10 * S)
    assert machine.look(LEDGERS[1], 10 * S) == frozenset()
    machine.delay_s = 0
    assert machine.look(LEDGERS[2], 11 * S) == {"c"}
    machine.end_audit(12 * S)
    assert due_s(machine) <= 12
    assert audit(machine, LEDGERS, 12) == {1: {"c"}, 2: {"c"}, 3: {"c"}}


def test_an_operator_who_asks_waits_for_no_delay():
    machine = made(*"abcde", delay_s=3600)
    audit(machine, LEDGERS, 10)
    machine.on_registered(bookies(*"abde"), 1000 * S)
    machine.want_audit(1001 * S, ignore_delay=True)
    assert due_s(machine) == 1001
    assert set(audit(machine, LEDGERS, 1001)) == {1, 2, 3}
    assert due_s(machine) == 1001 + 86400


def test_what_is_asked_for_during_an_audit_is_done_after_it():
    machine = made(*"abde", delay_s=3600)
    machine.begin_audit(10 * S)
    machine.want_audit(11 * S, ignore_delay=True)
    assert machine.look(LEDGERS[1], 11 * S) == frozenset()
    machine.end_audit(12 * S)
    assert due_s(machine) == 11
    assert set(audit(machine, LEDGERS, 12)) == {1, 2, 3}


def test_an_audit_that_was_cut_off_is_due_again_as_it_was():
    machine = made(*"abde", delay_s=3600)
    machine.want_audit(5 * S, ignore_delay=True)
    machine.begin_audit(5 * S)
    machine.look(LEDGERS[1], 5 * S)
    machine.abort_audit()
    assert due_s(machine) == 5
    assert set(audit(machine, LEDGERS, 6)) == {1, 2, 3}


def test_nobody_is_lost_right_after_the_auditor_began():
    """What ended the last auditor's session may have ended the bookies' too."""
    machine = made(settle_s=10)
    assert due_s(machine) == 10
    machine.on_registered(bookies(*"abcde"), 9 * S)
    assert audit(machine, LEDGERS, 10) == {}


def test_a_bookie_that_no_ledger_names_is_forgotten():
    machine = made(*"abcde", "f")
    audit(machine, LEDGERS, 10)
    machine.on_registered(bookies(*"abcde"), 20 * S)
    assert due_s(machine) == 20
    assert audit(machine, LEDGERS, 20) == {}
    assert machine.waiting == frozenset()
    assert due_s(machine) == 20 + 86400


def test_without_an_interval_nothing_is_due_until_something_happens():
    machine = made(*"abcde", interval_s=0)
    audit(machine, LEDGERS, 10)
    assert due_s(machine) is None


_NAMES = "abcd"
_LEDGERS = {1: ("a", "b"), 2: ("b", "c"), 3: ("c", "a")}


class LostBookiesModel(RuleBasedStateMachine):
    """Whoever drives it as it asks marks every ledger of who is away for the delay, and no other.

    The model knows since when each bookie is away; audits take their time, ledger by ledger.
    """

    @initialize(registered=st.frozensets(st.sampled_from(_NAMES)), delay_s=st.integers(0, 5))
    def begin(self, registered, delay_s):
        self.now = 0
        self.delay_s = delay_s
        self.since = {name: 0 for name in _NAMES if name not in registered}
        self.registered = registered
        self.machine = LostBookies(registered, 0, delay_s=delay_s, settle_s=2, interval_s=0)
        self.left = None
        #: (ledger, bookie): since when the bookie was away when it was marked.
        self.marks = {}

    @rule(registered=st.frozensets(st.sampled_from(_NAMES)))
    def change_registrations(self, registered):
        for name in self.registered - registered:
            self.since[name] = self.now
        for name in registered:
            self.since.pop(name, None)
        self.registered = registered
        self.machine.on_registered(registered, self.now * S)

    @rule(delay_s=st.integers(-1, 5))
    def change_delay(self, delay_s):
        self.delay_s = self.machine.delay_s = delay_s

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def step(self):
        """Begin an audit if one is due, or look at the next ledger of the one under way."""
        if self.left is None:
            due = self.machine.next_audit_ns()
            if due is not None and due <= self.now * S:
                self.machine.begin_audit(self.now * S)
                self.left = list(_LEDGERS)
            return
        if not self.left:
            self.machine.end_audit(self.now * S)
            self.left = None
            return
        ledger_id = self.left.pop()
        for name in self.machine.look(_LEDGERS[ledger_id], self.now * S):
            assert name not in self.registered
            assert self.now >= 2
            assert self.now - self.since[name] >= max(self.delay_s, 0)
            self.marks[ledger_id, name] = self.since[name]

    @rule()
    def cut_off(self):
        if self.left is not None:
            self.machine.abort_audit()
            self.left = None

    @invariant()
    def nothing_that_is_due_is_forgotten(self):
        """When no audit is under way or due, every ledger of a lost bookie is marked."""
        if self.left is not None:
            return
        due = self.machine.next_audit_ns()
        if due is not None and due <= self.now * S:
            return
        for ledger_id, names in _LEDGERS.items():
            for name in names:
                since = self.since.get(name)
                if since is None or self.now < max(2, since + max(self.delay_s, 0)):
                    continue
                assert self.marks.get((ledger_id, name)) == since, (ledger_id, name)


TestLostBookies = LostBookiesModel.TestCase
