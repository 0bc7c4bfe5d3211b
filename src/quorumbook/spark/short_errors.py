"""Errors of the data source as one line, not as a trace through Spark's worker and this package.

What a person needs of an error of ours is its class and its message, which says what to do.  Spark
appends it to its own error (``[PYTHON_DATA_SOURCE_ERROR] Failed to plan …``), by default with the
trace of the Python process before it.  Spark leaves the trace out where a variable of the process
says so, and a worker ends with the error that it reports: so the variable is set when an error of
ours leaves, and nobody else's errors lose theirs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any, TypeVar

from quorumbook.errors import QuorumbookError

#: Spark's; where somebody has set it, that holds: empty leaves the traces in.
HIDES_TRACE = "SPARK_HIDE_TRACEBACK"

T = TypeVar("T")


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
    except QuorumbookError:
        os.environ.setdefault(HIDES_TRACE, "1")
        raise
