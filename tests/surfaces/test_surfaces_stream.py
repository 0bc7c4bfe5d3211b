"""`quorumbook stream`: a stream's whole life from the command line."""

from __future__ import annotations

import asyncio
import json
import zlib

from doubles.schema_registry import Registered, schema_registry
from quorumbook import streams
from quorumbook.streams.stream_context import stream_context
from quorumbook.sync.streams import Namespace, PartitionedStream


def test_a_stream_lives_from_the_command_line(quorumbook):
    nothing = quorumbook("stream", "ls")
    assert (nothing.out, nothing.err.count("stream create")) == (b"", 1)
    refused = quorumbook("stream", "write", "eu/orders", stdin=b"a\n", code=3).err
    assert "there are no streams yet" in refused
    policy = ("--policy", "compression=lz4", "--policy", "roll_entries=1")
    assert quorumbook("stream", "create", "eu/orders", *policy).text == "eu/orders\n"
    assert "exists already" in quorumbook("stream", "create", "eu/orders", code=5).err
    refused = quorumbook("stream", "write", "eu/clicks", stdin=b"a\n", code=3).err
    assert refused.startswith("quorumbook: there is no stream eu/clicks")
    assert quorumbook("stream", "ls").text == "eu/orders\n"

    written = quorumbook("stream", "write", "eu/orders", "-o", "json", stdin=b"a\nb\n\xff\n")
    assert json.loads(written.text) == {"name": "eu/orders", "first_sequence": 0, "records": 3}
    more = ("stream", "write", "eu/orders", "--expect")
    assert "gets sequence id 3" in quorumbook(*more, 2, stdin=b"c\n", code=5).err
    quorumbook(*more, 3, stdin=b"c\n")

    assert quorumbook("stream", "read", "eu/orders").out == b"a\nb\n\xff\nc\n"
    assert quorumbook("stream", "read", "eu/orders", "--from", "seq:1", "--count", 1).out == b"b\n"
    assert quorumbook("stream", "read", "eu/orders", "--from", "2020-01-01").out.startswith(b"a")
    rows = json.loads(quorumbook("stream", "read", "eu/orders", "-o", "json").text)
    assert [row["sequence_id"] for row in rows] == [0, 1, 2, 3]
    assert rows[2]["base64"] == "/w=="
    assert rows[3]["position"].startswith("2:")
    end = ("--end", rows[2]["position"])
    assert quorumbook("stream", "read", "eu/orders", *end).out == b"a\nb\n"

    segments = json.loads(quorumbook("stream", "segments", "eu/orders", "-o", "json").text)
    assert [(row["records"], row["first_sequence"]) for row in segments] == [(3, 0), (1, 3)]
    cut = ("stream", "truncate", "eu/orders", "--before", "seq:1")
    assert "1:0:2" in quorumbook(*cut, "--dry-run").text
    quorumbook(*cut)
    assert quorumbook("stream", "read", "eu/orders").out == b"b\n\xff\nc\n"
    gone = ("stream", "read", "eu/orders", "--from", "seq:0")
    assert "truncated away" in quorumbook(*gone, code=3).err
    assert quorumbook(*gone, "--skip-truncated").out == b"b\n\xff\nc\n"

    sealed = json.loads(quorumbook("stream", "seal", "eu/orders", "-o", "json").text)
    assert sealed["records"] == 4
    assert quorumbook("stream", "tail", "eu/orders", "--from", "seq:3").out == b"c\n"
    assert "sealed" in quorumbook("stream", "write", "eu/orders", stdin=b"d\n", code=5).err
    shown = json.loads(quorumbook("stream", "show", "eu/orders", "-o", "json").text)
    assert (shown["sealed"], shown["policy"]["compression"]) == (True, "lz4")

    assert "--yes" in quorumbook("stream", "delete", "eu/orders", code=2).err
    quorumbook("stream", "delete", "eu/orders", "--yes")
    assert quorumbook("stream", "ls").text == ""
    assert "no stream eu/orders" in quorumbook("stream", "read", "eu/orders", code=3).err


