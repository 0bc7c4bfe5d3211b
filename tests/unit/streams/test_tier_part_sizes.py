"""How much memory a Parquet file of a segment may take, which somebody else may have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from quorumbook.streams.errors import CorruptRecordsError  # noqa: E402
from quorumbook.streams.tier.part_file import PartFile, _schema  # noqa: E402

NUMBERS = ("ledger_id", "entry_id", "lac", "cum_length")


def _write(path: Path, count: int, value: bytes, **options: Any) -> Path:
    """Write a file as ours, of rows that take next to nothing in it."""
    zeros = pa.repeat(0, count)
    columns = [*(zeros for _ in NUMBERS), pa.repeat(b"", count), pa.repeat(value, count)]
    schema = _schema().with_metadata(
        {
            f"quorumbook.{name}": str(each)
            for name, each in {
                "format_version": 1,
                "cluster_id": "c",
                "ledger_id": 0,
                "first_entry_id": 0,
                "last_entry_id": count - 1,
                "checksum": 0,
            }.items()
        }
    )
    table = pa.table(columns, schema=schema)
    defaults = {
        "compression": "zstd",
        "use_dictionary": False,
        "column_encoding": dict.fromkeys(NUMBERS, "DELTA_BINARY_PACKED"),
    }
    pq.write_table(table, path, row_group_size=count, **{**defaults, **options})
    return path


@pytest.mark.parametrize(
    ("count", "value", "options", "why"),
    [
        (4_000_000, b"", {}, "more than is read at a time"),
        (1000, b"x" * 100_000, {}, "more than is read at a time"),
        (1000, b"x" * 100_000, {"use_dictionary": ["value"], "column_encoding": None},
         "stored in another way"),
        (1000, b"x" * 100_000, {"column_encoding": {"value": "DELTA_BYTE_ARRAY"}},
         "stored in another way"),
    ],
)  # fmt: skip
def test_a_small_file_of_very_many_bytes_is_refused_before_it_is_read(
    tmp_path: Path, count: int, value: bytes, options: dict[str, Any], why: str
) -> None:
    path = _write(tmp_path / "bomb.parquet", count, value, **options)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(CorruptRecordsError, match=why):
        PartFile(str(path))


def test_what_is_within_the_limits_is_opened(tmp_path: Path) -> None:
    path = _write(tmp_path / "good.parquet", 1000, b"x" * 10_000)
    file = PartFile(str(path))
    assert len(file.read_group(0)[1]) == 1000
    file.close()
