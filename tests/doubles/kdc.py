"""A real Kerberos for tests: Debian's key distribution centre, with a realm of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from doubles.ports import free_ports

REALM = "EXAMPLE.TEST"
_NEEDED = (
    "Kerberos is not installed; Debian and Ubuntu have it: apt-get install krb5-kdc "
    "krb5-admin-server libkrb5-dev gcc, and then pip install 'quorumbook[kerberos]'"
)
#: Where Debian puts servers, which is not on everybody's path.
_PATH = f"{os.environ['PATH']}:/usr/sbin"


def need_kerberos() -> None:
    """Skip a test where there is no Kerberos; in continuous integration it has to be there."""
    try:
        import gssapi  # noqa: F401
    except ImportError:
        found = None
    else:
        found = shutil.which("krb5kdc", path=_PATH)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(_NEEDED)


class Kdc:
    """One process on a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (self._port,) = free_ports(1)
        #: What makes Kerberos look here.
        self.config = directory / "krb5.conf"
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n udp_preference_limit = 1\n"
            " dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n"
            f" default_ccache_name = FILE:{directory}/tickets\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self._port}\n }}\n"
        )
        (directory / "kdc.conf").write_text(
            f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n"
            f"  key_stash_file = {directory}/stash\n  kdc_listen = 127.0.0.1:{self._port}\n"
            f"  kdc_tcp_listen = 127.0.0.1:{self._port}\n }}\n"
            f"[logging]\n kdc = FILE:{directory}/kdc.log\n"
        )
        self.environment = {
            **os.environ,
            "PATH": _PATH,
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
        }
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        with (directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["krb5kdc", "-n"], env=self.environment, stdout=log, stderr=log
            )
        self._wait()

    def keytab(self, *principals: str) -> str:
        """Make principals and return the file with their keys."""
        file = self._directory / f"{principals[0].replace('/', '-')}.keytab"
        for each in principals:
            self._admin(f"addprinc -randkey {each}")
            self._admin(f"ktadd -k {file} {each}")
        return str(file)

    def delete(self, principal: str) -> None:
        """Forget somebody."""
        self._admin(f"delprinc -force {principal}")

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _admin(self, query: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", query)

    def _run(self, *words: str) -> None:
        done = subprocess.run(
            words, check=False, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while self._process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", self._port)):
                    return
            time.sleep(0.02)
        raise AssertionError((self._directory / "log").read_text()[-3000:])
