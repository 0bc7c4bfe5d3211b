"""``quorumbook support-bundle``: listed before it is written, and no secret is in it."""

from __future__ import annotations

import stat
import tarfile

import pytest

CANARY = "Kanarienvogel-4711"


@pytest.fixture
def place(tmp_path):
    """A directory in which every secret of a configuration is a canary."""
    for name in ("secret", "tokens", "key.pem"):
        (tmp_path / name).write_text(f"{CANARY}\n")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "quorumbook.toml").write_text(
        "[client]\n"
        'auth_plugin = "my.module:Plugin"\n'
        f'auth_settings = "{CANARY}"\n'
        "[http]\n"
        f'token_file = "{tmp_path}/tokens"\n'
        "[admin]\n"
        f'token_file = "{tmp_path}/tokens"\n'
        f'certificate_file = "{tmp_path}/key.pem"\n'
        f'key_file = "{tmp_path}/key.pem"\n'
    )
    (tmp_path / "bookie.log").write_text(
        "INFO started\n"
        f"WARNING password={CANARY}\n"
        f"INFO connects to zk://user:{CANARY}@zk1:2181/ledgers\n"
        f"DEBUG Authorization: Bearer {CANARY}\n"
    )
    return tmp_path


def contents(path):
    with tarfile.open(path) as bundle:
        return {
            member.name.removeprefix("quorumbook-support/"): bundle.extractfile(member).read()
            for member in bundle
        }


def test_no_secret_is_in_a_bundle_and_its_content_is_listed_first(quorumbook, place):
    words = ("support-bundle", "--log", "bookie.log", "--to", "b.tar.gz")
    listed = quorumbook(*words, code=2).err
    assert not (place / "b.tar.gz").exists()
    assert "add --yes to confirm" in listed
    plain = ("--set", "client.auth_plugin=", "--set", "client.auth_settings=")
    quorumbook("ledger", "write", "--password", CANARY, *plain, stdin=b"one\n")
    done = quorumbook(*words, "--yes")
    found = contents(place / "b.tar.gz")
    assert found.keys() == {
        "doctor.json", "configuration.json", "status.json", "logs/bookie.log",
    }  # fmt: skip
    for name, content in found.items():
        assert name in listed
        assert CANARY.encode() not in content, name
    assert CANARY not in done.text + done.err + listed
    # It is not empty of what helps.
    assert b"INFO started" in found["logs/bookie.log"]
    assert b'"client.auth_settings"' in found["configuration.json"]
    assert b'"writable_bookies": 3' in found["status.json"]
    assert stat.S_IMODE((place / "b.tar.gz").stat().st_mode) == 0o600


def test_a_file_that_is_there_is_kept_and_a_store_that_is_away_is_a_finding(quorumbook, place):
    (place / "mine").write_text("mine")
    assert "exists already" in quorumbook("support-bundle", "--to", "mine", "--yes", code=2).err
    assert (place / "mine").read_text() == "mine"
    nowhere = ("--metadata", f"sqlite:///{place}/none.db")
    quorumbook("support-bundle", "--to", "n.tar.gz", "--yes", *nowhere)
    assert b"there is no metadata file" in contents(place / "n.tar.gz")["status.json"]
