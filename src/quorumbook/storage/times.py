"""When a journal group, and a job of the read worker, did what: monotonic nanoseconds."""

from __future__ import annotations

from typing import NamedTuple


class GroupTimes(NamedTuple):
    """A journal group that was written, or synced, a moment ago."""

    #: When its write began and ended.
    began_ns: int
    written_ns: int
    #: 0 before its sync.
    synced_ns: int
    #: When the event loop heard of it.
    told_ns: int
    #: How many enqueues it took in, and their bytes.
    requests: int
    size_bytes: int


class JobTimes(NamedTuple):
    """A job of the read worker."""

    began_ns: int
    ended_ns: int
    #: What of it was reading entry logs.
    disk_ns: int
