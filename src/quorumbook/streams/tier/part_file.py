"""One Parquet file of a ledger's entries: how it is written, opened, read and checked.

    column      type    content
    ledger_id   int64   the same in all rows
    entry_id    int64   ascending without a gap
    lac         int64   last add confirmed, as the entry's header has it
    cum_length  int64   the ledger's length with this entry, as the header has it
    digest      binary  as stored, empty for DUMMY
    value       binary  the payload

No column has nulls.  A row group holds some MiB, so that one entry costs one small read.  Values
are compressed by zstd at level 1; ids and lengths are delta-encoded.  The footer's metadata, all
ASCII, begin with ``quorumbook.``:

    format_version = 1          first_entry_id, last_entry_id, entries
    cluster_id, ledger_id       digest_type, digest_size_bytes
    ensemble_size, write_quorum_size, ack_quorum_size
    records                     of the segment; -1 where nobody knows
    checksum                    CRC-32C over, for each row group, the rows' headers (32 bytes as on
                                bookies, then the digest) and then their values
    writer_version              of this package

From lac, cum_length and digest an entry is put together again as bookies have it.
"""

from __future__ import annotations

import contextlib
import io
from bisect import bisect_right
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple

import google_crc32c

from quorumbook.client.reading.entries import EntryBatch
from quorumbook.errors import DigestMismatchError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.digest import HEADER_SIZE_BYTES, Digester, DigestType
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError
from quorumbook.streams.tier.manifest import OffloadedFile
from quorumbook.streams.tier.pages import check_pages
from quorumbook.streams.tier.places import below, file_system, is_object_store, make_directory

FORMAT_VERSION = 1
ROW_GROUP_BYTES = 6 * 1024 * 1024
#: What a row group may grow to in memory; whoever writes files elsewhere decides its footer.
_ROW_GROUP_BYTES_MAX = 64 * 1024 * 1024
#: The encodings of ``PartWriter``.  In others, a few bytes stand for any number of values.
_ENCODINGS = {"PLAIN", "RLE", "DELTA_BINARY_PACKED"}
_PREFIX = "quorumbook."
_SIZE = Struct(">i")
_COLUMNS = ("ledger_id", "entry_id", "lac", "cum_length", "digest", "value")
#: Values that are so large on average are not copied to be looked at.
_LARGE_BYTES = 4096
_DELTA = ("ledger_id", "entry_id", "lac", "cum_length")


class PartFacts(NamedTuple):
    """What a file says of the ledger it is of."""

    cluster_id: str
    ledger_id: LedgerId
    digest_type: DigestType
    digest_size_bytes: int
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    records: int = -1

    @property
    def payload_offset(self) -> int:
        """Where the payload begins in an entry."""
        return HEADER_SIZE_BYTES + self.digest_size_bytes


class VerifiedGroup(NamedTuple):
    """What was read of a row group whose entries match their digests."""

    #: Header and digest of each entry, one behind the other.
    heads: bytes
    #: The payloads, one behind the other; a buffer of pyarrow's.
    values: Any


def _schema() -> Any:
    import pyarrow as pa

    whole = [pa.field(name, pa.int64(), nullable=False) for name in _DELTA]
    return pa.schema([*whole, *(pa.field(n, pa.binary(), nullable=False) for n in _COLUMNS[4:])])


