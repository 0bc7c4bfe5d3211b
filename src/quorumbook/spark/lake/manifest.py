"""A table that is a directory of Parquet files, and one manifest for each batch.

    <table>/_quorumbook/<20 digits>.json    the state, and the files of the batch
    <table>/data/<batch>-<job>/*.parquet    files, of which those count that a manifest names

A manifest appears whole and is never replaced: on a file system of this machine it is linked to
its name, which fails if there is one; elsewhere one job at a time writes a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import pyarrow.fs as pafs

from quorumbook.spark.lake.table import (
    LakeConflictError,
    LakeFile,
    LakeFormatError,
    LakeState,
)
from quorumbook.streams.tier.part_file import file_system

_DIRECTORY = "_quorumbook"


class ManifestTable:
    """A directory."""

    def __init__(self, location: str) -> None:
        """Take its path or URI."""
        self._location = location.rstrip("/")
        self._system, self._path = file_system(self._location)
        self._manifests = f"{self._path}/{_DIRECTORY}"

    @property
    def data_directory(self) -> str:
        """Where tasks put files."""
        return f"{self._location}/data"

    def state(self, streams: Sequence[str]) -> LakeState:
        """Return how far it is, in all its streams."""
        del streams
        paths = self._paths()
        return LakeState.from_json(self._read(paths[-1])["state"]) if paths else LakeState()

    def files(self) -> list[str]:
        """Return the files that count."""
        return [f"{self._location}/{path}" for each in self._paths() for path in self._names(each)]

    def commit(self, before: LakeState, state: LakeState, files: Sequence[LakeFile]) -> None:
        """Write a batch's manifest, unless there is one."""
        rows = [
            {
                "path": file.path.removeprefix(f"{self._location}/"),
                "stream": file.stream,
                "rows": file.rows,
                "bytes": file.size_bytes,
                "first": file.first,
                "last": file.last,
            }
            for file in files
        ]
        data = json.dumps({"state": state.to_json(), "files": rows}, indent=1).encode()
        path = f"{self._manifests}/{state.batch:020d}.json"
        self._system.create_dir(self._manifests, recursive=True)
        temporary = f"{path}.{os.getpid()}.tmp"
        with self._system.open_output_stream(temporary) as out:
            out.write(data)
        try:
            if self.state(()) != before:
                raise FileExistsError(path)
            self._make_visible(temporary, path)
        except FileExistsError as error:
            raise LakeConflictError(
                f"batch {state.batch} of {self._location} is there already: another job writes "
                "this table"
            ) from error
        finally:
            if self._system.get_file_info(temporary).type is not pafs.FileType.NotFound:
                self._system.delete_file(temporary)

    def _make_visible(self, temporary: str, path: str) -> None:
        if isinstance(self._system, pafs.LocalFileSystem):
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.link(temporary, path)
        else:
            self._system.move(temporary, path)

    def _paths(self) -> list[str]:
        selector = pafs.FileSelector(self._manifests, allow_not_found=True)
        found = (info.path for info in self._system.get_file_info(selector))
        return sorted(path for path in found if path.endswith(".json"))

    def _names(self, path: str) -> list[str]:
        return [file["path"] for file in self._read(path)["files"]]

    def _read(self, path: str) -> Any:
        with self._system.open_input_stream(path) as file:
            data = file.read()
        try:
            return json.loads(data)
        except ValueError as error:
            raise LakeFormatError(f"{path} is no manifest: {error}") from error


def committed_files(location: str) -> list[str]:
    """Return the files of a table that count, for ``spark.read.parquet(*files)`` and others."""
    return ManifestTable(location).files()
