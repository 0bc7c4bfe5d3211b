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
    scenarios = ["S01"]              # of the track record: what happens there again with the bug
    along = "another bug"            # what is planted with it, where one alone does no harm
    phase = "fences"                 # the directed phase that finds it in few seeds, "none" for
                                     # seeds without one; or
    test = "tests/unit/...::test_x"  # the test that finds it, where no seed is known to
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import tomllib
from collections.abc import Iterator, Sequence
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
    phase: str = ""
    #: The test that finds it.
    test: str = ""
    #: The words of a bug that is planted with it: each alone is what the other makes harmless.
    along: str = ""
    #: Of the track record: what would happen again.
    scenarios: Sequence[str] = ()

    def __str__(self) -> str:
        return self.what

    @property
    def problem(self) -> str | None:
        """Say why it cannot be planted, or None."""
        path = SOURCES / self.file
        count = path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0
        return None if count == 1 else f"{self.what}: its text is {count} times in {self.file}"


def all_mutants() -> list[Mutant]:
    """Read the lists."""
    return [
        Mutant(path.stem, **each)
        for path in sorted(HERE.glob("*.toml"))
        for each in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Have the bug in this process."""
    mutants = [mutant, *(each for each in all_mutants() if each.what == mutant.along)]
    if mutant.along and len(mutants) == 1:
        raise ValueError(f"{mutant.what}: there is no {mutant.along!r} to plant with it")
    changes: list[tuple[FunctionType, CodeType]] = []
    for file in dict.fromkeys(each.file for each in mutants):
        changes += _changes(file, [each for each in mutants if each.file == file])
    before = [(function, function.__code__) for function, _ in changes]
    try:
        for function, code in changes:
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _changes(file: str, mutants: list[Mutant]) -> list[tuple[FunctionType, CodeType]]:
    """Return the functions of a file that bugs change, and their code with them."""
    path = SOURCES / file
    source = path.read_text(encoding="utf-8")
    for mutant in mutants:
        if mutant.problem:
            raise ValueError(mutant.problem)
        source = source.replace(mutant.old, mutant.new)
    codes = _codes(compile(source, str(path), "exec"))
    module = importlib.import_module(".".join(("quorumbook", *Path(file).with_suffix("").parts)))
    pairs = [(each, codes.get(each.__qualname__)) for each in _functions(module)]
    changes = [
        (each, code)
        for each, code in pairs
        if code is not None and _shape(code) != _shape(each.__code__)
    ]
    if not changes:
        raise ValueError(f"{mutants[0].what}: no function differs")
    return changes


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
