"""The door of the blocking twin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from quorumbook.client import client as aio
from quorumbook.client.options import ClientOptions, LedgerWriterKeywords
from quorumbook.env import Env
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata, LedgerState
from quorumbook.options import takes
from quorumbook.protocol.digest import DigestType
from quorumbook.sync.election import Election
from quorumbook.sync.loop import Closing
from quorumbook.sync.reader import LedgerReader
from quorumbook.sync.writer import LedgerWriter


@takes(ClientOptions)
def connect(metadata_uri: str, **options: Any) -> BookKeeper:
    """Make a blocking client, to be used in a ``with`` block; see ``quorumbook.connect``."""
    return BookKeeper(metadata_uri, options=ClientOptions.of(options))


def wrapped(client: aio.BookKeeper) -> BookKeeper:
    """Return the twin of a client that lives on the loop thread already."""
    twin = BookKeeper(client.metadata_uri, options=client.options)
    twin._aio = client  # noqa: SLF001 - of this module
    return twin


def unwrapped(client: BookKeeper) -> aio.BookKeeper:
    """Return the client that does the work of a twin."""
    return client._aio  # noqa: SLF001 - of this module


class BookKeeper(Closing):
    """The blocking twin of ``quorumbook.BookKeeper``."""

    def __init__(
        self, metadata_uri: str, *, options: ClientOptions | None = None, env: Env | None = None
    ) -> None:
        """Prepare; nothing happens before ``start``, which entering the ``with`` block does."""
        super().__init__()
        self._aio = aio.BookKeeper(metadata_uri, options=options, env=env)

    def start(self) -> BookKeeper:
        """Open the metadata store and look whether there is a cluster."""
        self.run(self._aio.start)
        return self

    def close(self) -> None:
        """Abort what is not closed, and let go of everything."""
        self.run(self._aio.close)

    def __enter__(self) -> BookKeeper:
        return self.start()

    @property
    def metadata_uri(self) -> str:
        """What the client was connected with."""
        return self._aio.metadata_uri

    @property
    def options(self) -> ClientOptions:
        """The options of this client."""
        return self._aio.options

    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: LedgerId | None = None,
        explicit_entry_ids: bool = False,
        deferred_sync: bool = False,
        bookie_labels: Mapping[str, str] | None = None,
        **options: Unpack[LedgerWriterKeywords],
    ) -> LedgerWriter:
        """Create a ledger and return its writer; see ``quorumbook.BookKeeper``."""
        writer = self.run(
            lambda: self._aio.create_ledger(
                ensemble_size=ensemble_size,
                write_quorum_size=write_quorum_size,
                ack_quorum_size=ack_quorum_size,
                password=password,
                digest_type=digest_type,
                custom_metadata=custom_metadata,
                ledger_id=ledger_id,
                explicit_entry_ids=explicit_entry_ids,
                deferred_sync=deferred_sync,
                bookie_labels=bookie_labels,
                **options,
            )
        )
        return LedgerWriter(writer)

    def reserve_ledger_id(self) -> LedgerId:
        """Return an id that no ledger has had, for ``create_ledger`` to make one of it."""
        return self.run(self._aio.reserve_ledger_id)

    def create_unwritten_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: LedgerId | None = None,
        bookie_labels: Mapping[str, str] | None = None,
    ) -> LedgerId:
        """Create a ledger for some process to write later; see ``quorumbook.BookKeeper``."""
        return self.run(
            lambda: self._aio.create_unwritten_ledger(
                ensemble_size=ensemble_size,
                write_quorum_size=write_quorum_size,
                ack_quorum_size=ack_quorum_size,
                password=password,
                digest_type=digest_type,
                custom_metadata=custom_metadata,
                ledger_id=ledger_id,
                bookie_labels=bookie_labels,
            )
        )

    def claim_unwritten_ledger(
        self,
        ledger_id: LedgerId,
        *,
        password: bytes = b"",
        deferred_sync: bool = False,
        **options: Unpack[LedgerWriterKeywords],
    ) -> LedgerWriter:
        """Become the writer of a ledger nobody wrote; see ``quorumbook.BookKeeper``."""
        return LedgerWriter(
            self.run(
                lambda: self._aio.claim_unwritten_ledger(
                    ledger_id, password=password, deferred_sync=deferred_sync, **options
                )
            )
        )

    def open_ledger(
        self,
        ledger_id: LedgerId,
        *,
        password: bytes = b"",
        recover: bool = True,
        accept_loss: bool = False,
        digest_type: DigestType | None = None,
    ) -> LedgerReader:
        """Open a ledger for reading; see ``quorumbook.BookKeeper``."""
        return LedgerReader(
            self.run(
                lambda: self._aio.open_ledger(
                    ledger_id,
                    password=password,
                    recover=recover,
                    accept_loss=accept_loss,
                    digest_type=digest_type,
                )
            )
        )

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger; bookies collect its entries later."""
        self.run(lambda: self._aio.delete_ledger(ledger_id))

    def ledger_metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return what the metadata store says of a ledger."""
        return self.run(lambda: self._aio.ledger_metadata(ledger_id))

    def list_ledgers(
        self,
        *,
        state: LedgerState | None = None,
        custom_metadata: Mapping[str, bytes] | None = None,
    ) -> Iterator[LedgerMetadata]:
        """Yield the metadata of all ledgers, ascending by id."""
        return self.iterate(
            lambda: self._aio.list_ledgers(state=state, custom_metadata=custom_metadata)
        )

    def list_ledger_ids(self) -> Iterator[LedgerId]:
        """Yield the ids of all ledgers, ascending."""
        return self.iterate(self._aio.list_ledger_ids)

    def election(self, name: str, candidate: str = "") -> Election:
        """Return a candidate of an election; it avoids fights, and gives no safety."""
        return Election(self._aio.election(name, candidate))

    def bookies(self) -> tuple[frozenset[BookieId], frozenset[BookieId]]:
        """Return the writable and the read-only bookies that are registered now."""
        return self.run(self._aio.bookies)
