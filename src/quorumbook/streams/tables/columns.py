"""The columns of the tables of a namespace; docs/spark.md says what is in them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

_L, _I, _S, _F = pa.int64(), pa.int32(), pa.string(), pa.bool_()
_T = pa.timestamp("us", tz="UTC")

SCHEMAS: Mapping[str, pa.Schema] = {
    "streams": pa.schema({
        "stream": _S, "segments": _I, "records": _L, "first_segment": _L, "last_segment": _L,
        "is_sealed": _F, "writer": _S, "max_txid": _L,
    }),
    "segments": pa.schema({
        "stream": _S, "segment": _L, "ledger_id": _L, "state": _S, "truncation": _S,
        "first_txid": _L, "last_txid": _L, "records": _L, "start_seq": _L, "last_entry": _L,
        "completed_at": _T, "length": _L, "tier": _S, "location": _S,
    }),
    "cursors": pa.schema({
        "stream": _S, "cursor": _S, "segment": _L, "entry_id": _L, "slot": _L,
        "holds_retention": _F, "is_overrun": _F, "lag_records": _L, "lag_bytes": _L,
    }),
}  # fmt: skip
