"""Recoveries that die, meet each other and meet the old writer, over bookies that come and go."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_model import Cluster, length_of

from quorumbook.errors import (
    ConnectionLostError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataVersionConflict,
    NoSuchEntryError,
)
from quorumbook.ledger.machines import append, recovery
from quorumbook.ledger.machines.accounts import check
from quorumbook.ledger.machines.append import AppendState
from quorumbook.ledger.machines.recovery import RecoveryState
from quorumbook.ledger.placement.schedule import entries_at
from quorumbook.ledger.transitions import changed_metadata, closed_metadata

QUORUMS = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 2, 2), (3, 3, 2), (3, 3, 3), (5, 3, 2), (4, 2, 2)]
LOST = ConnectionLostError("gone")
ENTRY_LIMIT = 24


class Recoverer:
    """Drives one recovery; its requests wait until the test lets them through."""

    def __init__(self, cluster: Cluster, batch_entries: int) -> None:
        self.cluster = cluster
        self.version = cluster.version
        self.state = RecoveryState(cluster.metadata, batch_entries=batch_entries)
        self.requests: list[Any] = []
        self.write: Any = None
        self.choice: recovery.ChooseReplacement | None = None
        self.done: Any = None
        self.released = -1
        self.act()

    def act(self) -> None:
        for effect in self.state.poll():
            match effect:
                case recovery.FenceRead(bookies):
                    self.requests += [("fence", index, name) for index, name in bookies]
                case recovery.RecoveryRead() | recovery.WriteBack():
                    if isinstance(effect, recovery.WriteBack):
                        assert effect.last_add_confirmed == self.state.last_add_confirmed
                        assert effect.entry_id > self.released
                    self.requests.append(effect)
                case recovery.MarkInRecovery() | recovery.Close():
                    assert self.write is None
                    self.write = effect
                case recovery.ChooseReplacement():
                    assert self.choice is None
                    self.choice = effect
                case recovery.ReleasePayloads(last):
                    assert last > self.released
                    self.released = last
                case recovery.Done(metadata):
                    assert metadata == self.cluster.metadata
                    self.done = effect
                case recovery.RecoveryFailed():
                    self.done = effect
        check(self.state)

    def carry_out(self, request: Any, *, is_answer_lost: bool) -> None:
        state = self.state
        if isinstance(request, tuple):
            _, index, name = request
            bookie = self.cluster.bookies[name]
            bookie.is_fenced = bookie.is_fenced or bookie.is_up
            if not bookie.is_up or is_answer_lost:
                state.on_fence_error(index, LOST)
            elif bookie.entries:
                last = max(bookie.entries)
                state.on_fence_answer(index, bookie.entries[last], length_of(last))
            else:
                state.on_fence_error(index, NoSuchEntryError())
            return
        entry_id, index, name = request.entry_id, request.bookie_index, request.bookie_id
        bookie = self.cluster.bookies[name]
        if isinstance(request, recovery.RecoveryRead):
            bookie.is_fenced = bookie.is_fenced or bookie.is_up
            if not bookie.is_up or is_answer_lost:
                state.on_read_error(entry_id, index, LOST)
            elif entry_id in bookie.entries:
                state.on_entry(entry_id, index, length_of(entry_id))
            else:
                state.on_read_error(entry_id, index, NoSuchEntryError())
        else:
            if bookie.is_up:
                bookie.entries[entry_id] = request.last_add_confirmed
            if not bookie.is_up or is_answer_lost:
                state.on_write_error(entry_id, index, name, LOST)
            else:
                state.on_written(entry_id, index, name)

    def compare_and_set(self, *, is_answer_lost: bool) -> None:
        effect, self.write = self.write, None
        is_written = self.cluster.write(effect.metadata, self.version)
        self.version = self.cluster.version
        if not is_written or is_answer_lost:
            self.state.on_metadata(self.cluster.metadata)
        elif isinstance(effect, recovery.MarkInRecovery):
            self.state.on_marked(effect.metadata)
        else:
            self.state.on_closed()
        self.act()

    def choose(self, count: int) -> None:
        choice, self.choice = self.choice, None
        chosen = {index: self.cluster.new_bookie() for index in sorted(choice.failed)[:count]}
        if chosen:
            self.state.on_replacement(chosen)
        else:
            self.state.on_no_replacement()
        self.act()


class RecoveryMachine(RuleBasedStateMachine):
    @initialize(quorum=st.sampled_from(QUORUMS), count=st.integers(0, 6), data=st.data())
    def start(self, quorum, count, data) -> None:
        self.cluster = Cluster.of(*quorum)
        self.writer = AppendState(self.cluster.metadata)
        self.writer_version = 0
        self.writer_requests: list[tuple[int, str, int, int]] = []
        self.change: append.ChangeEnsemble | None = None
        self.confirmed = -1
        self.recoverers: list[Recoverer] = []
        # Begin with entries that have reached some of their bookies.
        for _ in range(count):
            self.push(1)
        for request in data.draw(st.permutations(self.writer_requests)):
            if data.draw(st.integers(0, 3)):
                self.writer_requests.remove(request)
                self.add(request)

    # The writer -------------------------------------------------------------------------------

    def act(self) -> None:
        for effect in self.writer.poll():
            match effect:
                case append.Confirmed(last):
                    self.confirmed = last
                case append.ChangeEnsemble():
                    self.change = effect
                case append.Send(index, name, entry_ids):
                    lac = self.writer.last_add_confirmed
                    self.writer_requests += [(index, name, e, lac) for e in entry_ids]

    @precondition(lambda self: self.writer.is_open and self.writer.last_add_pushed < ENTRY_LIMIT)
    @rule(count=st.integers(1, 4))
    def push(self, count) -> None:
        first, lac, _ = self.writer.push(10 * count, count)
        metadata = self.writer.metadata
        for index, name in self.writer.targets():
            for entry_id in entries_at(
                index, first, first + count - 1, metadata.ensemble_size, metadata.write_quorum_size
            ):
                self.writer_requests.append((index, name, entry_id, lac))
        self.act()

    def add(self, request) -> None:
        index, name, entry_id, lac = request
        bookie = self.cluster.bookies[name]
        if not bookie.is_up:
            self.writer.on_failure(index, name, LOST)
        elif bookie.is_fenced:
            self.writer.on_failure(index, name, LedgerFencedError())
        else:
            bookie.entries[entry_id] = lac
            self.writer.on_acks(index, name, entry_id, entry_id)
        self.act()

    @precondition(lambda self: self.writer_requests)
    @rule(data=st.data())
    def deliver_one_add(self, data) -> None:
        position = data.draw(st.integers(0, len(self.writer_requests) - 1))
        self.add(self.writer_requests.pop(position))

    @precondition(lambda self: self.writer_requests)
    @rule()
    def deliver_all_adds(self) -> None:
        requests, self.writer_requests = self.writer_requests, []
        for request in requests:
            self.add(request)

    @precondition(lambda self: self.change is not None)
    @rule()
    def writer_changes_its_ensemble(self) -> None:
        change, self.change = self.change, None
        chosen = {index: self.cluster.new_bookie() for index in change.failed}
        try:
            metadata, replaced = changed_metadata(self.cluster.metadata, change, chosen)
        except (LedgerFencedError, LedgerClosedError) as error:
            self.writer.on_ensemble_change_failed(error)
        else:
            assert self.cluster.write(metadata, self.cluster.version)
            self.writer.on_ensemble_changed(metadata, replaced)
        self.act()

    @rule(is_meant=st.integers(0, 4))
    def writer_closes(self, is_meant) -> None:
        if is_meant != 4:
            return  # a closed ledger makes the rest of the run dull
        self.writer.close()
        try:
            closed = closed_metadata(self.cluster.metadata, *self.writer.close_point())
        except (LedgerFencedError, MetadataVersionConflict):
            return
        if closed is not None:
            assert self.cluster.write(closed, self.cluster.version)
        # Nothing may succeed behind the end: a closing writer has given up what is pending.
        self.writer.abort(LedgerFencedError())
        self.act()

    # Recoveries -------------------------------------------------------------------------------

    @precondition(lambda self: len(self.recoverers) < 2)
    @rule(batch_entries=st.sampled_from([1, 3, 8]))
    def somebody_recovers(self, batch_entries) -> None:
        self.recoverers.append(Recoverer(self.cluster, batch_entries))

    def one(self, data, ready) -> Recoverer | None:
        choices = [r for r in self.recoverers if ready(r)]
        return data.draw(st.sampled_from(choices)) if choices else None

    @precondition(lambda self: self.recoverers)
    @rule(data=st.data(), is_answer_lost=st.booleans())
    def deliver_one_request(self, data, is_answer_lost) -> None:
        recoverer = self.one(data, lambda r: r.requests)
        if recoverer is not None:
            position = data.draw(st.integers(0, len(recoverer.requests) - 1))
            recoverer.carry_out(recoverer.requests.pop(position), is_answer_lost=is_answer_lost)
            recoverer.act()

    @precondition(lambda self: self.recoverers)
    @rule(data=st.data())
    def deliver_many_requests(self, data) -> None:
        recoverer = self.one(data, lambda r: r.requests)
        if recoverer is not None:
            requests, recoverer.requests = recoverer.requests, []
            unlucky = data.draw(st.sampled_from([None, *range(len(recoverer.state.ensemble))]))
            for request in requests:
                index = request[1] if isinstance(request, tuple) else request.bookie_index
                recoverer.carry_out(request, is_answer_lost=index == unlucky)
            recoverer.act()

    @precondition(lambda self: self.recoverers)
    @rule(data=st.data(), is_answer_lost=st.booleans())
    def write_metadata(self, data, is_answer_lost) -> None:
        recoverer = self.one(data, lambda r: r.write is not None)
        if recoverer is not None:
            recoverer.compare_and_set(is_answer_lost=is_answer_lost)

    @precondition(lambda self: self.recoverers)
    @rule(data=st.data(), count=st.integers(0, 3))
    def choose_replacements(self, data, count) -> None:
        recoverer = self.one(data, lambda r: r.choice is not None)
        if recoverer is not None:
            recoverer.choose(count)

    @precondition(lambda self: self.recoverers)
    @rule(data=st.data())
    def recoverer_dies_or_is_done(self, data) -> None:
        self.recoverers.remove(data.draw(st.sampled_from(self.recoverers)))

    @rule(data=st.data())
    def bookie_goes_down_or_up(self, data) -> None:
        bookie = self.cluster.bookies[data.draw(st.sampled_from(sorted(self.cluster.bookies)))]
        bookie.is_up = not bookie.is_up

    # What must hold ---------------------------------------------------------------------------

    @invariant()
    def nothing_that_succeeded_is_lost(self) -> None:
        if not hasattr(self, "cluster"):
            return
        metadata = self.cluster.metadata
        last = self.confirmed
        if metadata.is_closed:
            assert metadata.last_entry_id >= self.confirmed
            assert metadata.length >= length_of(metadata.last_entry_id)
            last = metadata.last_entry_id
        for entry_id in range(last + 1):
            assert self.cluster.copies(metadata, entry_id) >= metadata.ack_quorum_size

    @invariant()
    def who_is_done_agrees_with_what_is_recorded(self) -> None:
        for recoverer in getattr(self, "recoverers", ()):
            if isinstance(recoverer.done, recovery.Done):
                assert self.cluster.metadata == recoverer.done.metadata

    def teardown(self) -> None:
        """With all bookies back, a recovery ends with a closed ledger."""
        if not hasattr(self, "cluster"):
            return
        for bookie in self.cluster.bookies.values():
            bookie.is_up = True
        recoverer = Recoverer(self.cluster, 8)
        while recoverer.done is None:
            if recoverer.write is not None:
                recoverer.compare_and_set(is_answer_lost=False)
            assert recoverer.requests or recoverer.write or recoverer.done, "it hangs"
            requests, recoverer.requests = recoverer.requests, []
            for request in requests:
                recoverer.carry_out(request, is_answer_lost=False)
            recoverer.act()
        assert self.cluster.metadata.is_closed
        self.deliver_all_adds()
        self.nothing_that_succeeded_is_lost()


RecoveryMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestRecoveryMachine = RecoveryMachine.TestCase


def test_s01_an_add_that_is_late_finds_its_bookie_fenced_by_the_recovery_read() -> None:
    cluster = Cluster.of(3, 3, 2)
    writer = AppendState(cluster.metadata)
    writer.push(10, 1)
    # e0 reaches b1; the copy for b0 is lost, the one for b2 is still under way.
    cluster.bookies["b1"].entries[0] = -1
    writer.on_acks(1, "b1", 0, 0)
    recoverer = Recoverer(cluster, 1)
    recoverer.compare_and_set(is_answer_lost=False)
    for request in recoverer.requests[:2]:
        assert request[0] == "fence"
        recoverer.state.on_fence_error(request[1], NoSuchEntryError())
        cluster.bookies[request[2]].is_fenced = True
    assert not cluster.bookies["b2"].is_fenced, "this fence is lost"
    recoverer.requests.clear()
    recoverer.act()
    # b1 is slow to answer; the other two deny the entry, which is enough.
    for request in recoverer.requests:
        if request.bookie_id != "b1":
            recoverer.carry_out(request, is_answer_lost=False)
    recoverer.act()
    recoverer.compare_and_set(is_answer_lost=False)
    assert (cluster.metadata.is_closed, cluster.metadata.last_entry_id) == (True, -1)
    assert cluster.bookies["b2"].is_fenced, "the read has fenced it"
    writer.on_failure(2, "b2", LedgerFencedError())
    assert [type(effect) for effect in writer.poll()] == [append.AppendFailed]
    assert writer.last_add_confirmed == -1
    assert writer.has_unknown_tail
