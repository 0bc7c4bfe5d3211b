"""The blocking namespace of streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quorumbook.env import Env
from quorumbook.options import takes
from quorumbook.streams import namespace as aio
from quorumbook.streams.format.binding import AccessControl
from quorumbook.streams.metadata import namespace_options as aio_options
from quorumbook.streams.metadata.policy import StreamPolicy
from quorumbook.streams.namespace import NamespaceEvent
from quorumbook.streams.retention.orphans import Orphan
from quorumbook.streams.stream import StreamInfo
from quorumbook.sync.client import BookKeeper, wrapped
from quorumbook.sync.client import unwrapped as client_of
from quorumbook.sync.election import Election
from quorumbook.sync.loop import Closing, run_once
from quorumbook.sync.streams.stream import Stream


def unwrapped(namespace: Namespace) -> aio.Namespace:
    """Return the namespace that does the work of a twin."""
    return namespace._aio  # noqa: SLF001 - of this module


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceOptions(aio_options.NamespaceOptions):
    """The options of ``Namespace.open``; the client is a blocking one."""

    client: BookKeeper | None = None  # type: ignore[assignment]  # of the twin


class Namespace(Closing):
    """The blocking twin of ``quorumbook.streams.Namespace``."""

    def __init__(self, namespace: aio.Namespace) -> None:
        """Wrap a namespace that was opened on the loop thread."""
        super().__init__()
        self._aio = namespace

    @classmethod
    @takes(NamespaceOptions)
    def open(cls, address: str, **options: Any) -> Namespace:
        """Open a namespace; see ``quorumbook.streams.Namespace``."""
        if options.get("client") is not None:
            options["client"] = client_of(options["client"])
        return cls(run_once(lambda: aio.Namespace.open(address, **options)))

    @staticmethod
    def bind(
        address: str,
        *,
        ledgers_path: str | None = None,
        acl_root: str | None = None,
        first_segment: int | None = None,
        policy: StreamPolicy | None = None,
        exist_ok: bool = False,
        env: Env | None = None,
    ) -> None:
        """Make a node a namespace; see ``quorumbook.streams.Namespace``."""
        run_once(
            lambda: aio.Namespace.bind(
                address,
                ledgers_path=ledgers_path,
                acl_root=acl_root,
                first_segment=first_segment,
                policy=policy,
                exist_ok=exist_ok,
                env=env,
            )
        )

    @staticmethod
    def unbind(address: str, *, env: Env | None = None) -> None:
        """Make a node no namespace any more; its streams stay where they are."""
        run_once(lambda: aio.Namespace.unbind(address, env=env))

    def close(self) -> None:
        """Let go of what ``open`` made; writers and readers are closed before."""
        self.run(self._aio.close)

    @property
    def client(self) -> BookKeeper:
        """The client of the cluster that holds the ledgers."""
        return wrapped(self._aio.client)

    @property
    def path(self) -> str:
        """The namespace's node."""
        return self._aio.path

    def policy(self) -> StreamPolicy:
        """Return what holds for all streams that do not say otherwise, as far as it was set."""
        return self.run(self._aio.policy)

    def set_policy(self, policy: StreamPolicy, *, expected: StreamPolicy | None = None) -> None:
        """Replace the policy for all streams."""
        self.run(lambda: self._aio.set_policy(policy, expected=expected))

    def orphans(self, *, delete: bool = False, grace_s: float = 3600.0) -> list[Orphan]:
        """Return the ledgers of this namespace's streams that nothing refers to."""
        return self.run(lambda: self._aio.orphans(delete=delete, grace_s=grace_s))

    def access(self, name: str) -> AccessControl:
        """Return what nobody may do with a stream."""
        return self.run(lambda: self._aio.access(name))

    def stream(self, name: str) -> Stream:
        """Return a stream by name; whether it exists is seen when it is used."""
        return Stream(self._aio.stream(name))

    def create_stream(
        self, name: str, *, policy: StreamPolicy | None = None, exist_ok: bool = False
    ) -> StreamInfo:
        """Create a stream; see ``quorumbook.streams.Namespace``."""
        return self.run(lambda: self._aio.create_stream(name, policy=policy, exist_ok=exist_ok))

    def election(self, name: str, candidate: str = "") -> Election:
        """Return a candidate of an election; it avoids fights, and gives no safety."""
        return Election(self._aio.election(name, candidate))

    def streams(self, prefix: str = "", *, recursive: bool = True) -> Iterator[str]:
        """Yield the names of all streams, sorted."""
        return self.iterate(lambda: self._aio.streams(prefix, recursive=recursive))

    def watch(self) -> Iterator[NamespaceEvent]:
        """Yield the streams that there are, and then what is created and deleted."""
        return self.iterate(self._aio.watch)

    def delete_stream(
        self, name: str, *, missing_ok: bool = False, forget_files: bool = False
    ) -> list[str]:
        """Delete a stream with its ledgers; see ``quorumbook.streams.Namespace``."""
        return self.run(
            lambda: self._aio.delete_stream(name, missing_ok=missing_ok, forget_files=forget_files)
        )

    def rename_stream(self, old: str, new: str) -> None:
        """Give a stream another name, in one step; subscriptions go along."""
        self.run(lambda: self._aio.rename_stream(old, new))
