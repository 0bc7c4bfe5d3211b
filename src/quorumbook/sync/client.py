"""The door of the blocking twin: the client, and what stands in an election."""

from __future__ import annotations

from typing import Any

from quorumbook.client import client as aio
from quorumbook.client.options import ClientOptions
from quorumbook.env import Env
from quorumbook.metadata import election as aio_election
from quorumbook.options import takes
from quorumbook.sync.declared import blocking, deriving, held, iterating
from quorumbook.sync.reader import LedgerReader
from quorumbook.sync.twin import Closing, Ending
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


class Election(Ending[aio_election.Election]):
    """The blocking twin of ``quorumbook.metadata.election.Election``: it avoids fights, no more.

    Safety is the fence's; a leader that was paused believes to lead while another one does.
    """

    def __enter__(self) -> Election:
        self._run(self._aio.__aenter__)
        return self

    def _end_block(self, error: BaseException | None) -> None:
        del error
        self.resign()

    candidate = held(aio_election.Election, lambda it: it.candidate)
    """By which name this candidate stands."""
    is_leader = held(aio_election.Election, lambda it: it.is_leader)
    """Whether this candidate leads, as far as this process knows."""
    wait_to_lead = blocking(aio_election.Election.wait_to_lead)
    """Wait until this candidate leads."""
    wait_to_lose = blocking(aio_election.Election.wait_to_lose)
    """Wait until this candidate does not lead, as far as this process knows."""
    leader = blocking(aio_election.Election.leader)
    """Return who leads now, None if nobody stands."""
    resign = blocking(aio_election.Election.resign)
    """Stop leading, withdraw the vote, and stand no more."""


class BookKeeper(Closing[aio.BookKeeper]):
    """The blocking twin of ``quorumbook.BookKeeper``."""

    def __init__(
        self, metadata_uri: str, *, options: ClientOptions | None = None, env: Env | None = None
    ) -> None:
        """Prepare; nothing happens before ``start``, which entering the ``with`` block does."""
        super().__init__(aio.BookKeeper(metadata_uri, options=options, env=env))

    def start(self) -> BookKeeper:
        """Open the metadata store and look whether there is a cluster."""
        self._run(self._aio.start)
        return self

    close = blocking(aio.BookKeeper.close)
    """Abort writers that are not closed, and release all connections."""

    def __enter__(self) -> BookKeeper:
        return self.start()

    metadata_uri = held(aio.BookKeeper, lambda it: it.metadata_uri)
    """What the client was connected with."""
    options = held(aio.BookKeeper, lambda it: it.options)
    """The options of this client."""

    create_ledger = blocking(aio.BookKeeper.create_ledger, LedgerWriter)
    """Create a ledger and write it: ``with bk.create_ledger() as writer``."""
    reserve_ledger_id = blocking(aio.BookKeeper.reserve_ledger_id)
    """Return an id that no ledger has had, for ``create_ledger`` to make one of it."""
    create_unwritten_ledger = blocking(aio.BookKeeper.create_unwritten_ledger)
    """Create a ledger for some process to write later."""
    claim_unwritten_ledger = blocking(aio.BookKeeper.claim_unwritten_ledger, LedgerWriter)
    """Become the writer of a ledger nobody wrote."""
    open_ledger = blocking(aio.BookKeeper.open_ledger, LedgerReader)
    """Open a ledger for reading: ``with bk.open_ledger(ledger_id) as reader``."""
    delete_ledger = blocking(aio.BookKeeper.delete_ledger)
    """Delete a ledger; bookies collect its entries later."""
    ledger_metadata = blocking(aio.BookKeeper.ledger_metadata)
    """Return what the metadata store says of a ledger."""
    list_ledgers = iterating(aio.BookKeeper.list_ledgers)
    """Yield the metadata of all ledgers, ascending by id."""
    list_ledger_ids = iterating(aio.BookKeeper.list_ledger_ids)
    """Yield the ids of all ledgers, ascending."""

    election = deriving(aio.BookKeeper.election, Election)
    """Return a candidate of an election; it avoids fights, and gives no safety."""

    bookies = blocking(aio.BookKeeper.bookies)
    """Return the writable and the read-only bookies that are registered now."""

    to_arrow = blocking(aio.BookKeeper.to_arrow)
    """Return metadata as an Arrow table."""
    to_pandas = blocking(aio.BookKeeper.to_pandas)
    """Return metadata as a pandas frame."""
    to_polars = blocking(aio.BookKeeper.to_polars)
    """Return metadata as a Polars frame."""
