"""What a file says of a pipeline; pure.

    name = "orders"
    checkpoints = "checkpoints"

    [[step]]
    name = "clean"
    from = ["eu/orders"]
    decode = true
    dead-letters = "eu/bad"
    sql = "SELECT customer, total FROM records WHERE total > 0"
    to = "eu/clean"

Every key of a step is an option of ``PipelineStep``, by its name on a command line.  Paths are
relative to the file.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar, TypeVar

from quorumbook.errors import ConfigError
from quorumbook.options import Options, option, required

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_FILES = "parquet:"
Said = TypeVar("Said", bound=Options)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep(Options):
    """A query from streams to a stream, or to files."""

    SECTION: ClassVar = ""

    name: str = required("What it is called.")
    sources: tuple[str, ...] = option((), "The streams that it reads.", word="--from")
    target: str = required("The stream that it writes, or parquet:DIRECTORY.", word="--to")
    decode: bool = option(False, "The fields of the one stream's schema are columns.")
    dead_letters: str = option("", "The stream for records that cannot be decoded.")
    sql: str = option("", "A query over the view records.")
    udf: str = option("", "A Python file with a function transform(frame); before sql.")
    every_s: float = option(1.0, "Begin a batch so often.", minimum=0)
    batch_time_s: float = option(0.0, "Batches are as large as gets done in this; 0: any size.",
                                 minimum=0)  # fmt: skip
    max_bytes: int = option(
        0, "The largest number of bytes that a batch reads; 0: no limit.", minimum=0
    )
    retain_time_s: float = option(0.0, "What it writes goes so long after; 0: as the policy says.",
                                  minimum=0)  # fmt: skip

    def check_together(self) -> None:
        """Refuse what contradicts itself."""
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"name: {self.name!r} is not letters, digits, - and _")
        if not self.sources:
            raise ConfigError("from: it reads no stream")
        if not self.stream and not self.directory:
            raise ConfigError("to: a stream, or parquet:DIRECTORY")
        if self.decode and len(self.sources) != 1:
            raise ConfigError("decode: a schema is of one stream, and it reads several")
        if self.dead_letters and not self.decode:
            raise ConfigError("dead-letters: only what is decoded can be bad; say decode = true")
        if self.dead_letters and not self.stream:
            raise ConfigError("dead-letters: one step writes both, so to has to be a stream, too")
        if self.dead_letters in (*self.sources, self.target):
            raise ConfigError(f"dead-letters: {self.dead_letters} is read or written by it already")
        if self.batch_time_s and self.batch_time_s < self.every_s:
            raise ConfigError("batch-time: it has to be as long as every, at least")
        if self.retain_time_s and not self.stream:
            raise ConfigError("retain-time: files stay")

    @property
    def directory(self) -> str:
        """Where its files go; empty: it writes a stream."""
        return self.target.removeprefix(_FILES) if self.target.startswith(_FILES) else ""

    @property
    def stream(self) -> str:
        """The stream that it writes; empty: it writes files."""
        return "" if self.target.startswith(_FILES) else self.target

    @property
    def written(self) -> tuple[str, ...]:
        """The streams that it writes."""
        return tuple(name for name in (self.stream, self.dead_letters) if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Options):
    """What holds for the whole pipeline."""

    SECTION: ClassVar = ""

    name: str = required("What it is called: its cursors are named after it.")
    checkpoints: str = required("Where steps keep how far they are.")
    namespace: str = option("/streams", "The namespace of the streams.")
    restarts: int = option(
        10, "So often a step is started again without a batch in between.", minimum=0
    )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline; a step comes behind those that write what it reads."""

    whole: Whole
    steps: tuple[PipelineStep, ...]

    def checkpoint(self, step: PipelineStep) -> str:
        """Return where a step keeps how far it is."""
        return f"{self.whole.checkpoints.rstrip('/')}/{step.name}"

    def cursor(self, step: PipelineStep) -> str:
        """Return the cursor that follows a step in the streams that it reads."""
        return f"{self.whole.name}.{step.name}"


def parse_pipeline(text: str, directory: str) -> Pipeline:
    """Read a file.

    Args:
        text: Its content, TOML.
        directory: Where it lies.

    Raises:
        ConfigError: it is no pipeline; the message names the step and the key.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"no TOML: {error}") from error
    given = found.pop("step", None)
    if not isinstance(given, list) or not given or not all(isinstance(s, dict) for s in given):
        raise ConfigError("it has no [[step]]")
    whole = _of(Whole, found, "")
    steps = [
        _of(PipelineStep, each, f"step {each.get('name', number)}: ")
        for number, each in enumerate(given)
    ]
    whole = _at(whole, directory, "checkpoints")
    return Pipeline(whole, _ordered([_at(step, directory, "udf") for step in steps]))


def _of(kind: type[Said], given: Mapping[str, Any], place: str) -> Said:
    options = {each.flag.removeprefix("--"): each for each in kind.declared()}
    values: dict[str, Any] = {}
    try:
        for key, raw in given.items():
            if key not in options:
                near = difflib.get_close_matches(key, options, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"there is no key {key}{hint}")
            values[options[key].name] = options[key].parse(raw, source="the file")
        for key, each in options.items():
            if each.is_required and each.name not in values:
                raise ConfigError(f"the key {key} is missing")
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{place}{str(error).removeprefix('--')}") from error


def _at(options: Said, directory: str, field: str) -> Said:
    """Return options with a path that begins at the file's directory."""
    path = getattr(options, field)
    if not path or "://" in path:
        return options
    return type(options)(**{**options.keywords(), field: os.path.join(directory, path)})


def _ordered(steps: Sequence[PipelineStep]) -> tuple[PipelineStep, ...]:
    """Return the steps, each behind those that write what it reads.

    Raises:
        ConfigError: two have one name, or they go round in a circle.
    """
    by_name = {step.name: step for step in steps}
    if len(by_name) < len(steps):
        names = [step.name for step in steps]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"two steps are called {twice}")
    before = {
        step.name: [other.name for other in steps if set(other.written) & set(step.sources)]
        for step in steps
    }
    try:
        return tuple(by_name[name] for name in TopologicalSorter(before).static_order())
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise ConfigError(f"steps read what comes of them: {circle}") from error
