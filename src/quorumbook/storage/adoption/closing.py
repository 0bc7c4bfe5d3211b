"""Ending entry logs as the peer does: a ledgers map behind the last entry, named in the header.

A log that a crash left open has none, and ends anywhere.  Nothing points to what lies behind its
last entry; it is cut off, because the peer reads the map up to the end of the file.
"""

from __future__ import annotations

from collections import Counter

from quorumbook.env import Env
from quorumbook.ids import MAX_FRAME_SIZE_BYTES, LedgerId
from quorumbook.storage.entrylog.format import (
    HEADER_SIZE,
    RUN_RECORD_SIZE,
    decode_header,
    encode_header,
    encode_last_id,
    encode_ledgers_map,
    encode_plain_header,
    entry_log_name,
    read_ledgers_map,
)
from quorumbook.storage.entrylog.scan import ScannedRun, scan_entry_log
from quorumbook.storage.index.reader import IndexReader


def close_entry_logs(
    env: Env, index: IndexReader, *, entry_size_max: int = MAX_FRAME_SIZE_BYTES
) -> None:
    """Give every entry log of an index its map, and every directory the newest id.  Blocks."""
    logs = index.entry_logs()
    for entry_log_id, directory in sorted(logs.items()):
        if env.disk.exists(f"{directory}/{entry_log_name(entry_log_id)}"):
            _close(env, index, directory, entry_log_id, entry_size_max)
    for directory in set(logs.values()):
        env.disk.write_file(f"{directory}/lastId", [encode_last_id(max(logs))])


def _close(
    env: Env, index: IndexReader, directory: str, entry_log_id: int, entry_size_max: int
) -> None:
    path = f"{directory}/{entry_log_name(entry_log_id)}"
    file = env.disk.open(path)
    try:
        header = decode_header(file.read(0, 32), entry_log_id, path)
        if read_ledgers_map(file, header) is not None:
            return
        sizes: Counter[LedgerId] = Counter()
        end = HEADER_SIZE
        for found in scan_entry_log(env, directory, entry_log_id, entry_size_max=entry_size_max):
            if isinstance(found, ScannedRun):
                size = len(found.run.data)
                sizes[found.run.ledger_id] += size
                end = found.position + size + (RUN_RECORD_SIZE if found.is_verified else 0)
        end = max(end, index.end_of_entry_log(entry_log_id))
        if not sizes:
            return
        ledgers_map = encode_ledgers_map(sizes)
        file.truncate(end)
        file.write([ledgers_map], end)
        file.sync()
        if header.is_checked:
            file.write([encode_header(entry_log_id, end, len(sizes))], 0)
        else:
            file.write([encode_plain_header(end, len(sizes))], 0)
        file.sync()
    finally:
        file.close()
