"""The schema of a topic, as Pulsar's registry keeps it: versions, each with a definition; pure.

A node names the ledger and the entry of each version.  A definition is JSON of an Avro schema for
the kinds ``AVRO`` and ``JSON``; those of other kinds are empty, or of their own format.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumbook.pulsar.formats import parse

#: By Pulsar's numbers, from 1 on.
_KINDS = (
    "NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64",
    "FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP", "KEYVALUE", "INSTANT", "LOCALDATE", "LOCALTIME",
    "LOCALDATETIME", "PROTOBUFNATIVE",
)  # fmt: skip


class TopicSchema(NamedTuple):
    """One version of a topic's schema."""

    #: From 0 on; a message names it in ``schema_version``.
    version: int
    #: Pulsar's name of it, such as ``AVRO``; a number that is unknown is ``?99``.
    kind: str
    definition: bytes
    properties: dict[str, str]


def decode_places(data: bytes) -> dict[int, tuple[int, int]]:
    """Return ledger and entry of each version that a node names.

    Raises:
        CorruptRecordsError: it is not such a node.
    """
    found = parse("SchemaLocator", data)
    return {
        each.version: (each.position.ledgerId, each.position.entryId)
        for each in (*found.index, found.info)
    }


def decode_schema(version: int, entry: bytes) -> TopicSchema | None:
    """Return what an entry says of a version; None: the schema was deleted with it.

    Raises:
        CorruptRecordsError: it is not such an entry.
    """
    info = parse("SchemaInfo", parse("SchemaEntry", entry).schema_data)
    if info.deleted:
        return None
    kind = _KINDS[info.type - 1] if 0 < info.type <= len(_KINDS) else f"?{info.type}"
    properties = {
        each.key.decode(errors="backslashreplace"): each.value.decode(errors="backslashreplace")
        for each in info.props
    }
    return TopicSchema(version, kind, info.schema, properties)
