"""Records as `quorumbook stream` reads and prints them."""

from __future__ import annotations

import click
import pytest

from quorumbook.cli.stream.input import json_form, line_form
from quorumbook.cli.stream.output import RecordPrinter
from quorumbook.streams import Attributes, Position
from quorumbook.streams.errors import BadRecordError
from quorumbook.streams.reading.batches import RecordBatch


def batch_of(payload: bytes) -> RecordBatch:
    carried = {1: Attributes(b"k", (("h", b"\xff"),), 7)}
    return RecordBatch(Position(1, 0, 1), 5, [8], [payload], None, 3, carried)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "is not a record"),
        (b'{"kye": 1}', "unknown field kye"),
        (b'{"key": "k"}', "neither text nor base64, hex or json; its fields are .*hex"),
        (b'{"base64": "?"}', "is not a record"),
        (b'{"text": "a", "txid": 1}\n{"text": "b"}', "either all"),
    ],
)
def test_what_is_no_record_is_refused_with_the_reason(line: bytes, reason: str) -> None:
    with pytest.raises(click.UsageError, match=reason):
        json_form(line.split(b"\n"))


def test_a_header_needs_a_value() -> None:
    with pytest.raises(click.UsageError, match="NAME=VALUE"):
        line_form(None, ["x"])


@pytest.mark.parametrize(
    ("decode", "shown"),
    [("auto", '{"a": [1]}'), ("json", '{"a": [1]}'), ("base64", "eyJhIjogWzFdfQ==")],
)
def test_a_table_shows_what_a_record_carries(
    decode: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    RecordPrinter("table", decode, None).show(batch_of(b'{"a": [1]}'))
    out = capsys.readouterr().out
    assert out.split()[:3] == ["5", "1:0:1", "key=k"]
    assert out.endswith(f"event_time_ms=7  {shown}\n")


def test_a_payload_that_is_no_json_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadRecordError, match="1:0:1 is not JSON"):
        RecordPrinter("jsonl", "json", None).show(batch_of(b"{"))
