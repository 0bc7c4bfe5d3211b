"""The commands of docs/security.md do what the page says, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


class Shell:
    """Runs blocks as a user types them, with ports of its own."""

    def __init__(self, directory: Any) -> None:
        binaries = os.path.dirname(sys.executable)
        self.directory = directory
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORUMBOOK_")}
        self.environment["PATH"] = f"{binaries}:{self.environment['PATH']}"

    def __call__(self, block: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", block],
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=self.environment,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, (block, done)
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Any) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def standalone(shell: Shell) -> Any:
    """Start what the page starts, on a free port; stop it at the end."""
    running: list[subprocess.Popen[str]] = []
    port = str(free_port())

    def start(block: str) -> None:
        words = [*block.split(), "--bookies", "3", "--port", port]
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=shell.directory,
            env=shell.environment,
        )
        running.append(process)
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "quorumbook ledger write" in line:
                return
        raise AssertionError(said)

    def stop() -> None:
        while running:
            process = running.pop()
            process.terminate()
            process.communicate(timeout=60)

    start.stop = stop  # type: ignore[attr-defined]
    yield start
    stop()


def free_port() -> int:
    """Return the first of a row of ports that are likely free."""
    import random
    import socket

    while True:
        port = random.randrange(15000, 30000)
        free = 0
        for each in range(port, port + 3):
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", each))
                except OSError:
                    break
                free += 1
        if free == 3:
            return port


@pytest.mark.timeout(200)
def test_the_page_about_security_can_be_typed_from_top_to_bottom(
    shell: Shell, standalone: Any
) -> None:
    make_ca, configure, run, use, plain, secret, token, curl = BLOCKS
    shell(make_ca)
    # As Python 3.13 does by default, and so programs that ask the HTTP API there.
    shell("openssl verify -x509_strict -CAfile tls/ca.pem tls/bookie.pem")
    shell(configure)
    assert run.strip() == "quorumbook standalone"
    standalone(run)
    assert "hello" in shell(use)
    uri = "export QUORUMBOOK_METADATA=sqlite:///quorumbook-data/metadata.db\n"
    said = shell(uri + plain)
    assert "turned away" in said
    assert "wants TLS or authentication" in said
    assert "tls.enabled" in said
    assert "--password" not in said
    assert "Traceback" not in said
    standalone.stop()

    shell(secret)
    shell(token)
    standalone(run)
    assert "hello" in shell(uri + "quorumbook ledger read 0")
    said = shell(uri + "quorumbook ledger read 0 --set client.auth_plugin= || echo turned away")
    assert "turned away" in said
    assert "does not let us in" in said

    change = 'quorumbook bookie gc "$(quorumbook bookie ls -o raw | cut -f 1 | head -1)"'
    assert "is_running" in shell(uri + change)
    said = shell(f"{uri}{change} --set http.token_file= || echo turned away")
    assert "turned away" in said
    assert "answers 401" in said
    shell(curl)


def test_the_python_of_the_page_makes_a_client(shell: Shell) -> None:
    shell(BLOCKS[0])
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=shell.directory,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
