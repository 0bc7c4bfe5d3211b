"""Files of names, passwords and keys for a metadata store, as Kubernetes mounts them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from doubles.certificates import Authority
from quorumbook.env import Env
from quorumbook.env.tls import TlsOptions
from quorumbook.errors import ConfigError
from quorumbook.metadata.etcd.address import parse_address as etcd_address
from quorumbook.metadata.etcd.credentials import credentials
from quorumbook.metadata.zookeeper.address import parse_address as zookeeper_address


def mounted(file: Path) -> Path:
    """Lay a file behind two links, as Kubernetes does, and return the first of them."""
    data = file.parent / "..2026_11_25"
    data.mkdir()
    file.rename(data / file.name)
    (file.parent / "..data").symlink_to(data.name)
    file.symlink_to(f"..data/{file.name}")
    return file


def login(tmp_path: Path) -> Path:
    file = tmp_path / "login"
    file.write_text("me:canary\n")
    file.chmod(0o600)
    return mounted(file)


def key_of_etcd(tmp_path: Path) -> Path:
    return mounted(Path(Authority(tmp_path, "ca").issue("client").key_file))


def tls_of_etcd(key: Path) -> Any:
    directory = key.parent
    return credentials(
        TlsOptions(
            ca_file=str(directory / "ca.pem"), client_authentication=True,
            certificate_file=str(directory / "client.pem"), key_file=str(key),
        ),
        Env(),
    )  # fmt: skip


#: What makes a file, and what reads it.
FILES: dict[str, Any] = {
    "auth_file of ZooKeeper": (login, lambda f: zookeeper_address(f"zk://h/l?auth_file={f}")),
    "sasl_file": (login, lambda f: zookeeper_address(f"zk://h/l?sasl_file={f}")),
    "auth_file of etcd": (login, lambda f: etcd_address(f"etcd://h/l?auth_file={f}")),
    "tls.key_file of etcd": (key_of_etcd, tls_of_etcd),
}


@pytest.mark.parametrize("which", FILES)
def test_a_file_that_kubernetes_mounts_is_read_and_its_target_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    make, read = FILES[which]
    file = make(tmp_path)
    assert file.is_symlink()
    assert read(file)
    file.resolve().chmod(0o644)
    with pytest.raises(ConfigError, match="everybody may read it") as caught:
        read(file)
    assert "canary" not in str(caught.value)
    file.resolve().chmod(0o600)
    if os.geteuid() == 0:
        os.chown(file.resolve(), 4711, -1)
        monkeypatch.setattr(os, "geteuid", lambda: 4712)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read(file)
