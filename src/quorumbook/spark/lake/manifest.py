"""A table that is a directory of Parquet files, and one manifest for each batch.

    <table>/_quorumbook/<20 digits>.json    the state, and the files of the batch
    <table>/data/<batch>-<job>/*.parquet    files, of which those count that a manifest names

A manifest appears whole and is never replaced.  On a file system of this machine it is linked to
its name, which fails if there is one.  Elsewhere, as in object stores, whoever moves a file moves
it over another: there the metadata decides whose batch is next (``next_batch``), and whoever
comes next makes that visible if its job was killed before.

    <table>/_quorumbook/<20 digits>-<16 hex digits>.tmp    a manifest that is not visible yet
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow.fs as pafs

from quorumbook.metadata.store import Revision
from quorumbook.spark.lake.table import (
    LakeConflictError,
    LakeFile,
    LakeFormatError,
    LakeState,
)
from quorumbook.streams.tier.places import (
    below,
    check_place,
    file_system,
    make_directory,
    relative,
)

_DIRECTORY = "_quorumbook"


class NextBatch(Protocol):
    """Decides whose batch is next; see ``next_batch.NextBatchNode``."""

    def read(self) -> tuple[str, Revision | None]:
        """Return what was decided on last, and the revision of that; empty, None: nothing was."""
        ...

    def take(self, batch: str, revision: Revision | None) -> bool:
        """Decide on a batch; False: somebody else was first."""
        ...


class ManifestTable:
    """A directory."""

    def __init__(
        self, location: str, next_batch: NextBatch | None = None, *, makes: bool = False
    ) -> None:
        """Open it.

        Args:
            location: Path or URI.
            next_batch: Decides whose batch is next; not asked in a directory of this machine.
            makes: Make visible what was decided on; otherwise nothing changes by looking.

        Raises:
            ConfigError: no table can be there.
        """
        check_place(location)
        self._location = location
        self._system, self._path = file_system(below(location))
        self._manifests = f"{self._path}/{_DIRECTORY}"
        self._is_local = isinstance(self._system, pafs.LocalFileSystem)
        self._next_batch = None if self._is_local else next_batch
        self._makes = makes

    @property
    def data_directory(self) -> str:
        """Where tasks put files."""
        return below(self._location, "data")

    def state(self, streams: Sequence[str]) -> LakeState:
        """Return how far it is, in all its streams, with a batch that is not visible yet."""
        del streams
        hidden = ""
        if self._makes:
            self._settle()
        else:
            hidden, _ = self._decided()
        paths = [self._temporary(hidden)] if hidden else self._paths()
        return LakeState.from_json(self._read(paths[-1])["state"]) if paths else LakeState()

    def files(self) -> list[str]:
        """Return the files that count."""
        names = [name for each in self._paths() for name in self._names(each)]
        return [below(self._location, name) for name in names]

    def commit(self, before: LakeState, state: LakeState, files: Sequence[LakeFile]) -> None:
        """Write a batch's manifest, unless there is one."""
        rows = [
            {
                "path": relative(file.path, self._location),
                "stream": file.stream,
                "rows": file.rows,
                "bytes": file.size_bytes,
                "first": file.first,
                "last": file.last,
            }
            for file in files
        ]
        data = json.dumps({"state": state.to_json(), "files": rows}, indent=1).encode()
        make_directory(self._system, self._manifests)
        name = f"{state.batch:020d}-{secrets.token_hex(8)}"
        temporary = self._temporary(name)
        revision = self._settle()
        with self._system.open_output_stream(temporary) as out:
            out.write(data)
        try:
            if self.state(()) != before or not self._publish(name, revision):
                raise LakeConflictError(
                    f"batch {state.batch} of {self._location} is there already: another job "
                    "writes this table"
                )
        except LakeConflictError:
            self._system.delete_file(temporary)
            raise

    def _publish(self, name: str, revision: Revision | None) -> bool:
        """Make a manifest visible; False: there is one already."""
        if not self._is_local:
            assert self._next_batch is not None
            if not self._next_batch.take(name, revision):
                return False
            self._settle()
            return True
        temporary = self._temporary(name)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        try:
            os.link(temporary, self._visible(name))
        except FileExistsError:
            return False
        os.unlink(temporary)
        return True

    def _settle(self) -> Revision | None:
        """Make visible what was decided on last, if its job did not; return which decision."""
        name, revision = self._decided()
        if name:
            try:
                self._system.move(self._temporary(name), self._visible(name))
            except OSError:
                # Somebody else may have done it meanwhile.
                if self._is_there(self._temporary(name)):
                    raise
        return revision

    def _decided(self) -> tuple[str, Revision | None]:
        """Return the batch that was decided on and is not visible; and which decision was last."""
        if self._next_batch is None:
            return "", None
        name, revision = self._next_batch.read()
        is_hidden = bool(name) and self._is_there(self._temporary(name))
        return name if is_hidden else "", revision

    def _temporary(self, name: str) -> str:
        return f"{self._manifests}/{name}.tmp"

    def _visible(self, name: str) -> str:
        return f"{self._manifests}/{name.partition('-')[0]}.json"

    def _is_there(self, path: str) -> bool:
        return bool(self._system.get_file_info(path).type != pafs.FileType.NotFound)

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
            raise LakeFormatError(f"{path} is not a manifest: {error}") from error


def committed_files(location: str) -> list[str]:
    """Return the files of a table that count, for ``spark.read.parquet(*files)`` and others."""
    return ManifestTable(location).files()
