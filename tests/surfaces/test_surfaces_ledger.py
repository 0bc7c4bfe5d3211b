"""The commands for ledgers and files, against real bookies."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys

import pytest

from quorumbook.ids import MAX_FRAME_SIZE_BYTES
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.uri import open_store


def _write(quorumbook, *lines: bytes, words=()):
    return int(quorumbook("ledger", "write", *words, stdin=b"".join(lines)).text)


def test_lines_written_are_lines_read(quorumbook):
    ledger_id = _write(quorumbook, b"one\n", b"\n", b"three")
    assert quorumbook("ledger", "read", ledger_id).out == b"one\n\nthree\n"


def test_lines_of_several_files_become_one_ledger(quorumbook, tmp_path):
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3\n")
    ledger_id = _write(quorumbook, words=("a", "b"))
    assert quorumbook("ledger", "read", ledger_id).out == b"1\n2\n3\n"
    assert quorumbook("ledger", "read", ledger_id, "--first", 1, "--last", 1).out == b"2\n"


def test_entries_as_json_keep_bytes_that_are_not_text(quorumbook):
    ledger_id = _write(quorumbook, b"text\n", b"\xff\xfe\n")
    rows = json.loads(quorumbook("ledger", "read", ledger_id, "-o", "json").text)
    assert rows[0] == {"ledger_id": ledger_id, "entry_id": 0, "bytes": 4, "text": "text"}
    assert rows[1]["base64"] == "//4="
    lines = quorumbook("ledger", "read", ledger_id, "-o", "jsonl").text.splitlines()
    assert [json.loads(line) for line in lines] == rows


def test_an_empty_ledger_is_read_as_nothing(quorumbook):
    ledger_id = _write(quorumbook)
    assert quorumbook("ledger", "read", ledger_id).out == b""
    assert json.loads(quorumbook("ledger", "read", ledger_id, "-o", "json").text) == []


def test_more_lines_than_a_writer_holds_at_a_time_arrive_in_order(quorumbook):
    lines = b"".join(b"%d\n" % number for number in range(60_000))
    ledger_id = _write(quorumbook, lines)
    assert quorumbook("ledger", "read", ledger_id).out == lines


def test_a_ledger_is_created_by_one_process_and_written_by_exactly_one_other(quorumbook):
    ledger_id = int(quorumbook("ledger", "create", "--custom", "topic=a b").text)
    shown = json.loads(quorumbook("ledger", "show", ledger_id, "-o", "json").text)
    assert shown["state"] == "open"
    writers = [quorumbook.start("ledger", "write", ledger_id) for _ in range(3)]
    for number, writer in enumerate(writers):
        writer.stdin.write(b"writer %d\n" % number)
        writer.stdin.close()
    assert sorted(writer.wait(60) for writer in writers) == [0, 5, 5]
    for writer in writers:
        writer.stdout.close()
        writer.stderr.close()
    assert quorumbook("ledger", "read", ledger_id).text.count("writer") == 1
    shown = json.loads(quorumbook("ledger", "show", ledger_id, "-o", "json").text)
    assert shown["state"] == "closed"
    assert shown["custom_metadata"] == {"topic": "a b"}


def test_a_ledger_gets_the_id_it_is_given_once_and_its_last_entry_is_had_alone(quorumbook):
    wide = 2**62 + 5
    assert _write(quorumbook, b"a\n", b"b\n", words=("--ledger-id", str(wide))) == wide
    assert quorumbook("ledger", "read", wide, "--last-entry").out == b"b\n"
    taken = quorumbook("ledger", "create", "--ledger-id", wide, code=5)
    assert str(wide) in taken.err
    assert int(quorumbook("ledger", "create", "--ledger-id", wide + 1).text) == wide + 1
    assert _write(quorumbook, b"c\n", words=(str(wide + 1), "--deferred-sync")) == wide + 1
    assert quorumbook("ledger", "read", wide + 1).out == b"c\n"
    empty = _write(quorumbook)
    assert "no entry yet" in quorumbook("ledger", "read", empty, "--last-entry", code=3).err
    both = quorumbook("ledger", "read", wide, "--last-entry", "--first", 1, code=2)
    assert "--last-entry" in both.err
    mixed = quorumbook("ledger", "write", wide, "--ledger-id", 7, stdin=b"", code=2)
    assert "--ledger-id" in mixed.err


def test_a_ledger_that_was_not_left_for_others_is_not_written_by_them(quorumbook):
    ledger_id = _write(quorumbook, b"a\n")
    refused = quorumbook("ledger", "write", ledger_id, stdin=b"b\n", code=5)
    assert "has, or had, a writer" in refused.err
    assert quorumbook("ledger", "read", ledger_id).out == b"a\n"


def test_ledgers_are_listed_and_filtered(quorumbook):
    wanted = _write(quorumbook, b"x\n", words=("--custom", "kind=wanted"))
    _write(quorumbook, b"x\n", words=("--custom", "kind=other"))
    rows = json.loads(quorumbook("ledger", "ls", "--custom", "kind=wanted", "-o", "json").text)
    assert [row["ledger_id"] for row in rows] == [wanted]
    assert rows[0]["entries"] == 1
    every = json.loads(quorumbook("ledger", "ls", "-o", "json", "--state", "closed").text)
    assert len(every) > len(rows)
    assert quorumbook("ledger", "ls", "--custom", "kind=none", "-o", "raw").out == b""


def test_a_deleted_ledger_is_gone(quorumbook):
    ledger_id = _write(quorumbook, b"x\n")
    assert "add --yes" in quorumbook("ledger", "delete", ledger_id, code=2).err
    quorumbook("ledger", "delete", ledger_id, "--yes")
    missing = quorumbook("ledger", "read", ledger_id, code=3)
    assert "quorumbook ledger ls" in missing.err
    quorumbook("ledger", "show", ledger_id, code=3)
    quorumbook("ledger", "delete", ledger_id, "--yes", code=3)


def test_what_was_deleted_is_told_also_when_a_later_one_fails(quorumbook):
    one, two = _write(quorumbook, b"x\n"), _write(quorumbook, b"x\n")
    done = quorumbook("ledger", "delete", one, two, 10**6, "--yes", "-o", "raw", code=3)
    assert done.text == f"{one}\tdeleted\n{two}\tdeleted\n"
    quorumbook("ledger", "show", two, code=3)


def test_a_part_beyond_the_end_is_refused_or_told(quorumbook):
    ledger_id = _write(quorumbook, b"x\n")
    beyond = quorumbook("ledger", "read", ledger_id, "--last", 9, code=3)
    assert "no entry 9: its last one is 0" in beyond.err
    assert quorumbook("ledger", "read", ledger_id, "--first", 1).err == ""
    beyond = quorumbook("ledger", "read", ledger_id, "--first", 2, code=3)
    assert "no entry 2: its last one is 0" in beyond.err
    unwritten = int(quorumbook("ledger", "create").text)
    waiting = quorumbook("ledger", "read", unwritten, "--first", 2)
    assert "no entry 2 yet" in waiting.err
    quorumbook("ledger", "read", ledger_id, "--first", 1, "--last", 0, code=2)


def test_a_line_that_no_entry_can_hold_leaves_no_empty_ledger(quorumbook):
    before = json.loads(quorumbook("ledger", "ls", "-o", "json").text)
    line = bytes(MAX_FRAME_SIZE_BYTES)
    failed = quorumbook("ledger", "write", stdin=line, code=2)
    assert "larger than" in failed.err
    assert json.loads(quorumbook("ledger", "ls", "-o", "json").text) == before
    # What came before it is kept, in a closed ledger.
    quorumbook("ledger", "write", stdin=b"x\n" * 20_000 + line, code=2)
    after = json.loads(quorumbook("ledger", "ls", "-o", "json").text)
    assert [row["state"] for row in after[len(before) :]] == ["closed"]


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "raw"])
def test_tail_prints_in_every_form_what_read_prints(quorumbook, form):
    ledger_id = _write(quorumbook, b"x\ny\n")
    tailed = quorumbook("ledger", "tail", ledger_id, "--first", 0, "-o", form)
    assert tailed.out == quorumbook("ledger", "read", ledger_id, "-o", form).out


def test_fragments_are_shown_in_every_form(quorumbook, cluster):
    ledger_id = _write(quorumbook, b"x\n")
    for form in ("table", "json", "jsonl", "raw"):
        shown = quorumbook("ledger", "show", ledger_id, "-o", form).text
        assert all(bookie_id in shown for bookie_id in cluster.bookie_ids)
    assert shown.count("\n") == 1  # raw: one line


def test_a_password_is_needed_to_read(quorumbook, tmp_path):
    (tmp_path / "password").write_text("secret\n")
    ledger_id = _write(quorumbook, b"x\n", words=("--password-file", "password"))
    assert quorumbook("ledger", "read", ledger_id, "--password", "secret").out == b"x\n"
    refused = quorumbook("ledger", "read", ledger_id, "--password", "wrong", code=5)
    assert "--password" in refused.err


def test_tail_shows_a_line_as_soon_as_it_was_typed(quorumbook):
    ledger_id = int(quorumbook("ledger", "create").text)
    with (
        quorumbook.running("ledger", "tail", ledger_id, "--first", 0) as tail,
        quorumbook.running("ledger", "write", ledger_id) as writer,
    ):
        for number in range(5):
            line = b"line %d\n" % number
            writer.stdin.write(line)
            writer.stdin.flush()
            assert tail.stdout.readline() == line
        writer.stdin.close()
        assert writer.wait(60) == 0
        assert tail.wait(60) == 0  # the ledger is closed, nothing more can come
        assert tail.stdout.read() == b""


def test_a_ledger_whose_writer_was_killed_is_recovered(quorumbook):
    ledger_id = int(quorumbook("ledger", "create").text)
    with (
        quorumbook.running("ledger", "tail", ledger_id, "--first", 0) as tail,
        quorumbook.running("ledger", "write", ledger_id) as writer,
    ):
        writer.stdin.write(b"safe\n")
        writer.stdin.flush()
        assert tail.stdout.readline() == b"safe\n"
        writer.kill()
        writer.wait(60)
        row = json.loads(quorumbook("ledger", "recover", ledger_id, "-o", "json").text)
        assert (row["state"], row["entries"]) == ("closed", 1)
        assert tail.wait(60) == 0
    assert quorumbook("ledger", "read", ledger_id).out == b"safe\n"


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 3_000_001])
def test_a_file_comes_back_byte_for_byte(quorumbook, tmp_path, size):
    content = os.urandom(size)
    (tmp_path / "file.bin").write_bytes(content)
    stored = json.loads(quorumbook("ledger", "put", "file.bin", "-o", "json").text)
    assert stored["sha256"] == hashlib.sha256(content).hexdigest()
    assert quorumbook("ledger", "get", stored["ledger_id"]).out == content
    quorumbook("ledger", "get", stored["ledger_id"], "--to", "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == content
    assert not (tmp_path / "back.bin.part").exists()
    shown = json.loads(quorumbook("ledger", "show", stored["ledger_id"], "-o", "json").text)
    assert shown["custom_metadata"]["file-name"] == "file.bin"


def test_a_device_or_pipe_is_written_and_not_replaced(quorumbook, tmp_path):
    ledger_id = int(quorumbook("ledger", "put", "-", stdin=b"content").text)
    os.mkfifo(tmp_path / "pipe")
    with quorumbook.running("ledger", "get", ledger_id, "--to", "pipe") as getter:
        assert (tmp_path / "pipe").read_bytes() == b"content"
        assert getter.wait(60) == 0
    assert (tmp_path / "pipe").is_fifo()
    assert "none" in quorumbook("ledger", "get", ledger_id, "--to", "none/file", code=1).err
    assert "directory" in quorumbook("ledger", "get", ledger_id, "--to", ".", code=1).err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_caller_may_close_the_standard_files(quorumbook, closed):
    command = f'"$0" -m quorumbook ledger ls {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], env=quorumbook.environment, check=False, timeout=60
    )
    assert done.returncode == 0


def test_standard_input_can_be_put(quorumbook):
    ledger_id = int(quorumbook("ledger", "put", "-", stdin=b"\x00\n\xff").text)
    assert quorumbook("ledger", "get", ledger_id).out == b"\x00\n\xff"


def test_a_missing_file_is_one_line(quorumbook):
    assert "none.txt" in quorumbook("ledger", "put", "none.txt", code=1).err
    failed = quorumbook("ledger", "write", "none.txt", code=1)
    assert failed.err.count("\n") == 1


def test_a_reader_of_the_output_may_go_away(quorumbook):
    ledger_id = _write(quorumbook, b"x" * 1000 + b"\n", b"y\n" * 200_000)
    with quorumbook.running("ledger", "read", ledger_id) as reader:
        reader.stdout.read(10)
        reader.stdout.close()
        assert reader.wait(60) == 141
        assert reader.stderr.read() == b""


def test_nothing_but_results_goes_to_standard_output_and_no_bar_into_a_pipe(quorumbook):
    done = quorumbook("ledger", "write", stdin=b"a\nb\n")
    assert done.text.strip().isdigit()
    assert done.err == f"2 entries in ledger {done.text.strip()}\n"


def test_an_ensemble_larger_than_the_cluster_names_the_way_out(quorumbook):
    failed = quorumbook("ledger", "write", "--ensemble-size", 9, stdin=b"a\n", code=4)
    assert failed.err.count("\n") == 1
    assert "quorumbook bookie ls" in failed.err


def test_quorums_that_contradict_each_other_are_refused(quorumbook):
    failed = quorumbook("ledger", "write", "--ack-quorum", 3, "--write-quorum", 2, code=2)
    assert failed.err.count("\n") == 1
    assert (
        "client.ack_quorum_size: 3 (--ack-quorum) is out of bounds (1 to client.write_quorum_size,"
        " which is 2)" in failed.err
    )


def test_bookies_are_listed_with_their_health(quorumbook, cluster):
    rows = json.loads(quorumbook("bookie", "ls", "-o", "json").text)
    assert sorted(row["bookie_id"] for row in rows) == sorted(cluster.bookie_ids)
    assert {row["state"] for row in rows} == {"writable"}


@pytest.mark.parametrize("rate", [[], ["--rate", 5000]])
def test_bench_write_reports_rate_and_latencies(quorumbook, rate):
    words = ["--ensemble-size", 3, "--write-quorum", 3, "--ack-quorum", 2, "--entry-size", 100]
    words += ["--count", 2000, "--in-flight", 100, *rate, "-o", "json"]
    result = json.loads(quorumbook("bench", "write", *words).text)
    assert result["entries"] == 2000
    assert result["bytes_per_s"] > result["entries_per_s"] > 0
    assert result["p50_ms"] <= result["p99_ms"] <= result["p999_ms"]


def test_bench_read_and_tail_report_the_same_fields(quorumbook):
    written = json.loads(quorumbook("bench", "write", "--count", 1000, "-o", "json").text)
    ledger = ["--ledger", written["ledger_id"], "-o", "json"]
    in_order = json.loads(quorumbook("bench", "read", *ledger).text)
    assert in_order["entries"] == 1001  # one was written before the clock ran
    fresh = json.loads(quorumbook("bench", "read", "--count", 300, "-o", "json").text)
    assert fresh["entries"] == 300
    at_random = json.loads(
        quorumbook("bench", "read", "--random", "--count", 50, "--in-flight", 4, *ledger).text
    )
    assert at_random["entries"] == 50
    tail = ["--count", 200, "--rate", 2000, "-o", "json"]
    tailed = json.loads(quorumbook("bench", "tail", *tail).text)
    assert tailed["entries"] == 200
    assert in_order.keys() == at_random.keys() == tailed.keys() == written.keys()


def test_a_measurement_that_cannot_begin_is_one_line(quorumbook):
    for kind in ("write", "read", "tail"):
        failed = quorumbook("bench", kind, "--ensemble-size", 9, code=4)
        assert failed.err.count("\n") == 1


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("kind", ["write", "tail"])
def test_a_rate_that_is_none_is_wrong_use(quorumbook, kind, rate):
    failed = quorumbook("bench", kind, "--count", 1, f"--rate={rate}", code=2)
    assert failed.err.count("\n") == 1
    assert "--rate" in failed.err


def test_ctrl_c_ends_a_command_without_a_trace(quorumbook):
    import signal

    ledger_id = int(quorumbook("ledger", "create").text)
    with quorumbook.running("ledger", "tail", ledger_id, "--first", 0) as tail:
        with pytest.raises(subprocess.TimeoutExpired):
            tail.wait(1.5)
        tail.send_signal(signal.SIGINT)
        _, err = tail.communicate(timeout=60)
    assert tail.returncode == 130
    assert b"Traceback" not in err


def test_a_password_is_never_shown(quorumbook):
    ledger_id = _write(quorumbook, b"x\n", words=("--password", "open sesame"))
    for form in ("table", "json", "jsonl", "raw"):
        shown = quorumbook("ledger", "show", ledger_id, "-o", form)
        listed = quorumbook("ledger", "ls", "-o", form)
        assert "sesame" not in shown.text + shown.err + listed.text + listed.err
    row = json.loads(quorumbook("ledger", "show", ledger_id, "-o", "json").text)
    assert row["has_password"] is True


def test_a_progress_bar_is_drawn_on_a_terminal(quorumbook, tmp_path):
    pty = pytest.importorskip("pty")
    (tmp_path / "lines").write_bytes(b"x\n" * 5000)
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "quorumbook", "ledger", "write", "lines"],
        stdout=subprocess.PIPE, stderr=end, env={**quorumbook.environment, "TERM": "xterm"},
        cwd=tmp_path,
    )  # fmt: skip
    os.close(end)
    drawn = b""
    with process, contextlib.suppress(OSError):  # the terminal's end is an error on Linux
        while piece := os.read(terminal, 4096):
            drawn += piece
    os.close(terminal)
    assert process.returncode == 0
    assert b"writing" in drawn
    assert b"5000 entries in ledger" in drawn


def test_a_file_whose_ledger_is_not_closed_is_not_given_out(quorumbook, tmp_path):
    ledger_id = quorumbook("ledger", "create").text.strip()
    refused = quorumbook("ledger", "get", ledger_id, "--to", "file", code=4)
    assert "--recover" in refused.err
    assert list(tmp_path.iterdir()) == []
    quorumbook("ledger", "get", ledger_id, "--to", "file", "--recover")
    assert (tmp_path / "file").read_bytes() == b""


def test_a_file_that_is_not_as_long_as_its_ledger_says_is_an_error(quorumbook, cluster, tmp_path):
    ledger_id = int(quorumbook("ledger", "put", "-", stdin=b"content").text)

    async def lengthen():
        store = await open_store(cluster.metadata_uri)
        try:
            manager = LedgerManager(store)
            metadata, version = await manager.read(ledger_id)
            await manager.write(dataclasses.replace(metadata, length=8), version)
        finally:
            await store.close()

    asyncio.run(lengthen())
    failed = quorumbook("ledger", "get", ledger_id, "--to", "file", code=4)
    assert "gave 7 bytes and its metadata says 8" in failed.err
    assert list(tmp_path.iterdir()) == []


def test_a_command_in_somebody_elses_directory_runs_no_code_of_theirs(quorumbook, tmp_path):
    ledger_id = _write(quorumbook, b"x\n")
    proof, theirs = tmp_path / "proof", tmp_path / "quorumbook.toml"
    theirs.write_text(f"[client]\nauth_plugin = 'os:system'\nauth_settings = 'touch {proof}'\n")
    theirs.chmod(0o666)
    done = quorumbook("ledger", "read", ledger_id)
    assert done.out == b"x\n"
    assert f"{theirs} is ignored: everybody may write to it" in done.err
    refused = quorumbook("ledger", "read", ledger_id, "--config", "quorumbook.toml", code=2)
    assert "client.auth_plugin: 'os:system'" in refused.err
    assert "names code to be run" in refused.err
    assert not proof.exists()
