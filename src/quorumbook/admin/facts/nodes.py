"""The metadata tree as a person browses it: children, sizes, and values where they are known.

A ledger's node holds its password, so that what is not text of a known kind is not shown.
"""

from __future__ import annotations

from quorumbook.admin.facts.ledgers import ledger_picture
from quorumbook.errors import LocalProtocolError, MetadataFormatError
from quorumbook.ledger.metadata_format import decode
from quorumbook.metadata.store import MetadataStore

#: How ledger metadata begins, in all formats.
_LEDGER = b"BookieMetadataFormatVersion"
_SHOWN_BYTES = 64 * 1024
_CHILDREN_SHOWN = 1000


async def node_row(store: MetadataStore, path: str) -> dict[str, object]:
    """Return a node, its value if it can be shown, and its children.

    Raises:
        NoSuchNodeError: There is none.
        LocalProtocolError: It is not a path.
    """
    if not path.startswith("/") or "//" in path or (len(path) > 1 and path.endswith("/")):
        raise LocalProtocolError(f"{path!r:.200} is not a path of a node: write /ledgers/LAYOUT")
    if any(part in (".", "..") for part in path.split("/")) or len(path) > 2000:
        raise LocalProtocolError(f"{path!r:.200} is not a path of a node")
    node = await store.get(path)
    children = sorted(await store.children(path))
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


def _shown(data: bytes) -> tuple[str, object]:
    if not data:
        return "empty", None
    if data.startswith(_LEDGER) or b"password" in data.lower():
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
        return "text", text
    return "binary", None
