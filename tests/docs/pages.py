"""Runs a page as its reader does: block by block, in order, and compares what is printed.

    ```sh                    commands; each is run, in one directory, with one environment
    ```python title="a.py"   a file that the reader saves under that name
    ```text                  what the commands before it print, standard error included

In an expected text ``...`` stands for anything within a line, and on a line of its own for any
number of lines.  A comment before a block of commands says what a reader does without being told:

    <!-- background until: TEXT -->   it stays in a terminal of its own; go on when it says TEXT
    <!-- again until: TEXT -->        a reader repeats it until it says TEXT
    <!-- not run: REASON -->          it is only shown
    <!-- terminal N: -->              the text after it is what terminal N ends with by and by;
                                      1 is the first block that stays

Ports that a page shows are replaced by free ones, in commands and in what is printed;
``quorumbook standalone`` is given one.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_BLOCK = re.compile(
    r"(?:<!-- (?P<how>background until|again until|not run|terminal \d+): ?(?P<what>.*?) ?-->\n+)?"
    r"^```(?P<language>sh|python|java|text|toml)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
#: It only turns a hang into a failure: Spark takes a minute where machines are busy.
_LONGEST_S = 200.0


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    title: str = ""
    how: str = ""
    what: str = ""


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page that its reader uses."""
    return [
        Block(m["language"], m["text"], m["title"] or "", m["how"] or "", m["what"] or "")
        for m in _BLOCK.finditer(text)
    ]


def fits(expected: str, printed: str) -> bool:
    """Tell whether what was printed is what the page shows."""
    pattern = ""
    for line in expected.strip().splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pieces = (re.escape(each) for each in line.rstrip().split("..."))
            pattern += ".*".join(pieces) + r"[ ]*\n"
    return re.fullmatch(pattern, printed.strip() + "\n") is not None


class Reader:
    """Somebody who types a page from top to bottom.

    Args:
        directory: Where it is done; empty at first.
        replaced: What is used in the place of what the page says, such as ports.
    """

    def __init__(self, directory: Path, replaced: dict[str, str]) -> None:
        self._directory = directory
        self._replaced = replaced
        self._running: list[subprocess.Popen[bytes]] = []
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("QUORUMBOOK_")
        }
        binaries = os.path.dirname(sys.executable)
        self._environment["PATH"] = f"{binaries}:{self._environment['PATH']}"
        self._environment["COLUMNS"] = "120"
        self._environment["QUORUMBOOK_ADMIN_PORT"] = "0"  # others run beside it

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def use(self, metadata_uri: str) -> None:
        """Have all commands use a cluster."""
        self._environment["QUORUMBOOK_METADATA"] = metadata_uri

    def miss_the_killed_soon(self) -> None:
        """End sessions of killed processes after 3 s, not the 10 s that pages speak of."""
        self._environment["QUORUMBOOK_METADATA_SESSION_TIMEOUT_S"] = "3"

    def follow(self, page: str) -> None:
        """Do all that a page says.

        Raises:
            AssertionError: A command failed, or printed something else than the page shows.
        """
        printed = ""
        for block in blocks(self._in_place(page)):
            if block.how == "not run":
                printed = ""
            elif block.how.startswith("terminal"):
                self._wait_for(int(block.how.split()[1]) - 1, block.text)
            elif block.title:
                (self._directory / block.title).write_text(block.text, encoding="utf-8")
            elif block.language == "sh":
                printed = self._run(block)
            elif block.language == "text" and printed:
                assert fits(block.text, printed), f"shown:\n{block.text}\nprinted:\n{printed}"

    def _in_place(self, text: str) -> str:
        for old, new in self._replaced.items():
            text = re.sub(rf"(?<!\d){re.escape(old)}(?!\d)", lambda _, new=new: new, text)
        port = self._replaced.get("3181", "3181")
        return re.sub(r"^quorumbook standalone$", rf"\g<0> --port {port}", text, flags=re.M)

    def _run(self, block: Block) -> str:
        if block.how == "background until":
            return self._stay(block)
        deadline = time.monotonic() + _LONGEST_S
        while True:
            code, printed = self._once(block.text)
            assert "BrokenPipeError" not in printed, printed
            if block.how != "again until":
                assert code == 0, f"{block.text}\nends with {code}:\n{printed}"
                return printed
            if fits(f"...\n{block.what}\n...", printed):
                return printed
            assert time.monotonic() < deadline, f"{block.text}\nstill prints:\n{printed}"
            time.sleep(0.3)

    def _once(self, commands: str) -> tuple[int, str]:
        state = self._directory / ".environment"
        before = f". {shlex.quote(str(state))}\n" if state.exists() else ""
        script = f"set -a\n{before}{commands}\nexport -p > {shlex.quote(str(state))}\n"
        done = subprocess.run(
            ["bash", "-ec", script], cwd=self._directory, env=self._environment, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=_LONGEST_S,
        )  # fmt: skip
        return done.returncode, done.stdout.decode()

    def _stay(self, block: Block) -> str:
        number = len(self._running)
        log = self._directory / f".terminal-{number}"
        state = self._directory / ".environment"
        before = f". {shlex.quote(str(state))}\n" if state.exists() else ""
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-ec", f"{before}exec {block.text.strip()}"], cwd=self._directory,
                env=self._environment | {"PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._running.append(process)
        return self._wait_for(number, block.what + "\n...")

    def _wait_for(self, number: int, text: str) -> str:
        """Return what a terminal prints once it ends as it should."""
        log, process = self._directory / f".terminal-{number}", self._running[number]
        deadline = time.monotonic() + _LONGEST_S
        while True:
            has_ended = process.poll() is not None
            printed = log.read_text(encoding="utf-8")
            if fits(f"...\n{text}", printed):
                return printed
            assert not has_ended, f"{text}\nis not what ended with:\n{printed}"
            assert time.monotonic() < deadline, f"{text}\nis not what there is:\n{printed}"
            time.sleep(0.1)
