"""How long a connection bears with its peer, step by step on a clock that the test turns."""

from __future__ import annotations

from typing import Any

import pytest

from quorumbook.bookie.connections.time_limits import PeerVerdict, TimeLimits
from quorumbook.bookie.options import BookieOptions

_S = 1_000_000_000
_OPTIONS: Any = {"answer_timeout_s": 30.0, "frame_timeout_s": 20.0, "idle_timeout_s": 60.0}


class _Peer:
    """A peer as its connection describes it."""

    def __init__(self, **options: float) -> None:
        self.limits = TimeLimits(BookieOptions(**_OPTIONS | options), 0)
        self.facts: dict[str, Any] = {
            "taken_bytes": 0, "must_take": False, "may_send": True, "is_at_work": False,
            "has_polls": False,
        }  # fmt: skip

    def fates(self, first_s: int, last_s: int) -> list[PeerVerdict]:
        """Look at every second of a time."""
        return [self.limits.look(s * _S, **self.facts) for s in range(first_s, last_s + 1)]


def test_a_peer_that_asks_for_nothing_rests_and_is_idle_in_the_end() -> None:
    peer = _Peer()
    fates = peer.fates(1, 61)
    assert fates == [PeerVerdict.STAYS] * 4 + [PeerVerdict.RESTS] * 56 + [PeerVerdict.IDLE]


@pytest.mark.parametrize("sign", ["takes", "is at work"])
def test_each_sign_of_life_begins_the_time_anew(sign: str) -> None:
    peer = _Peer()
    peer.fates(1, 50)
    peer.facts |= {"taken_bytes": 5 * (sign == "takes"), "is_at_work": sign == "is at work"}
    assert peer.fates(51, 51) == [PeerVerdict.STAYS]
    peer.facts["is_at_work"] = False
    assert peer.fates(52, 112) == [PeerVerdict.STAYS] * 4 + [PeerVerdict.RESTS] * 56 + [
        PeerVerdict.IDLE
    ]


def test_who_waits_for_news_may_lose_its_place_and_is_never_idle() -> None:
    peer = _Peer()
    peer.facts["has_polls"] = True
    assert set(peer.fates(5, 500)[4:]) == {PeerVerdict.RESTS}


def test_without_a_limit_nobody_is_idle() -> None:
    assert PeerVerdict.IDLE not in _Peer(idle_timeout_s=0).fates(1, 1000)


def test_answers_are_to_be_taken_in_time_and_each_that_is_taken_gives_more() -> None:
    peer = _Peer()
    peer.facts |= {"must_take": True, "is_at_work": True}
    peer.limits.take_by(100 * _S)
    assert set(peer.fates(101, 130)) == {PeerVerdict.STAYS}
    peer.facts["taken_bytes"] = 1
    assert set(peer.fates(131, 161)) == {PeerVerdict.STAYS}
    assert peer.fates(162, 162) == [PeerVerdict.UNREAD]


def test_a_frame_is_to_be_finished_in_time_while_its_peer_may_send() -> None:
    peer = _Peer()
    peer.facts["is_at_work"] = True
    peer.limits.finish_frame_by(10 * _S)
    assert set(peer.fates(10, 30)) == {PeerVerdict.STAYS}
    peer.facts["may_send"] = False
    assert peer.fates(31, 31) == [PeerVerdict.STAYS]
    peer.facts["may_send"] = True
    assert peer.fates(32, 32) == [PeerVerdict.UNFINISHED]
    peer.limits.has_finished_frame()
    assert peer.fates(33, 33) == [PeerVerdict.STAYS]


def test_an_end_is_to_be_taken_in_time_whatever_else_there_is() -> None:
    peer = _Peer()
    peer.limits.finish_frame_by(1)
    peer.limits.close_by(100 * _S)
    assert set(peer.fates(101, 130)) == {PeerVerdict.STAYS}
    assert peer.fates(131, 131) == [PeerVerdict.UNCLOSED]
