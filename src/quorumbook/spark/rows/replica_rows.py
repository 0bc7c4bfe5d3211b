"""Entries as rows, each read on one bookie that should hold it, whatever the others have.

What the bookie does not give, or gives damaged, is what ``onCorrupt`` is about; nobody else is
asked.  Entries of which nobody holds such a copy have no rows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from quorumbook.autorecovery.copying.verified_reads import read_verified
from quorumbook.client.context import client_context, client_store
from quorumbook.client.reading.entries import EntryBatch
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.errors import (
    ConfigError,
    DigestMismatchError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuorumbookError,
)
from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.protocol.digest import Digester, DigestType, digester
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.planning import Piece
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.ledger_rows import DamagedRow, Entries, Gatherer, opened
from quorumbook.spark.rows.open_ledgers import opening

#: So many entries are read together, of all bookies that are asked; fewer where they are large.
_MOST_ENTRIES = 1024
_BLOCK_BYTES = 4 * 1024 * 1024
_UNWEIGHED_ENTRIES = 16


async def gather(
    cluster: ClusterClient, options: ReadOptions, pieces: Sequence[Piece]
) -> AsyncGenerator[list[Entries] | DamagedRow, None]:
    """Yield as many entries at a time as an Arrow batch takes.

    Raises:
        DigestMismatchError: a copy is damaged, and that is to fail.
        NoSuchEntryError: it is not there, and that is to fail.
        QuorumbookError: a bookie gives no answer.
    """
    gatherer = Gatherer(options)
    async with contextlib.aclosing(opened(cluster, options, pieces)) as readers:
        async for piece, reader in readers:
            copies = _Copies(cluster, options, reader)
            async with contextlib.aclosing(copies.of(piece)) as found:
                async for each in found:
                    if isinstance(each, DamagedRow):
                        if gatherer.gathered:
                            yield gatherer.take()
                        yield each
                        continue
                    for full in gatherer.add(each):
                        yield full
    if gatherer.gathered:
        yield gatherer.take()


async def check_replica(cluster: ClusterClient, wanted: str) -> None:
    """Raise ConfigError if a copy is wanted of a bookie that the cluster does not know."""
    if not wanted or wanted.isdecimal():
        return
    writable, read_only = await cluster.client.bookies()
    known = {*await CookieStore(client_store(cluster.client)).list(), *writable, *read_only}
    if wanted not in known:
        raise ConfigError(
            f"replica: there is no bookie {wanted}; there are {', '.join(sorted(known))}"
        )


class _Copies:
    """The chosen copies of one ledger."""

    def __init__(self, cluster: ClusterClient, options: ReadOptions, reader: LedgerReader) -> None:
        self._context = client_context(cluster.client)
        self._options = options
        self._metadata: LedgerMetadata = reader.metadata
        how = opening(options.connection)
        kind = self._metadata.digest_type or how["digest_type"] or DigestType.CRC32
        self._digester: Digester = digester(kind, how["password"])
        self._block_entries = _UNWEIGHED_ENTRIES

    async def of(self, piece: Piece) -> AsyncGenerator[Entries | DamagedRow, None]:
        """Yield the entries of a piece, in order."""
        metadata = self._metadata
        starts = [fragment.first_entry_id for fragment in metadata.fragments]
        first = piece.first_entry
        while first <= piece.last_entry:
            stop = min(
                first + self._block_entries,
                piece.last_entry + 1,
                *(start for start in starts if start > first),
            )
            rows = await self._read(range(first, stop))
            for entry_id in sorted(rows):
                bookie_id, found = rows[entry_id]
                if isinstance(found, bytes):
                    yield self._entries(entry_id, found, bookie_id)
                elif self._options.on_corrupt == "fail":
                    raise found
                elif self._options.on_corrupt == "null":
                    yield DamagedRow(
                        {
                            "ledger_id": metadata.ledger_id,
                            "entry_id": entry_id,
                            "_error": str(found),
                            "_replica": bookie_id,
                        }
                    )
            self._weigh([found for _, found in rows.values() if isinstance(found, bytes)])
            first = stop

    def _entries(self, entry_id: EntryId, data: bytes, bookie_id: BookieId) -> Entries:
        head = self._digester.payload_offset
        batch = EntryBatch(
            self._metadata.ledger_id,
            entry_id,
            len(data).to_bytes(4, "big") + data,
            [data[head:]],
            head,
        )
        return Entries(batch, self._metadata, bookie_id)

    def _weigh(self, found: Sequence[bytes]) -> None:
        if found:
            fitting = _BLOCK_BYTES * len(found) // max(1, sum(map(len, found)))
            self._block_entries = max(1, min(_MOST_ENTRIES, fitting, 2 * self._block_entries))

    def _bookie_of(self, entry_id: EntryId) -> BookieId | None:
        """Return who should hold the copy that is wanted of an entry; None: nobody."""
        metadata, wanted = self._metadata, self._options.replica
        ensemble = metadata.fragment_of(entry_id).ensemble
        positions = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
        bookies = [ensemble[position] for position in positions]
        if wanted.isdecimal():
            return bookies[int(wanted)] if int(wanted) < len(bookies) else None
        return wanted if wanted in bookies else None

    async def _read(self, block: range) -> dict[EntryId, tuple[BookieId, bytes | QuorumbookError]]:
        """Read entries of one fragment, of those bookies that are to be asked, side by side."""
        size = self._metadata.ensemble_size
        strands: dict[tuple[BookieId, int], range] = {}
        for offset in range(min(size, len(block))):
            ids = block[offset::size]
            bookie_id = self._bookie_of(ids[0])
            if bookie_id is not None:
                strands[bookie_id, offset] = ids
        if len({bookie_id for bookie_id, _ in strands}) == 1 and len(strands) == min(
            size, len(block)
        ):
            strands = {next(iter(strands)): block}  # one bookie has them all: one request
        found: dict[EntryId, tuple[BookieId, bytes | QuorumbookError]] = {}
        answers = await asyncio.gather(
            *(self._of_bookie(bookie_id, ids) for (bookie_id, _), ids in strands.items())
        )
        for (bookie_id, _), rows in zip(strands, answers, strict=True):
            found |= {entry_id: (bookie_id, row) for entry_id, row in rows.items()}
        return found

    async def _of_bookie(
        self, bookie_id: BookieId, ids: range
    ) -> dict[EntryId, bytes | QuorumbookError]:
        found: dict[EntryId, bytes | QuorumbookError] = {}
        while ids:
            try:
                bodies = await read_verified(
                    self._context, self._digester, self._metadata.ledger_id, bookie_id, ids
                )
            except NoSuchLedgerError as error:
                return {**found, **dict.fromkeys(ids, error)}
            except (DigestMismatchError, NoSuchEntryError) as error:
                found[ids[0]] = error
                ids = ids[1:]
                continue
            found |= dict(zip(ids, bodies, strict=False))
            ids = ids[len(bodies) :]
        return found