class PartWriter:
    """Writes one file; blocks, so it belongs into a worker or a task."""

    def __init__(self, location: str, name: str, facts: PartFacts, first_entry_id: EntryId) -> None:
        """Begin a file in a directory, which is made if it is not there.

        Raises:
            ConfigError: see ``places.file_system``.
            OSError: it cannot be written.
        """
        import pyarrow.parquet as pq

        self._system, self._path = file_system(below(location, name))
        make_directory(self._system, self._path.rpartition("/")[0])
        self._name, self._facts = name, facts
        self._first, self._next = first_entry_id, first_entry_id
        self._checksum = 0
        self._schema = _schema()
        self._writer: Any = pq.ParquetWriter(
            self._path,
            self._schema,
            filesystem=self._system,
            compression={name: "zstd" if name == "value" else "none" for name in _COLUMNS},
            compression_level={"value": 1},
            use_dictionary=False,
            write_statistics=list(_DELTA),
            column_encoding=dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
        )

    def add(self, batches: Sequence[EntryBatch]) -> None:
        """Write the entries that follow, as a row group.

        Raises:
            CorruptRecordsError: they do not follow.
            OSError: they cannot be written.
        """
        import numpy as np
        import pyarrow as pa

        if any(b.payload_offset != self._facts.payload_offset for b in batches):
            raise CorruptRecordsError("an entry's digest has another size than its ledger's")
        table = np.concatenate([_heads(batch) for batch in batches])
        count = len(table)
        numbers = table[:, :HEADER_SIZE_BYTES].copy().view(">i8").astype(np.int64)
        ids = numbers[:, 1]
        if (ids != np.arange(self._next, self._next + count)).any():
            raise CorruptRecordsError(f"entries do not go on with {self._next}")
        payloads = [payload for batch in batches for payload in batch.payloads]
        values = b"".join(payloads)
        digests = table[:, HEADER_SIZE_BYTES:].tobytes()
        digest_ends = np.arange(count + 1, dtype=np.int32) * self._facts.digest_size_bytes
        value_ends = np.zeros(count + 1, np.int32)
        np.cumsum(np.fromiter(map(len, payloads), np.int32, count), out=value_ends[1:])
        columns = [pa.array(numbers[:, index]) for index in range(4)]
        for data, ends in ((digests, digest_ends), (values, value_ends)):
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
            columns.append(pa.Array.from_buffers(pa.binary(), count, buffers))
        rows = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(rows, row_group_size=count)
        self._checksum = google_crc32c.extend(self._checksum, table.tobytes())
        self._checksum = google_crc32c.extend(self._checksum, values)
        self._next += count

    def close(self) -> OffloadedFile:
        """Finish the file and return what the manifest says of it."""
        facts = {
            "format_version": FORMAT_VERSION,
            **self._facts._asdict(),
            "digest_type": self._facts.digest_type.name,
            "first_entry_id": self._first,
            "last_entry_id": self._next - 1,
            "entries": self._next - self._first,
            "checksum": self._checksum,
            "writer_version": version("quorumbook"),
        }
        self._writer.add_key_value_metadata(
            {f"{_PREFIX}{name}": str(value) for name, value in facts.items()}
        )
        self._writer.close()
        size = self._system.get_file_info(self._path).size
        return OffloadedFile(self._name, self._first, self._next - 1, size, self._checksum)

    def abandon(self) -> None:
        """Close what will never be used."""
        with contextlib.suppress(Exception):
            self._writer.close()


