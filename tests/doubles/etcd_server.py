"""A real etcd for tests, of one member: Debian's, found on the path."""

from __future__ import annotations

import http
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

import pytest

from doubles.certificates import Issued

_NEEDED = "etcd is not installed; Debian and Ubuntu have it: apt-get install etcd-server"


def free_port() -> int:
    """Return a port below those that connections are given at random."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


class EtcdServer:
    """One process on a directory of its own; it can be killed and started again."""

    def __init__(
        self,
        directory: Path,
        *words: str,
        issued: Issued | None = None,
        client_context: ssl.SSLContext | None = None,
    ) -> None:
        """Start it; with a certificate it speaks TLS, and we to it by the context."""
        pytest.importorskip("grpc", reason="pip install 'quorumbook[etcd]'")
        self._program = shutil.which("etcd")
        if self._program is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(_NEEDED)
        self._directory = directory
        self._words = list(words)
        self._context = client_context
        if issued is not None:
            self._words += ["--cert-file", issued.certificate_file, "--key-file", issued.key_file]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = self._peer_port = 0
        self.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def _url(self) -> str:
        return f"{'https' if self._context else 'http'}://{self.endpoint}"

    def uri(self, root: str = "/ledgers") -> str:
        return f"etcd://{self.endpoint}{root}"

    def start(self) -> None:
        """Start it, on other ports if somebody else was faster the first time."""
        for _ in range(5):
            if not self.port:
                self.port, self._peer_port = free_port(), free_port()
            self._launch()
            if self._is_ready():
                return
            if (self._directory / "data").exists():
                break
            self.port = 0
        raise AssertionError((self._directory / "log").read_text()[-3000:])

    def kill(self) -> None:
        """Kill it as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        # The signal takes its time to reach every thread.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def call(self, method: str, **request: object) -> dict:
        """Ask through the JSON gateway, beside the client under test."""
        asked = urllib.request.Request(f"{self._url}/v3/{method}", json.dumps(request).encode())
        with urllib.request.urlopen(asked, timeout=10, context=self._context) as answer:
            return json.load(answer)

    def wipe(self) -> None:
        """Forget every key."""
        self.call("kv/deleterange", key="AA==", range_end="AA==")

    def put(self, key: str, value: str = "") -> None:
        """Write a key as another program would."""
        self.call("kv/put", key=b64encode(key.encode()).decode(), value=value)

    def compact(self) -> None:
        """Forget all revisions but the present one."""
        revision = self.call("kv/range", key="YQ==")["header"]["revision"]
        self.call("kv/compaction", revision=revision)

    def _launch(self) -> None:
        peer = f"http://127.0.0.1:{self._peer_port}"
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._program, "--data-dir", str(self._directory / "data"),
                    "--listen-client-urls", self._url, "--advertise-client-urls", self._url,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", f"default={peer}", *self._words,
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def _is_ready(self) -> bool:
        deadline = time.monotonic() + 60
        while self._process.poll() is None:
            assert time.monotonic() < deadline, "etcd is not ready"
            try:
                self.call("kv/range", key="YQ==")
            except urllib.error.HTTPError as error:
                # It wants to know who asks, so it serves.
                if error.code == http.HTTPStatus.BAD_REQUEST:
                    return True
                time.sleep(0.02)
            except (urllib.error.URLError, OSError):
                time.sleep(0.02)
            else:
                return True
        return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait()
