"""The house rules that no linter knows: sizes, banned calls, dead modules, complete documents."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import click
import pytest
from sources import lines_of, tree_of

from quorumbook.cli.main import root
from quorumbook.config import OPTIONS, Kind, Option

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "quorumbook"
MODULES = sorted(SOURCE.rglob("*.py"))
PYTHON = [
    *MODULES,
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted((ROOT / "bench").rglob("*.py")),
    *sorted((ROOT / "examples").rglob("*.py")),
]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

LINES_OF_A_FILE = 500
LINES_OF_A_FILE_HARD = 700
LINES_OF_A_FUNCTION = 60
NAMES_THAT_SAY_NOTHING = {
    "base", "book", "care", "chosen", "common", "core", "helper", "helpers", "misc", "on_top",
    "other", "several", "things", "turns", "util", "utils", "various",
}  # fmt: skip
MODULES_OF_A_FOLDER = 15

#: Rooms that reach the outside world through ``quorumbook.env`` only.
_ROOMS_BEHIND_ENV = ("storage", "bookie", "client", "metadata", "autorecovery", "streams")
#: Files there whose contract is the outside world itself.
_OUTSIDE_ITSELF = {"storage/index/tables.py", "storage/index/files.py", "metadata/memory.py"}
_BANNED_MODULES = {"time", "random", "socket", "threading", "subprocess", "datetime", "secrets"}
#: Pure functions on text, wherever they live.
_PURE_OF_OS = {"join", "basename", "dirname", "normpath", "abspath", "splitext", "sep", "split"}
#: What may be imported by nobody: programs and pytest plugins start here, and Spark's sources.
_ENTRY_POINTS = {
    "quorumbook", "quorumbook.__main__", "quorumbook.testing", "quorumbook.sync",
    "quorumbook.spark.data_source",
}  # fmt: skip


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _is_behind_env(path: Path) -> bool:
    inside = path.relative_to(SOURCE).as_posix()
    return (
        inside.partition("/")[0] in _ROOMS_BEHIND_ENV
        and inside not in _OUTSIDE_ITSELF
        and not inside.startswith("metadata/sqlite")
    )


def outside_calls(tree: ast.AST) -> list[str]:
    """Return what reaches the outside world without ``quorumbook.env``."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                banned = [alias.name for alias in names if alias.name in _BANNED_MODULES]
                found += [f"line {node.lineno}: import {name}" for name in banned]
            case ast.ImportFrom(module=str(module)) if module in _BANNED_MODULES:
                found.append(f"line {node.lineno}: from {module} import")
            case ast.Call(func=ast.Name(id="open")):
                found.append(f"line {node.lineno}: open()")
            case ast.Attribute(value=ast.Name(id="os"), attr=attribute) if attribute != "path":
                found.append(f"line {node.lineno}: os.{attribute}")
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=attribute
            ) if attribute not in _PURE_OF_OS:
                found.append(f"line {node.lineno}: os.path.{attribute}")
    return found


def long_functions(tree: ast.AST) -> list[str]:
    """Return the functions that are too long, their docstrings not counted."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        first = node.body[0]
        if ast.get_docstring(node) is not None:
            lines -= (first.end_lineno or first.lineno) - first.lineno + 1
        if lines > LINES_OF_A_FUNCTION:
            found.append(f"{node.name}: {lines} lines")
    return found


def imported_modules(path: Path, tree: ast.AST) -> set[str]:
    """Return the project's modules that a file imports, names imported from packages included."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Modules imported lazily are named in tables, "module:attribute".
            head = node.value.partition(":")[0]
            if re.fullmatch(r"[a-z_.]+", head):
                package = ".".join(("quorumbook", *path.relative_to(SOURCE).parts[:-1]))
                found |= {head, f"{package}.{head}"}
    return {name for name in found if name.startswith("quorumbook")}


# A rule is one test, not one for each file: eight thousand cost more than what they looked at.


def test_a_file_is_short_enough_to_be_read():
    long = [
        f"{_name(p)}: {len(lines_of(p))}" for p in PYTHON if len(lines_of(p)) > LINES_OF_A_FILE_HARD
    ]
    assert long == [], "split it by what changes for other reasons"


def test_a_folder_holds_no_more_modules_than_can_be_taken_in():
    held = Counter(path.parent for path in MODULES)
    assert [_name(folder) for folder, n in held.items() if n > MODULES_OF_A_FOLDER] == []


def test_a_module_s_name_says_what_it_holds():
    silent = [
        _name(path)
        for path in MODULES
        if NAMES_THAT_SAY_NOTHING & set(path.relative_to(SOURCE).with_suffix("").parts)
    ]
    assert silent == []
    # Two that differ by who does it, such as flush.py beside flusher.py, are not told apart.
    alike = [
        _name(path)
        for path in MODULES
        for ending in ("er", "ing")
        if path.with_name(f"{path.stem.removesuffix('e')}{ending}.py").exists()
    ]
    assert alike == []


