"""What an etcd cluster holds, as one copy: keys, revisions, leases, and what watches are told.

A transaction takes one revision, however many keys it writes.  A lease that ends takes its keys in
one revision, too.  How requests and answers travel is ``etcd``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from quorumbook.metadata.etcd.client import (
    EVENT_DELETE,
    FILTER_NO_PUT,
    GRANT,
    KEEP_ALIVE,
    REVOKE,
    TXN,
    Method,
    messages,
)
from quorumbook.metadata.etcd.rows import is_session
from quorumbook.sim.kernel import SECOND, Kernel


class NotThereError(Exception):
    """A lease is over."""


class OldRevisionError(Exception):
    """What is asked for is of the past, which is not kept here."""


@dataclass(frozen=True)
class StoredKey:
    """A key's value."""

    value: bytes
    created: int
    changed: int
    lease: int


@dataclass
class _Lease:
    ttl_s: int
    ends_ns: int
    keys: set[bytes] = field(default_factory=set)


@dataclass(frozen=True)
class KeyChange:
    """What happened to a key."""

    revision: int
    key: bytes
    #: None if it was deleted.
    entry: StoredKey | None


@dataclass(frozen=True)
class Watched:
    """A range of keys that somebody watches on a stream."""

    watch_id: int
    key: bytes
    range_end: bytes
    only_deletions: bool

    @classmethod
    def of(cls, request: Any) -> Watched:
        """Return what a request wants."""
        only_deletions = FILTER_NO_PUT in request.filters
        return cls(request.watch_id, request.key, request.range_end, only_deletions)

    def events(self, changes: Iterable[KeyChange]) -> list[Any]:
        """Return what a watcher hears of changes."""
        found = []
        for change in changes:
            is_here = change.key == self.key or self.key <= change.key < self.range_end
            if is_here and not (self.only_deletions and change.entry is not None):
                kv = messages["KeyValue"](key=change.key, mod_revision=change.revision)
                kind = EVENT_DELETE if change.entry is None else 0
                found.append(messages["Event"](type=kind, kv=kv))
        return found