class PartFile:
    """An open file; blocks, so it belongs into a worker or a task."""

    def __init__(self, path: str) -> None:
        """Open a file by its path or URI.

        Raises:
            CorruptRecordsError: it is none of ours, or damaged.
            UnsupportedFormatError: it says that it is of another release, or is damaged just there.
            OSError: it cannot be read.
        """
        self.path = path
        system, inner = file_system(path)
        # Reads that belong together are one request.
        self._is_far = is_object_store(system)
        self._source = system.open_input_file(inner)
        try:
            self._file: Any = self._tried(self._opened)
            self._understand(self._file.metadata)
        except BaseException:
            self._source.close()
            raise
        if self._starts[-1] != self.last + 1:
            self.close()
            raise CorruptRecordsError(f"{path} has not the entries that its footer tells")

    def _understand(self, metadata: Any) -> None:
        import pyarrow as pa

        path = self.path
        try:
            stored = (metadata.metadata or {}).items()
            facts = {k.decode(): v.decode() for k, v in stored if k.startswith(_PREFIX.encode())}
            if int(facts[f"{_PREFIX}format_version"]) != FORMAT_VERSION:
                raise UnsupportedFormatError(
                    f"{path} is of version {facts[_PREFIX + 'format_version']}, "
                    f"not {FORMAT_VERSION}"
                )
            self.ledger_id = int(facts[f"{_PREFIX}ledger_id"])
            self.first = int(facts[f"{_PREFIX}first_entry_id"])
            self.last = int(facts[f"{_PREFIX}last_entry_id"])
            self.checksum = int(facts[f"{_PREFIX}checksum"])
            self.cluster_id = facts[f"{_PREFIX}cluster_id"]
            #: The first entry of each row group, and the one behind the last.
            self._starts = [self.first]
            for index in range(metadata.num_row_groups):
                rows = metadata.row_group(index)
                _check_size(rows, f"{path}: row group {index}")
                self._starts.append(self._starts[-1] + rows.num_rows)
        except (pa.ArrowException, KeyError, ValueError, OSError) as error:
            raise CorruptRecordsError(f"{path}: {error}") from error

    def _opened(self) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetFile(self._source, pre_buffer=self._is_far)

    def _tried(self, read: Callable[[], Any]) -> Any:
        """Return what is read, at the second attempt if need be.

        pyarrow tells damage and a store that is away by the same kind of error.

        Raises:
            CorruptRecordsError: it can be read, and not be understood.
            OSError: it cannot be read.
        """
        import pyarrow as pa

        try:
            return read()
        except (pa.ArrowException, OSError, ValueError):
            self._source.read_at(1, 0)
        try:
            return read()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptRecordsError(f"{self.path}: {error}") from error

    def close(self) -> None:
        """Let go of the file."""
        self._file.close(force=True)

    @property
    def groups(self) -> range:
        """The row groups."""
        return range(len(self._starts) - 1)

    def first_of(self, group: int) -> EntryId:
        """Return the first entry of a row group."""
        return self._starts[group]

    def group_of(self, entry_id: EntryId) -> int:
        """Return the row group that has an entry."""
        return bisect_right(self._starts, entry_id) - 1

    def read_group(self, group: int) -> tuple[list[bytes], list[bytes]]:
        """Return header with digest, and payload, of each entry of a row group.

        Raises:
            CorruptRecordsError: it cannot be decoded.
        """
        heads, values = self._columns(group)
        return _rows_of(heads), values.to_pylist()

    def verified_group(self, group: int, ledger_id: LedgerId, digester: Digester) -> VerifiedGroup:
        """Read a row group and recompute the digest of each entry.

        Raises:
            CorruptRecordsError: it cannot be decoded, or an entry is not what it should be.
        """
        import numpy as np

        heads, values = self._columns(group)
        first, count = self._starts[group], len(heads)
        ids = heads[:, :16].copy().view(">i8")
        is_right = (ids[:, 0] == ledger_id) & (ids[:, 1] == np.arange(first, first + count))
        ends, data = _layout(values)
        headers = _rows_of(heads[:, :HEADER_SIZE_BYTES])
        found = b"".join(digester.digest_columns(headers, _pieces(values, ends, data)))
        digests = np.frombuffer(found, np.uint8).reshape(count, digester.size_bytes)
        stored = heads[:, HEADER_SIZE_BYTES:]
        if stored.shape != digests.shape:
            raise CorruptRecordsError(f"{self.path}: digests are not as long as the ledger's are")
        is_right &= (stored == digests).all(axis=1)
        if not is_right.all():
            entry_id = first + int(np.argmin(is_right))
            raise CorruptRecordsError(
                f"{self.path}: entry {entry_id} of ledger {ledger_id} does not match its digest"
            )
        return VerifiedGroup(heads.tobytes(), data)

    def _columns(self, group: int) -> tuple[Any, Any]:
        """Return header with digest of each entry, as rows of a numpy array, and the values."""
        import numpy as np

        table = self._tried(lambda: self._table(group))
        if [*table.schema.types] != _schema().types or any(c.null_count for c in table.columns):
            raise CorruptRecordsError(f"{self.path} has other columns than it should")
        numbers = np.stack([table.column(name).to_numpy() for name in _DELTA], axis=1)
        ends, digests = _layout(table.column("digest").combine_chunks())
        size = int(ends[1]) if len(ends) > 1 else 0
        if (np.diff(ends) != size).any():
            raise CorruptRecordsError(f"{self.path}: digests differ in size")
        heads = np.empty((len(numbers), HEADER_SIZE_BYTES + size), np.uint8)
        heads[:, :HEADER_SIZE_BYTES] = numbers.astype(">i8").view(np.uint8)
        heads[:, HEADER_SIZE_BYTES:] = np.frombuffer(digests, np.uint8).reshape(len(heads), size)
        return heads, table.column("value").combine_chunks()

    def _table(self, group: int) -> Any:
        """Read a row group's bytes in one piece, weigh their pages, and decode these very bytes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        metadata = self._file.metadata
        rows = metadata.row_group(group)
        chunks = [rows.column(index) for index in range(rows.num_columns)]
        start = min(chunk.data_page_offset for chunk in chunks)
        end = max(chunk.data_page_offset + chunk.total_compressed_size for chunk in chunks)
        if start < 0 or end - start > _ROW_GROUP_BYTES_MAX:
            raise CorruptRecordsError(f"{self.path}: row group {group} is not in one piece")
        data = memoryview(self._source.read_at(end - start, start))
        for chunk in chunks:
            begin = chunk.data_page_offset - start
            pages = data[begin : begin + chunk.total_compressed_size]
            what = f"{self.path}: row group {group}, column {chunk.path_in_schema}"
            check_pages(pages, rows.num_rows, chunk.total_uncompressed_size, what)
        source = pa.PythonFile(_Stretch(data, start), mode="r")
        with pq.ParquetFile(source, metadata=metadata, pre_buffer=False) as file:
            return file.read_row_group(group, columns=list(_COLUMNS), use_threads=False)

    def read_run(self, group: int, digester: Digester) -> tuple[EntryId, bytes, list[bytes]]:
        """Return a row group as bookies answer a batch read, verified.

        Returns:
            The first entry, all entries each behind its size, and their payloads.

        Raises:
            CorruptRecordsError: an entry is not what it should be.
        """
        heads, values = self.read_group(group)
        pieces: list[bytes] = []
        for head, value in zip(heads, values, strict=True):
            pieces += (_SIZE.pack(len(head) + len(value)), head, value)
        data = b"".join(pieces)
        first = self._starts[group]
        try:
            return first, data, digester.open_run(data, self.ledger_id, first)
        except DigestMismatchError as error:
            raise CorruptRecordsError(f"{self.path}: {error}") from error


class _Stretch(io.RawIOBase):
    """A piece of a file, as pyarrow reads it: by offsets in the file."""

    def __init__(self, data: memoryview, start: int) -> None:
        self._data, self._start, self._at = data, start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + (self._start + len(self._data) if whence == io.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        begin = self._at - self._start
        found = bytes(self._data[begin : begin + size]) if begin >= 0 <= size else b""
        self._at += len(found)
        return found


def _check_size(rows: Any, what: str) -> None:
    """Refuse a row group that would take too much memory, by what the footer says of it.

    Raises:
        CorruptRecordsError: it is none that ``PartWriter`` writes.
    """
    columns = [rows.column(index) for index in range(rows.num_columns)]
    size_bytes = sum(max(column.total_uncompressed_size, 0) for column in columns)
    if max(size_bytes, rows.num_rows * HEADER_SIZE_BYTES) > _ROW_GROUP_BYTES_MAX:
        raise CorruptRecordsError(
            f"{what} has {rows.num_rows} rows and {size_bytes} bytes, more than is read at a time "
            f"({_ROW_GROUP_BYTES_MAX} bytes)"
        )
    for column in columns:
        if column.num_values != rows.num_rows or not _ENCODINGS.issuperset(column.encodings):
            raise CorruptRecordsError(f"{what} has a column that is stored in another way")


def _heads(batch: EntryBatch) -> Any:
    """Return header with digest of each entry, as rows of a numpy array."""
    import numpy as np

    data = np.frombuffer(batch.buffer, np.uint8)
    head, count = 4 + batch.payload_offset, len(batch)
    sizes = np.fromiter(map(len, batch.payloads), np.int64, count) + head
    if (sizes == sizes[0]).all():
        return data.reshape(count, int(sizes[0]))[:, 4:head]
    starts = np.cumsum(sizes) - sizes
    return data[starts[:, None] + np.arange(4, head)]


def _rows_of(table: Any) -> list[bytes]:
    """Return the rows of a table of bytes."""
    data, size = table.tobytes(), table.shape[1]
    return [data[at : at + size] for at in range(0, len(data), size)]


def _layout(values: Any) -> tuple[Any, Any]:
    """Return where binary values end, behind a 0, and the buffer of all of them."""
    import numpy as np
    import pyarrow as pa

    _, ends, data = values.buffers()
    if data is None:
        return np.zeros(len(values) + 1, np.int32), pa.py_buffer(b"")
    ends = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1]
    return ends - ends[0], data.slice(int(ends[0]), int(ends[-1] - ends[0]))


def _pieces(values: Any, ends: Any, data: Any) -> list[Any]:
    """Return the values: copied where they are small, else as parts of the buffer."""
    if len(data) < _LARGE_BYTES * len(values):
        return values.to_pylist()  # type: ignore[no-any-return]
    places = ends.tolist()
    return [data.slice(a, b - a) for a, b in pairwise(places)]
