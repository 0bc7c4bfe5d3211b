"""The versions of a table of a lake, and which files each is made of.

Between two versions those rows may differ that lie in files of one and not of the other; no other
file is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet

from quorumbook.errors import ConfigError
from quorumbook.spark.lake.delta import storage_options
from quorumbook.spark.lake.iceberg import open_catalog
from quorumbook.spark.lake.manifest import ManifestTable
from quorumbook.streams.errors import DataLossError
from quorumbook.streams.tier.places import bare, file_system


class TableVersions(Protocol):
    """A table, as who follows its changes sees it; all calls block."""

    def newest(self) -> int | None:
        """Return the number of the newest version, which rises; None: there is none."""
        ...

    def files(self, version: int) -> Mapping[Any, Any]:
        """Return what a version is made of, by what it is known by.

        Raises:
            DataLossError: the version is gone.
        """
        ...

    def rows(self, files: Sequence[Any]) -> pa.Table | None:
        """Return the rows of some of them; None: of none.

        Raises:
            DataLossError: a file is gone.
        """
        ...


class ManifestVersions:
    """A directory of ``lake-sink``: each batch is a version."""

    def __init__(self, location: str) -> None:
        """Take where it is."""
        self._table = ManifestTable(location)

    def newest(self) -> int | None:
        """Return the last batch."""
        batch = self._table.state(()).batch
        return None if batch < 0 else batch

    def files(self, version: int) -> Mapping[Any, Any]:
        """Return the files that counted after a batch."""
        return {path: path for path in self._table.files(version)}

    def rows(self, files: Sequence[Any]) -> pa.Table | None:
        """Return the rows of files."""
        tables = []
        for file in files:
            system, path = file_system(file)
            try:
                tables.append(pyarrow.parquet.read_table(path, filesystem=system))
            except FileNotFoundError as error:
                raise DataLossError(f"file {bare(file)} is gone") from error
        return pa.concat_tables(tables) if tables else None


class DeltaVersions:
    """A Delta Lake table, whoever writes it."""

    def __init__(self, location: str) -> None:
        """Open it; raises ConfigError if there is none, or deltalake is missing."""
        try:
            import deltalake  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{error.name} is missing: pip install 'quorumbook[delta]'"
            ) from error
        self._where, self._options = bare(location.rstrip("/")), storage_options(location)
        if not deltalake.DeltaTable.is_deltatable(self._where, self._options):
            raise ConfigError(f"--table {location}: there is no Delta Lake table")
        self._open = deltalake.DeltaTable
        self._schema: Any = None

    def newest(self) -> int | None:
        """Return the newest version."""
        return int(self._open(self._where, storage_options=self._options).version())

    def files(self, version: int) -> Mapping[Any, Any]:
        """Return the fragments of a version, which know their partition's values."""
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        try:
            table = self._open(self._where, version=version, storage_options=self._options)
            dataset = table.to_pyarrow_dataset()
        except DeltaError as error:
            raise DataLossError(f"version {version} of {self._where} is gone: {error}") from error
        self._schema = dataset.schema
        return {fragment.path: fragment for fragment in dataset.get_fragments()}

    def rows(self, files: Sequence[Any]) -> pa.Table | None:
        """Return the rows of fragments."""
        try:
            tables = [fragment.to_table(schema=self._schema) for fragment in files]
        except FileNotFoundError as error:
            raise DataLossError(f"a file of {self._where} is gone: {error}") from error
        return pa.concat_tables(tables) if tables else None


class IcebergVersions:
    """An Iceberg table, whoever writes it: snapshots by their sequence numbers."""

    def __init__(self, name: str, catalog: Mapping[str, str]) -> None:
        """Open it; raises ConfigError if there is none, or pyiceberg is missing."""
        found = open_catalog(name, catalog, makes=False)
        try:
            self._table: Any = found.load_table(name)
        except Exception as error:  # of the catalog's kind, of which there are many
            raise ConfigError(f"--table {name}: {type(error).__name__}: {error}") from error
        self._name = name

    def newest(self) -> int | None:
        """Return the sequence number of the newest snapshot."""
        self._table.refresh()
        snapshot = self._table.current_snapshot()
        return None if snapshot is None else int(snapshot.sequence_number)

    def files(self, version: int) -> Mapping[Any, Any]:
        """Return the files of a snapshot, each with what is deleted of it."""
        numbers = {each.sequence_number: each.snapshot_id for each in self._table.snapshots()}
        if version not in numbers:
            raise DataLossError(f"snapshot {version} of table {self._name} is gone")
        tasks = self._table.scan(snapshot_id=numbers[version]).plan_files()
        return {
            (task.file.file_path, *sorted(each.file_path for each in task.delete_files)): task
            for task in tasks
        }

    def rows(self, files: Sequence[Any]) -> pa.Table | None:
        """Return the rows of files, as the newest schema has them."""
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415

        if not files:
            return None
        table = self._table
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        try:
            return scan.to_table(files)
        except FileNotFoundError as error:
            raise DataLossError(f"a file of table {self._name} is gone: {error}") from error
