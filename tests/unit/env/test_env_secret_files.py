"""A file with a secret: by a link as well, but not anybody's, and not for everybody."""

from __future__ import annotations

import os

import pytest

from quorumbook.env.secret_files import read_secret_file
from quorumbook.errors import ConfigError


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"canary-secret")
    path.chmod(0o600)
    return path


def test_a_secret_is_read_by_links_as_kubernetes_mounts_it(tmp_path, secret):
    data = tmp_path / "..2026"
    data.mkdir()
    secret.rename(data / "auth")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "auth").symlink_to("..data/auth")
    assert read_secret_file(str(tmp_path / "auth"), "auth_file") == b"canary-secret"


def test_a_link_does_not_hide_who_may_read_its_target(tmp_path, secret):
    secret.chmod(0o644)
    (tmp_path / "link").symlink_to(secret)
    with pytest.raises(ConfigError, match=r"auth_file .*link.*everybody may read it.*chmod o-r"):
        read_secret_file(str(tmp_path / "link"), "auth_file")


def test_a_group_may_read_a_secret(secret):
    secret.chmod(0o640)
    assert read_secret_file(str(secret), "x") == b"canary-secret"


def test_somebody_elses_file_is_no_secret_of_ours(secret, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: secret.stat().st_uid + 1)
    if secret.stat().st_uid == 0:
        assert read_secret_file(str(secret), "x") == b"canary-secret"
        os.chown(secret, 4711, -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_secret_file(str(secret), "x")


def test_pipes_directories_and_what_never_ends_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(ConfigError, match="is not a file"):
            read_secret_file(str(path), "x")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_secret_file(str(tmp_path / "none"), "x")


def test_what_is_too_large_is_refused_without_showing_any_of_it(secret):
    secret.write_bytes(b"c" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="larger than a secret") as caught:
        read_secret_file(str(secret), "x")
    assert "ccc" not in str(caught.value)
