"""The blocking namespace of streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quorumbook.loop_thread import run_once
from quorumbook.options import takes
from quorumbook.streams import namespace as aio
from quorumbook.streams.metadata import namespace_options as aio_options
from quorumbook.sync.client import BookKeeper, Election, wrapped
from quorumbook.sync.declared import blocking, deriving, held, iterating, once
from quorumbook.sync.streams.stream import Stream
from quorumbook.sync.twin import Closing, unwrapped


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceOptions(aio_options.NamespaceOptions):
    """The options of ``Namespace.open``; the client is a blocking one."""

    client: BookKeeper | None = None  # type: ignore[assignment]  # of the twin


class Namespace(Closing[aio.Namespace]):
    """The blocking twin of ``quorumbook.streams.Namespace``."""

    @classmethod
    @takes(NamespaceOptions)
    def open(cls, address: str, **options: Any) -> Namespace:
        """Open a namespace; see ``quorumbook.streams.Namespace``."""
        if options.get("client") is not None:
            options["client"] = unwrapped(options["client"])
        return cls(run_once(lambda: aio.Namespace.open(address, **options)))

    bind = staticmethod(once(aio.Namespace.bind))
    """Make a node a namespace."""
    unbind = staticmethod(once(aio.Namespace.unbind))
    """Remove the mark that makes a metadata node a namespace; its streams are not deleted."""
    close = blocking(aio.Namespace.close)
    """Close the client that ``open`` made; close writers and readers first."""

    @property
    def client(self) -> BookKeeper:
        """The client of the cluster that holds the ledgers."""
        return wrapped(self._aio.client)

    path = held(aio.Namespace, lambda it: it.path)
    """The namespace's node."""
    policy = blocking(aio.Namespace.policy)
    """Return the policy of streams without one of their own; None where no value was set."""
    set_policy = blocking(aio.Namespace.set_policy)
    """Replace the policy for all streams."""
    orphans = blocking(aio.Namespace.orphans)
    """Return the ledgers of this namespace's streams that nothing refers to."""
    access = blocking(aio.Namespace.access)
    """Return what nobody may do with a stream."""
    stream = deriving(aio.Namespace.stream, Stream)
    """Return a stream by name; whether it exists is seen when it is used."""
    create_stream = blocking(aio.Namespace.create_stream)
    """Create a stream."""
    election = deriving(aio.Namespace.election, Election)
    """Return a candidate of an election; it avoids fights, and gives no safety."""
    streams = iterating(aio.Namespace.streams)
    """Yield the names of all streams, sorted."""
    watch = iterating(aio.Namespace.watch)
    """Yield the streams that there are, and then what is created and deleted."""
    delete_stream = blocking(aio.Namespace.delete_stream)
    """Delete a stream with its ledgers."""
    rename_stream = blocking(aio.Namespace.rename_stream)
    """Give a stream another name, in one step; subscriptions go along."""
    to_arrow = blocking(aio.Namespace.to_arrow)
    """Return metadata as an Arrow table."""
    to_pandas = blocking(aio.Namespace.to_pandas)
    """Return metadata as a pandas frame."""
    to_polars = blocking(aio.Namespace.to_polars)
    """Return metadata as a Polars frame."""
