"""The directories of a bookie: where things lie, who holds them, how much space is left.

    <journal directory>/current/    <hex id>.txn journals, VERSION
    <ledger directory>/current/     <hex id>.log entry logs, lastMark, ledger states, VERSION;
                                    in the first one the index as well, and the reserves
    <any directory>/quorumbook.lock held while a bookie runs

``VERSION`` is the cookie, one copy in each directory; what it must say is decided by the bookie
(R25), which asks here before it starts the storage.  Where a bookie of ours keeps the index, a
line stands before the cookie that says so.  A Java bookie expects a number there: it quotes the
line and does not start, because its own index would know nothing of what was acknowledged.  The
line is written before anything that a Java bookie relies on is changed, and goes last of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorumbook.env import DiskUsage, Env
from quorumbook.errors import ForeignDirectoryError

CURRENT = "current"
COOKIE_NAME = "VERSION"
LOCK_NAME = "quorumbook.lock"
#: Notes in the first ledger directory: it is on its way from the peer to us, or back.
ADOPTING_NAME = "quorumbook.adopting"
GIVING_BACK_NAME = "quorumbook.giving-back"
INDEX_NAME = "index.sqlite"
#: A Java bookie's error quotes this line up to its end.
_OURS = (
    b"Quorumbook keeps these directories: run `quorumbook bookie give-back --apply` before a Java "
    b"bookie starts on them\n"
)
#: Known by this, whatever release wrote the rest of the line.
_OURS_START = b"Quorumbook "


def normal(directory: str) -> str:
    """Return a configured directory as ``Directories`` names it."""
    return directory.rstrip("/") or "/"


def current(directory: str) -> str:
    """Return where a configured directory keeps its files."""
    return f"{normal(directory)}/{CURRENT}"


def read_cookie_file(env: Env, directory: str) -> bytes | None:
    """Return the cookie of a configured directory, None if it has none."""
    cookie, _ = _read_version(env, directory)
    return cookie


def write_cookie_file(env: Env, directory: str, cookie: bytes, *, is_ours: bool) -> None:
    """Stamp a configured directory, durably.

    Args:
        env: The outside world.
        directory: Which.
        cookie: Its text.
        is_ours: A bookie of ours keeps the index, so no Java bookie may start here.
    """
    env.disk.make_directory(current(directory))
    env.disk.sync_directory(normal(directory))
    line = _OURS if is_ours else b""
    env.disk.write_file(f"{current(directory)}/{COOKIE_NAME}", [line, cookie])


def is_any_ours(env: Env, directories: Sequence[str]) -> bool:
    """Tell whether one of the configured directories keeps Java bookies away."""
    return any(_read_version(env, directory)[1] for directory in directories)


def make_ours(env: Env, directories: Sequence[str]) -> None:
    """Keep Java bookies away from configured directories that have a cookie."""
    _set_ours(env, directories, is_ours=True)


def make_the_peers(env: Env, directories: Sequence[str]) -> None:
    """Let a Java bookie start on configured directories again."""
    _set_ours(env, directories, is_ours=False)


def _set_ours(env: Env, directories: Sequence[str], *, is_ours: bool) -> None:
    for directory in directories:
        cookie, was_ours = _read_version(env, directory)
        if cookie is not None and was_ours is not is_ours:
            write_cookie_file(env, directory, cookie, is_ours=is_ours)


def _read_version(env: Env, directory: str) -> tuple[bytes | None, bool]:
    path = f"{current(directory)}/{COOKIE_NAME}"
    if not env.disk.exists(path):
        return None, False
    data = env.disk.read_file(path)
    if data.startswith(_OURS_START):
        return data.partition(b"\n")[2], True
    return data, False


def is_empty(env: Env, directory: str) -> bool:
    """Tell whether a configured directory holds nothing of a bookie, besides a cookie."""
    path = current(directory)
    if not env.disk.exists(path):
        return True
    return all(name.startswith(COOKIE_NAME) for name in env.disk.list_directory(path))


class Directories:
    """All directories of one bookie.

    Attributes:
        journals: Where the journals lie (``.../current``), one for each journal directory.
        ledgers: Where the entry logs lie, one for each ledger directory.
        index_path: The index file.

    ``others`` belong to the bookie by its cookie, and nothing is written to them: the index
    directories of a bookie that was the peer's.
    """

    def __init__(
        self,
        env: Env,
        journal_directories: Sequence[str],
        ledger_directories: Sequence[str],
        index_path: str | None = None,
        others: Sequence[str] = (),
    ) -> None:
        self._disk = env.disk
        self._others = [normal(directory) for directory in others]
        self._journals = [normal(directory) for directory in journal_directories]
        self._ledgers = [normal(directory) for directory in ledger_directories]
        self.journals = [current(directory) for directory in journal_directories]
        self.ledgers = [current(directory) for directory in ledger_directories]
        self.index_path = index_path or f"{self.ledgers[0]}/{INDEX_NAME}"
        self._releases: list[Callable[[], None]] = []

    @property
    def all(self) -> list[str]:
        """Every configured directory once."""
        return list(dict.fromkeys([*self._journals, *self._ledgers, *self._others]))

    def files(self) -> dict[str, list[str]]:
        """Return the names of journals, entry logs and index files; blocks."""

        def names(directories: Sequence[str], ending: str) -> list[str]:
            listed = (name for each in directories for name in self._disk.list_directory(each))
            return sorted(name for name in listed if name.endswith(ending))

        return {
            "journal": names(self.journals, ".txn"),
            "entrylog": names(self.ledgers, ".log"),
            "index": [self.index_path.rpartition("/")[2]],
        }

    def prepare(self, *, is_moving: bool = False) -> None:
        """Make what is missing and take the locks; blocks.

        Args:
            is_moving: The directories are on their way from the peer to us, or back.

        Raises:
            DirectoryLockedError: Another bookie runs on one of them; none stays locked.
            ForeignDirectoryError: They were left half way between the peer and us.
        """
        try:
            for directory in self.all:
                self._disk.make_directory(current(directory))
                self._disk.sync_directory(directory)
                self._releases.append(self._disk.lock(f"{directory}/{LOCK_NAME}"))
            if not is_moving:
                self._demand_settled()
        except BaseException:
            self.release()
            raise

    def _demand_settled(self) -> None:
        for name, command in ((ADOPTING_NAME, "adopt"), (GIVING_BACK_NAME, "give-back")):
            path = f"{self.ledgers[0]}/{name}"
            if self._disk.exists(path):
                raise ForeignDirectoryError(
                    f"`quorumbook bookie {command}` was not finished; run it again with --apply",
                    path=path,
                )

    def release(self) -> None:
        """Give the locks back."""
        releases, self._releases = self._releases, []
        for release in releases:
            release()

    def usage(self) -> dict[str, DiskUsage]:
        """Return the space of every directory that is written to; blocks."""
        used = dict.fromkeys([*self._journals, *self._ledgers])
        return {directory: self._disk.usage(directory) for directory in used}
