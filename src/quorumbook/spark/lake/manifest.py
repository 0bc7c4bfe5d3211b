"""A table that is a directory of Parquet files, and one manifest for each batch.

    <table>/_quorumbook/<20 digits>.json    the state, and the files of the batch
    <table>/data/<batch>-<job>/*.parquet    files, of which those count that a manifest names

A manifest appears whole and is never replaced.  On a file system of this machine it is linked to
its name, which fails if there is one.  Elsewhere, as in object stores, whoever moves a file moves
it over another: there the metadata decides whose batch is next (``next_batch``), and whoever
comes next makes that visible if its job was killed before.

    <table>/_quorumbook/<20 digits>-<16 hex digits>.tmp    a manifest that is not visible yet

Of a table that has the latest record of each key, a manifest names all files that count
(``whole``), and for how long files that do not count any more stay for those who read them
(``gone``).  A batch writes files anew that have a row of its keys.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet

from quorumbook.metadata.store import Revision
from quorumbook.spark.lake.table import (
    LakeConflictError,
    LakeFile,
    LakeFormatError,
    LakeState,
)
from quorumbook.spark.lake.upserts import KEY, delete_files, keys_of, rows_of, untouched
from quorumbook.streams.errors import DataLossError
from quorumbook.streams.tier.places import (
    below,
    check_place,
    file_system,
    make_directory,
    relative,
)

_DIRECTORY = "_quorumbook"
#: Files that do not count any more stay for so long.
_KEPT_MS = 3_600_000
#: What is left of a smaller file is written together with the new rows.
_SMALL_BYTES = 32 * 1024 * 1024


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

    def files(self, batch: int | None = None) -> list[str]:
        """Return the files that count, or that counted after a batch.

        Raises:
            DataLossError: that batch's manifest is gone.
        """
        paths = self._paths()
        if batch is not None:
            last = self._visible(f"{batch:020d}-")
            if last not in paths:
                raise DataLossError(f"batch {batch} of {self._location} is gone")
            paths = paths[: paths.index(last) + 1]
        found: list[str] = []
        for path in reversed(paths):
            manifest = self._read(path)
            found = [file["path"] for file in manifest["files"]] + found
            if manifest.get("whole"):
                break
        return [below(self._location, name) for name in found]

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
        self._take_in(before, {"state": state.to_json(), "files": rows}, state.batch)

    def merge(self, before: LakeState, state: LakeState, changes: pa.Table) -> None:
        """Write files anew that have rows of the changed keys, and a manifest of all files."""
        paths = self._paths()
        newest = self._read(paths[-1]) if paths else {"files": [], "gone": []}
        now_ms = int(time.time() * 1000)
        rewriting = _Rewriting(self._system, self._path, f"{state.batch:010d}")
        rewriting.merge(newest["files"], changes)
        gone = [[path, now_ms] for path in rewriting.gone]
        due = [path for path, at_ms in newest["gone"] if at_ms + _KEPT_MS < now_ms]
        gone += [each for each in newest["gone"] if each[0] not in due]
        manifest = {
            "state": state.to_json(), "files": rewriting.files, "whole": True, "gone": gone,
        }  # fmt: skip
        self._take_in(before, manifest, state.batch)
        delete_files([below(self._location, path) for path in due])

    def _take_in(self, before: LakeState, manifest: Mapping[str, Any], batch: int) -> None:
        """Make a manifest visible if the table is as it was before."""
        data = json.dumps(manifest, indent=1).encode()
        make_directory(self._system, self._manifests)
        name = f"{batch:020d}-{secrets.token_hex(8)}"
        temporary = self._temporary(name)
        revision = self._settle()
        with self._system.open_output_stream(temporary) as out:
            out.write(data)
        try:
            if self.state(()) != before or not self._publish(name, revision):
                raise LakeConflictError(
                    f"batch {batch} of {self._location} is there already: another job "
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

    def _read(self, path: str) -> Any:
        with self._system.open_input_stream(path) as file:
            data = file.read()
        try:
            return json.loads(data)
        except ValueError as error:
            raise LakeFormatError(f"{path} is not a manifest: {error}") from error


class _Rewriting:
    """Files of a table that come and go by changes; ``path`` is from the table on."""

    def __init__(self, system: Any, directory: str, batch: str) -> None:
        self._system, self._directory = system, directory
        # Who was overtaken leaves files that nobody names.
        self._out = f"data/{batch}-{secrets.token_hex(8)}"
        self.files: list[Mapping[str, Any]] = []
        self.gone: list[str] = []

    def merge(self, files: Sequence[Mapping[str, Any]], changes: pa.Table) -> None:
        keys = keys_of(changes)
        together = [rows_of(changes)]
        for file in files:
            path = f"{self._directory}/{file['path']}"
            stays = untouched(self._read(path, list(KEY)), keys)
            if pc.all(stays).as_py():
                self.files.append(file)
                continue
            self.gone.append(file["path"])
            left = self._read(path).filter(stays)
            if file["bytes"] < _SMALL_BYTES:
                together.append(left)
            else:
                self._write(left)
        self._write(pa.concat_tables(together))

    def _read(self, path: str, columns: list[str] | None = None) -> pa.Table:
        return pyarrow.parquet.read_table(path, columns=columns, filesystem=self._system)

    def _write(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        path = f"{self._out}/{len(self.files):06d}.parquet"
        make_directory(self._system, f"{self._directory}/{self._out}")
        full = f"{self._directory}/{path}"
        pyarrow.parquet.write_table(
            table, full, filesystem=self._system, compression="zstd", compression_level=1
        )
        size = int(self._system.get_file_info(full).size)
        self.files.append({"path": path, "rows": table.num_rows, "bytes": size})


def committed_files(location: str) -> list[str]:
    """Return the files of a table that count, for ``spark.read.parquet(*files)`` and others."""
    return ManifestTable(location).files()
