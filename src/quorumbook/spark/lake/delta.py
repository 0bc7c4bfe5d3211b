"""A Delta Lake table: a batch is one version, and the state are its application's transactions.

    quorumbook.lake-sink/<cluster>                  the batch
    quorumbook.lake-sink/<cluster>/<stream>         the sequence id of the next record
    quorumbook.lake-sink/<cluster>/<stream>#birth   which stream of this name it is
    quorumbook.lake-sink/<cluster>#upserts          there if it has the latest record of each key

Delta keeps an application's last version through all checkpoints of its log, and unlike the
commit's own notes for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa

from quorumbook.errors import ConfigError
from quorumbook.spark.lake.table import STATE, LakeConflictError, LakeFile, LakeState
from quorumbook.spark.lake.upserts import DELETED
from quorumbook.spark.request.offsets import Reached
from quorumbook.streams.tier.places import bare, below, check_place, options_of, relative


class DeltaTable:
    """A directory with a log of versions."""

    def __init__(self, location: str, cluster: str, schema: pa.Schema, *, makes: bool) -> None:
        """Open it.

        Args:
            location: Path or URI.
            cluster: Whose streams are written.
            schema: The columns.
            makes: Make it if it is not there.

        Raises:
            ConfigError: deltalake is missing, no table can be there, or it has other columns.
        """
        try:
            import deltalake  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{error.name} is missing: pip install 'quorumbook[delta]'"
            ) from error
        check_place(location)
        self._cluster = cluster
        self._location = location.rstrip("/")
        self._application = f"{STATE}/{cluster}"
        self._schema = schema
        self._table: Any = None
        where, options = bare(self._location), storage_options(self._location)
        if makes:
            self._table = deltalake.DeltaTable.create(
                where, schema, mode="ignore", storage_options=options
            )
        elif deltalake.DeltaTable.is_deltatable(where, options):
            self._table = deltalake.DeltaTable(where, storage_options=options)
        columns = schema.names
        if self._table is not None:
            columns = [field.name for field in self._table.schema().fields]
        if columns != schema.names:
            raise ConfigError(f"table {location} has columns {', '.join(columns)}: not these")

    @property
    def data_directory(self) -> str:
        """Where tasks put files."""
        return below(self._location, "data")

    def state(self, streams: Sequence[str]) -> LakeState:
        """Return how far these streams are."""
        if self._table is None:
            return LakeState()
        self._table.update_incremental()
        version = self._table.transaction_version
        batch = version(self._application)
        if batch is None:
            return LakeState()
        reached = {}
        for name in streams:
            birth = version(f"{self._application}/{name}#birth")
            sequence_id = version(f"{self._application}/{name}")
            if birth is not None and sequence_id is not None:
                reached[name] = Reached(birth, sequence_id)
        upserts = version(f"{self._application}#upserts") is not None
        return LakeState(batch=batch, cluster=self._cluster, streams=reached, upserts=upserts)

    def commit(self, before: LakeState, state: LakeState, files: Sequence[LakeFile]) -> None:
        """Add a batch's files in one version."""
        from deltalake.transaction import AddAction  # noqa: PLC0415

        self._check_unchanged(before, state)
        now_ms = int(time.time() * 1000)
        actions = [
            AddAction(
                relative(file.path, self._location),
                file.size_bytes,
                {},
                now_ms,
                True,
                f'{{"numRecords":{file.rows}}}',
            )
            for file in files
        ]
        self._write(state, actions)

    def merge(self, before: LakeState, state: LakeState, changes: pa.Table) -> None:
        """Change rows in one version."""
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        self._check_unchanged(before, state)
        columns = {f"t.`{name}`": f"s.`{name}`" for name in self._schema.names}
        merging = self._table.merge(
            changes,
            "t.stream = s.stream AND t.key = s.key",
            source_alias="s",
            target_alias="t",
            commit_properties=self._properties(state),
        )
        try:
            (
                merging.when_matched_delete(f"s.{DELETED}")
                .when_matched_update(columns)
                .when_not_matched_insert(columns, f"NOT s.{DELETED}")
                .execute()
            )
        except CommitFailedError as error:
            raise self._conflict(state) from error
        if self._table.transaction_version(self._application) != state.batch:
            # Nothing but deletions of what was not there makes no version by itself.
            self._write(state, [])

    def _write(self, state: LakeState, actions: Sequence[Any]) -> None:
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        try:
            self._table.create_write_transaction(
                actions, "append", self._schema, commit_properties=self._properties(state)
            )
        except CommitFailedError as error:
            raise self._conflict(state) from error

    def _properties(self, state: LakeState) -> Any:
        """Return what a version says of how far the table is."""
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415

        transactions = [Transaction(self._application, state.batch)]
        if state.upserts:
            transactions.append(Transaction(f"{self._application}#upserts", 1))
        for name, reached in state.streams.items():
            transactions.append(Transaction(f"{self._application}/{name}#birth", reached.birth))
            transactions.append(Transaction(f"{self._application}/{name}", reached.sequence_id))
        return CommitProperties(app_transactions=transactions, max_commit_retries=0)

    def _check_unchanged(self, before: LakeState, state: LakeState) -> None:
        if self.state(list(state.streams)) != before:
            raise self._conflict(state)

    def _conflict(self, state: LakeState) -> LakeConflictError:
        return LakeConflictError(
            f"table {self._location} changed while batch {state.batch} was written: another job "
            "writes it"
        )


def storage_options(location: str) -> dict[str, str]:
    """Return what deltalake has to be told so that it finds the place that pyarrow finds."""
    given = {name: words[-1] for name, words in parse_qs(options_of(location)[1:]).items()}
    options = {}
    endpoint = given.get("endpoint_override", "")
    if endpoint:
        if "://" not in endpoint:
            endpoint = f"{given.get('scheme', 'https')}://{endpoint}"
        options["aws_endpoint_url"] = endpoint
    else:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if "region" in given:
        options["aws_region"] = given["region"]
    if endpoint.startswith("http://"):
        options["aws_allow_http"] = "true"
    return options
