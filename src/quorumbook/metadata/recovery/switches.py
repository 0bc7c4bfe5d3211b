r"""The switches of auto-recovery, and when its checks ended last, in the peer's nodes.

Below ``<root>/underreplication``:

    LAYOUT                                type: "BASIC"\nversion: 1\n
    disable                               empty; present: nobody audits or copies
    lostBookieRecoveryDelay               seconds, in decimal
    checkallledgersctime  placementpolicycheckctime  replicascheckctime
                                          protobuf, binary: 1 int64, ms

What lies beside them is ``queue``'s and ``election``'s.
"""

from __future__ import annotations

import contextlib
import re
from enum import Enum
from functools import partial
from typing import NamedTuple

from google.protobuf.message import DecodeError

from quorumbook.errors import (
    LocalProtocolError,
    MetadataFateUnknownError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NoAuditorError,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.nodes import (
    create_with_parents,
    parse_text_record,
    set_or_create,
    text_record,
    with_living_session,
)
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.store import MetadataStore, Revision, Watch
from quorumbook.protocol.messages import message_class

_TYPE, _VERSION = "BASIC", 1
#: Others may set a delay between our read and our write; nobody is that unlucky so often.
_ATTEMPTS = 32


class PeriodicCheck(Enum):
    """A check of the auditor's whose last time is remembered: its node, message and field."""

    ALL_LEDGERS = ("checkallledgersctime", "CheckAllLedgersFormat", "checkAllLedgersCTime")
    PLACEMENT = (
        "placementpolicycheckctime", "PlacementPolicyCheckFormat", "placementPolicyCheckCTime"
    )  # fmt: skip
    REPLICAS = ("replicascheckctime", "ReplicasCheckFormat", "replicasCheckCTime")


class LostBookieDelay(NamedTuple):
    """How long a bookie may be away."""

    seconds: int
    #: Differs whenever it was set in between, also to the same value.
    revision: Revision


class LastCheck(NamedTuple):
    """What is known of the last run of a check."""

    #: By the wall clock of who ran it; None if none ever ended, 0 if one is asked for.
    ended_at_ms: int | None
    #: Differs whenever the time was set in between, also to the same value; None: never set.
    revision: Revision | None


class RecoverySwitches:
    """What operators tell the auto-recovery of a cluster, and auditors remember.

    All writes are guarded by existence or say the whole value, so they are done in a new session
    when the old one is over.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._paths = TreePaths(store.ledgers_root)
        self._has_layout = False

    async def is_enabled(self, watch: Watch | None = None) -> bool:
        """Tell whether ledgers are to be audited and copied; the watch runs when that changes."""
        return await self._store.exists(self._node("disable"), watch) is None

    async def disable(self) -> bool:
        """Have nobody audit or copy ledgers from now on; tell whether that is a change."""
        await self._ensure_layout()
        try:
            await with_living_session(
                self._store, lambda: create_with_parents(self._store, self._node("disable"))
            )
        except NodeExistsError:
            return False
        return True

    async def enable(self) -> bool:
        """Have ledgers audited and copied again; tell whether that is a change."""
        await read_instance_id(self._store)
        try:
            await with_living_session(
                self._store, lambda: self._store.delete(self._node("disable"))
            )
        except NoSuchNodeError:
            return False
        return True

    async def lost_bookie_delay(self, watch: Watch | None = None) -> LostBookieDelay | None:
        """Return how long a bookie may be away before it counts as lost; None: nothing is set.

        The watch runs when it is set, also to the value that it has: by that the auditor is asked
        to look now.

        Raises:
            MetadataFormatError: it is no number.
        """
        path = self._node("lostBookieRecoveryDelay")
        node = await self._store.exists(path, watch)
        if node is None:
            return None
        text = node.data.decode("latin-1")
        if not re.fullmatch(r"-?[0-9]{1,10}", text):
            raise MetadataFormatError(f"metadata node {path} holds {node.data[:40]!r}, no seconds")
        return LostBookieDelay(int(text), node.revision)

    async def lost_bookie_delay_s(self) -> int | None:
        """Return that delay alone."""
        delay = await self.lost_bookie_delay()
        return None if delay is None else delay.seconds

    async def set_lost_bookie_delay_s(self, delay_s: int) -> None:
        """Set it for the whole cluster, whether or not it was set before."""
        if not 0 <= delay_s < 2**31:
            raise LocalProtocolError(f"{delay_s} s is not a delay between 0 and 2^31 - 1")
        await self._put("lostBookieRecoveryDelay", str(delay_s).encode())

    async def propose_lost_bookie_delay_s(self, delay_s: int) -> None:
        """Set it unless it is set, so that it can be read, and set to the same again."""
        await self._ensure_layout()
        path, data = self._node("lostBookieRecoveryDelay"), str(delay_s).encode()
        with contextlib.suppress(NodeExistsError):
            await with_living_session(
                self._store, lambda: create_with_parents(self._store, path, data)
            )

    async def ask_for_audit(self) -> None:
        """Have the auditor look for lost bookies now, without waiting for their delay.

        Raises:
            NoAuditorError: no delay is set.  One that we made up would count for good.
            MetadataFormatError: what is set is no number.
        """
        path = self._node("lostBookieRecoveryDelay")
        for _ in range(_ATTEMPTS):
            delay = await self.lost_bookie_delay()
            if delay is None:
                raise NoAuditorError(
                    "nobody was auditor yet, so no delay is set for lost bookies; the first one "
                    "looks for them when it begins"
                )
            data, revision = str(delay.seconds).encode(), delay.revision
            ask = partial(self._store.set, path, data, *revision)
            # To find these bytes does not tell that they were written anew.
            with contextlib.suppress(
                MetadataVersionConflict, NoSuchNodeError, MetadataFateUnknownError
            ):
                await with_living_session(self._store, ask)
                return
        raise MetadataUnavailableError(f"metadata node {path} is changed by others all the time")

    async def last_check(self, check: PeriodicCheck, watch: Watch | None = None) -> LastCheck:
        """Return when a check ended last.

        The watch runs when that changes, also to the value that it has.

        Raises:
            MetadataFormatError: the node is damaged.
        """
        name, message_name, field = check.value
        path = self._node(name)
        node = await self._store.exists(path, watch)
        if node is None:
            return LastCheck(None, None)
        try:
            message = message_class(message_name).FromString(node.data)
        except DecodeError as error:
            raise MetadataFormatError(f"metadata node {path} cannot be understood") from error
        ended_at_ms = int(getattr(message, field)) if message.HasField(field) else None
        return LastCheck(ended_at_ms, node.revision)

    async def checked_at_ms(self, check: PeriodicCheck) -> int | None:
        """Return when a check ended last; None if it never did, 0 if it is asked for."""
        return (await self.last_check(check)).ended_at_ms

    async def ask_for_check(self, check: PeriodicCheck) -> None:
        """Have a check run now; one that is under way now does not count."""
        await self._put(check.value[0], _time_of(check, 0))

    async def end_check(self, check: PeriodicCheck, ended_at_ms: int, before: LastCheck) -> bool:
        """Remember when a check ended, unless another was asked for after it began.

        Args:
            check: Which.
            ended_at_ms: By the wall clock.
            before: What was known when it began.
        """
        await self._ensure_layout()
        path, data = self._node(check.value[0]), _time_of(check, ended_at_ms)
        store = self._store

        async def put() -> None:
            if before.revision is None:
                await create_with_parents(store, path, data)
            else:
                await store.set(path, data, *before.revision)

        try:
            await with_living_session(store, put)
        except (MetadataVersionConflict, NodeExistsError, NoSuchNodeError):
            return False
        return True

    # The tree

    def _node(self, name: str) -> str:
        return f"{self._paths.underreplication}/{name}"

    async def _put(self, name: str, data: bytes) -> None:
        await self._ensure_layout()
        await set_or_create(self._store, self._node(name), data)

    async def _check_layout(self, watch: Watch | None = None) -> bool:
        """Tell whether there is a queue; one of another kind is refused."""
        if self._has_layout:
            return True
        path = self._node("LAYOUT")
        node = await self._store.exists(path, watch)
        if node is None:
            await read_instance_id(self._store)
            return False
        found = parse_text_record("LedgerRereplicationLayoutFormat", node.data, path)
        if (found.type, found.version) != (_TYPE, _VERSION):
            raise MetadataFormatError(
                f"metadata node {path} names {found.type!r} of version {found.version}; only "
                f"{_TYPE} of version {_VERSION} is known here"
            )
        self._has_layout = True
        return True

    async def _ensure_layout(self) -> None:
        if await self._check_layout():
            return
        data = text_record("LedgerRereplicationLayoutFormat", type=_TYPE, version=_VERSION)

        async def create() -> str:
            return await create_with_parents(self._store, self._node("LAYOUT"), data)

        with contextlib.suppress(NodeExistsError):
            await with_living_session(self._store, create)
        await self._check_layout()


def _time_of(check: PeriodicCheck, ms: int) -> bytes:
    _name, message_name, field = check.value
    encoded: bytes = message_class(message_name)(**{field: ms}).SerializeToString()
    return encoded
