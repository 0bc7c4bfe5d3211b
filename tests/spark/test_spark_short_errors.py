"""Errors of the data source end Spark's worker without a trace; those of others keep theirs."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from pyspark.util import handle_worker_exception

from quorumbook.errors import ConfigError, QuorumbookError
from quorumbook.spark.short_errors import HIDES_TRACE, short_errors


@short_errors
class Reader:
    def plan(self, error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    def read(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDES_TRACE, "")  # so that it is given back
    monkeypatch.delenv(HIDES_TRACE)


def reported(call: object, error: Exception) -> list[str]:
    """Return what Spark's worker reports of an error."""
    out = io.BytesIO()

    def work() -> None:
        try:
            list(call(error))  # type: ignore[operator]
        except BaseException as found:
            handle_worker_exception(found, out)
            raise

    with pytest.raises(type(error), match=str(error)):
        work()
    return out.getvalue()[8:].decode().splitlines()


@pytest.mark.parametrize("name", ["plan", "read"])
def test_an_error_of_ours_is_its_class_and_its_message(name: str) -> None:
    error = ConfigError("there is no option x")
    error.__cause__ = KeyError("x")
    call = getattr(Reader(), name)
    assert reported(call, error) == ["quorumbook.errors.ConfigError: there is no option x"]


@pytest.mark.parametrize("name", ["plan", "read"])
def test_an_error_of_others_keeps_its_trace(name: str) -> None:
    found = reported(getattr(Reader(), name), ZeroDivisionError("by zero"))
    assert found[0] == "Traceback (most recent call last):"
    assert found[-1] == "ZeroDivisionError: by zero"


def test_who_wants_traces_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDES_TRACE, "")
    assert len(reported(Reader().read, QuorumbookError("gone"))) > 3


def test_what_goes_well_is_handed_on() -> None:
    assert Reader().plan(None) == 7
    assert next(Reader().read(KeyError("x"))) == 1
