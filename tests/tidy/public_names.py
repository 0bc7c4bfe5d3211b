"""The public names of the exported classes, as docs/words.md lists them; run it to print them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import quorumbook
import quorumbook.streams

MODULES = (quorumbook, quorumbook.streams)
#: What every tuple, integer, text, dictionary and enumeration has is no name of ours.
_BUILT_IN = {name for kind in (tuple, int, str, dict) for name in dir(kind)}


def exported_classes(module: ModuleType) -> Iterator[tuple[str, type]]:
    """Yield the classes that a module exports, errors left out."""
    for name in module.__all__:
        kind = getattr(module, name)
        if inspect.isclass(kind) and not issubclass(kind, BaseException):
            yield name, kind


def public_names(kind: type) -> list[str]:
    """Return the names of a class that programs may use, inherited ones included."""
    names = {name for name in dir(kind) if not name.startswith("_")}
    if issubclass(kind, tuple | int | str | dict):
        names -= _BUILT_IN - set(getattr(kind, "_fields", ()))
    return sorted(names)


def does_something(kind: type) -> bool:
    """Tell whether a class has methods that wait, iterate, or open something."""
    own = (inspect.getattr_static(kind, name) for name in public_names(kind))
    functions = [getattr(each, "__func__", each) for each in own]
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in functions
    )


def line_of(name: str, kind: type) -> str:
    """Return the line of docs/words.md about a class."""
    return f"| `{name}` | {', '.join(f'`{each}`' for each in public_names(kind))} |"


if __name__ == "__main__":
    for module in MODULES:
        print(f"\n`{module.__name__}`:\n\n| class | names |\n|---|---|")
        for name, kind in exported_classes(module):
            if does_something(kind):
                print(line_of(name, kind))