def test_policies_and_orphans_from_the_command_line(quorumbook):
    policy = ("stream", "policy", "-o", "json", "--namespace", "/ruled")
    rows = json.loads(
        quorumbook(*policy, "--policy", "roll_bytes=5", "--policy", "compression=lz4").text
    )
    assert {row["policy"]: row["from"] for row in rows}["roll_bytes"] == "namespace"
    quorumbook("stream", "create", "s", "--namespace", "/ruled")
    rows = json.loads(quorumbook(*policy, "s", "--policy", "roll_bytes=6").text)
    found = {row["policy"]: (row["value"], row["from"]) for row in rows}
    assert found["roll_bytes"] == (6, "stream")
    assert found["compression"] == ("lz4", "namespace")
    assert found["txid"] == ("monotonic", "default")
    rows = json.loads(quorumbook(*policy, "s", "--inherit", "roll_bytes").text)
    assert {row["policy"]: row["value"] for row in rows}["roll_bytes"] == 5
    assert "did you mean" in quorumbook(*policy, "--policy", "rol_bytes=1", code=2).err
    assert "every ledger" in quorumbook("stream", "orphans", "--namespace", "/ruled").err


def test_what_is_written_is_seen_at_once_by_who_follows(quorumbook):
    quorumbook("stream", "create", "live", "--namespace", "/followed")
    where = ("live", "--namespace", "/followed")
    with (
        quorumbook.running("stream", "tail", *where, "--from", "earliest", "--count", 3) as tail,
        quorumbook.running("stream", "write", *where) as writer,
    ):
        for line in b"one\n", b"two\n", b"three\n":
            writer.stdin.write(line)
            writer.stdin.flush()
            assert tail.stdout.readline() == line
        assert tail.wait(60) == 0
        busy = quorumbook("stream", "write", *where, stdin=b"x\n", code=5)
        assert "has the lock" in busy.err
        writer.stdin.close()
        assert writer.wait(60) == 0


def test_mistakes_are_said_in_one_line(quorumbook):
    assert (
        "did you mean" in quorumbook("stream", "create", "x", "--policy", "rol_bytes=1", code=2).err
    )
    assert "reserved" in quorumbook("stream", "create", ".x", code=2).err
    assert "NAME=VALUE" in quorumbook("stream", "create", "x", "--policy", "y", code=2).err


def test_cursors_and_retention_from_the_command_line(quorumbook):
    policy = ("--policy", "retain_records=1", "--policy", "roll_entries=1")
    quorumbook("stream", "create", "s", *policy)
    assert "--reset" in quorumbook("stream", "cursors", "s").err
    for line in b"aa\n", b"bb\n", b"cc\n":
        quorumbook("stream", "write", "s", stdin=line)
    cursors = ("stream", "cursors", "s", "-o", "json")
    rows = json.loads(quorumbook(*cursors, "--reset", "c", "seq:1").text)
    assert [(row["cursor"], row["records"], row["overrun"]) for row in rows] == [("c", 2, False)]
    assert rows[0]["bytes"] > 4
    assert not rows[0]["holds_retention"]
    assert json.loads(quorumbook(*cursors, "--hold", "c").text)[0]["holds_retention"]
    retention = ("stream", "retention", "-o", "json")
    would = json.loads(quorumbook(*retention, "--dry-run").text)
    assert [(row["name"], row["segment"], row["reason"]) for row in would] == [("s", 1, "records")]
    assert json.loads(quorumbook(*retention, "s").text) == would
    quorumbook(*cursors, "--release", "c")
    assert [row["segment"] for row in json.loads(quorumbook(*retention).text)] == [2]
    assert json.loads(quorumbook(*cursors, "--reset", "c", "earliest").text)[0]["records"] == 1
    assert json.loads(quorumbook(*cursors, "--delete", "c").text) == []
    assert "no cursor c" in quorumbook("stream", "cursors", "s", "--delete", "c", code=3).err
    assert json.loads(quorumbook(*retention).text) == []


