"""Consumer groups: who has what, and that nobody hands out what another one does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError
from quorumbook.streams.partitions.group_state import GroupState, next_steps

MEMBERS = st.sets(st.sampled_from([f"m{n}" for n in range(8)]), min_size=1)


@given(st.lists(MEMBERS, min_size=1, max_size=5), st.integers(1, 20))
def test_everybody_has_its_share_and_keeps_what_it_can(
    changes: list[set[str]], partition_count: int
) -> None:
    state = GroupState()
    for live in changes:
        before, state = state, state.rebalanced(live, partition_count)
        assert state.members.keys() == live
        given_out = [number for numbers in state.members.values() for number in numbers]
        assert sorted(given_out) == list(range(partition_count))
        sizes = [len(numbers) for numbers in state.members.values()]
        assert max(sizes) - min(sizes) <= 1
        for member in live:
            had, has = before.partitions_of(member), state.partitions_of(member)
            # Nobody gives one away to get another.
            assert has >= had or has <= had
            if len(has) < len(had):
                assert len(has) in (partition_count // len(live), partition_count // len(live) + 1)
        assert state.rebalanced(set(live), partition_count) is state
        assert state.generation == before.generation + (state is not before)
        assert GroupState.decode(state.encode()) == state


@given(MEMBERS, MEMBERS, st.integers(1, 20))
def test_no_more_partitions_move_than_must(
    first: set[str], second: set[str], partition_count: int
) -> None:
    before = GroupState().rebalanced(first, partition_count)
    after = before.rebalanced(second, partition_count)
    moved = sum(
        len(after.partitions_of(member) - before.partitions_of(member)) for member in second
    )
    # What those who left had, and what those who stay have above their shares.
    least, more = divmod(partition_count, len(second))
    kept = sorted((len(before.partitions_of(member)) for member in second), reverse=True)
    must_stay = sum(min(had, least + (place < more)) for place, had in enumerate(kept))
    assert moved == partition_count - must_stay


def test_who_knows_fewer_partitions_takes_none_away() -> None:
    state = GroupState().rebalanced({"a", "b"}, 7)
    behind = next_steps("a", {"a", "b"}, state, {0}, 5)
    assert (behind.is_behind, behind.rebalance, behind.release, behind.claim) == (
        True, None, frozenset(), frozenset(),
    )  # fmt: skip
    assert not next_steps("a", {"a", "b"}, state, {0}, 7).is_behind
    # Who knows more gives them out.
    steps = next_steps("a", {"a", "b"}, state, {0}, 9)
    assert steps.rebalance is not None
    assert steps.rebalance.partition_count == 9


def test_without_members_nothing_changes() -> None:
    state = GroupState().rebalanced({"a"}, 3)
    assert state.rebalanced(set(), 3) is state


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"", CorruptRecordsError), (b"[]", CorruptRecordsError), (b"{}", CorruptRecordsError),
     (b'{"version":1,"generation":1,"members":[1]}', CorruptRecordsError),
     (b'{"version":2}', UnsupportedFormatError)],
)  # fmt: skip
def test_what_no_group_wrote_is_not_read(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        GroupState.decode(data)


class _Member:
    """A member as its driver is: what it believes may be older than what the store has."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.has_session = True
        self.knows_it = True
        self.view: tuple[GroupState, int, frozenset[str]] | None = None
        #: How many partitions it knows of; it looks at that first.
        self.partition_count = 0
        #: What it believes to have claimed, and hands out.
        self.claimed: set[int] = set()


class Group(RuleBasedStateMachine):
    """Members that look, decide and act in any order, and lose their sessions unawares."""

    def __init__(self) -> None:
        super().__init__()
        self.partition_count = 5
        self.state, self.version = GroupState(), 0
        self.members: dict[str, _Member] = {}
        #: Claim nodes, which go with the sessions of those who made them.
        self.claims: dict[int, str] = {}
        self.numbers = iter(range(10_000))

    @property
    def living(self) -> frozenset[str]:
        return frozenset(name for name, each in self.members.items() if each.has_session)

    def pick(self, data: st.DataObject) -> _Member:
        return self.members[data.draw(st.sampled_from(sorted(self.members)))]

    @precondition(lambda self: self.partition_count < 9)
    @rule()
    def grow(self) -> None:
        self.partition_count += 2

    @rule()
    def join(self) -> None:
        if len(self.members) < 5:
            name = f"m{next(self.numbers)}"
            self.members[name] = _Member(name)
            self.members[name].partition_count = self.partition_count

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def lose_the_session(self, data: st.DataObject) -> None:
        member = self.pick(data)
        member.has_session = False
        self.claims = {n: who for n, who in self.claims.items() if who != member.name}

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def learn_of_it(self, data: st.DataObject) -> None:
        member = self.pick(data)
        if not member.has_session:
            del self.members[member.name]  # it comes back by another name

    @precondition(lambda self: self.members)
    @rule(data=st.data(), counts=st.booleans())
    def look(self, data: st.DataObject, counts: bool) -> None:
        member = self.pick(data)
        if counts:  # or more came since it did
            member.partition_count = self.partition_count
        member.view = self.state, self.version, self.living

    @precondition(lambda self: self.members)
    @rule(data=st.data(), how_many=st.integers(0, 5))
    def act(self, data: st.DataObject, how_many: int) -> None:
        self.do(self.pick(data), how_many)

    def do(self, member: _Member, how_many: int) -> None:
        """Do some of what follows from the member's last look, as the store lets it."""
        if member.view is None or member.name not in member.view[2]:
            return
        state, version, live = member.view
        steps = next_steps(member.name, live, state, member.claimed, member.partition_count)
        if steps.rebalance is not None:
            if member.has_session and version == self.version:
                assert steps.rebalance.partition_count >= self.state.partition_count
                self.state, self.version = steps.rebalance, self.version + 1
            return
        for number in sorted(steps.release)[:how_many]:
            member.claimed.discard(number)
            if member.has_session:
                assert self.claims.pop(number) == member.name
        for number in sorted(steps.claim)[:how_many]:
            is_free = number not in self.claims
            if member.has_session and version == self.version and is_free:
                self.claims[number] = member.name
                member.claimed.add(number)

    @invariant()
    def no_two_members_hand_out_a_partition(self) -> None:
        handing_out = [
            number
            for member in self.members.values()
            if member.has_session
            for number in member.claimed
        ]
        assert len(handing_out) == len(set(handing_out))
        for member in self.members.values():
            if member.has_session:
                assert member.claimed == {n for n, who in self.claims.items() if who == member.name}

    @invariant()
    def a_claim_is_made_in_the_generation_that_gives_it(self) -> None:
        for number, name in self.claims.items():
            assert name in self.members
            assert 0 <= number < self.partition_count

    @precondition(lambda self: self.living)
    @rule()
    def left_alone_everything_is_handed_out(self) -> None:
        for _ in range(6):
            for member in [m for m in self.members.values() if m.has_session]:
                member.partition_count = self.partition_count
                member.view = self.state, self.version, self.living
                self.do(member, self.partition_count)
        assert sorted(self.claims) == list(range(self.partition_count))
        assert {n: w for w in self.living for n in self.state.partitions_of(w)} == self.claims


TestGroup = Group.TestCase
