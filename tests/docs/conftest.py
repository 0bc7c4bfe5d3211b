"""The site, built once for all tests that look at it; they share a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from docs.pages import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The directory of the site, as `make docs` builds it."""
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return directory
