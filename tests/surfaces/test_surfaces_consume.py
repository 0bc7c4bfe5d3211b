"""`quorumbook stream consume`: a member of a group on the command line."""

from __future__ import annotations

import json
import signal
from itertools import count

import pytest

_numbers = count()


@pytest.fixture
def parts(quorumbook):
    """A stream of two partitions with three records each."""
    name = f"consumed/{next(_numbers)}"
    quorumbook("stream", "create", name, "--partitions", 2)
    for part in (0, 1):
        quorumbook("stream", "write", f"{name}/p{part}", stdin=b"a\nb\nc\n")
    return name


def _consume(quorumbook, name, *words, **more):
    idle = ("--idle", "1s") if "--count" not in words else ()
    return quorumbook("stream", "consume", name, "--group", "g", *idle, *words, **more)


def _left(quorumbook, name):
    rows = json.loads(quorumbook("stream", "groups", name, "--group", "g", "-o", "json").text)
    assert all(row["member"] is None for row in rows)
    return sum(row["records"] - row["acknowledged"] for row in rows)


def test_what_was_printed_is_done_and_the_rest_comes_next(quorumbook, parts):
    first = _consume(quorumbook, parts, "--count", 2)
    assert "2 records for group g" in first.err
    assert _left(quorumbook, parts) == 4
    rest = _consume(quorumbook, parts, "-o", "jsonl")
    rows = [json.loads(line) for line in rest.text.splitlines()]
    assert len(rows) == 4
    assert sorted(first.text.split() + [row["text"] for row in rows]) == list("aabbcc")
    assert _left(quorumbook, parts) == 0
    assert _consume(quorumbook, parts, "-o", "json").text == "[]\n"


def test_what_is_left_or_refused_comes_again(quorumbook, parts):
    for _ in range(2):
        assert len(_consume(quorumbook, parts, "--then", "leave").text.split()) == 6
    assert _left(quorumbook, parts) == 6
    refused = _consume(quorumbook, parts, "--then", "nack", "--delay", "1h")
    assert len(refused.text.split()) == 6
    assert _left(quorumbook, parts) == 6


def test_a_command_says_by_its_exit_code_what_becomes_of_a_record(quorumbook, parts, tmp_path):
    # Another shell for each record, which fails for one of them.
    command = f"read word; echo $word >> {tmp_path}/seen; test $word != b"
    dead = ("--max-deliveries", 2, "--dead-letter", f"{parts}-dead")
    done = _consume(quorumbook, parts, "--exec", command, *dead)
    assert done.err.count("is refused: the command ended with 1") == 4
    assert sorted((tmp_path / "seen").read_text().split()) == list("aabbbbcc")
    assert _left(quorumbook, parts) == 0
    assert quorumbook("stream", "read", f"{parts}-dead").text.split() == ["b", "b"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_the_group_with_what_is_done(quorumbook, parts, number):
    words = ("stream", "consume", parts, "--group", "g")
    with quorumbook.running(*words) as member:
        seen = [member.stdout.readline() for _ in range(6)]
        member.send_signal(number)
        out, err = member.communicate(timeout=60)
    assert (member.returncode, out) == (0, b"")
    assert b"6 records for group g" in err
    assert sorted(seen) == [b"a\n", b"a\n", b"b\n", b"b\n", b"c\n", b"c\n"]
    assert _left(quorumbook, parts) == 0


def test_ctrl_c_lets_a_command_finish_its_record(quorumbook, parts, tmp_path):
    ready, goes_on = tmp_path / "ready", tmp_path / "goes-on"
    command = (
        f"touch {ready}; while ! test -e {goes_on}; do sleep 0.05; done; cat >> {tmp_path}/out"
    )
    words = ("stream", "consume", parts, "--group", "g", "--exec", command)
    with quorumbook.running(*words) as member:
        while not ready.exists():
            assert member.poll() is None
        member.send_signal(signal.SIGINT)
        goes_on.touch()
        _, err = member.communicate(timeout=60)
    assert member.returncode == 0
    assert b"1 record for group g" in err
    assert (tmp_path / "out").read_text() in "abc"
    assert _left(quorumbook, parts) == 5


def test_a_stream_without_partitions_has_no_groups(quorumbook):
    quorumbook("stream", "create", "whole-one")
    refused = quorumbook("stream", "consume", "whole-one", "--group", "g", code=2)
    assert "--partitions" in refused.err
    assert "no stream" in quorumbook("stream", "consume", "no-one", "--group", "g", code=3).err
