"""Pages and order of long lists, and long output in pieces."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from quorumbook.cli.listing import Listing
from quorumbook.cli.main import main
from quorumbook.cli.output import Moment, Output
from quorumbook.errors import MetadataError

VALUES = [5, None, 3, 9, None, 1, 7]


class Notes:
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


async def _rows(count, values=None):
    for number in range(count):
        yield {"id": number, "size": None if values is None else values[number]}


def _listed(listing, rows):
    call = Notes()

    async def run():
        return [row async for row in listing.of(rows, call)]

    return asyncio.run(run()), call.notes


@pytest.mark.parametrize(
    ("sort", "ids"),
    [
        ("size", [5, 2, 0, 6, 3, 1, 4]),
        ("-size", [3, 6, 0, 2, 5, 1, 4]),
        ("-id", [*range(6, -1, -1)]),
    ],
)
def test_an_order_has_those_without_a_value_last(sort, ids):
    found, notes = _listed(Listing(sort, 1, 100), _rows(7, VALUES))
    assert ([row["id"] for row in found], notes) == (ids, [])


@pytest.mark.parametrize("sort", [None, "size", "-size"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_pages_make_the_whole_list_and_say_when_there_is_more(sort, limit):
    whole, _ = _listed(Listing(sort, 1, 1000), _rows(7, VALUES))
    pages = -(-7 // limit)
    parts = []
    for page in range(1, pages + 1):
        found, notes = _listed(Listing(sort, page, limit), _rows(7, VALUES))
        parts += found
        assert bool(notes) == (page < pages), notes
        assert not notes or f"--page {page + 1}" in notes[0]
    assert parts == whole
    nothing, notes = _listed(Listing(sort, pages + 1, limit), _rows(7, VALUES))
    assert (nothing, notes) == ([], [f"there are 7 in all, so no page {pages + 1}"])


def test_an_ordered_list_keeps_only_what_it_needs():
    alive = peak = 0

    class Row(dict):
        def __del__(self):
            nonlocal alive
            alive -= 1

    async def rows():
        nonlocal alive, peak
        for number in range(20_000):
            alive += 1
            peak = max(peak, alive)
            yield Row(size=number * 7919 % 20_000)

    found, _ = _listed(Listing("-size", 1, 10), rows())
    assert [row["size"] for row in found] == [*range(19_999, 19_989, -1)]
    assert peak < 50


async def _many(count, fails=False):
    for number in range(count):
        yield {"id": number, "name": "x" * (number // 900), "made": Moment(0)}
    if fails:
        raise MetadataError("gone")


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
@pytest.mark.parametrize("fails", [False, True])
def test_long_output_in_pieces_is_the_same_value(count, fails, capsys):
    for form in ("json", "jsonl", "raw", "table"):
        try:
            asyncio.run(Output(form).stream(_many(count, fails), ["id", "name", "made"]))
        except MetadataError:
            assert fails
        text = capsys.readouterr().out
        if form == "json" and (count or not fails):
            rows = json.loads(text)
            assert [row["id"] for row in rows] == [*range(count)]
            assert text == json.dumps(rows, indent=2) + "\n"
        elif form == "jsonl":
            assert [json.loads(line)["id"] for line in text.splitlines()] == [*range(count)]
        elif form == "raw":
            assert [line.split("\t")[0] for line in text.splitlines()] == [*map(str, range(count))]
        elif form == "table" and count:
            heading, *lines = text.splitlines()
            assert heading.split() == ["id", "name", "made"]
            assert [line.split()[0] for line in lines] == [*map(str, range(count))]


def test_a_time_is_how_long_ago_in_a_table_and_iso_elsewhere(capsys):
    row = {"made": Moment.known(int(time.time() * 1000) - 150_000), "never": Moment.known(None)}
    for form in ("table", "json", "jsonl", "raw"):
        Output(form).record(row)
    Output("table").rows([row], ["made"])
    table, never, *_ = lines = capsys.readouterr().out.splitlines()
    assert (table.split(None, 1)[1], never.split()) == ("2 min ago", ["never", "-"])
    assert lines[-1].strip() == "2 min ago"
    assert sum("ago" in line for line in lines) == 2
    assert all("T" in line and "Z" in line for line in lines if 'made":' in line)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ledger", "ls", "--sort", "size"], "created"),
        (["ledger", "ls", "--page", "0"], "0"),
        (["ledger", "ls", "--limit", "0"], "0"),
        (["ledger", "ls", "--older-than", "soon"], "--older-than"),
        (["ledger", "ls", "--min-size", "-1"], "--min-size"),
        (["ledger", "ls", "--custom", "a=1", "--custom", "a=2"], "twice"),
        (["stream", "ls", "--policy", "retain_tim=7d"], "retain_tim"),
        (["stream", "ls", "--policy", "no_such"], "no_such"),
        (["stream", "consume", "x"], "--group"),
        (["stream", "consume", "x", "--group", "g", "--exec", "true", "--then", "nack"], "--exec"),
        (["stream", "consume", "x", "--group", "g", "--from", "soon"], "earliest"),
    ],
)
def test_what_is_no_choice_is_said(words, told, capsys):
    assert main([*words, "--metadata", "sqlite:///none.db"]) == 2
    assert told in capsys.readouterr().err
