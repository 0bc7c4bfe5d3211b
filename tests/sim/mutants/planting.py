"""Plants a bug in the running interpreter, for as long as a ``with`` lasts.

A bug is a piece of a source file and what stands there instead.  The changed source is compiled,
and each function whose code differs gets the changed code: the very objects that everybody has
imported change, and change back.  Production code knows nothing of it.

``*.toml`` beside this file list the bugs::

    [[mutant]]
    what = "the bug in words"
    file = "ledger/machines/append.py"
    old = '''text that occurs exactly once in the file'''
    new = '''what stands there instead'''
    seeds = [17]                     # seeds that found it; or else
    phase = "fencing"                # the directed phase, or
    scenario = "test_name"           # the scripted run, that finds it
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import quorumbook

SOURCES = Path(quorumbook.__file__).parent
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """A bug to be planted."""

    area: str
    what: str
    file: str
    old: str
    new: str
    #: Seeds that found it, the first one of a search first.
    seeds: tuple[int, ...] = ()
    phase: str = ""
    scenario: str = ""

    @property
    def problem(self) -> str | None:
        """Say why it cannot be planted, or None."""
        path = SOURCES / self.file
        count = path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0
        return None if count == 1 else f"{self.what}: its text is {count} times in {self.file}"


def all_mutants() -> list[Mutant]:
    """Read the lists."""
    return [
        Mutant(path.stem, **(each | {"seeds": tuple(each.get("seeds", ()))}))
        for path in sorted(HERE.glob("*.toml"))
        for each in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Have the bug in this process."""
    if mutant.problem:
        raise ValueError(mutant.problem)
    path = SOURCES / mutant.file
    source = path.read_text(encoding="utf-8")
    codes = _codes(compile(source.replace(mutant.old, mutant.new), str(path), "exec"))
    name = ".".join(("quorumbook", *Path(mutant.file).with_suffix("").parts))
    before: list[tuple[FunctionType, CodeType]] = []
    for function in _functions(importlib.import_module(name)):
        code = codes.get(function.__qualname__)
        if code is not None and _shape(code) != _shape(function.__code__):
            before.append((function, function.__code__))
    if not before:
        raise ValueError(f"{mutant.what}: no function differs")
    try:
        for function, _ in before:
            function.__code__ = codes[function.__qualname__]
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _codes(module: CodeType) -> dict[str, CodeType]:
    found: dict[str, CodeType] = {}
    for constant in module.co_consts:
        if isinstance(constant, CodeType):
            found[constant.co_qualname] = constant
            found |= _codes(constant)
    return found


def _shape(code: CodeType) -> tuple[object, ...]:
    """Return what of a code is not only where it stands in its file."""
    constants = tuple(
        _shape(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts
    )
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in list(vars(module).values()):
        members = [value]
        if inspect.isclass(value) and value.__module__ == module.__name__:
            members = list(vars(value).values())
        for member in members:
            for each in _within(member):
                if each.__module__ == module.__name__:
                    yield each


def _within(value: object) -> Iterator[FunctionType]:
    """Yield the functions of a property, a class method and what else wraps one."""
    if isinstance(value, property):
        accessors = [value.fget, value.fset]
    else:
        accessors = [getattr(value, "__func__", value)]
    for function in accessors:
        inner = inspect.unwrap(function) if callable(function) else None
        if isinstance(inner, FunctionType):
            yield inner
