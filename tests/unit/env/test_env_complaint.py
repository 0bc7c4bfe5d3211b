"""What goes wrong again and again is said once in a while."""

from __future__ import annotations

import logging

import pytest

from quorumbook.env import Complaint

S = 1_000_000_000


def test_the_same_is_said_once_in_ten_seconds_and_something_else_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaint = Complaint(logging.getLogger("quorumbook.test"))
    for tenth in range(250):
        complaint.say("no bookies", tenth * S // 10)
    complaint.say("100% of the bookies are gone", 25 * S)
    complaint.say("no bookies", 25 * S)
    assert caplog.messages == [
        "no bookies", "no bookies", "no bookies", "100% of the bookies are gone", "no bookies",
    ]  # fmt: skip
