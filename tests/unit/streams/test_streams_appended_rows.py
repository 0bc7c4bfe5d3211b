"""Rows that a task appends at once, when it is run again: compared before, or not at all."""

from __future__ import annotations

import pytest

from quorumbook.streams.errors import RowsDifferError
from quorumbook.streams.transactions.appended_rows import AppendedRows, StreamRows

X, Y, Z = StreamRows([b"x"]), StreamRows([b"y"]), StreamRows([b"z"])


def taken_down() -> bytes:
    """Return what an attempt took down that died before it appended two rows."""
    return AppendedRows(None, "part 0").new("a", StreamRows([b"x", b"y"]))


def test_rows_that_may_be_stored_are_appended_once_all_of_them_are_the_same() -> None:
    again = AppendedRows(taken_down(), "part 0")
    assert again.known("a", X) == []
    assert again.known("a", Y) == [X, Y]


@pytest.mark.parametrize(("first", "second"), [(Z, Y), (X, Z)])
def test_of_other_rows_none_is_appended_however_they_come_in_pieces(
    first: StreamRows, second: StreamRows
) -> None:
    again = AppendedRows(taken_down(), "part 0")
    assert again.known("a", first) == []
    with pytest.raises(RowsDifferError):
        again.known("a", second)
