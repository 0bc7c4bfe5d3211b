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
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from struct import Struct
from typing import Any, NamedTuple

import google_crc32c

from quorumbook.errors import ConfigError, DigestMismatchError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.digest import HEADER_SIZE_BYTES, Digester, DigestType
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError
from quorumbook.streams.tier.manifest import Part

FORMAT_VERSION = 1
ROW_GROUP_BYTES = 6 * 1024 * 1024
_PREFIX = "quorumbook."
_HEADER = Struct(">qqqq")
_SIZE = Struct(">i")
_COLUMNS = ("ledger_id", "entry_id", "lac", "cum_length", "digest", "value")
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


def file_system(location: str) -> tuple[Any, str]:
    """Return the file system of a path or URI, and the path in it.

    Raises:
        ConfigError: pyarrow is not installed, or the location is of no kind that it knows.
    """
    try:
        from pyarrow import fs
    except ImportError as error:
        raise ConfigError(
            "Parquet files are read and written by pyarrow: pip install 'quorumbook[spark]'"
        ) from error
    try:
        if "://" in location:
            system, path = fs.FileSystem.from_uri(location)
            return system, path
        return fs.LocalFileSystem(), location
    except (ValueError, OSError) as error:
        raise ConfigError(f"{location} is no place for files: {error}") from error


def _schema() -> Any:
    import pyarrow as pa

    whole = [pa.field(name, pa.int64(), nullable=False) for name in _DELTA]
    return pa.schema([*whole, *(pa.field(n, pa.binary(), nullable=False) for n in _COLUMNS[4:])])


class PartWriter:
    """Writes one file; blocks, so it belongs into a worker or a task."""

    def __init__(self, location: str, name: str, facts: PartFacts, first_entry_id: EntryId) -> None:
        """Begin a file in a directory, which is made if it is not there.

        Raises:
            ConfigError: see ``file_system``.
            OSError: it cannot be written.
        """
        import pyarrow.parquet as pq

        self._system, directory = file_system(location)
        self._system.create_dir(directory, recursive=True)
        self._name, self._facts = name, facts
        self._path = f"{directory}/{name}"
        self._first, self._next = first_entry_id, first_entry_id
        self._heads: list[bytes] = []
        self._values: list[bytes] = []
        self._held_bytes = 0
        self._checksum = 0
        #: Of the values written or held.
        self.value_bytes = 0
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

    def add(self, heads: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add the entries that follow: header with digest, and payload, of each."""
        self._heads += heads
        self._values += values
        size = sum(map(len, values))
        self._held_bytes += size
        self.value_bytes += size
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import numpy as np
        import pyarrow as pa

        if not self._heads:
            return
        heads, values = b"".join(self._heads), b"".join(self._values)
        count = len(self._heads)
        table = np.frombuffer(heads, np.uint8).reshape(count, -1)
        if table.shape[1] != HEADER_SIZE_BYTES + self._facts.digest_size_bytes:
            raise CorruptRecordsError("an entry's digest has another size than its ledger's")
        numbers = table[:, :HEADER_SIZE_BYTES].copy().view(">i8").astype(np.int64)
        ids = numbers[:, 1]
        if ids[0] != self._next or ids[-1] != self._next + count - 1 or (np.diff(ids) != 1).any():
            raise CorruptRecordsError(f"entries do not go on with {self._next}")
        digests = table[:, HEADER_SIZE_BYTES:].tobytes()
        digest_ends = np.arange(count + 1, dtype=np.int32) * self._facts.digest_size_bytes
        value_ends = np.zeros(count + 1, np.int32)
        np.cumsum([len(value) for value in self._values], out=value_ends[1:])
        columns = [pa.array(numbers[:, index]) for index in range(4)]
        for data, ends in ((digests, digest_ends), (values, value_ends)):
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
            columns.append(pa.Array.from_buffers(pa.binary(), count, buffers))
        batch = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(batch, row_group_size=count)
        self._checksum = google_crc32c.extend(self._checksum, heads)
        self._checksum = google_crc32c.extend(self._checksum, values)
        self._next += count
        self._heads, self._values, self._held_bytes = [], [], 0

    def close(self) -> Part:
        """Finish the file and return what the manifest says of it."""
        self._flush()
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
        return Part(self._name, self._first, self._next - 1, size, self._checksum)

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
            UnsupportedFormatError: of a newer release.
            OSError: it cannot be read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        system, inner = file_system(path)
        source = system.open_input_file(inner)
        try:
            self._file: Any = pq.ParquetFile(source)
            metadata = self._file.metadata
            stored = (metadata.metadata or {}).items()
            facts = {k.decode(): v.decode() for k, v in stored if k.startswith(_PREFIX.encode())}
            if facts.get(f"{_PREFIX}format_version") != str(FORMAT_VERSION):
                raise UnsupportedFormatError(
                    f"{path} is of version {facts.get(_PREFIX + 'format_version')}, "
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
                self._starts.append(self._starts[-1] + metadata.row_group(index).num_rows)
        except (pa.ArrowException, KeyError, ValueError, OSError) as error:
            source.close()
            raise CorruptRecordsError(f"{path}: {error}") from error
        except BaseException:
            source.close()
            raise
        if self._starts[-1] != self.last + 1:
            self.close()
            raise CorruptRecordsError(f"{path} has not the entries that its footer tells")

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
        import numpy as np
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group, columns=list(_COLUMNS))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptRecordsError(f"{self.path}: {error}") from error
        numbers = np.stack([table.column(name).to_numpy() for name in _DELTA], axis=1)
        heads = numbers.astype(">i8").tobytes()
        size = HEADER_SIZE_BYTES
        digests = table.column("digest").to_pylist()
        found = [heads[i * size : i * size + size] + d for i, d in enumerate(digests)]
        return found, table.column("value").to_pylist()

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


def verify_part(path: str, part: Part, ledger_id: LedgerId, digester: Digester) -> int:
    """Read a file again, recompute the digest of each entry, and compare; return its entries.

    Raises:
        CorruptRecordsError: it is not what the manifest says, or damaged.
        OSError: it cannot be read.
    """
    with contextlib.closing(PartFile(path)) as file:
        if (file.ledger_id, file.first, file.last) != (ledger_id, part.first, part.last):
            raise CorruptRecordsError(
                f"{path} holds entries {file.first} to {file.last} of ledger {file.ledger_id}, not "
                f"{part.first} to {part.last} of ledger {ledger_id}"
            )
        checksum = 0
        for group in file.groups:
            heads, values = file.read_group(group)
            data = b"".join(
                piece
                for head, value in zip(heads, values, strict=True)
                for piece in (_SIZE.pack(len(head) + len(value)), head, value)
            )
            try:
                digester.open_run(data, ledger_id, file.first_of(group))
            except DigestMismatchError as error:
                raise CorruptRecordsError(f"{path}: {error}") from error
            checksum = google_crc32c.extend(checksum, b"".join(heads))
            checksum = google_crc32c.extend(checksum, b"".join(values))
        if checksum != part.checksum or checksum != file.checksum:
            raise CorruptRecordsError(f"{path}: the entries do not match the file's checksum")
    return part.last - part.first + 1


def heads_of(run: bytes, payloads: Sequence[bytes], payload_offset: int) -> Iterator[bytes]:
    """Yield header with digest of each entry of a run, given their payloads."""
    position = 4
    for payload in payloads:
        yield run[position : position + payload_offset]
        position += payload_offset + len(payload) + 4
