"""What of a job is done, in a file of JSON lines, so that it can be resumed after any end.

    {"version": 1, "job": "audit", "job_id": "audit-5f3a...", "arguments": {...}}
    {"key": "12:0-999", "result": {...}}
    ...

Lines are appended and synced after each wave; a last line that was cut off counts as not there.
A resumed job has to be given the same arguments, as its units depend on them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.spark.jobs.frame import Values

_VERSION = 1


class JobJournal:
    """The file of one job."""

    def __init__(self, path: str, job_id: str, done: dict[str, Values]) -> None:
        """See ``begin`` and ``resume``."""
        self._path = path
        self.job_id = job_id
        #: Results by unit, of earlier runs and of this one.
        self.done = done

    @classmethod
    def begin(cls, directory: str, job: str, arguments: Values) -> JobJournal:
        """Begin a job.

        Raises:
            ConfigError: the directory cannot be written.
        """
        job_id = f"{job}-{secrets.token_hex(4)}"
        journal = cls(_path(directory, job_id), job_id, {})
        try:
            os.makedirs(directory, exist_ok=True)
            journal._append(
                [{"version": _VERSION, "job": job, "job_id": job_id, "arguments": arguments}]
            )
        except OSError as error:
            raise ConfigError(f"--state-dir {directory}: {error.strerror}") from error
        return journal

    @classmethod
    def resume(cls, directory: str, job_id: str, job: str, arguments: Values) -> JobJournal:
        """Go on with a job.

        Raises:
            ConfigError: there is none of this id, or it was another job.
        """
        path = _path(directory, job_id)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise ConfigError(
                f"--resume {job_id}: {path}: {error.strerror}; --state-dir says where jobs keep "
                "what they did"
            ) from error
        whole = data[: data.rfind(b"\n") + 1]
        try:
            head, *rest = (json.loads(line) for line in whole.splitlines())
            found = head["version"], head["job"], head["arguments"]
            done = {line["key"]: line["result"] for line in rest}
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a file of a job: {error!r}") from error
        expected = (_VERSION, job, json.loads(json.dumps(arguments)))
        if found != expected:
            raise ConfigError(
                f"--resume {job_id}: that was {_command(found[1], found[2])}, this is "
                f"{_command(job, arguments)}; give it the same"
            )
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        return cls(path, job_id, done)

    def add(self, results: Mapping[str, Values]) -> None:
        """Keep results; when this returns they outlast whatever happens."""
        self._append([{"key": key, "result": result} for key, result in results.items()])
        self.done.update(results)

    def forget(self) -> None:
        """Keep nothing any more: what was done is known elsewhere, and another batch begins."""
        with open(self._path, "r+b") as file:
            file.truncate(len(file.readline()))
        self.done.clear()

    def _append(self, lines: list[dict[str, Any]]) -> None:
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        with open(self._path, "ab") as file:
            file.write(data.encode())
            file.flush()
            os.fsync(file.fileno())


def _path(directory: str, job_id: str) -> str:
    if not re.fullmatch(r"[a-z-]+-[0-9a-f]{8}", job_id):
        raise ConfigError(
            f"{job_id!r} is not an id of a job; the report and the first line name it"
        )
    if "://" in directory:
        raise ConfigError(f"--state-dir {directory}: a directory of this machine, not a URI")
    return os.path.join(directory, f"{job_id}.jsonl")


def _command(job: str, arguments: Values) -> str:
    words = [f"{name}={value}" for name, value in sorted(arguments.items()) if value]
    return " ".join([job, *words])
