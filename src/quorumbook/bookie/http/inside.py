"""What a bookie is made of, over HTTP: state, space, journals, files, options; answers are JSON.

Under the peer's paths, with its keys:

    GET /api/v1/bookie/info                         freeSpace and totalSpace of the ledgers' disks
    GET /api/v1/bookie/state                        running, readOnly, shuttingDown, ...
    GET /api/v1/bookie/last_log_mark                up to where each journal is in the entry logs
    GET /api/v1/bookie/list_disk_file?file_type=T   names of files: journal, entrylog, index; or all

Ours alone:

    GET /api/v1/bookie/storage                      numbers of journals, caches, checkpoints
    GET /api/v1/bookie/options                      the options that differ from their default

Where secrets are kept is left out of the options; passwords and keys are in none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs

from quorumbook.bookie.http.server import Body
from quorumbook.env import Env, run_job
from quorumbook.options import Options
from quorumbook.storage.journal.format import journal_name

if TYPE_CHECKING:
    from quorumbook.bookie.disks import DiskMonitor
    from quorumbook.bookie.options import BookieOptions
    from quorumbook.storage.store import LedgerStorage

PAGES = tuple(
    f"GET /api/v1/bookie/{name}"
    for name in ("info", "state", "last_log_mark", "list_disk_file", "storage", "options")
)
OPTIONS = "/api/v1/bookie/options"
#: What the peer calls each kind of file.
_FILES = {"journal": "journal files", "entrylog": "entrylog files", "index": "index files"}


class InsidePages:
    """Answers for one started bookie.

    Args:
        env: The outside world.
        storage: What it keeps.
        disks: How full they are.
        options: All that it was made with.
        is_running: Whether it serves.
    """

    def __init__(
        self,
        env: Env,
        storage: LedgerStorage,
        disks: DiskMonitor,
        options: BookieOptions,
        is_running: Callable[[], bool],
    ) -> None:
        self._env = env
        self._storage = storage
        self._disks = disks
        every = (options, options.storage, options.gc, options.scrub, options.http)
        self._options = [each for each in every if each is not None]
        self._is_running = is_running

    async def answer(self, method: str, target: str, _body: Body) -> tuple[int, object]:
        """Return status and body."""
        path, _, query = target.partition("?")
        match path.rstrip("/").rpartition("/")[2]:
            case "info":
                disks = self._disks
                return 200, {"freeSpace": disks.free_bytes, "totalSpace": disks.total_bytes}
            case "state":
                return 200, self._state()
            case "last_log_mark":
                return 200, self._marks()
            case "list_disk_file":
                return 200, await self._files(parse_qs(query).get("file_type", [""])[0])
            case "storage":
                return 200, self._storage.statistics()
            case "options":
                return 200, {"options": changed_options(self._options)}
        return 404, {"error": f"there is no {method} {path}"}

    def _state(self) -> dict[str, bool]:
        writability, is_running = self._disks.writability, self._is_running()
        return {
            "running": is_running,
            "readOnly": writability.is_read_only,
            "shuttingDown": not is_running,
            "availableForHighPriorityWrites": (
                not writability.is_read_only or writability.takes_high_priority
            ),
        }

    def _marks(self) -> dict[str, str]:
        return {
            f"LastLogMark: Journal Id - {mark.journal_id}({journal_name(mark.journal_id)})": (
                f"Pos - {mark.offset}"
            )
            for mark in self._storage.flushed_marks()
        }

    async def _files(self, kind: str) -> dict[str, str]:
        kinds = [kind] if kind in _FILES else list(_FILES)
        worker = self._env.threads.start_worker("bookie-files")
        try:
            found = await run_job(worker, self._storage.directories.files)
        finally:
            worker.stop()
        # Each name is followed by a tab there.
        return {_FILES[each]: "".join(f"{name}\t" for name in found[each]) for each in kinds}


def changed_options(options: Iterable[Options]) -> list[dict[str, object]]:
    """Return the options that differ from their default: key, value, default, what it is."""
    rows: list[dict[str, object]] = []
    for each in options:
        secret = {field.name for field in fields(cast("Any", each)) if not field.repr}
        for declared in type(each).declared():
            value = getattr(each, declared.name)
            if value != declared.default and declared.name not in secret:
                rows.append(
                    {
                        "option": declared.key,
                        "value": declared.as_text(value),
                        "default": declared.as_text(declared.default),
                        "help": declared.help,
                    }
                )
    return rows
