"""Places for connections: strangers push out strangers, and nobody who is at work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumbook.bookie.connections.limits import (
    DESCRIPTORS_MIN,
    STORAGE_DESCRIPTORS,
    ConnectionLimits,
    Places,
    limits_within,
    open_files_within,
    place_of,
    storage_descriptors,
)
from quorumbook.errors import ConfigError


def test_a_full_house_takes_a_newcomer_for_the_oldest_that_has_asked_nothing():
    places = Places(ConnectionLimits(in_all=3, by_address=3, unproven=3))
    assert [places.take(each, each) for each in "abc"] == [None] * 3
    places.prove("a")
    assert places.take("d", "d") == "b"
    assert places.take("e", "e") == "c"
    places.prove("d")
    places.prove("e")
    assert places.take("f", "f") == "f"
    assert len(places) == 3
    places.leave("a")
    assert places.take("f", "f") is None


def test_one_address_pushes_out_its_own_connections_only():
    places = Places(ConnectionLimits(in_all=9, by_address=2, unproven=9))
    assert places.take("a1", "a") is None
    assert places.take("b1", "b") is None
    assert places.take("b2", "b") is None
    assert places.take("b3", "b") == "b1"
    places.prove("b2")
    places.prove("b3")
    assert places.take("b4", "b") == "b4"
    assert places.take("a2", "a") is None


def test_too_many_that_have_asked_nothing_push_out_the_oldest_of_them():
    places = Places(ConnectionLimits(in_all=9, by_address=9, unproven=2))
    assert [places.take(each, "x") for each in "abcd"] == [None, None, "a", "b"]
    places.prove("c")
    assert places.take("e", "x") is None
    assert places.take("f", "x") == "d"


def test_an_address_of_many_strangers_loses_its_own_before_others_lose_one():
    places = Places(ConnectionLimits(in_all=9, by_address=9, unproven=4))
    assert places.take("a1", "a") is None
    assert [places.take(f"b{n}", "b") for n in range(1, 6)] == [None, None, None, "b1", "b2"]
    assert places.take("c1", "c") == "b3"
    assert places.take("c2", "c") == "b4"
    # Nobody has more than another by now, but for one.
    assert places.take("d1", "d") == "c1"


def test_where_all_have_asked_one_that_rests_goes_of_the_address_where_most_rest():
    places = Places(ConnectionLimits(in_all=4, by_address=4, unproven=4))
    for who in ("a1", "b1", "b2", "b3"):
        assert places.take(who, who[0]) is None
        places.prove(who)
    assert places.take("c1", "c") == "c1"
    for who in ("a1", "b3", "b2"):
        places.rest(who)
    places.prove("b3")
    places.rest("b3")
    assert places.take("c1", "c") == "b2"
    assert places.take("c2", "c") == "c1", "who has asked nothing goes first"
    places.prove("c2")
    assert places.take("c3", "c") in ("a1", "b3")
    assert places.is_proven("c2")
    assert not places.is_proven("c3")


def test_a_full_address_gives_a_place_of_its_own_that_rests():
    places = Places(ConnectionLimits(in_all=9, by_address=2, unproven=9))
    for who in ("a1", "b1", "b2"):
        assert places.take(who, who[0]) is None
        places.prove(who)
        places.rest(who)
    assert places.take("b3", "b") == "b1"


def test_one_that_rests_makes_no_room_for_a_stranger_too_many():
    places = Places(ConnectionLimits(in_all=9, by_address=1, unproven=1))
    assert places.take("a1", "a") is None
    places.prove("a1")
    places.rest("a1")
    assert places.take("b1", "b") is None
    assert places.take("a2", "a") == "a2"
    places.prove("b1")
    assert places.take("a2", "a") == "a1"


def test_however_many_descriptors_there_are_strangers_have_few_places():
    limits = limits_within(1 << 20, 0, 0, 0)
    assert limits == ConnectionLimits(in_all=20_000, by_address=10_000, unproven=4_000)
    assert limits_within(1 << 20, 100_000, 0, 9_000) == ConnectionLimits(100_000, 50_000, 9_000)
    assert limits_within(1024, 0, 0, 0) == ConnectionLimits(512, 256, 256)


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "take", "prove", "leave", "rest"]), st.integers(0, 30)),
        min_size=30,
    ),
    st.builds(ConnectionLimits, st.integers(1, 8), st.integers(1, 8), st.integers(1, 8)),
)
def test_whatever_comes_and_goes_no_limit_is_passed_and_nobody_at_work_goes(steps, limits):
    places = Places(limits)
    there: dict[int, str] = {}
    proven: set[int] = set()
    resting: set[int] = set()
    for step, who in steps:
        place = "abc"[who % 3]
        if step == "take" and who not in there:
            goes = places.take(who, place)
            assert goes not in proven - resting
            if goes in resting:
                # Where the address is full, nobody elsewhere could have gone for it.
                is_mine = sum(each == place for each in there.values()) >= limits.by_address
                assert not [e for e in set(there) - proven if not is_mine or there[e] == place]
            if goes != who:
                there[who] = place
                there.pop(goes, None)
                proven.discard(goes)
                resting.discard(goes)
            else:
                # Refused only where nobody could go for it.
                resting_here = {each for each in resting if there[each] == place}
                assert not resting_here or len(set(there) - proven) >= limits.unproven
                mine = [each for each in there if there[each] == place]
                is_full = len(mine) >= limits.by_address and proven.issuperset(mine)
                assert is_full or (len(there) >= limits.in_all and proven.issuperset(there))
        elif step == "prove" and who in there:
            places.prove(who)
            proven.add(who)
            resting.discard(who)
        elif step == "rest":
            places.rest(who)
            resting |= {who} & proven
        elif step == "leave":
            places.leave(who)
            there.pop(who, None)
            proven.discard(who)
            resting.discard(who)
        assert len(places) == len(there) <= limits.in_all
        assert places.unproven_count == len(set(there) - proven) <= limits.unproven
        assert all(list(there.values()).count(each) <= limits.by_address for each in "abc")


@given(st.integers(DESCRIPTORS_MIN, 1 << 20), st.integers(0, 1 << 21))
def test_connections_and_storage_fit_into_the_descriptors(descriptors, wanted):
    limits = limits_within(descriptors, wanted, 0, 0)
    open_files = open_files_within(descriptors)
    assert limits.in_all + storage_descriptors(descriptors) <= descriptors
    assert 0 < limits.by_address <= limits.in_all
    assert open_files >= 10
    assert 3 * open_files + 96 <= storage_descriptors(descriptors) <= STORAGE_DESCRIPTORS


def test_too_few_descriptors_are_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"may open only 255 files.*LimitNOFILE"):
        open_files_within(DESCRIPTORS_MIN - 1)


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "20010db800010002::/64"),
        ("2001:db8:1:2:ffff::1", "20010db800010002::/64"),
        ("fe80::1%eth0", "fe80000000000000::/64"),
        ("somewhere", "somewhere"),
        ("", ""),
    ],
)
def test_an_ipv6_client_has_one_place_however_many_addresses_it_has(host, place):
    assert place_of(host) == place