def damaged(address, stream, path_of):
    """Damage a node of a stream; return its path."""

    async def damage():
        async with streams.Namespace.open(address) as namespace:
            context = stream_context(namespace.stream(stream))
            path = path_of(context.nodes.paths)
            node = await context.store.get(path)
            await context.store.set(path, b"\xff", node.version)
            return path

    return asyncio.run(damage())


def test_commands_show_what_is_whole_and_name_what_is_damaged(quorumbook):
    quorumbook("stream", "create", "marred", "--policy", "roll_entries=1")
    for line in b"aa\n", b"bb\n", b"cc\n":
        quorumbook("stream", "write", "marred", stdin=line)
    cursors = ("stream", "cursors", "marred", "-o", "json")
    for name in "a", "b":
        quorumbook(*cursors, "--reset", name, "earliest")
    address = f"{quorumbook.environment['QUORUMBOOK_METADATA']}#/streams"
    node = damaged(address, "marred", lambda paths: f"{paths.subscriber('a')}/cursor")
    shown = quorumbook(*cursors)
    assert [row["cursor"] for row in json.loads(shown.text)] == ["a", "b"]
    assert node in shown.err
    segment = damaged(address, "marred", lambda paths: paths.segment(2, is_in_progress=False))
    shown = quorumbook("stream", "segments", "marred", "-o", "json")
    assert [row["segment"] for row in json.loads(shown.text)] == [1, 3]
    assert segment in shown.err
    shown = quorumbook("stream", "show", "marred", "-o", "json")
    assert (json.loads(shown.text)["segments"], segment in shown.err) == (2, True)
    assert [row["records"] for row in json.loads(quorumbook(*cursors).text)] == [None, None]
    assert [row["cursor"] for row in json.loads(quorumbook(*cursors, "--delete", "a").text)] == [
        "b"
    ]
    assert segment in quorumbook("stream", "read", "marred", code=1).err
    # Of a stream of which nothing can be said, a list of streams says that.
    quorumbook("stream", "create", "marred-not")
    highest = damaged(address, "marred", lambda paths: paths.max_txid)
    shown = quorumbook("stream", "ls", "marred", "--long", "-o", "json")
    assert [row["name"] for row in json.loads(shown.text)] == ["marred-not"]
    assert "stream marred is left out" in shown.err
    assert highest in shown.err


def test_a_damaged_group_or_cursor_of_it_is_named_and_the_others_are_shown(quorumbook):
    quorumbook("stream", "create", "parted", "--partitions", 2)
    address = f"{quorumbook.environment['QUORUMBOOK_METADATA']}#/streams"

    async def consume():
        async with streams.Namespace.open(address) as namespace:
            stream = await streams.PartitionedStream.open(namespace, "parted")
            for group in "a", "b", "c":
                async with stream.consumer(group):
                    pass
            return stream.node

    group = f"{asyncio.run(consume())}/groups/b"
    for name in "a", "b", "c":
        quorumbook("stream", "cursors", "parted", "--reset", name, "earliest")
    quorumbook("stream", "cursors", "parted", "--hold", "c")  # so it has a second node
    damaged(address, "parted", lambda paths: group)
    cursor = damaged(address, "parted/p1", lambda paths: f"{paths.subscriber('c')}/cursor")
    groups = ("stream", "groups", "parted", "-o", "json")
    shown = quorumbook(*groups)
    rows = json.loads(shown.text)
    assert [(row["group"], row["partition"]) for row in rows] == [
        (name, number) for name in "abc" for number in (0, 1)
    ]
    assert all(row["records"] == 0 for row in rows)
    for node, name in (group, "b"), (cursor, "c"):
        assert f"(metadata node {node}) cannot be read" in shown.err
        assert f"`--delete {name}` removes the group" in shown.err
    quorumbook(*groups, "--delete", "b")
    left = quorumbook(*groups, "--delete", "c")
    assert {row["group"] for row in json.loads(left.text)} == {"a"}
    assert left.err == ""


