"""Errors of the data source as one line, not as a trace through Spark's worker and this package.

What a person needs of an error of ours is its condition, as Spark's own errors have one, and its
message, which says what to do: ``[QUORUMBOOK_CONFIG]: there is no option x (quorumbook help
config)``.  Spark appends it to its own error (``[PYTHON_DATA_SOURCE_ERROR] Failed to plan …``), by
default with the trace of the Python process before it.  Spark leaves the trace out where a variable
of the process says so, and a worker ends with the error that it reports: so the variable is set
when an error of ours leaves, and nobody else's errors lose theirs.

A worker hands on what Python prints of an error, and nothing else: the name of its class, and its
text.  So an error that leaves has a class with the condition for a name, below its own.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any, NamedTuple, TypeVar

from quorumbook.errors import QuorumbookError

#: Spark's; where somebody has set it, that holds: empty leaves the traces in.
HIDES_TRACE = "SPARK_HIDE_TRACEBACK"

#: What only gathers kinds of errors: nothing is explained under their names.
_GENERAL = frozenset(
    ("BookieError", "CookieError", "LedgerError", "ProtocolError", "StreamError",
     "TransactionError")
)  # fmt: skip
#: An error of ours as Spark shows it, wherever it stands in its text.
_SHOWN = re.compile(r"(?s)\[(QUORUMBOOK_[A-Z_]+)\]: (.*?)(?= \(quorumbook help [a-z-]+\)|\n|$)")

T = TypeVar("T")


class Shown(NamedTuple):
    """What a text of Spark's says of an error of ours."""

    condition: str
    message: str

    @property
    def code(self) -> str:
        """What ``quorumbook help`` explains it under."""
        return _code_of(self.condition)


def condition_of(kind: type[QuorumbookError]) -> str:
    """Return the name that Spark's users know a kind of errors by: ``QUORUMBOOK_LEDGER_FENCED``.

    What follows ``QUORUMBOOK_`` is what ``quorumbook help`` explains, in capitals.
    """
    for each in kind.__mro__[: kind.__mro__.index(QuorumbookError)]:
        if each.__name__ not in _GENERAL:
            name = each.__name__.removesuffix("Error").replace("BookieIO", "BookieIo")
            return f"QUORUMBOOK_{re.sub('(?<=[a-z])(?=[A-Z])', '_', name).upper()}"
    return "QUORUMBOOK_FAILED"


def shown_in(text: str) -> Shown | None:
    """Return what an error of Spark's says of one of ours.

    Args:
        text: The error as text, with traces or without.
    """
    found = _SHOWN.search(text)
    return Shown(found[1], found[2]) if found else None


def short_errors(kind: type[T]) -> type[T]:
    """Have the public methods of a class that Spark calls raise errors of ours without a trace."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _shortened(method))
    return kind


def _shortened(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        with _without_trace():
            found = method(*arguments, **named)
        return _items(found) if isinstance(found, GeneratorType) else found

    return call


def _items(found: Iterator[Any]) -> Iterator[Any]:
    with _without_trace():
        yield from found


@contextlib.contextmanager
def _without_trace() -> Iterator[None]:
    try:
        yield
    except QuorumbookError as error:
        os.environ.setdefault(HIDES_TRACE, "1")
        error.__class__ = _shown_kind(type(error))  # type: ignore[arg-type] # a class has a hash
        raise


@functools.cache
def _shown_kind(kind: type[QuorumbookError]) -> type[QuorumbookError]:
    """Return a kind below another that Python prints as its condition and what explains it."""
    if kind.__name__.startswith("["):
        return kind  # it went through an inner method already
    condition = condition_of(kind)
    code = _code_of(condition)

    def text(self: QuorumbookError) -> str:
        return f"{kind.__str__(self)} (quorumbook help {code})"

    # Python leaves out the module of what is built in.
    shown: Any = type(f"[{condition}]", (kind,), {"__module__": "builtins", "__str__": text})
    return shown  # type: ignore[no-any-return]


def _code_of(condition: str) -> str:
    return condition.removeprefix("QUORUMBOOK_").lower().replace("_", "-")
