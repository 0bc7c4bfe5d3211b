"""The commands with a terminal at one end: what is typed, drawn, asked and interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

pty = pytest.importorskip("pty")

INTERRUPT, END = b"\x03", b"\x04"


class Terminal:
    """A command on a terminal; its standard output may be something else."""

    def __init__(self, command_line, *words, stdout=None):
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLED, *map(str, words)],
            stdin=theirs, stdout=theirs if stdout is None else stdout, stderr=theirs,
            env={**command_line.environment, "TERM": "xterm"}, cwd=command_line.directory,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.shown = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while True:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                return
            if not piece:
                return
            self.shown += piece

    def type(self, keys):
        os.write(self._ours, keys)

    def wait_for(self, text):
        deadline = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self.process.poll() is None or text in self.shown, self.shown
            time.sleep(0.01)

    def end(self):
        code = self.process.wait(60)
        self._reader.join(60)
        assert b"Traceback" not in self.shown
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(60)
        os.close(self._ours)


# Makes the terminal the one that Ctrl-C comes from, as a shell does.
_CONTROLLED = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from quorumbook.cli import main
sys.exit(main())
"""


@pytest.fixture
def terminal(quorumbook):
    opened = []

    def start(*words, **options):
        opened.append(Terminal(quorumbook, *words, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def _typed_until_confirmed(quorumbook, terminal):
    ledger_id = int(quorumbook("ledger", "create").text)
    tail = quorumbook.start("ledger", "tail", ledger_id, "--first", 0)
    try:
        writer = terminal("ledger", "write", ledger_id)
        writer.type(b"one\n")
        assert tail.stdout.readline() == b"one\n"
    finally:
        tail.kill()
        tail.communicate()
    return ledger_id, writer


def test_what_is_typed_is_a_ledger_and_no_bar_is_drawn_over_it(quorumbook, terminal):
    ledger_id, writer = _typed_until_confirmed(quorumbook, terminal)
    writer.type(END)
    assert writer.end() == 0
    assert b"1 entry in ledger %d" % ledger_id in writer.shown
    assert b"writing" not in writer.shown


def test_ctrl_c_ends_typing_at_once_and_says_where_the_lines_are(quorumbook, terminal):
    ledger_id, writer = _typed_until_confirmed(quorumbook, terminal)
    writer.type(INTERRUPT)
    assert writer.end() == 130
    assert b"1 entry in ledger %d" % ledger_id in writer.shown
    assert quorumbook("ledger", "read", ledger_id).text == "one\n"


def test_a_put_that_is_interrupted_leaves_no_ledger(quorumbook, terminal):
    before = quorumbook("ledger", "ls", "-o", "raw").text
    putting = terminal("ledger", "put", "-")
    putting.type(b"one\n")
    deadline = time.monotonic() + 60
    while quorumbook("ledger", "ls", "-o", "raw").text == before:
        assert time.monotonic() < deadline
    putting.type(INTERRUPT)
    assert putting.end() == 130
    assert quorumbook("ledger", "ls", "-o", "raw").text == before


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "raw"])
def test_results_go_to_the_file_although_a_bar_is_on_the_terminal(
    quorumbook, terminal, tmp_path, form
):
    ledger_id = int(quorumbook("ledger", "write", stdin=b"x\ny\n").text)
    expected = quorumbook("ledger", "read", ledger_id, "-o", form).out
    with open(tmp_path / "out", "wb") as out:
        reader = terminal("ledger", "read", ledger_id, "-o", form, stdout=out)
    assert reader.end() == 0
    assert b"reading" in reader.shown
    assert (tmp_path / "out").read_bytes() == expected


def test_no_bar_is_drawn_between_the_lines_of_the_result(quorumbook, terminal):
    ledger_id = int(quorumbook("ledger", "write", stdin=b"x\ny\n").text)
    reader = terminal("ledger", "read", ledger_id)
    assert reader.end() == 0
    assert reader.shown == b"x\r\ny\r\n"


@pytest.mark.parametrize(("keys", "code"), [(b"n\n", 1), (END, 130), (INTERRUPT, 130)])
def test_who_does_not_say_yes_keeps_the_ledger(quorumbook, terminal, keys, code):
    ledger_id = int(quorumbook("ledger", "write", stdin=b"x\n").text)
    asked = terminal("ledger", "delete", ledger_id)
    asked.wait_for(b"[y/N]")
    asked.type(keys)
    assert asked.end() == code
    assert b"bug" not in asked.shown
    quorumbook("ledger", "show", ledger_id)
