"""The columns of the tables of a cluster; docs/spark.md says what is in them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

_L, _I, _S, _B, _F = pa.int64(), pa.int32(), pa.string(), pa.binary(), pa.bool_()
_T = pa.timestamp("us", tz="UTC")

SCHEMAS: Mapping[str, pa.Schema] = {
    "cluster": pa.schema({
        "instance_id": _S, "ledgers_root": _S, "layout": _S, "writable_bookies": _I,
        "read_only_bookies": _I, "ledgers": _L,
    }),
    "bookies": pa.schema({
        "bookie_id": _S, "state": _S, "endpoints": pa.list_(_S), "rack": _S, "total_bytes": _L,
        "free_bytes": _L, "has_cookie": _F,
    }),
    "ledgers": pa.schema({
        "ledger_id": _L, "state": _S, "ensemble_size": _I, "write_quorum": _I, "ack_quorum": _I,
        "digest": _S, "ctime": _T, "last_entry": _L, "length": _L, "fragments": _I,
        "custom_metadata": pa.map_(_S, _B), "owner": _S, "metadata_format": _I,
    }),
    "fragments": pa.schema({
        "ledger_id": _L, "fragment": _I, "first_entry": _L, "last_entry": _L,
        "ensemble": pa.list_(_S), "is_closed": _F,
    }),
    "replicas": pa.schema({
        "ledger_id": _L, "fragment": _I, "position": _I, "bookie_id": _S, "expected_entries": _L,
        "bookie_state": _S,
    }),
    "under_replicated": pa.schema({
        "ledger_id": _L, "missing": pa.list_(_S), "ctime": _T, "locked_by": _S,
    }),
    "storage_usage": pa.schema({
        "bookie_id": _S, "owner": _S, "ledgers": _L, "copies": _L, "bytes": _L,
    }),
}  # fmt: skip