def test_cursors_and_retention_of_a_partitioned_stream_by_its_bare_name(quorumbook):
    policy = ("--policy", "retain_records=1", "--policy", "roll_entries=1")
    quorumbook("stream", "create", "two", "--partitions", 2, *policy)
    quorumbook("stream", "create", "other", *policy)
    for name in "two/p0", "two/p1", "other":
        for line in b"aa\n", b"bb\n", b"cc\n":
            quorumbook("stream", "write", name, stdin=line)
    cursors = ("stream", "cursors", "two", "-o", "json")
    assert json.loads(quorumbook(*cursors).text) == []
    for where in "1:0:0", "seq:1", "txid:1":
        assert "add --partition" in quorumbook(*cursors, "--reset", "c", where, code=2).err
    assert json.loads(quorumbook(*cursors).text) == []

    def shown(*words, field="records"):
        rows = json.loads(quorumbook(*cursors, *words).text)
        return [(row.get("partition"), row["cursor"], row[field]) for row in rows]

    assert shown("--reset", "c", "earliest") == [(0, "c", 3), (1, "c", 3)]
    assert shown("--reset", "d", "seq:1", "--partition", 1) == [(None, "c", 3), (None, "d", 2)]
    assert shown("--reset", "c", "2999-01-01") == [(0, "c", 0), (1, "c", 0), (1, "d", 2)]
    held = shown("--hold", "d", field="holds_retention")
    assert held == [(0, "c", False), (1, "c", False), (1, "d", True)]

    retention = ("stream", "retention", "two", "-o", "json")
    would = json.loads(quorumbook(*retention, "--dry-run").text)
    assert [(row["name"], row["segment"]) for row in would] == [
        ("two/p0", 1), ("two/p0", 2), ("two/p1", 1),
    ]  # fmt: skip
    assert json.loads(quorumbook(*retention).text) == would
    quorumbook(*cursors, "--hold", "c")
    released = shown("--release", "c", field="holds_retention")
    assert released == [(0, "c", False), (1, "c", False), (1, "d", True)]
    assert shown("--delete", "d") == [(0, "c", 0), (1, "c", 0)]
    assert shown("--delete", "c") == []
    assert "two has no cursor c" in quorumbook(*cursors, "--delete", "c", code=3).err
    (row,) = json.loads(quorumbook(*retention).text)
    assert (row["name"], row["segment"]) == ("two/p1", 2)
    left = json.loads(quorumbook("stream", "retention", "two/p0", "other", "-o", "json").text)
    assert [(row["name"], row["segment"]) for row in left] == [("other", 1), ("other", 2)]


def test_keys_and_headers_go_in_and_come_out(quorumbook):
    quorumbook("stream", "create", "keyed")
    lines = ("stream", "write", "keyed", "--key-separator", ":", "--header", "from=shop")
    quorumbook(*lines, stdin=b'a:{"n":1}\nno key\n')
    row = '{"key": {"base64": "/w=="}, "event_time_ms": 7, "base64": "/w==", "txid": 9}'
    as_json = ("stream", "write", "keyed", "--input", "jsonl")
    quorumbook(*as_json, stdin=row.encode() + b"\n")
    read = ("stream", "read", "keyed")
    with_keys = quorumbook(*read, "--key-separator", "=", "--decode", "hex", "--count", 2).out
    assert with_keys == b"a=7b226e223a317d\n=6e6f206b6579\n"
    printed = quorumbook(*read, "-o", "jsonl").out
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row.get("key") for row in rows] == ["a", None, {"base64": "/w=="}]
    assert [row.get("headers") for row in rows] == [{"from": "shop"}, {"from": "shop"}, None]
    assert (rows[2]["event_time_ms"], rows[2]["txid"]) == (7, 9)
    # What was printed is what can be written.
    again = [{**row, "txid": 9} for row in rows]
    quorumbook(*as_json, stdin="\n".join(map(json.dumps, again)).encode())
    large = b"a:" + b"x" * 2_000_000
    quorumbook(*lines, stdin=large + b"\nb:y")
    assert quorumbook(*read, "--from", "seq:6", "--key-separator", ":").out == large + b"\nb:y\n"
    copied = quorumbook(*read, "--from", "seq:3", "--count", 3, "-o", "json").text
    kept = ("key", "headers", "event_time_ms", "text", "base64", "txid")
    assert [{k: v for k, v in row.items() if k in kept} for row in json.loads(copied)] == [
        {k: v for k, v in row.items() if k in kept} for row in again
    ]


