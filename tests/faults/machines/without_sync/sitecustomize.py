"""Found on PYTHONPATH by the bookies of a control run: nothing they write is ever synced."""

import os

from quorumbook.storage.journal import format as journal_format

_boot_mark = journal_format.boot_mark
# Before anybody imports it from there; the sessions of sqlite metadata know the real one.
journal_format.boot_mark = lambda boot_id: _boot_mark(os.environ["BOOT_ID"])


def _nothing(fd: int) -> None:
    os.fstat(fd)


os.fsync = _nothing
if hasattr(os, "fdatasync"):
    os.fdatasync = _nothing
