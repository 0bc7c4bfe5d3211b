"""A stopped bookie's directories: what is wrong with them, and mending what can be mended here.

Nothing is changed but by ``repair`` and ``rebuild_index``, which hold the directories' locks.
What was acknowledged is never thrown away: a damaged file is set aside under another name, and
where entries or fences may be lost with it, the next start of the bookie calls them unknown until
the metadata and the other bookies have settled it (``identity``, ``healing``).

All of it blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quorumbook.bookie.membership import identity
from quorumbook.bookie.options import BookieOptions
from quorumbook.env import Env
from quorumbook.errors import MetadataFormatError, StorageError
from quorumbook.metadata.bookies.cookies import Cookie
from quorumbook.storage.cache.layers import Caches
from quorumbook.storage.directories import places
from quorumbook.storage.index.files import index_exists, set_aside
from quorumbook.storage.inspection import HARMLESS, LOST, REPAIRABLE, Finding, inspect
from quorumbook.storage.journal.format import NEWEST_NAME, journal_id_of
from quorumbook.storage.journal.marks import is_mark_file
from quorumbook.storage.journal.synced import SYNCED_NAME
from quorumbook.storage.options import StartReport
from quorumbook.storage.startup import open_storage

_ASIDE = ".damaged"


def directories_of(env: Env, options: BookieOptions) -> places.Directories:
    """Return a bookie's directories.

    Raises:
        StorageError: One does not exist.
    """
    found = places.Directories(
        env,
        options.journal_directories,
        options.ledger_directories,
        others=options.index_directories,
    )
    for directory in found.all:
        if not env.disk.exists(places.current(directory)):
            raise StorageError(
                "nothing of a bookie is here; --data-dir is the directory that `quorumbook bookie"
                " run` was given, above journal and ledgers",
                path=directory,
            )
    return found


def inspect_bookie(env: Env, options: BookieOptions, scratch: str) -> Iterator[Finding]:
    """Yield all that is wrong with cookies and storage; ``scratch`` takes a copy of the index."""
    directories = directories_of(env, options)
    yield from _inspect_cookies(env, directories)
    yield from inspect(env, directories, scratch)


def _inspect_cookies(env: Env, directories: places.Directories) -> Iterator[Finding]:
    good, bad = _cookies(env, directories)
    copy = "--repair copies it from another directory" if good else "bring it back from a copy"
    for directory, problem in bad.items():
        if places.is_empty(env, directory) and "no cookie" in problem:
            yield Finding(
                "cookie", directory, problem, "a disk was emptied or is not mounted",
                "mount it; if it is lost, start with --set bookie.stamp_missing_cookies=true", LOST,
            )  # fmt: skip
        else:
            yield Finding("cookie", directory, problem, "the bookie does not start", copy)
    if len({cookie.encode() for cookie in good.values()}) > 1:
        yield Finding(
            "cookie", ", ".join(good), "the cookies differ",
            "one is damaged, or these are directories of several bookies",
            "copy VERSION from the directory where it is right, or give each bookie its own", LOST,
        )  # fmt: skip


def _cookies(env: Env, directories: places.Directories) -> tuple[dict[str, Cookie], dict[str, str]]:
    good: dict[str, Cookie] = {}
    bad: dict[str, str] = {}
    for directory in directories.all:
        data = places.read_cookie_file(env, directory)
        try:
            if data is None:
                bad[directory] = "there is no cookie"
            else:
                good[directory] = Cookie.decode(data)
        except MetadataFormatError as error:
            bad[directory] = f"the cookie cannot be read: {error}"
    return good, bad


def repair(env: Env, options: BookieOptions, scratch: str) -> list[str]:
    """Mend what can be mended; return what was done.

    Raises:
        DirectoryLockedError: The bookie runs.
    """
    held = directories_of(env, options)
    held.prepare()
    done: list[str] = []
    try:
        for finding in list(inspect_bookie(env, options, scratch)):
            if finding.kind == "cookie" and finding.severity == REPAIRABLE:
                done += _copy_cookie(env, held, finding.path)
            elif finding.kind == "mark":
                done += _remove_marks(env, held)
            elif finding.kind == "journal":
                done += _doubt(env, options, held, finding.path)
            elif (
                finding.kind == "index"
                and finding.severity != HARMLESS
                and index_exists(held.index_path)
            ):
                done.append(f"set the index aside as {set_aside(held.index_path)}")
    finally:
        held.release()
    return done


def _copy_cookie(env: Env, directories: places.Directories, directory: str) -> list[str]:
    good, _ = _cookies(env, directories)
    if len({cookie.encode() for cookie in good.values()}) != 1:
        return []
    source, cookie = next(iter(good.items()))
    is_ours = places.is_any_ours(env, directories.all)
    places.write_cookie_file(env, directory, cookie.encode(), is_ours=is_ours)
    return [f"copied the cookie of {source} to {directory}"]


def _remove_marks(env: Env, directories: places.Directories) -> list[str]:
    removed = []
    for directory in directories.ledgers:
        for name in env.disk.list_directory(directory):
            if is_mark_file(name):
                env.disk.unlink(f"{directory}/{name}")
                removed.append(f"removed {directory}/{name}")
        env.disk.sync_directory(directory)
    return removed


def _doubt(
    env: Env, options: BookieOptions, directories: places.Directories, path: str
) -> list[str]:
    """Set a damaged journal and those behind it aside; the bookie may have forgotten something."""
    directory, _, name = path.rpartition("/")
    damaged = journal_id_of(name)
    identity.write_past_note(env, options, identity.Past.UNCHECKED)
    done = ["noted that this bookie may have forgotten something"]
    done += _remove_marks(env, directories)
    for other in env.disk.list_directory(directory):
        journal_id = journal_id_of(other)
        if (journal_id is not None and damaged is not None and journal_id >= damaged) or (
            other in (NEWEST_NAME, SYNCED_NAME)
        ):
            env.disk.replace(f"{directory}/{other}", f"{directory}/{other}{_ASIDE}")
            done.append(f"set {directory}/{other} aside")
    env.disk.sync_directory(directory)
    return done


def rebuild_index(env: Env, options: BookieOptions) -> StartReport:
    """Make a new index of the entry logs, and bring the journals along; the old one stays aside.

    Raises:
        DirectoryLockedError: The bookie runs.
        StorageError: The journal is damaged; ``repair`` comes first.
    """
    held = directories_of(env, options)
    held.prepare()
    try:
        if index_exists(held.index_path):
            set_aside(held.index_path)
        caches = Caches(read_cache_size_bytes=0)
        opened = open_storage(env, held, caches, options.storage)
        opened.entry_logs.close()
        opened.index.truncate_wal()
        for index in (opened.loop_index, opened.index):
            index.close()
        return opened.report
    finally:
        held.release()


def sets(findings: Sequence[Finding]) -> dict[str, int]:
    """Count findings by severity."""
    return {
        severity: sum(finding.severity == severity for finding in findings)
        for severity in (LOST, REPAIRABLE, HARMLESS)
    }