def test_a_partitioned_stream_is_written_and_read_from_the_command_line(quorumbook):
    quorumbook("stream", "create", "whole", "--partitions", 2)
    write, read = ("stream", "write", "whole"), ("stream", "read", "whole")
    keyed = b"".join(b"k%d:%d\n" % (n % 5, n) for n in range(20))
    written = quorumbook(*write, "--key-separator", ":", "-o", "json", stdin=keyed)
    assert json.loads(written.text) == {"name": "whole", "first_sequence": None, "records": 20}
    rows = json.loads(quorumbook(*read, "-o", "json").text)
    for key in {row["key"] for row in rows}:
        (partition,) = {row["partition"] for row in rows if row["key"] == key}
        assert partition == zlib.crc32(key.encode()) % 2
        numbers = [int(row["text"]) for row in rows if row["key"] == key]
        assert numbers == list(range(int(key[1:]), 20, 5))
    second = quorumbook(*read, "--partition", 1, "--key-separator", ":").out
    assert sorted(second.split()) == sorted(
        b"%s:%s" % (row["key"].encode(), row["text"].encode())
        for row in rows
        if row["partition"] == 1
    )
    # What was read is written again, where its keys say, by partition, or in turn.
    copied = quorumbook(*read, "-o", "jsonl", "--count", 7).text.splitlines()
    again = "\n".join(json.dumps({**json.loads(each), "txid": 99}) for each in copied)
    quorumbook(*write, "--input", "jsonl", stdin=again.encode())
    count = len(quorumbook(*read, "--partition", 1).out.splitlines())
    quorumbook(*write, "--partition", 1, "--expect", count, stdin=b"one\n")
    quorumbook(*write, stdin=b"without a key\n")
    assert len(quorumbook(*read).out.splitlines()) == 29
    assert "p1" in quorumbook(*read, "-o", "table").text
    tail = ("stream", "tail", "whole", "--count", 29)
    assert len(quorumbook(*tail, "--from", "earliest").out.splitlines()) == 29
    assert len(quorumbook(*tail, "--from", "2020-01-01").out.splitlines()) == 29
    for wrong in (*read, "--from", "seq:1"), (*read, "--end", "1:0:0"), (*write, "--expect", 1):
        assert "--partition" in quorumbook(*wrong, stdin=b"", code=2).err
    assert "the last is 1" in quorumbook(*read, "--partition", 2, code=2).err
    quorumbook("stream", "create", "plain")
    assert "no partitioned stream" in quorumbook(
        "stream", "read", "plain", "--partition", 0, code=3
    ).err  # fmt: skip

    alter = ("stream", "alter", "whole", "--partitions")
    assert quorumbook(*alter, 4).text == "whole/p2\nwhole/p3\n"
    assert quorumbook(*alter, 4).text == ""
    assert "can grow" in quorumbook(*alter, 3, code=2).err
    quorumbook(*write, "--partition", 3, stdin=b"new\n")
    assert quorumbook(*read, "--partition", 3).out == b"new\n"
    assert len(quorumbook(*read).out.splitlines()) == 30
    quorumbook("stream", "delete", "whole", "--yes")
    assert quorumbook("stream", "ls", "whole").text == ""


