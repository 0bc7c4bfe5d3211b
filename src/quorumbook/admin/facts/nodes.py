"""The metadata tree as a person browses it: children, sizes, and values where they are known.

A store may hold more than this cluster: accounts of other systems, their keys and verifiers.  Who
does not administer the cluster sees what is the cluster's, below its root and in namespaces of
streams, and the way there.  Values are shown without the secrets in them: a ledger's node holds
its password, so that it is shown decoded; what is not text is not shown.
"""

from __future__ import annotations

from quorumbook.admin.facts.ledgers import ledger_picture
from quorumbook.env.redaction import redacted
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import LocalProtocolError, MetadataFormatError, NoSuchNodeError
from quorumbook.ledger.metadata_format import decode
from quorumbook.metadata.store import MetadataStore
from quorumbook.streams.errors import StreamError
from quorumbook.streams.format.binding import Binding

#: How ledger metadata begins, in all formats.
_LEDGER = b"BookieMetadataFormatVersion"
_SHOWN_BYTES = 64 * 1024
_CHILDREN_SHOWN = 1000


async def node_row(store: MetadataStore, path: str, *, sees_all: bool) -> dict[str, object] | None:
    """Return a node, its value if it can be shown, and its children; None: it may not be seen.

    Args:
        store: Where it is.
        path: Which one.
        sees_all: Also what is not known to be of the cluster or of its streams.

    Raises:
        NoSuchNodeError: There is none.
        LocalProtocolError: It is not a path.
    """
    if not path.startswith("/") or "//" in path or (len(path) > 1 and path.endswith("/")):
        raise LocalProtocolError(f"{path!r:.200} is not a path of a node: write /ledgers/LAYOUT")
    if any(part in (".", "..") for part in path.split("/")) or len(path) > 2000:
        raise LocalProtocolError(f"{path!r:.200} is not a path of a node")
    is_way = not sees_all and _is_below(store.ledgers_root, path)
    if not (sees_all or is_way or await _is_ours(store, path)):
        return None
    node = await store.get(path)
    children = sorted(await store.children(path))
    if is_way:
        children = await _ours_of(store, path, children)
        kind, value = "hidden" if node.data else "empty", None
    else:
        kind, value = _shown(node.data)
    return {
        "path": path,
        "version": node.version,
        "bytes": len(node.data),
        "created_ms": node.ctime_ms,
        "is_ephemeral": node.is_ephemeral,
        "kind": kind,
        "value": value,
        "children": children[:_CHILDREN_SHOWN],
        "children_count": len(children),
    }


def _is_below(path: str, above: str) -> bool:
    """Tell whether a path lies below another."""
    return path != above and path.startswith("/" if above == "/" else f"{above}/")


async def _is_ours(store: MetadataStore, path: str) -> bool:
    """Tell whether a node is of the cluster or in a namespace of streams."""
    root = store.ledgers_root
    if path == root or _is_below(path, root):
        return True
    parts = path.split("/")[1:]
    for count in range(1, len(parts) + 1):
        if await _is_namespace(store, "/" + "/".join(parts[:count])):
            return True
    return False


async def _is_namespace(store: MetadataStore, path: str) -> bool:
    try:
        Binding.decode((await store.get(path)).data)
    except (NoSuchNodeError, StreamError):
        return False
    return True


async def _ours_of(store: MetadataStore, path: str, children: list[str]) -> list[str]:
    """Return those children that are ours, or on the way to what is."""

    async def is_shown(name: str) -> bool:
        child = f"{path.rstrip('/')}/{name}"
        root = store.ledgers_root
        return child == root or _is_below(root, child) or await _is_namespace(store, child)

    looked = children[:_CHILDREN_SHOWN]
    found = await gather_bounded(is_shown, looked)
    return [name for name, is_one in zip(looked, found, strict=True) if is_one]


def _shown(data: bytes) -> tuple[str, object]:
    if not data:
        return "empty", None
    if data.startswith(_LEDGER):
        try:
            return "ledger", ledger_picture(decode(0, data, None), frozenset())
        except MetadataFormatError:
            return "hidden", None
    if len(data) > _SHOWN_BYTES:
        return "long", None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "binary", None
    if all(each.isprintable() or each in "\n\t" for each in text):
        return "text", redacted(text)
    return "binary", None
