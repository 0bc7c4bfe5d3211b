"""A batch of changes to a table that has the latest record of each key.

Tasks write files of changes: the table's columns, and whether a row deletes its key.  Of those the
latest of each key counts, in the order of the records.  A key is one of its stream's; records
without a key stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from quorumbook.streams.tier.places import file_system

#: The column of files of changes that says whether a row deletes its key.
DELETED = "_deleted"
#: What a row is of.
KEY = ("stream", "key")
_ROW = "_row"


def changes_in(files: Sequence[str]) -> pa.Table:
    """Return the latest change of each key.

    Args:
        files: In the order of the records; one at least.
    """
    return latest(pa.concat_tables([_read(file) for file in files]))


def latest(changes: pa.Table) -> pa.Table:
    """Return the last row of each key, and all without one, in their order."""
    numbered = changes.select(KEY).append_column(_ROW, pa.array(range(len(changes)), pa.int64()))
    has_key = pc.is_valid(numbered["key"])
    last = numbered.filter(has_key).group_by(list(KEY)).aggregate([(_ROW, "max")])
    without = numbered.filter(pc.invert(has_key))[_ROW]
    rows = pa.chunked_array([*last[f"{_ROW}_max"].chunks, *without.chunks], pa.int64())
    return changes.take(rows.take(pc.sort_indices(rows)))


def rows_of(changes: pa.Table) -> pa.Table:
    """Return the rows that the table gets."""
    return changes.filter(pc.invert(changes[DELETED])).drop_columns([DELETED])


def keys_of(changes: pa.Table) -> pa.Table:
    """Return the keys whose rows the table loses."""
    return changes.select(KEY).filter(pc.is_valid(changes["key"]))


def untouched(table: pa.Table, keys: pa.Table) -> Any:
    """Return, of each row of a table with the columns of ``KEY``, whether it stays."""
    numbered = table.select(KEY).append_column(_ROW, pa.array(range(len(table)), pa.int64()))
    gone = numbered.join(keys, list(KEY), join_type="left semi")[_ROW]
    return pc.invert(pc.is_in(numbered[_ROW], value_set=gone.combine_chunks()))


def delete_files(files: Sequence[str]) -> None:
    """Delete files of changes that the table has taken in, as far as that is possible."""
    for file in files:
        system, path = file_system(file)
        try:
            system.delete_file(path)
        except OSError:
            continue  # of no meaning to anybody


def _read(file: str) -> pa.Table:
    system, path = file_system(file)
    return pyarrow.parquet.read_table(path, filesystem=system)
