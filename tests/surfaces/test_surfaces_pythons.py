"""Other Pythons: where one that is missing is brought from, and that its lack is no failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from tools import debian_python, pythons  # noqa: E402 - the path comes first


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("sources.list", "deb http://mirror.example/debian bookworm main\n"),
        ("sources.list.d/debian.sources",
         "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\n"),
        ("sources.list.d/debian.sources",
         "# http://old.example/archive/debian/20250520T000000Z\nURIs: http://mirror.example/debian\n"),
    ],
)  # fmt: skip
def test_the_mirror_is_the_one_that_apt_uses(tmp_path, file, text):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    (tmp_path / "sources.list.d").mkdir(exist_ok=True)
    (tmp_path / "sources.list.d" / "a.list").write_text("deb https://other.example/apt x main\n")
    path.write_text(text)
    assert debian_python.mirror(tmp_path) == "http://mirror.example/debian"


def test_without_a_mirror_of_debian_the_error_says_so(tmp_path):
    with pytest.raises(OSError, match="no mirror of Debian"):
        debian_python.mirror(tmp_path)


def test_a_python_that_cannot_be_had_is_named_and_is_no_failure(monkeypatch, capsys, tmp_path):
    def fetched(minor):
        raise subprocess.CalledProcessError(100, "apt-get", stderr="E: Unable to locate package")

    tried = []
    monkeypatch.setattr(pythons, "interpreters", lambda: {11: sys.executable})
    monkeypatch.setattr(pythons, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(pythons, "MINORS", (11, 14))
    monkeypatch.setattr(debian_python, "fetched", fetched)
    monkeypatch.setattr(pythons, "tried", lambda name, *_, oldest=False: tried.append(name) or True)
    monkeypatch.setattr(sys, "argv", ["pythons", "--fetch"])
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    assert pythons.main() == 0
    assert (
        "3.14 is not on this machine, so it is not tried: E: Unable to loc"
        in capsys.readouterr().out
    )
    assert tried == ["3.11-oldest"]
    monkeypatch.setattr(debian_python, "fetched", lambda minor: tmp_path / "python3.14")
    assert pythons.main() == 0
    assert tried == ["3.11-oldest", "3.14", "3.11-oldest"]