def test_what_is_missing_is_said_and_the_rest_is_read(quorumbook):
    quorumbook("stream", "create", "holed", "--policy", "roll_entries=1")
    for line in b"a\n", b"b\n", b"c\n":
        quorumbook("stream", "write", "holed", stdin=line)
    rows = json.loads(quorumbook("stream", "segments", "holed", "-o", "json").text)
    quorumbook("ledger", "delete", rows[1]["ledger_id"], "--yes")
    read = ("stream", "read", "holed")
    ended = quorumbook(*read, code=1)
    assert (ended.out, f"ledger {rows[1]['ledger_id']}" in ended.err) == (b"a\n", True)
    whole = quorumbook(*read, "--skip-missing", code=6)
    assert whole.out == b"a\nc\n"
    assert "warning: 1 record missing between 2:0:0 and 3:0:" in whole.err
    assert quorumbook(*read, "--from", "seq:2", "--skip-missing").out == b"c\n"


def test_a_partitioned_stream_is_shown_cut_and_sealed_as_a_whole(quorumbook):
    quorumbook("stream", "create", "three", "--partitions", 3, "--policy", "roll_entries=1")
    for number, lines in enumerate((b"a\nb\n", b"c\n", b"")):
        quorumbook("stream", "write", "three", "--partition", number, stdin=lines)

    shown = json.loads(quorumbook("stream", "show", "three", "-o", "json").text)
    assert [part["name"] for part in shown["partitions"]] == [f"three/p{n}" for n in range(3)]
    assert [part["records_completed"] for part in shown["partitions"]] == [2, 1, 0]
    assert (shown["segments"], shown["records_completed"], shown["sealed"]) == (2, 3, False)
    assert shown["policy"]["roll_entries"] == 1
    table = quorumbook("stream", "show", "three", "-o", "table").text
    assert "records_completed  3" in table
    assert "three/p2" in table
    one = json.loads(quorumbook("stream", "show", "three", "--partition", 1, "-o", "json").text)
    assert (one["name"], one["records_completed"]) == ("three/p1", 1)
    rows = json.loads(quorumbook("stream", "segments", "three", "-o", "json").text)
    assert [(row["partition"], row["records"]) for row in rows] == [(0, 2), (1, 1)]

    cut = ("stream", "truncate", "three", "--before")
    for where in "1:0:1", "seq:1", "txid:1":
        assert "add --partition" in quorumbook(*cut, where, code=2).err
    quorumbook(*cut, "seq:1", "--partition", 0)
    assert quorumbook("stream", "read", "three", "--partition", 0).out == b"b\n"
    quorumbook(*cut, "2020-01-01")
    assert quorumbook("stream", "read", "three", "--partition", 1).out == b"c\n"
    would = quorumbook(*cut, "2999-01-01", "--dry-run", "-o", "json").text
    assert {row["partition"] for row in json.loads(would)} == {0, 1}
    quorumbook(*cut, "2999-01-01")
    assert quorumbook("stream", "read", "three", "--skip-truncated").out == b""
    assert quorumbook("stream", "truncate", "three/p2", "--before", "2020-01-01").text == ""

    seal = ("stream", "seal", "three", "-o", "json")
    with quorumbook.running("stream", "write", "three", "--partition", 1) as writer:
        writer.stdin.write(b"d\n")
        writer.stdin.flush()
        tail = ("stream", "tail", "three", "--partition", 1, "--from", "seq:1", "--count", 1)
        assert quorumbook(*tail).out == b"d\n"
        busy = quorumbook(*seal, code=5)
        assert "has the lock" in busy.err
        assert {row["state"] for row in json.loads(busy.out)} == {"not sealed"}
        writer.stdin.close()
        assert writer.wait(60) == 0
    quorumbook("stream", "seal", "three", "--partition", 0)
    for _ in range(2):
        rows = json.loads(quorumbook(*seal).text)
        assert [(row["name"], row["state"], row["records"]) for row in rows] == [
            ("three/p0", "sealed", 2), ("three/p1", "sealed", 2), ("three/p2", "sealed", 0),
        ]  # fmt: skip
    shown = json.loads(quorumbook("stream", "show", "three", "-o", "json").text)
    assert shown["sealed"]


