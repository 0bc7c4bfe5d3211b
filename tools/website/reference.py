"""Pages that are generated from the code: what Python can import, and every error."""

from __future__ import annotations

import ast
import importlib
import inspect
from functools import cache
from itertools import pairwise

import quorumbook
from quorumbook.cli.explained.codes import explanations
from quorumbook.errors import QuorumbookError

#: The public modules, and what each is for.
MODULES = {
    "quorumbook": "Ledgers: connect, create, append, read.",
    "quorumbook.streams": "Streams: logs without an end, cursors, consumer groups, tables.",
    "quorumbook.streams.transactions": "Many processes append to many streams in one step.",
    "quorumbook.sync": "The same as `quorumbook`, without asyncio.",
    "quorumbook.sync.streams": "The same as `quorumbook.streams`, without asyncio.",
    "quorumbook.testing": "A cluster for your own tests.",
    "quorumbook.spark": "Ledgers and streams as Spark tables.",
}
#: The name that a program begins with.
_FIRST_NAMES = {
    "quorumbook": "connect",
    "quorumbook.streams": "Namespace",
    "quorumbook.streams.transactions": "Application",
    "quorumbook.sync": "connect",
    "quorumbook.sync.streams": "Namespace",
    "quorumbook.testing": "LocalCluster",
    "quorumbook.spark": "spark_session",
}
ERRORS = {
    "quorumbook.errors": "Every error of ledgers, bookies and metadata.",
    "quorumbook.streams.errors": "Every error of streams.",
}
#: How one of them is met: the error, what raises it, and what to do.
_EXAMPLES = {
    "quorumbook.errors": (
        "LedgerFencedError", 'await ledger.append(b"...")',
        "another client took the ledger over: stop",
    ),
    "quorumbook.streams.errors": (
        "WriterFencedError", 'await writer.append(b"...")',
        "another writer took the stream over: stop",
    ),
}  # fmt: skip


def version() -> str:
    """Return the version of the package."""
    return quorumbook.__version__


def pages() -> dict[str, str]:
    """Return the generated pages by their place."""
    found = {f"reference/api/{name}.md": _module(name) for name in MODULES}
    found |= {f"reference/api/{name}.md": _error_page(name) for name in ERRORS}
    found["reference/index.md"] = _index()
    found["troubleshooting.md"] = _troubleshooting()
    return found


@cache
def exported(module: str) -> tuple[str, ...]:
    """Return the names that a module exports."""
    return tuple(n for n in importlib.import_module(module).__all__ if not n.startswith("__"))


def problems() -> list[str]:
    """Return exported names, and their public methods, that nothing explains."""
    found = []
    for module in MODULES:
        home = importlib.import_module(module)
        for name in exported(module):
            value = getattr(home, name)
            if not _said_of(module, name):
                found.append(f"{module}.{name} has no docstring")
            if inspect.isclass(value):
                found += [f"{module}.{name}.{each} has no docstring" for each in _bare(value)]
    return found


def _bare(kind: type) -> list[str]:
    """Return the public methods of a class without a docstring, inherited or not."""
    return [
        name
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
        and (getattr(value, "__module__", None) or "quorumbook").startswith("quorumbook")
        and not inspect.getdoc(value)
    ]


def _module(name: str) -> str:
    lines = [f"# {name}", "", MODULES[name], ""]
    exports = exported(name)
    lines += ["```python", f"from {name} import {_FIRST_NAMES[name]}", "```", ""]
    lines += ["| name | what it is |", "|---|---|"]
    for each in exports:
        summary = _summary(_said_of(name, each))
        lines.append(f"| [`{each}`][{name}.{each}] | {summary} |")
    for each in exports:
        lines += ["", f"::: {name}.{each}"]
    return "\n".join(lines) + "\n"


def _said_of(module: str, name: str) -> str:
    """Return the docstring of an exported name; that of a value stands behind it."""
    home = importlib.import_module(module)
    value = getattr(home, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return inspect.getdoc(value) or ""
    body = ast.parse(inspect.getsource(home)).body
    for node in body:
        if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names):
            return _said_of(str(node.module), name)
    for node, behind in pairwise(body):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(behind, ast.Expr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                return str(ast.literal_eval(behind.value))
    return ""


def _summary(text: str) -> str:
    first = text.split("\n\n", maxsplit=1)[0].replace("\n", " ").replace("|", "\\|")
    return first.replace("``", "`")


def errors_of(module: str) -> list[type[QuorumbookError]]:
    """Return the errors that a module defines, in its order."""
    home = importlib.import_module(module)
    return [
        value
        for value in vars(home).values()
        if inspect.isclass(value)
        and issubclass(value, QuorumbookError)
        and value.__module__ == module
    ]


def _error_page(name: str) -> str:
    error, call, advice = _EXAMPLES[name]
    lines = [
        f"# {name}", "", ERRORS[name],
        "`code` is the result code of the Java client. "
        "An error is *retriable* where the same call may succeed later.", "",
        "```python", f"from {name} import {error}", "",
        "try:", f"    {call}", f"except {error}:", f"    ...  # {advice}",
        "```", "",
    ]  # fmt: skip
    for kind in errors_of(name):
        bases = ", ".join(each.__name__ for each in kind.__bases__)
        retriable = "yes" if kind.retriable else "no"
        lines += [
            f"## `{kind.__name__}` {{ #{name}.{kind.__name__} }}", "",
            (inspect.getdoc(kind) or "").replace("``", "`"), "",
            f"A kind of `{bases}`. Code {kind.code}. Retriable: {retriable}.", "",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _troubleshooting() -> str:
    lines = [
        "# Troubleshooting", "",
        "The line of an error or of a warning ends with its code, and a command explains it:", "",
        "```sh", "quorumbook help ledger-fenced", "```", "",
        "A line without a code tells what was done, or how far a command is.", "",
        "Here are all codes. Search for the code, or for words of the message.", "",
    ]  # fmt: skip
    for code, (happened, advice, kind) in explanations().items():
        of = f"`{kind.__name__}`: " if kind is not None else ""
        lines += [f"## {code}", "", f"{of}{happened}", ""]
        lines += [f"- {sentence}" for sentence in advice]
        lines.append("")
        if kind is not None:
            home = kind.__module__
            lines += [f"In Python: [`{home}.{kind.__name__}`](reference/api/{home}.md#{home}."
                      f"{kind.__name__})", ""]  # fmt: skip
    return "\n".join(lines) + "\n"


def _index() -> str:
    lines = [
        "# Reference", "",
        "Look up a name, a command, an option, an error or a byte.", "",
        "```python", "import quorumbook", "", 'bk = quorumbook.connect("zk://h1:2181/ledgers")',
        "```", "", "| module | what it has |", "|---|---|",
    ]  # fmt: skip
    for name, words in (MODULES | ERRORS).items():
        lines.append(f"| [`{name}`](api/{name}.md) | {words} |")
    return "\n".join(lines) + "\n"
