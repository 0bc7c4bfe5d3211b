"""Places in a stream as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from quorumbook.admin.facts.places import parse_place
from quorumbook.errors import LocalProtocolError
from quorumbook.streams import Position, SequenceId, TxId

NOW = datetime(2026, 11, 25, 14, 30, 5, 7, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("seq:17", SequenceId("17")),
        ("txid:3", TxId("3")),
        ("1:2:3", Position(1, 2, 3)),
        ("-90s", NOW - timedelta(seconds=90)),
        ("-5m", NOW - timedelta(minutes=5)),
        ("-5min", NOW - timedelta(minutes=5)),
        ("-1.5h", NOW - timedelta(minutes=90)),
        ("-2d", NOW - timedelta(days=2)),
        ("-1w", NOW - timedelta(days=7)),
        ("today", NOW.replace(hour=0, minute=0, second=0, microsecond=0)),
        ("yesterday 14:00", datetime(2026, 11, 24, 14, 0, tzinfo=NOW.tzinfo)),
        ("2026-11-22T14:00+00:00", datetime(2026, 11, 22, 14, 0, tzinfo=UTC)),
    ],
)
def test_a_place_is_read(text, place):
    assert parse_place(text, NOW) == place


@pytest.mark.parametrize(
    "text",
    ["", "-1", "-1y", "1h", "yesterday 25:00", "seq:", "seq:-1", "soon", "-999999999w", "\0"],
)
def test_what_is_no_place_is_told_which_forms_there_are(text):
    with pytest.raises(LocalProtocolError) as failed:
        parse_place(text, NOW)
    for form in ("earliest", "seq:N", "-1h", "yesterday"):
        assert form in str(failed.value)
