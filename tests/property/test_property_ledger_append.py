"""The append machine among bookies that come, fail, answer late and are replaced."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_model import Cluster, length_of

from quorumbook.errors import ConnectionLostError
from quorumbook.ledger.machines.append import (
    AppendFailed,
    AppendState,
    ChangeEnsemble,
    Confirmed,
    DegradedWarning,
    Send,
)
from quorumbook.ledger.placement.schedule import entries_at
from quorumbook.ledger.transitions import changed_metadata, closed_metadata

QUORUMS = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 2, 2), (3, 3, 2), (5, 3, 2), (6, 2, 2)]
NOBODY = ConnectionLostError("gone")


class AppendMachine(RuleBasedStateMachine):
    """One writer; no other client touches the ledger but replication of old fragments."""

    @initialize(
        quorum=st.sampled_from(QUORUMS),
        delay=st.booleans(),
    )
    def start(self, quorum, delay) -> None:
        self.cluster = Cluster.of(*quorum)
        self.state = AppendState(self.cluster.metadata, delay_ensemble_change=delay)
        self.requests: list[tuple[int, str, int, int]] = []  # position, bookie, entry, LAC
        self.answers: list[tuple[int, str, int]] = []
        self.change: ChangeEnsemble | None = None
        self.confirmed = -1
        self.is_over = False

    # What the driver does ---------------------------------------------------------------------

    def act(self) -> None:
        for effect in self.state.poll():
            match effect:
                case Confirmed(last):
                    assert self.change is None, "nothing succeeds during an ensemble change"
                    assert last > self.confirmed
                    self.confirmed = last
                case ChangeEnsemble(_, first, _):
                    assert self.change is None
                    assert first == self.confirmed + 1
                    self.change = effect
                case Send(index, bookie_id, entry_ids):
                    assert self.state.ensemble[index] == bookie_id
                    self.send(index, bookie_id, entry_ids, self.state.last_add_confirmed)
                case AppendFailed():
                    self.is_over = True
                case DegradedWarning():
                    pass

    def send(self, index, bookie_id, entry_ids, lac) -> None:
        self.requests += [(index, bookie_id, entry_id, lac) for entry_id in entry_ids]

    @precondition(lambda self: not self.is_over)
    @rule(count=st.integers(1, 7))
    def push(self, count) -> None:
        first, lac, length = self.state.push(10 * count, count)
        assert lac == self.confirmed
        assert length == length_of(first - 1)
        metadata = self.state.metadata
        for index, bookie_id in self.state.targets():
            ids = entries_at(
                index, first, first + count - 1, metadata.ensemble_size, metadata.write_quorum_size
            )
            self.send(index, bookie_id, ids, lac)
        self.act()

    def store(self, request) -> None:
        index, bookie_id, entry_id, lac = request
        bookie = self.cluster.bookies[bookie_id]
        if bookie.is_up:
            bookie.entries[entry_id] = lac
            self.answers.append((index, bookie_id, entry_id))
        else:
            self.state.on_failure(index, bookie_id, NOBODY)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def deliver_one(self, data) -> None:
        position = data.draw(st.integers(0, len(self.requests) - 1))
        self.store(self.requests.pop(position))
        self.act()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def deliver_all_of_one_bookie(self, data) -> None:
        bookie_id = data.draw(st.sampled_from(sorted({r[1] for r in self.requests})))
        mine = [r for r in self.requests if r[1] == bookie_id]
        self.requests = [r for r in self.requests if r[1] != bookie_id]
        for request in mine:
            self.store(request)
        self.act()

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def answer_one(self, data) -> None:
        position = data.draw(st.integers(0, len(self.answers) - 1))
        index, bookie_id, entry_id = self.answers.pop(position)
        self.state.on_acks(index, bookie_id, entry_id, entry_id)
        self.act()

    @precondition(lambda self: self.answers)
    @rule()
    def answer_everything(self) -> None:
        answers, self.answers = self.answers, []
        for index, bookie_id, entry_id in answers:
            self.state.on_acks(index, bookie_id, entry_id, entry_id)
        self.act()

    @rule(data=st.data(), is_lost=st.booleans())
    def connection_breaks(self, data, is_lost) -> None:
        index = data.draw(st.integers(0, len(self.state.ensemble) - 1))
        bookie_id = self.state.ensemble[index]
        if is_lost:
            self.requests = [r for r in self.requests if r[1] != bookie_id]
            self.answers = [r for r in self.answers if r[1] != bookie_id]
        self.state.on_failure(index, bookie_id, NOBODY)
        self.act()

    @rule(data=st.data())
    def bookie_goes_down_or_up(self, data) -> None:
        bookie_id = data.draw(st.sampled_from(sorted(self.state.ensemble)))
        bookie = self.cluster.bookies[bookie_id]
        bookie.is_up = not bookie.is_up
        if bookie.is_up and bookie_id in self.state.failed.values():
            self.state.on_bookie_back(self.state.ensemble.index(bookie_id), bookie_id)
            self.act()

    @rule()
    def bookie_appears(self) -> None:
        self.state.retry_replacement()
        self.act()

    @rule()
    def replication_copies_an_old_fragment(self) -> None:
        metadata = self.cluster.metadata
        if len(metadata.fragments) < 2:
            return
        old = metadata.fragments[0].ensemble[0]
        new = self.cluster.new_bookie()
        self.cluster.bookies[new].entries.update(self.cluster.bookies[old].entries)
        self.cluster.write(metadata.replace_bookie(0, old, new), self.cluster.version)

    @precondition(lambda self: self.change is not None)
    @rule(data=st.data(), returns_old=st.booleans())
    def ensemble_is_changed(self, data, returns_old) -> None:
        change, self.change = self.change, None
        positions = data.draw(st.sets(st.sampled_from(sorted(change.failed)), min_size=1))
        retired = [
            name
            for name, bookie in sorted(self.cluster.bookies.items())
            if name not in self.state.ensemble and bookie.is_up
        ]
        chosen = {}
        for index in sorted(positions):
            reused = retired.pop() if returns_old and retired else self.cluster.new_bookie()
            chosen[index] = reused
        metadata, replaced = changed_metadata(self.cluster.metadata, change, chosen)
        assert self.cluster.write(metadata, self.cluster.version)
        self.state.on_ensemble_changed(metadata, replaced)
        self.act()

    @precondition(lambda self: self.change is not None)
    @rule()
    def nobody_is_left(self) -> None:
        self.change = None
        self.state.on_no_replacement()
        self.act()

    # What must hold ---------------------------------------------------------------------------

    @invariant()
    def fields_agree(self) -> None:
        if not hasattr(self, "state"):
            return
        self.state.check()
        assert self.state.last_add_confirmed == self.confirmed

    @invariant()
    def what_succeeded_is_on_an_ack_quorum_of_the_recorded_ensemble(self) -> None:
        if not hasattr(self, "state"):
            return
        metadata = self.cluster.metadata
        for entry_id in range(self.confirmed + 1):
            assert self.cluster.copies(metadata, entry_id) >= metadata.ack_quorum_size

    @invariant()
    def the_ledger_can_be_closed_at_the_last_add_confirmed(self) -> None:
        if hasattr(self, "state"):
            last, length = self.state.close_point()
            assert (last, length) == (self.confirmed, length_of(self.confirmed))
            assert closed_metadata(self.cluster.metadata, last, length) is not None

    def teardown(self) -> None:
        """When everything works again, everything pending succeeds."""
        if not hasattr(self, "state") or self.is_over:
            return
        for bookie in self.cluster.bookies.values():
            bookie.is_up = True
        for _ in range(20):
            if self.change is not None:
                change, self.change = self.change, None
                chosen = {index: self.cluster.new_bookie() for index in change.failed}
                metadata, replaced = changed_metadata(self.cluster.metadata, change, chosen)
                assert self.cluster.write(metadata, self.cluster.version)
                self.state.on_ensemble_changed(metadata, replaced)
            for index, bookie_id in self.state.failed.items():
                self.state.on_bookie_back(index, bookie_id)
            # What was dropped on the way is resent by a driver when the connection is new.
            for index, bookie_id in enumerate(self.state.ensemble):
                self.state.on_failure(index, bookie_id, NOBODY)
                self.state.on_bookie_back(index, bookie_id)
            self.act()
            requests, self.requests = self.requests, []
            for request in requests:
                self.store(request)
            answers, self.answers = self.answers, []
            for index, bookie_id, entry_id in answers:
                self.state.on_acks(index, bookie_id, entry_id, entry_id)
            self.act()
        assert self.state.pending_count == 0
        self.what_succeeded_is_on_an_ack_quorum_of_the_recorded_ensemble()


AppendMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAppendMachine = AppendMachine.TestCase