def test_no_module_is_beyond_five_hundred_lines():
    long = [
        f"{_name(path)}: {lines}"
        for path in MODULES
        if (lines := len(lines_of(path))) > LINES_OF_A_FILE
    ]
    assert long == []


def test_a_function_fits_on_a_screen():
    long = [f"{_name(path)}: {found}" for path in PYTHON for found in long_functions(tree_of(path))]
    assert long == []


def test_a_module_says_what_it_is_for():
    assert [_name(path) for path in MODULES if not ast.get_docstring(tree_of(path))] == []


def test_rooms_behind_env_reach_the_outside_through_it():
    behind = [path for path in MODULES if _is_behind_env(path)]
    assert len(behind) > 300
    assert [
        f"{_name(path)}: {call}" for path in behind for call in outside_calls(tree_of(path))
    ] == []


def test_nothing_is_left_to_be_done_later():
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
    assert _lines_that(lambda line: marks.search(line) is not None) == []


def test_no_merge_was_left_half_done():
    assert _lines_that(lambda line: line.startswith(("<<<<<<<", ">>>>>>>"))) == []


def _lines_that(are_wrong: Callable[[str], bool]) -> list[str]:
    return [
        f"{_name(path)}:{number}: {line}"
        for path in (*PYTHON, *DOCUMENTS)
        for number, line in enumerate(lines_of(path), 1)
        if are_wrong(line)
    ]


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_by(path: Path, known: set[str]) -> set[str]:
    """Return the modules that a file imports, also in functions and for a type checker alone."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in below}
    return (found & known) - {_module(path)}


def test_no_modules_import_each_other_in_a_circle():
    known = {_module(path) for path in MODULES}
    graph = {_module(path): _imported_by(path, known) for path in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_no_class_name_is_used_twice():
    """But the blocking twins have the names of those that do their work."""
    named: dict[str, list[str]] = {}
    for path in MODULES:
        is_twin = path.relative_to(SOURCE).parts[0] == "sync"
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                named.setdefault(f"{is_twin} {node.name}", []).append(_name(path))
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


def test_every_module_that_is_imported_exists():
    """Also where only somebody who measures would notice: in bench, tools and examples."""
    there = {_module(path) for path in MODULES}
    there |= {".".join(name.split(".")[:-1]) for name in there}
    missing = {
        f"{_name(path)}: {node.module}"
        for path in [*PYTHON, *sorted((ROOT / "tools").rglob("*.py"))]
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] == "quorumbook"
        and node.module not in there
    }
    assert missing == set()


def test_every_module_is_used():
    used: set[str] = set()
    for path in MODULES:
        used |= imported_modules(path, tree_of(path))
    dead = []
    for path in MODULES:
        name = _module(path)
        if path.name != "__init__.py" and name not in used and name not in _ENTRY_POINTS:
            dead.append(name)
    assert dead == []


def row_of(option: Option) -> str:
    """Return the line that documents an option."""
    default = option.default
    if isinstance(default, tuple):
        shown = ", ".join(default)
    elif option.kind is Kind.SIZE and isinstance(default, int):
        shown = f"{default >> 20}M" if default and default % (1 << 20) == 0 else str(default)
    else:
        shown = option.as_text(default)
    cells = (
        f"`{option.name}`",
        f"`{shown}`" if shown else "",
        option.kind.value + (f", {option.bounds()}" if option.bounds() else ""),
        f"`{option.peer_key}`" if option.peer_key else "",
        option.help,
    )
    return f"| {' | '.join(cells)} |"


def test_every_option_is_documented_as_it_is():
    lines = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8").splitlines()
    missing = [row_of(option) for option in OPTIONS if row_of(option) not in lines]
    assert missing == [], "docs/configuration.md lacks:\n" + "\n".join(missing)
    written = {line for line in lines if re.match(r"\| `[a-z_]+` \|", line)}
    assert written == {row_of(option) for option in OPTIONS}


def _commands(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command)
    found = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        found += _commands(child, f"{path} {name}")
    return found


@pytest.mark.parametrize(("path", "command"), _commands(root, "quorumbook"))
def test_every_command_and_its_options_are_documented(path, command):
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    heading = re.search(rf"^### `{path}\b[^`]*`$", text, re.MULTILINE)
    assert heading, f"docs/commands.md has no heading for `{path}`"
    section = text[heading.start() :].split("\n### ", 1)[0]
    common = {"--metadata", "--context", "--config", "--set", "-v", "-o"}
    common |= {"--log-format", "--log-level"}
    if path.startswith("quorumbook spark "):
        shared = text[re.search(r"^### `quorumbook spark JOB`$", text, re.MULTILINE).start() :]
        common |= set(re.findall(r"^\| `(--[a-z-]+)", shared.split("\n### ", 1)[0], re.MULTILINE))
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert common & set(parameter.opts) or any(
                f"`{name}" in section for name in parameter.opts
            ), f"`{path} {parameter.opts[0]}` is not in docs/commands.md"


def rows_with_tests(text: str) -> list[str]:
    """Return the rows of all tables whose last column is headed "test"."""
    rows: list[str] = []
    has_tests = False
    for line, following in pairwise([*text.splitlines(), ""]):
        if re.fullmatch(r"[|-]+", following):
            has_tests = line.endswith("| test |")
        elif has_tests and line.startswith("| "):
            rows.append(line)
    return rows


@pytest.mark.parametrize(
    "page", ["divergence.md", "compatibility.md", "explanation/operating-tools.md"]
)
def test_what_is_said_of_us_beside_others_is_pinned_by_tests_that_exist(page):
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    existing = set(re.findall(r"def (test_\w+)", tests))
    rows = rows_with_tests((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row.rsplit("|", 2)[1])
        assert named, row
        assert set(named) <= existing, row


def test_what_is_said_of_other_tools_has_its_source():
    text = (ROOT / "docs/explanation/operating-tools.md").read_text(encoding="utf-8")
    for row in rows_with_tests(text):
        for cell in map(str.strip, row.strip("| ").split(" | ")[2:-1]):
            assert cell in (
                "\N{EN DASH}",
                "no pages",
                "no such thing",
                "not tried",
            ) or re.fullmatch(r"\[.+\]\(https://\S+\)", cell), row


def test_files_that_the_architecture_names_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_*]+)*(?:\.py|/))`", text))
    assert len(named) > 20
    known = {
        name for place in (SOURCE, ROOT) for name in named if list(place.glob(name.rstrip("/")))
    }
    assert sorted(named - known) == []


def test_the_architecture_has_a_paragraph_for_every_room():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^- \*\*`([a-z]+)/`\*\* ", text, re.MULTILINE))
    assert told == {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def test_unit_tests_stand_where_the_rooms_stand_and_say_so():
    """``tests/unit/storage/test_storage_...py`` is about ``src/quorumbook/storage``."""
    files = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))
    strays = [
        _name(path)
        for path in files
        if path.parent.parent.name != "unit"
        or not (SOURCE / path.parent.name).is_dir()
        or not path.name.startswith(f"test_{path.parent.name}_")
    ]
    assert files
    assert strays == []


def test_twenty_questions_are_answered_by_names_of_folders_alone():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|`]+ \| ([a-z_ →]+) \| `([a-z_/]+)\.py` \|$", text, re.MULTILINE)
    assert len(rows) == 20
    for path, file in rows:
        assert path.split(" → ") == file.split("/")
        assert (SOURCE / f"{file}.py").is_file()


def test_links_between_documents_lead_somewhere():
    """Links to pages that the site generates are held by its strict build."""
    generated = re.compile(r"(?:^|/)(?:troubleshooting\.md|reference/api/|reference/index\.md)")
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", path.read_text()):
            there = (path.parent / target).exists() or generated.search(target)
            assert there, f"{_name(path)} links to {target}"


def test_the_site_leads_to_every_page_and_contributing_to_every_directory_of_tests():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    pages = [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))]
    assert [page for page in pages if f" {page}\n" not in site] == []
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = {path.parent.name for path in (ROOT / "tests").glob("*/*test_*.py")}
    assert [name for name in sorted(found) if f"| `tests/{name}/` |" not in contributing] == []


def test_python_without_asserts_is_refused():
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-O", "-m", "quorumbook", "config", "show"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "python -O" in done.stderr


# The rules themselves find what they are for.


def test_the_rule_about_the_outside_finds_what_it_bans():
    bad = "import time\nfrom random import random\nopen('x')\nos.replace('a')\nos.path.exists('a')"
    assert len(outside_calls(ast.parse(bad))) == 5
    assert outside_calls(ast.parse("import asyncio\nos.path.join('a', 'b')\nfile.open('x')")) == []


def test_the_rule_about_functions_does_not_count_docstrings():
    body = "\n".join("    x = 1" for _ in range(58))
    assert long_functions(ast.parse(f'def f():\n    """A\n\n\n    B."""\n{body}')) == []
    body = "\n".join("    x = 1" for _ in range(60))
    assert long_functions(ast.parse(f"def f():\n{body}")) == ["f: 61 lines"]


def test_a_logger_that_is_named_by_its_text_is_one_that_somebody_logs_to():
    sources = [path.read_text(encoding="utf-8") for path in MODULES]
    made = {name for text in sources for name in re.findall(r'\blogger\("([a-z._]+)"\)', text)}
    named = {
        name
        for text in sources
        for name in re.findall(r'getLogger\("quorumbook\.([a-z._]+)"\)', text)
    }
    assert named
    assert named <= made
