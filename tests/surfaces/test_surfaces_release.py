"""What can be published: wheel and sdist are whole, and two builds are the same bytes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from tools import long_description, release  # noqa: E402 - the path comes first

#: What CI has no time for: 40 to 450 MB each, or built from C. `make release` tries them.
LARGE = {"spark", "delta", "iceberg", "arrow", "kerberos"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The directories of two builds: of copies in different places, made at different times."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    files = [name for name in listed if name and (ROOT / name).is_file()]
    found = []
    for number in range(2):
        source = tmp_path_factory.mktemp(f"tree-{number}" * (number + 1))
        for name in files:
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
            target.chmod((ROOT / name).stat().st_mode)
            os.utime(target, (1e9 + number, 1e9 + number))
        target = tmp_path_factory.mktemp("dist")
        digests = release.packed(source, target, epoch="1700000000")
        found.append((target, digests))
    return found


def test_two_builds_have_the_same_bytes_and_are_fit_for_the_index(built):
    (directory, first), (_, second) = built
    assert len(first) == 2
    assert first == second
    release.checked(sorted(directory.iterdir()))


def test_the_wheel_has_every_module_and_the_files_of_deployments(built):
    (wheel,) = built[0][0].glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        (metadata,) = (name for name in held if name.endswith(".dist-info/METADATA"))
        said = archive.read(metadata).decode()
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources <= held
    deployed = {f"quorumbook/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "deploy").rglob("*")
                if p.is_file()}  # fmt: skip
    assert deployed <= held
    assert not [name for name in held if name.startswith(("tests", "tools", "docs"))]
    assert f"Version: {release.version()}\n" in said
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    address = release.addresses((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert said.endswith(long_description.described(readme, address.get("Repository")))


#: What follows a link's words: a file beside the README, which an index does not have.
RELATIVE = re.compile(r"\]\((?!https://)")


def test_no_link_of_the_readme_is_dead_on_a_package_index():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert RELATIVE.search(readme)
    without = long_description.described(readme, None)
    assert not RELATIVE.search(without)
    assert "[" not in without.partition("## Install")[0]  # nor the picture's words
    assert "- Tutorials: a quarter of an hour each" in without
    address = "https://code.example.org/us/quorumbook"
    found = long_description.described(readme, address)
    assert not RELATIVE.search(found)
    assert f"nothing is lost]({address}/raw/HEAD/docs/images/demo.svg)" in found
    for file in re.findall(rf"\({address}/(?:blob|raw)/HEAD/([^)#]+)", found):
        assert (ROOT / file).exists(), file
    elsewhere = "[a](https://example.org/x) [b](#install)"
    assert long_description.described(elsewhere, None) == elsewhere


def test_the_sdist_has_what_a_build_and_the_tests_need(built):
    (sdist,) = built[0][0].glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "Makefile", "README.md", "LICENSE", "requirements.lock",
              "requirements-oldest.txt", "src/quorumbook/__init__.py", "tests/conftest.py",
              "docs/index.md", "deploy/certificates.sh", "tools/release.py"}  # fmt: skip
    assert needed <= held


def test_every_extra_is_tried_by_the_release():
    assert set(release.extras()) | {"kerberos"} == set(release.NEEDING)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("extra", ["", *(x for x in release.extras() if x not in LARGE)])
def test_the_wheel_runs_in_an_empty_environment(built, tmp_path, extra):
    said = release.try_out(built[0][0], tmp_path / "empty", *([extra] if extra else []))
    assert said.endswith(release.version())


def test_an_extra_that_lacks_a_package_is_found(built, tmp_path, monkeypatch):
    monkeypatch.setitem(release.NEEDING, "demo", "fastavro")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        release.try_out(built[0][0], tmp_path / "empty", "demo")
    assert "No module named 'fastavro'" in caught.value.stderr


#: A pyproject.toml before the first release.
PYPROJECT = """
[project]
name = "quorumbook"
optional-dependencies = { demo = [] }

[project.scripts]
quorumbook = "quorumbook.cli:main"
"""


def test_the_projects_address_is_written_down_once():
    after = release.with_address(PYPROJECT, "https://code.example.org/us/quorumbook/")
    assert release.addresses(after) == {
        "Homepage": "https://code.example.org/us/quorumbook",
        "Repository": "https://code.example.org/us/quorumbook",
        "Issues": "https://code.example.org/us/quorumbook/issues",
    }
    assert tomllib.loads(after)["project"]["scripts"] == {"quorumbook": "quorumbook.cli:main"}
    with pytest.raises(ValueError, match="already"):
        release.with_address(after, "https://code.example.org/us/other")
    wrong = ["", "quorumbook", "http://example.org/x", "https://127.0.0.1/x", "https://localhost/x"]
    for address in (*wrong, "https://example.org", 'https://example.org/"x'):
        with pytest.raises(ValueError, match="public repository"):
            release.with_address(PYPROJECT, address)


def test_what_has_no_public_address_is_not_laid_where_releases_are_taken_from(
    monkeypatch, tmp_path
):
    file = tmp_path / "pyproject.toml"
    file.write_text(PYPROJECT, encoding="utf-8")

    def built(target):
        target.mkdir()
        (target / "quorumbook.whl").touch()
        return {"quorumbook.whl": "0"}

    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "build", built)
    monkeypatch.setattr(release, "checked", lambda _: None)
    monkeypatch.setattr(release, "try_out", lambda *_: "quorumbook 0.1.0")
    monkeypatch.setattr(release, "bill", lambda *_: 7)
    with pytest.raises(SystemExit, match="make release-address ADDRESS="):
        release.build_and_check()
    assert not (tmp_path / "dist").exists()
    release.name_address("https://code.example.org/us/quorumbook")
    release.build_and_check()
    assert (tmp_path / "dist" / "quorumbook.whl").is_file()