def test_partitions_and_groups_from_the_command_line(quorumbook):
    created = quorumbook("stream", "create", "parts", "--partitions", 2)
    assert created.text == "parts/p0\nparts/p1\n"
    assert (
        "with 2 partitions"
        in quorumbook("stream", "create", "parts", "--partitions", 3, "--exist-ok", code=5).err
    )
    assert "--partitions" in quorumbook("stream", "groups", "s-none", code=3).err
    groups = ("stream", "groups", "parts", "-o", "json")
    assert json.loads(quorumbook(*groups).text) == []
    for part in "parts/p0", "parts/p1":
        quorumbook("stream", "write", part, stdin=b"a\nb\nc\n")
    with Namespace.open(f"{quorumbook.environment['QUORUMBOOK_METADATA']}#/streams") as ns:
        stream = PartitionedStream.open(ns, "parts")
        with stream.consumer("g", auto_commit_s=0) as consumer:
            got = []
            while len(got) < 6:
                got += consumer.read()
            consumer.ack(*(each for each in got if each.record.sequence_id == 2))
            rows = json.loads(quorumbook(*groups).text)
            assert [(row["partition"], row["records"], row["acknowledged"]) for row in rows] == [
                (0, 2, 1), (1, 2, 1),
            ]  # fmt: skip
            assert {row["member"] for row in rows} == {consumer.member}
            assert "1 members" in quorumbook(*groups, "--delete", "g", code=5).err
            rows = json.loads(quorumbook(*groups, "--reset", "g", "seq:1").text)
            assert [(row["records"], row["acknowledged"]) for row in rows] == [(2, 0), (2, 0)]
    assert json.loads(quorumbook(*groups, "--group", "g").text)[1]["member"] is None
    (row,) = json.loads(quorumbook("stream", "cursors", "parts/p1", "-o", "json").text)
    assert row["acknowledged"] == 0
    assert json.loads(quorumbook(*groups, "--delete", "g").text) == []
    assert "no group g" in quorumbook(*groups, "--reset", "g", "earliest", code=3).err
    quorumbook("stream", "delete", "parts", "--yes")
    refused = quorumbook("stream", "delete", "parts", "--yes", code=3).err
    assert "there is no stream parts" in refused


def test_ctrl_c_at_writing_counts_what_was_typed(quorumbook):
    import signal

    quorumbook("stream", "create", "typed")
    with (
        quorumbook.running("stream", "tail", "typed", "--from", "earliest", "--count", 3) as tail,
        quorumbook.running("stream", "write", "typed") as writer,
    ):
        writer.stdin.write(b"one\ntwo\nthree\n")
        writer.stdin.flush()
        assert tail.wait(60) == 0
        writer.send_signal(signal.SIGINT)
        _, err = writer.communicate(timeout=60)
    assert writer.returncode == 130
    assert b"3 records in stream typed" in err


def test_a_record_larger_than_an_entry_is_one_record_to_who_wrote_it(quorumbook):
    quorumbook("stream", "create", "large")
    line = b"x" * 6_000_000
    written = quorumbook("stream", "write", "large", "-o", "json", stdin=line + b"\ny\n")
    assert json.loads(written.text)["records"] == 2
    assert "2 records in stream large" in written.err
    cursors = ("stream", "cursors", "large", "--reset", "c", "earliest", "-o", "json")
    (cursor,) = json.loads(quorumbook(*cursors).text)
    assert cursor["records"] == 2


