"""An Iceberg table: a batch is one snapshot, and the state is in its summary."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from quorumbook.errors import ConfigError
from quorumbook.spark.lake.table import STATE, LakeConflictError, LakeFile, LakeState
from quorumbook.spark.lake.upserts import keys_of, rows_of
from quorumbook.streams.tier.places import bare, below, check_place

#: What the catalog is told of the store that has the files, as pyarrow has it.
_OPTIONS = {"s3.endpoint": "endpoint_override", "s3.region": "region"}


class IcebergTable:
    """A table of a catalog."""

    def __init__(
        self, name: str, catalog: Mapping[str, str], schema: pa.Schema, *, makes: bool
    ) -> None:
        """Open it.

        Args:
            name: As ``namespace.table``.
            catalog: Properties of the catalog, such as ``uri`` and ``warehouse``; ``name`` for one
                of pyiceberg's configuration.
            schema: The columns.
            makes: Make it if it is not there.

        Raises:
            ConfigError: pyiceberg is missing, there is no such catalog, the table has other
                columns, or its files have no place.
        """
        self._name = name
        found = open_catalog(name, catalog, makes=makes)
        namespace, _, _ = name.rpartition(".")
        try:
            is_begun = makes or _is_begun(found)
            if makes:
                found.create_namespace_if_not_exists(namespace)
                # Who was overtaken must look again, not try again.
                options = {"commit.retry.num-retries": "0"}
                found.create_table_if_not_exists(name, schema, properties=options)
            is_there = is_begun and found.table_exists(name)
            self._table: Any = found.load_table(name) if is_there else None
        except Exception as error:  # of the catalog's kind, of which there are many
            raise ConfigError(f"--table {name}: {type(error).__name__}: {error}") from error
        columns = (
            schema.names
            if self._table is None
            else [field.name for field in self._table.schema().fields]
        )
        if list(columns) != schema.names:
            raise ConfigError(f"table {name} has columns {', '.join(columns)}: not these")
        self._options = ""
        if self._table is not None:
            told = self._table.io.properties
            self._options = urlencode({_OPTIONS[key]: told[key] for key in _OPTIONS if key in told})
            check_place(self.data_directory)

    @property
    def data_directory(self) -> str:
        """Where tasks put files; nowhere if there is no table."""
        if self._table is None:
            return ""
        location = self._table.location().removeprefix("file://")
        if self._options and "://" in location:
            location = f"{location}?{self._options}"
        return below(location, "data")

    def state(self, streams: Sequence[str]) -> LakeState:
        """Return what the newest snapshot says that says it."""
        del streams
        if self._table is None:
            return LakeState()
        self._table.refresh()
        snapshot: Any = self._table.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary
            if summary is not None and STATE in summary.additional_properties:
                return LakeState.from_json(json.loads(summary.additional_properties[STATE]))
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        return LakeState()

    def commit(self, before: LakeState, state: LakeState, files: Sequence[LakeFile]) -> None:
        """Add a batch's files in one snapshot."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

        if self.state(()) != before:
            raise self._conflict(state)
        try:
            self._table.add_files(
                [bare(file.path) for file in files], snapshot_properties={STATE: _text(state)}
            )
        except (CommitFailedException, ValueError) as error:
            raise self._conflict(state) from error

    def merge(self, before: LakeState, state: LakeState, changes: pa.Table) -> None:
        """Change rows in one step, of one snapshot that deletes and one that adds."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

        if self.state(()) != before:
            raise self._conflict(state)
        try:
            with warnings.catch_warnings():
                # That no row has one of the keys is nothing to warn of.
                warnings.simplefilter("ignore", UserWarning)
                self._table.overwrite(
                    rows_of(changes),
                    overwrite_filter=_filter(keys_of(changes)),
                    snapshot_properties={STATE: _text(state)},
                )
        except (CommitFailedException, ValueError) as error:
            raise self._conflict(state) from error

    def _conflict(self, state: LakeState) -> LakeConflictError:
        return LakeConflictError(
            f"table {self._name} changed while batch {state.batch} was written: another job "
            "writes it"
        )


def open_catalog(name: str, catalog: Mapping[str, str], *, makes: bool) -> Any:
    """Return the catalog that has a table, or is to have it.

    Args:
        name: Of the table.
        catalog: Its properties; see ``IcebergTable``.
        makes: It may make what it needs.

    Raises:
        ConfigError: pyiceberg is missing, there is no such catalog, or the name is none.
    """
    try:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'quorumbook[iceberg]'") from error
    if "." not in name:
        raise ConfigError(f"--table {name}: NAMESPACE.TABLE")
    properties = dict(catalog)
    # Or a catalog in SQL would make its tables by being looked at.
    own = {} if makes else {"init_catalog_tables": "false"}
    try:
        return load_catalog(properties.pop("name", "default"), **{**properties, **own})
    except Exception as error:  # of the catalog's kind, of which there are many
        raise ConfigError(f"--table {name}: {type(error).__name__}: {error}") from error


def _is_begun(catalog: Any) -> bool:
    """Tell whether a catalog can be asked for tables; one in SQL has to have some of its own."""
    engine = getattr(catalog, "engine", None)
    if engine is None:
        return True
    from sqlalchemy import inspect  # noqa: PLC0415 - what such a catalog came with

    return bool(inspect(engine).has_table("iceberg_tables"))


def _filter(keys: pa.Table) -> Any:
    """Return the condition that rows of these keys meet."""
    from pyiceberg import expressions  # noqa: PLC0415

    make: Any = expressions  # what it takes by position, its types do not say
    by_stream: dict[str, set[bytes]] = {}
    for stream, key in zip(*(column.to_pylist() for column in keys.columns), strict=True):
        by_stream.setdefault(stream, set()).add(key)
    found: Any = make.AlwaysFalse()
    for stream, values in by_stream.items():
        of_stream = make.And(make.EqualTo("stream", stream), make.In("key", values))
        found = make.Or(found, of_stream)
    return found


def _text(state: LakeState) -> str:
    return json.dumps(state.to_json(), separators=(",", ":"))
