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


def _number(value: int) -> bytes:
    """Return a number as Thrift's compact protocol has it."""
    value, found = value << 1, b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def _header(kind: int, size: int, stored: int, values: int, encoding: int) -> bytes:
    fields = (b"\x15" + _number(each) for each in (kind, size, stored))
    page = b"".join(b"\x15" + _number(each) for each in (values, encoding, 3, 3))
    return b"".join(fields) + b"\x2c" + page + b"\x1c\x00\x00\x00"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"size": 1_600_000_000}, "against its footer"),
        ({"values": 999}, "against its footer"),
        ({"encoding": 7}, "stored in another way"),
        ({"kind": 2}, "cannot be read"),
        ({"stored": 1 << 30}, "cannot be read"),
    ],
)
def test_a_page_that_contradicts_the_footer_is_refused_before_it_is_decompressed(
    tmp_path: Path, change: dict[str, int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / "bomb.parquet", 1000, b"x" * 100, write_statistics=False)
    values = pq.ParquetFile(path).metadata.row_group(0).column(5)
    raw = bytearray(path.read_bytes())
    begin = values.data_page_offset
    body = raw.index(b"\x28\xb5\x2f\xfd", begin)  # where zstd begins
    stored = begin + values.total_compressed_size - body
    plain = values.total_uncompressed_size - (body - begin)
    told = {"kind": 0, "size": plain, "stored": stored, "values": 1000, "encoding": 0}
    assert raw[begin:body] == _header(**told)
    # The chunk keeps its place: bytes of the page, which nobody is to look at, give way.
    grown = len(_header(**told | change)) - (body - begin)
    changed = _header(**told | {"stored": stored - grown} | change)
    raw[begin : begin + len(changed)] = changed
    path.write_bytes(raw)
    file = PartFile(str(path))
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", None)
    with pytest.raises(CorruptRecordsError, match=why):
        file.read_group(0)
    file.close()