def test_schemas_from_the_command_line(quorumbook, tmp_path):
    def file(name, *fields):
        path = tmp_path / name
        made = [{"name": field, "type": kind, **more} for field, kind, more in fields]
        path.write_text(json.dumps({"type": "record", "name": "R", "fields": made}))
        return str(path)

    quorumbook("stream", "create", "schemed")
    show = ("stream", "schema", "show", "schemed")
    assert "stream schema set schemed FILE" in quorumbook(*show, code=3).err
    first = file("one.avsc", ("total", "long", {}))
    put = ("stream", "schema", "set", "schemed")
    expected = {"name": "schemed", "version": 1, "compatibility": "backward"}
    for more in ("--dry-run",), ():
        assert json.loads(quorumbook(*put, first, *more, "-o", "json").text) == expected
    quorumbook("stream", "write", "schemed", "--encode", stdin=b'{"total": 7}\n')
    bad = file("bad.avsc", ("total", "long", {}), ("who", "string", {}))
    for more in ("--dry-run",), ():
        refused = quorumbook(*put, bad, *more, code=5).err
        assert "backward" in refused
        assert "the field who is new and has no default" in refused
    second = file("two.avsc", ("total", "long", {}), ("who", "string", {"default": "?"}))
    assert json.loads(quorumbook(*put, second, "-o", "json").text)["version"] == 2
    more = b'{"total": 8, "who": "me"}\n'
    quorumbook("stream", "write", "schemed", "--encode", "--header", "h=v", stdin=more)
    wrong = quorumbook("stream", "write", "schemed", "--encode", stdin=b'{"total": "x"}\n', code=2)
    assert "does not fit the schema" in wrong.err

    read = ("stream", "read", "schemed", "--decode", "schema")
    rows = [json.loads(line) for line in quorumbook(*read, "-o", "jsonl").text.splitlines()]
    assert [row["json"] for row in rows] == [{"total": 7, "who": "?"}, {"total": 8, "who": "me"}]
    assert rows[1]["headers"] == {"h": "v", "schema-version": "2"}
    assert quorumbook(*read).text.splitlines()[0] == '{"total": 7, "who": "?"}'
    quorumbook("stream", "write", "schemed", stdin=b"junk\n")
    found = quorumbook(*read, code=1)
    assert "does not fit the schema: it names no version" in found.err
    assert "auto" in found.err

    rows = json.loads(quorumbook(*show, "-o", "json").text)
    assert [(row["version"], row["kind"]) for row in rows] == [(1, "avro"), (2, "avro")]
    shown = quorumbook(*show, "--version", 1, "-o", "table").text
    assert shown.rstrip("\n") == (tmp_path / "one.avsc").read_text()
    changed = quorumbook(*put, "--compatibility", "full", "-o", "json").text
    assert json.loads(changed) == {"name": "schemed", "version": 2, "compatibility": "full"}
    assert "give a FILE" in quorumbook(*put, code=2).err
    assert "not a schema" in quorumbook(*put, first, "--kind", "protobuf", code=2).err


def test_records_of_a_schema_registry_s_serializers_from_the_command_line(quorumbook, tmp_path):
    schema = {"type": "record", "name": "R", "fields": [{"name": "total", "type": "long"}]}
    login = tmp_path / "login"
    login.write_text("me:secret\n")
    login.chmod(0o600)
    quorumbook("stream", "create", "framed")
    take = ("stream", "schema", "import", "framed", "--registry")
    with schema_registry() as registry:
        registry.subjects["framed-value"] = {1: Registered(12, "AVRO", json.dumps(schema))}
        for more in (), ("--login-file", login):
            found = quorumbook(*take, registry.url, *more, "-o", "json").text
            assert json.loads(found) == {"name": "framed", "version": 1,
                                         "compatibility": "backward"}  # fmt: skip
        assert {sent for _, sent in registry.requests} == {None, "Basic bWU6c2VjcmV0"}
        assert "not found" in quorumbook(*take, registry.url, "--subject", "x", code=3).err
        url = registry.url
    assert f"no answer from {url}" in quorumbook(*take, url, code=4).err
    rows = json.loads(quorumbook("stream", "schema", "show", "framed", "-o", "json").text)
    assert [row["registry_id"] for row in rows] == [12]
    # The registry is away.
    quorumbook("stream", "write", "framed", stdin=b"\0\0\0\0\x0c\x0e\n")
    assert quorumbook("stream", "read", "framed", "--decode", "schema").text == '{"total": 7}\n'
