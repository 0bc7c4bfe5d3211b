"""Lays the site of this version beside those of others: ``python -m tools.website.versions DIR``.

Each version has a directory of its own under ``DIR``, so that a link to a page of an old version
stays good.  ``versions.json`` is what the site's selector reads, in the form of ``mike``, a tool
that does the same on a branch of git.  The directory is what a web server serves: its first page
leads to the newest version.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from tools.website import reference

_FIRST_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Quorumbook</title>
<meta http-equiv="refresh" content="0; url={newest}/index.html"></head>
<body><a href="{newest}/index.html">Quorumbook {newest}</a></body>
</html>
"""


def placed(site: Path, directory: Path, version: str) -> list[str]:
    """Copy a built site to its version's place; return all versions, the newest first."""
    target = directory / version
    if target.is_dir():
        shutil.rmtree(target)
    shutil.copytree(site, target)
    names = (path.parent.name for path in directory.glob("*/index.html"))
    versions = sorted(names, key=_order, reverse=True)
    listed = [
        {"version": name, "title": name, "aliases": ["latest"] if name == versions[0] else []}
        for name in versions
    ]
    (directory / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    (directory / "index.html").write_text(_FIRST_PAGE.format(newest=versions[0]), encoding="utf-8")
    return versions


def _order(version: str) -> tuple[tuple[int, ...], bool, str]:
    """Return what orders versions: 0.10 is newer than 0.9, and 1.0 newer than 1.0rc1."""
    numbers, rest = re.fullmatch(r"([\d.]*)(.*)", version, re.DOTALL).groups()  # type: ignore[union-attr]
    return tuple(int(each) for each in numbers.split(".") if each), not rest, rest


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    found = placed(root / "build" / "site", Path(sys.argv[1]), reference.version())
    sys.stdout.write(f"{sys.argv[1]}: {', '.join(found)}\n")
