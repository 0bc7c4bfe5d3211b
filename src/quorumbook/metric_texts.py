"""What each metric tells, as its ``# HELP`` line says it; pure.

``docs/reference/metrics.md`` has the same words, which a test holds.
"""

from __future__ import annotations

_TEXTS = {
    # Requests to a bookie
    "bookkeeper_server_ADD_ENTRY": "adds; the same as ADD_ENTRY_REQUEST",
    "bookkeeper_server_ADD_ENTRY_REQUEST": (
        "adds: how many, and how long each took until it was synced"
    ),
    "bookkeeper_server_ADD_ENTRY_BLOCKED": "adds that wait for room",
    "bookkeeper_server_ADD_ENTRY_IN_PROGRESS": "adds that were taken and are not answered yet",
    "bookkeeper_server_ADD_ENTRY_REJECTED": "adds refused because of overload",
    "bookkeeper_server_READ_ENTRY": "reads; the same as READ_ENTRY_REQUEST",
    "bookkeeper_server_READ_ENTRY_REQUEST": "reads of single entries",
    "bookkeeper_server_READ_ENTRY_IN_PROGRESS": "reads that were taken and are not answered yet",
    "bookkeeper_server_READ_ENTRY_REJECTED": "reads refused because of overload",
    "bookkeeper_server_READ_ENTRY_FENCE_REQUEST": "reads that fence a ledger",
    "bookkeeper_server_READ_ENTRY_LONG_POLL_REQUEST": "reads that wait for the next entry",
    "bookkeeper_server_READ_ENTRY_LONG_POLL_WAITING": "long polls that wait now",
    "bookkeeper_server_READ_LAST_ENTRY_NOENTRY_ERROR": (
        "reads of the last entry of ledgers that have none here"
    ),
    "bookkeeper_server_BATCH_READ_ENTRY_REQUEST": "reads of many entries at a time",
    "bookkeeper_server_WRITE_LAC_REQUEST": "explicit last adds confirmed that were written",
    "bookkeeper_server_READ_LAC_REQUEST": "reads of the last add confirmed",
    "bookkeeper_server_FORCE_LEDGER_REQUEST": "requests to sync a ledger",
    "bookkeeper_server_GET_BOOKIE_INFO_REQUEST": "requests for free and total disk space",
    "bookkeeper_server_GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST": (
        "requests for the list of a ledger's entries"
    ),
    "bookkeeper_server_REQUESTS_UNAUTHORIZED": "requests refused before authentication",
    "bookie_rejected_write_requests": "adds refused because the write cache was full",
    "bookie_throttled_write_requests": "adds held up because the write cache was full",
    "bookie_BOOKIE_RECOVERY_ADD_ENTRY": "entries written by recoveries and repairs",
    "bookie_WRITE_BYTES": "bytes of entries written",
    "bookie_READ_BYTES": "bytes of entries read",
    # Connections of a bookie
    "bookkeeper_server_CONNECTIONS": "connections that are open",
    "bookkeeper_server_CONNECTIONS_OPENED": "connections accepted",
    "bookkeeper_server_CONNECTIONS_REFUSED": "connections refused because there were too many",
    "bookkeeper_server_CONNECTIONS_PAUSED": (
        "times that a connection was not read for a while, because its answers waited"
    ),
    "bookkeeper_server_CONNECTIONS_SLOW_CLOSED": (
        "connections closed because nobody read their answers"
    ),
    "bookkeeper_server_CONNECTIONS_IDLE_CLOSED": (
        "connections closed because they asked nothing for bookie.idle_timeout_s"
    ),
    "bookkeeper_server_CONNECTIONS_BROKEN_PROTOCOL": (
        "connections closed because of malformed frames"
    ),
    "bookkeeper_server_CONNECTIONS_UNAUTHORIZED": (
        "connections closed because they did not authenticate"
    ),
    "bookkeeper_server_CERTIFICATE_ERRORS": "certificate files that could not be used",
    "http_connections_cut": (
        "connections to the HTTP port of a bookie or of auto-recovery that were cut because "
        "there were too many"
    ),
    # A bookie's state and disks
    "bookie_SERVER_STATUS": "1 writable, 0 read-only, -1 not registered",
    "bookie_ledger_dir_usage": "how full the disk of each directory is, 0 to 1, by path",
    "bookie_ledger_num_dirs": "ledger directories of this bookie",
    "bookie_ledger_writable_dirs": "ledger directories that take data",
    "bookie_directory_free_bytes": "free bytes of each directory's disk, by path",
    "bookie_directory_total_bytes": "size of each directory's disk, by path",
    "bookie_directory_sync": "syncs in each directory, by path",
    "bookie_storage_is_full": "1 if no directory takes data",
    # Journal
    "bookie_journal_JOURNAL_SYNC": "syncs: how many, and how long in all",
    "bookie_journal_JOURNAL_FLUSH_LATENCY": "writes of groups of entries",
    "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES": "bytes of the last group",
    "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES": "entries of the last group",
    "bookie_journal_JOURNAL_MEMORY_USED": "bytes that wait to be written",
    "bookie_journal_JOURNAL_QUEUE_SIZE": "entries that wait to be written",
    "bookie_journal_JOURNAL_WRITE_BYTES": "bytes written to the journal",
    "bookie_storage_journal_enqueued": "entries given to the journal",
    "bookie_storage_journal_files_created": "journal files created",
    "bookie_storage_journaling_bytes": "bytes under way in the journal",
    # Caches, checkpoints and reading
    "bookie_write_cache_size": "bytes in the write cache",
    "bookie_read_cache_size": "bytes in the read cache",
    "bookie_read_cache_hits": "reads answered by the read cache",
    "bookie_read_cache_misses": "reads that went to the disk",
    "bookie_flush": "checkpoints: how many, and how long in all",
    "bookie_flush_size": "bytes that checkpoints wrote to entry logs",
    "bookie_storage_flush_failed": "checkpoints that failed",
    "bookie_storage_flush_journals_deleted": "journal files deleted after checkpoints",
    "bookie_storage_flush_runs": "runs of entries that checkpoints wrote",
    "bookie_storage_bytes_appended": "bytes of entries taken",
    "bookie_storage_entries_appended": "entries taken since the start",
    "bookie_storage_ledgers_in_memory": "ledgers whose state is in memory",
    "bookie_storage_read_damaged": "damaged entries met by readers",
    "bookie_storage_read_page_cache_reads": "reads that the system's page cache answered",
    "bookie_storage_read_read_ahead_runs": "runs read ahead of sequential readers",
    "bookie_storage_read_run_reads": "runs read from entry logs",
    # Garbage collection and compaction
    "bookie_THREAD_RUNTIME": "passes: how many, and how long in all",
    "bookie_DELETED_LEDGER_COUNT": "ledgers deleted by garbage collection",
    "bookie_HELD_LEDGER_COUNT": (
        "ledgers whose deletion waits for an operator (quorumbook bookie gc-hold)"
    ),
    "bookie_ACTIVE_ENTRY_LOG_COUNT": "entry logs on the disks",
    "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES": "bytes of the entry logs on the disks",
    "bookie_MAJOR_COMPACTION_COUNT": "major compactions since the start",
    "bookie_MINOR_COMPACTION_COUNT": "minor compactions since the start",
    "bookie_RECLAIMED_COMPACTION_SPACE_BYTES": "bytes that compaction gave back",
    "bookie_RECLAIMED_DELETION_SPACE_BYTES": "bytes that deletion gave back",
    "bookie_storage_gc_compacted_bytes": "bytes that compaction moved",
    "bookie_storage_gc_deleted_logs": "entry logs removed since the start",
    "bookie_storage_gc_dropped_copies": (
        "replicas dropped that other bookies hold in this one's place"
    ),
    "bookie_storage_gc_failed_passes": "passes of garbage collection that failed",
    "bookie_storage_gc_surplus_copies": "replicas found that metadata do not ask of this bookie",
    "bookie_storage_gc_suspected_ledgers": (
        "ledgers missing in the metadata once; the second time they are deleted"
    ),
    # Damage
    "bookie_storage_damaged": "damaged entries on record",
    "bookie_storage_healing_damaged_ledgers": (
        "ledgers with damaged entries; falls as they are repaired"
    ),
    "bookie_storage_healing_ledgers_in_limbo": (
        "ledgers of which the bookie does not know what it had"
    ),
    "bookie_storage_healing_healed_ledgers": "ledgers whose damage was repaired",
    "bookie_storage_healing_marks": "ledgers put into the queue for repair",
    "bookie_storage_scrub": "scrubs: how many, and how long in all",
    "bookie_storage_scrub_checked_bytes": "bytes that scrubs checked",
    "bookie_storage_scrub_checked_runs": "runs of entries checked",
    "bookie_storage_scrub_damaged_entries": "entries found damaged since the start",
    "bookie_storage_scrub_failed_cycles": "scrubs that ended in an error",
    "bookie_storage_scrub_redeemed_entries": (
        "entries on record as damaged that were found good again"
    ),
    # Background work
    "background_io_bytes": "bytes read and written, by the label whom",
    "background_io_rate_bytes": "bytes a second that are allowed; 0: no limit",
    "background_io_spare_bytes": "bytes a second that are allowed beyond that for now, because "
    "bookies are idle",
    "background_io_waiting_bytes": "bytes that wait for the budget",
    # Auditor
    "replication_auditor_IS_AUDITOR": "1 in the process that is auditor",
    "replication_auditor_ELECTION_ATTEMPTS": "elections that it stood in",
    "replication_auditor_NUM_LOST_BOOKIES": "bookies that are lost",
    "replication_auditor_NUM_AWAY_BOOKIES": "bookies that are away and not yet lost",
    "replication_auditor_NUM_UNDER_REPLICATED_LEDGERS": "ledgers that lack replicas",
    "replication_auditor_UNDER_REPLICATED_LEDGERS_TOTAL_SIZE": "bytes of those ledgers",
    "replication_auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY": (
        "ledgers with an entry that no bookie has"
    ),
    "replication_auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY": (
        "ledgers with an entry on fewer bookies than the ack quorum"
    ),
    "replication_auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY": (
        "ledgers with an entry on fewer bookies than the write quorum"
    ),
    "replication_auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY": (
        "ledgers that break the placement policy"
    ),
    "replication_auditor_NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY": (
        "ledgers that the policy tolerates"
    ),
    "replication_auditor_NUM_LEDGERS_CHECKED": "ledgers read in full",
    "replication_auditor_NUM_LEDGERS_MARKED": "ledgers put into the queue",
    "replication_auditor_NUM_LEDGERS_UNREADABLE": "ledgers that could not be read",
    "replication_auditor_NUM_BOOKIE_AUDITS_DELAYED": (
        "audits delayed because a bookie was away for a short time"
    ),
    "replication_auditor_NUM_DELAYED_BOOKIE_AUDITS_DELAYES_CANCELLED": (
        "delayed audits that were not needed: the bookie came back"
    ),
    "replication_auditor_NUM_SKIPPING_CHECK_TASK_TIMES": (
        "checks skipped because repairs are switched off"
    ),
    "replication_auditor_AUDIT_BOOKIES_TIME": "audits that look for lost bookies",
    "replication_auditor_CHECK_ALL_LEDGERS_TIME": "checks that read all entries",
    "replication_auditor_PLACEMENT_POLICY_CHECK_TIME": "checks of the placement",
    "replication_auditor_REPLICAS_CHECK_TIME": "checks that count replicas",
    # Replication worker
    "replication_replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED": (
        "ledgers whose lacking replicas were written"
    ),
    "replication_replication_worker_NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER": (
        "repairs that failed and are tried again"
    ),
    "replication_replication_worker_NUM_LEDGERS_IN_QUARANTINE": (
        "ledgers that could not be repaired five times in a row"
    ),
    "replication_replication_worker_NUM_LEDGERS_CLOSED": (
        "open ledgers closed, because their writer was gone"
    ),
    "replication_replication_worker_NUM_PLACES_MOVED": "bookies replaced in ensembles",
    "replication_replication_worker_NUM_ENTRIES_WRITTEN": "entries copied to other bookies",
    "replication_replication_worker_NUM_BYTES_WRITTEN": "bytes of entries copied to other bookies",
    # Streams, and the admin service
    "stream_writer_records_total": "records that are safe",
    "stream_writer_bytes_total": "bytes of the entries that are safe, as stored",
    "stream_writer_entries_total": "entries that are safe",
    "stream_writer_segments_completed_total": "segments rolled or closed",
    "stream_writer_reappended_records_total": (
        "records that a failed segment lacked and the next one got"
    ),
    "stream_writer_fenced_total": "writers that others pushed out",
    "stream_reader_records_total": "records that readers were given",
    "stream_reader_batches_total": "batches in which records were read",
    "stream_writer_open": "writers that are open",
    "stream_writer_pending_records": "records appended that are not safe yet",
    "stream_reader_open": "readers that are open",
    "stream_reader_read_ahead_bytes": "bytes of memory that segments read ahead take",
    "stream_reader_lag_seconds": (
        "how long ago the record was appended that the reader farthest behind read last; 0 "
        "at the end of the stream"
    ),
    "stream_writer_append_seconds": "from the append of a record until it was safe",
    "stream_reader_idle": "readers to whom nothing comes, by reason",
    "stream_cursor_lag_records": "records between a cursor and the end of its stream",
    "stream_cursor_lag_bytes": "bytes between a cursor and the end of its stream",
    "stream_cursor_lag_seconds": "age of the first record that a cursor has not passed",
    "stream_retention_segments_deleted": "segments that retention deleted",
    "stream_retention_records_deleted": "records that retention deleted",
    "stream_retention_cursors_overrun": (
        "how often a hard limit deleted what a cursor had not passed"
    ),
    "stream_orphan_ledgers": "ledgers that no stream refers to",
    "stream_orphan_bytes": "bytes of ledgers that no stream refers to",
    "admin_requests_total": "requests that were answered, by status",
}


def text_of(name: str) -> str:
    """Return what a metric tells."""
    return _TEXTS.get(name, f"a number of its own, {name}")
