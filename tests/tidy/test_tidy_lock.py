"""The versions for development and CI are locked, each with its digests."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from sources import tree_of

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
OLDEST = (ROOT / "requirements-oldest.txt").read_text(encoding="utf-8")
#: Extras that `make pythons` installs: the others are large, or need what is not on PyPI.
_PORTABLE = ("arrow", "etcd", "schema")
#: What is asked for with the name of another: uvicorn always brings h11, pyiceberg[sql-sqlite]
#: SQLAlchemy; and whoever asks for a frame of Polars has Polars.
_OF_OTHERS = {"h11", "polars", "sqlalchemy"}
#: Its library is built where the headers are.
_NOT_LOCKED = {"kerberos"}


def pins(text: str = LOCK) -> dict[str, list[str]]:
    """Return the versions of each package: several where Pythons or platforms differ."""
    found: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE):
        found.setdefault(canonicalize_name(name), []).append(version)
    return found


def test_everything_that_pyproject_asks_for_is_locked_in_a_version_that_it_takes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    asked = [
        *project["project"]["dependencies"],
        *(each for each in project["dependency-groups"]["dev"] if isinstance(each, str)),
        *project["dependency-groups"]["test"],
        *(each for name, some in extras.items() if name not in _NOT_LOCKED for each in some),
    ]
    locked = pins()
    missing = []
    for each in map(Requirement, asked):
        if each.name == "quorumbook":  # several extras by one name
            continue
        versions = locked.get(canonicalize_name(each.name), [])
        if not versions or not all(each.specifier.contains(one) for one in versions):
            missing.append(f"{each}: {versions}")
    assert missing == [], "`make lock` chooses versions"


def test_the_oldest_versions_are_the_lower_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(each for name in _PORTABLE for each in extras[name])]
    oldest = pins(OLDEST)
    differing = []
    for each in map(Requirement, asked):
        (bound,) = (s.version for s in each.specifier if s.operator == ">=")
        found = [Version(one) for one in oldest.get(canonicalize_name(each.name), [])]
        if found != [Version(bound)]:
            differing.append(f"{each}: {found}")
    assert differing == [], "`make lock` writes them"


def test_every_locked_version_has_its_digests():
    blocks = re.split(r"^(?=[A-Za-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) > 100
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_whatever_the_package_imports_is_named_by_it_or_one_of_its_extras():
    """What others happen to bring along is missing where they do not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        canonicalize_name(Requirement(each).name)
        for some in (project["dependencies"], *project["optional-dependencies"].values())
        for each in some
    }
    imported: dict[str, str] = {}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Import):
                modules = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                modules = [node.module]
            else:
                continue
            imported |= {each.partition(".")[0]: f"{file.name} imports {each}" for each in modules}
    brought_by = packages_distributions()
    missing = {
        module: where
        for module, where in imported.items()
        if module not in sys.stdlib_module_names
        and not module.startswith(("quorumbook", "pyspark"))
        and not named & {canonicalize_name(each) for each in brought_by.get(module, [module])}
    }
    assert set(missing) <= _OF_OTHERS, missing