class EtcdState:
    """The keys.

    Args:
        kernel: Time, by which leases end.
        on_change: Called with the changes of each revision, before anybody is answered.
    """

    def __init__(self, kernel: Kernel, on_change: Callable[[list[KeyChange]], None]) -> None:
        self._kernel = kernel
        self._on_change = on_change
        self.revision = 1
        self.entries: dict[bytes, StoredKey] = {}
        #: By key, whose session made it, as far as the transaction said so.
        self.makers: dict[bytes, int] = {}
        self.changes: list[KeyChange] = []
        self._leases: dict[int, _Lease] = {}
        self._lease_number = 0

    def carry_out(self, method: Method, request: Any) -> Any:
        """Do what a request says, and return the answer.

        Raises:
            NotThereError, OldRevisionError: As etcd refuses it.
        """
        if method is TXN:
            return self._transact(request)
        if method is GRANT:
            return self._grant(request)
        if method is KEEP_ALIVE:
            return self._extend(request)
        assert method is REVOKE
        self._end(self._lease(request.ID), request.ID)
        return messages["LeaseRevokeResponse"](header=self.header())

    def header(self) -> Any:
        """Return the header of an answer."""
        return messages["ResponseHeader"](revision=self.revision)

    # Leases

    def _lease(self, lease_id: int) -> _Lease:
        found = self._leases.get(lease_id)
        if found is None:
            raise NotThereError(f"requested lease {lease_id} is not found")
        return found

    def _grant(self, request: Any) -> Any:
        self._lease_number += 1
        lease_id, ttl_s = self._lease_number, request.TTL
        lease = self._leases[lease_id] = _Lease(ttl_s, self._kernel.now_ns + ttl_s * SECOND)
        self._kernel.at(lease.ends_ns, self._look_at, lease_id)
        return messages["LeaseGrantResponse"](header=self.header(), ID=lease_id, TTL=ttl_s)

    def _extend(self, request: Any) -> Any:
        lease = self._leases.get(request.ID)
        ttl_s = 0
        if lease is not None:
            ttl_s = lease.ttl_s
            lease.ends_ns = self._kernel.now_ns + ttl_s * SECOND
        return messages["LeaseKeepAliveResponse"](header=self.header(), ID=request.ID, TTL=ttl_s)

    def renew_leases(self) -> None:
        """Have all leases last as long again as they were granted for: another member leads."""
        for lease in self._leases.values():
            lease.ends_ns = self._kernel.now_ns + lease.ttl_s * SECOND

    def _look_at(self, lease_id: int) -> None:
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        if lease.ends_ns > self._kernel.now_ns:
            self._kernel.at(lease.ends_ns, self._look_at, lease_id)
        else:
            self._end(lease, lease_id)

    def _end(self, lease: _Lease, lease_id: int) -> None:
        del self._leases[lease_id]
        self._change(dict.fromkeys(sorted(lease.keys)))

    # Keys

    def _transact(self, request: Any) -> Any:
        is_so = all(self._changed(each.key) == each.mod_revision for each in request.compare)
        operations = request.success if is_so else request.failure
        for each in _flat(operations):
            if each.HasField("request_put") and each.request_put.lease:
                self._lease(each.request_put.lease)
        writes: dict[bytes, Any] = {}
        responses = []
        for each in _flat(operations):
            if each.HasField("request_range"):
                found = self._range(each.request_range)
                responses.append(messages["ResponseOp"](response_range=found))
                continue
            responses.append(messages["ResponseOp"]())
            if each.HasField("request_put"):
                writes[each.request_put.key] = each.request_put
            else:
                writes[each.request_delete_range.key] = None
        own = next((put for k, put in writes.items() if put is not None and is_session(k)), None)
        for key in writes:
            if key not in self.entries and own is not None:
                self.makers[key] = own.lease
        self._change(writes)
        return messages["TxnResponse"](
            header=self.header(), succeeded=int(is_so), responses=responses
        )

    def _changed(self, key: bytes) -> int:
        entry = self.entries.get(key)
        return 0 if entry is None else entry.changed

    def _range(self, request: Any) -> Any:
        if request.revision and request.revision != self.revision:
            raise OldRevisionError("required revision has been compacted")
        if request.range_end:
            first, end = request.key, request.range_end
            keys = sorted(k for k in self.entries if first <= k < end)
        else:
            keys = [request.key] if request.key in self.entries else []
        found = messages["RangeResponse"](header=self.header(), count=len(keys))
        for key in () if request.count_only else keys:
            entry = self.entries[key]
            found.kvs.add(
                key=key,
                create_revision=entry.created,
                mod_revision=entry.changed,
                value=b"" if request.keys_only else entry.value,
                lease=entry.lease,
            )
        return found

    def _change(self, writes: dict[bytes, Any]) -> None:
        """Put and delete keys, in one revision."""
        there = {k: put for k, put in writes.items() if put is not None or k in self.entries}
        if not there:
            return
        self.revision += 1
        made: list[KeyChange] = []
        for key, put in there.items():
            before = self.entries.pop(key, None)
            if before is not None and before.lease in self._leases:
                self._leases[before.lease].keys.discard(key)
            entry = None
            if put is not None:
                created = self.revision if before is None else before.created
                entry = self.entries[key] = StoredKey(put.value, created, self.revision, put.lease)
                if put.lease:
                    self._leases[put.lease].keys.add(key)
            made.append(KeyChange(self.revision, key, entry))
        self.changes += made
        self._on_change(made)


def _flat(operations: Iterable[Any]) -> Iterable[Any]:
    for each in operations:
        if each.HasField("request_txn"):
            yield from each.request_txn.success
        else:
            yield each
