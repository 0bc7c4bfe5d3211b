"""What the README and the documents show works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def _run(code, directory):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=directory, check=False, timeout=100,
        env={k: v for k, v in os.environ.items() if not k.startswith("QUORUMBOOK_")},
    )  # fmt: skip


def test_the_first_example_runs_on_a_cluster(cluster, tmp_path):
    uri = "sqlite:///quorumbook-data/metadata.db"
    assert uri in EXAMPLES[0]
    done = _run(EXAMPLES[0].replace(uri, cluster.metadata_uri), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 hello", "1 world"]
    assert "    0 hello\n    1 world\n" in README
    assert done.stderr == ""


def test_the_readme_is_one_page():
    assert len(README.splitlines()) <= 80
    assert len(EXAMPLES[0].strip().splitlines()) <= 12


def test_the_local_cluster_example_runs(tmp_path):
    done = _run(EXAMPLES[1], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sqlite:///")


def test_the_make_targets_of_the_readme_exist():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make (\w+)`|^    make (\w+)", README, re.MULTILINE)):
        assert re.search(rf"^{''.join(target)}:", makefile, re.MULTILINE)
