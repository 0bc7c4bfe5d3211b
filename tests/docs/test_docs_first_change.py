"""The first change that CONTRIBUTING shows works as it is shown, on a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from docs.pages import ROOT, blocks, fits

SECTION = (
    (ROOT / "CONTRIBUTING.md")
    .read_text(encoding="utf-8")
    .partition("\n## A first change")[2]
    .partition("\n## ")[0]
)
DIFFS = re.findall(r"^```diff\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
_COPIED = ("src", "tests/conftest.py", "tests/doubles", "tests/interop", "tests/unit/cli")
_FILES = ("pyproject.toml", "Makefile", "CHANGELOG.md", "docs/configuration.md")


@pytest.fixture
def tree(tmp_path):
    """A copy of what the change touches and what its test needs."""
    for name in (*_COPIED, *_FILES):
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    return tmp_path


def test_a_first_change_s_test_fails_before_and_passes_after(tree):
    (shown,) = (block for block in blocks(SECTION) if block.text.startswith("make test"))
    words = re.search(r"TESTS=(\S+)", shown.text)
    assert words is not None
    (said,) = (block.text for block in blocks(SECTION) if block.language == "text")

    def run() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", words[1]], cwd=tree, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": str(tree / "src")}, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    test, change, documents = DIFFS
    _apply(tree, test)
    code, printed = run()
    assert code == 1, printed
    assert any(fits(said, line) for line in printed.splitlines()), printed
    _apply(tree, change)
    code, printed = run()
    assert code == 0, printed
    _apply(tree, documents)
    for tool in (["format", "--check"], ["check"]):
        words_ = [sys.executable, "-m", "ruff", *tool, "src/quorumbook/options.py"]
        done = subprocess.run(words_, cwd=tree, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def _apply(tree, diff):
    done = subprocess.run(
        ["git", "apply", "--unidiff-zero", "-"], cwd=tree, input=diff,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
