"""Which names in a directory are parts of the peer's index, and of which kind; it is not read.

    sorted, interleaved    folders of one or two hexadecimal digits, with ``.idx`` files below
    db                     two RocksDB databases

Reading it is ``adoption``'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from quorumbook.env import Env

#: The peer's storages, as ``--storage`` and reports name them.
SORTED, DB = "sorted", "db"
#: What lies in an index directory of DbLedgerStorage.
DATABASES = ("ledgers", "locations")

_FOLDER = re.compile(r"[0-9a-f]{1,2}")


def is_index_folder(name: str) -> bool:
    """Tell whether a name in ``current`` is that of a folder with index files."""
    return _FOLDER.fullmatch(name) is not None


def index_kinds(env: Env, indexes: Sequence[str]) -> list[str]:
    """Tell whose index lies in these directories (``.../current``): none, one or both kinds."""
    kinds = []
    if any(
        is_index_folder(name)
        for directory in indexes
        if env.disk.exists(directory)
        for name in env.disk.list_directory(directory)
    ):
        kinds.append(SORTED)
    if any(env.disk.exists(f"{directory}/{DATABASES[0]}/CURRENT") for directory in indexes):
        kinds.append(DB)
    return kinds


def index_parts(env: Env, directory: str) -> list[str]:
    """Return the names in an index directory (``.../current``) that make up the peer's index."""
    return [
        name
        for name in env.disk.list_directory(directory)
        if is_index_folder(name) or (name in DATABASES)
    ]
