"""A consumer group's nodes in the metadata store, and every change of them.

    <ns>/<stream>/<partitions>/groups/<group>    the generation, see ``group_state``
      …/members/<member>     ephemeral: it lives
      …/claims/<partition>   ephemeral; data: the member that hands out the partition's records

A claim is made only in the generation that it was decided in, only if there is none, and, as it is
given back, only while the member lives: its name never comes again, so a session that is over
changes nothing any more.
How far the group is, is in the partitions' cursors of its name.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from quorumbook.errors import (
    MetadataFateUnknownError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.metadata.nodes import change_once, delete_tree, make_below
from quorumbook.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    Operation,
    Revision,
    Set,
    Watch,
)
from quorumbook.streams.errors import (
    CorruptRecordsError,
    GroupInUseError,
    StreamNotFoundError,
    UnsupportedFormatError,
)
from quorumbook.streams.partitions.group_state import GroupState


class GroupView(NamedTuple):
    """What the nodes say."""

    state: GroupState
    #: Of the group's node.
    revision: Revision
    live: frozenset[str]


class GroupNodes:
    """The nodes of one group."""

    def __init__(self, store: MetadataStore, stream_node: str, group: str) -> None:
        self.store = store
        self.path = f"{stream_node}/groups/{group}"
        self._stream_node = stream_node
        self._members = f"{self.path}/members"
        self._claims = f"{self.path}/claims"

    async def prepare(self) -> None:
        """Make what is not there yet.

        Raises:
            StreamNotFoundError: the stream, or the group, is being deleted.
        """
        try:
            await self._prepare()
        except NoSuchNodeError as error:
            group = self.path.rpartition("/")[2]
            raise StreamNotFoundError(
                f"group {group}, or its stream, was deleted while it was joined"
            ) from error

    async def _prepare(self) -> None:
        await make_below(self.store, self.path.rpartition("/")[0])
        while not await self._is_made():
            # With a write of the node that says how many partitions there are: who adds some
            # meanwhile has to look again, and then gives this group a place in them as well.
            node = await self.store.get(self._stream_node)
            operations: list[Operation] = [
                Set(self._stream_node, node.data, *node.revision),
                Create(self.path, GroupState().encode()),
            ]
            with contextlib.suppress(NodeExistsError, MetadataVersionConflict):
                await change_once(self.store, operations, self._is_made, f"making {self.path}")
        for path in self._members, self._claims:
            await make_below(self.store, path)

    async def _is_made(self) -> bool:
        return await self.store.exists(self.path) is not None

    async def join(self, member: str) -> None:
        """Say that a member lives, as long as the session does; no two have ever one name."""
        with contextlib.suppress(NodeExistsError):  # ours, when an answer was lost
            await self.store.create(f"{self._members}/{member}", ephemeral=True)

    async def leave(self, member: str) -> None:
        """Say that a member lives no more, and give back what it claimed or was claiming."""
        for partition, claimant in (await self.claims()).items():
            if claimant == member:
                await self.release(partition, member)
        with contextlib.suppress(NoSuchNodeError):
            await self.store.delete(f"{self._members}/{member}")

    async def look(self, watch: Watch | None = None) -> GroupView:
        """Return what the nodes say; the watch runs when it changes.

        Raises:
            NoSuchNodeError: there is no such group.
            CorruptRecordsError: its node is damaged.
            UnsupportedFormatError: a newer release made it.
        """
        live = await self.members(watch)
        node = await self.store.get(self.path, watch)
        try:
            state = GroupState.decode(node.data)
        except (CorruptRecordsError, UnsupportedFormatError) as error:
            where = f"group {self.path.rpartition('/')[2]} (metadata node {self.path})"
            raise type(error)(f"{where} cannot be read: {error}") from error
        return GroupView(state, node.revision, live)

    async def members(self, watch: Watch | None = None) -> frozenset[str]:
        """Return the members that live.

        Raises:
            NoSuchNodeError: there is no such group.
        """
        return frozenset(await self.store.children(self._members, watch))

    async def rebalance(self, state: GroupState, revision: Revision) -> None:
        """Store the next generation, unless somebody else was faster."""
        with contextlib.suppress(MetadataVersionConflict, MetadataFateUnknownError):
            await self.store.set(self.path, state.encode(), *revision)

    async def claim(self, partition: int, member: str, revision: Revision, watch: Watch) -> bool:
        """Claim a partition in a generation, for as long as the member lives.

        Returns:
            Whether it is claimed; otherwise the watch runs when it is worth another try.
        """
        path, data = f"{self._claims}/{partition}", member.encode()
        try:
            await self.store.multi(
                [
                    Check(self.path, *revision),
                    Check(f"{self._members}/{member}"),
                    Create(path, data, ephemeral=True),
                ]
            )
        except NodeExistsError:
            node = await self.store.exists(path, watch)
            if node is None:
                watch()  # it went meanwhile
            # Ours, if the answer was lost.
            return node is not None and node.data == data
        except (MetadataVersionConflict, NoSuchNodeError):
            watch()
            return False
        return True

    async def release(self, partition: int, member: str) -> None:
        """Give a claim back; one that went with its session is let alone, for it is another's."""
        path = f"{self._claims}/{partition}"
        with contextlib.suppress(NoSuchNodeError, MetadataVersionConflict):
            while True:
                node = await self.store.get(path)
                if node.data != member.encode():
                    return
                delete = Delete(path, creation_id=node.creation_id)
                with contextlib.suppress(MetadataFateUnknownError):
                    await self.store.multi([Check(f"{self._members}/{member}"), delete])
                    return

    async def claims(self) -> dict[int, str]:
        """Return who hands out which partition."""
        found: dict[int, str] = {}
        with contextlib.suppress(NoSuchNodeError):
            for name in await self.store.children(self._claims):
                node = await self.store.exists(f"{self._claims}/{name}")
                if node is not None and name.isdigit():
                    found[int(name)] = node.data.decode(errors="replace")
        return dict(sorted(found.items()))


async def group_names(store: MetadataStore, stream_node: str) -> list[str]:
    """Return the names of a partitioned stream's groups."""
    try:
        return await store.children(f"{stream_node}/groups")
    except NoSuchNodeError:
        return []


async def delete_group_nodes(nodes: GroupNodes) -> None:
    """Forget a group.

    Raises:
        GroupInUseError: it has members.
        NoSuchNodeError: there is no such group.
    """
    live = await nodes.members()
    if live:
        raise GroupInUseError(f"group {nodes.path.rpartition('/')[2]} has {len(live)} members")
    await delete_tree(nodes.store, nodes.path)
