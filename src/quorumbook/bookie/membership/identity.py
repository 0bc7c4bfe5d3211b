"""Who a bookie is: cookies (R25), and what a bookie without a past must assume (R26).

The cookie ties bookie id, directories and cluster together; one text lies in the metadata store
and in every directory.  What is found decides (the comparison itself is in ``metadata.cookies``):

    store    directories                      then
    none     no cookie, all empty             a new bookie: stamp the store, then the directories
    none     no cookie, not empty             refuse
    none     a cookie                         refuse: another cluster, or the cookie was deleted
    there    all the same as the store's      go on
    there    missing in a new, empty          stamp, if expansion is allowed
             directory
    there    missing elsewhere                refuse; with ``stamp_missing_cookies`` go on as a
                                              bookie that has forgotten what was there
    there    different                        refuse

A new bookie whose id the cluster's ledgers already name may once have promised something, and so
may one that lost a directory, or the end of its journal.  Before the first stamp it leaves a
note, ``VERSION.past``, in its first ledger directory:

    unchecked   its past has to be looked up in the metadata before it serves
    gated       the metadata knows it: first adds of ledgers are looked up by
                ``requests/ledger_gate.py``
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

from quorumbook.bookie.options import BookieOptions
from quorumbook.env import Env, logger, run_job
from quorumbook.errors import (
    ConfigError,
    CookieMismatchError,
    CookieMissingError,
    MetadataFormatError,
    NoSuchLedgerInMetadataError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.holdings import names
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.bookies.cookies import Cookie, CookieStore, check_cookies
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.store import MetadataStore
from quorumbook.storage.directories import places
from quorumbook.storage.journal.marks import mark_file_name

_log = logger("bookie.identity")
_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+")
_PAST_NAME = "VERSION.past"
_LOOK_UPS_AT_A_TIME = 64


class Past(Enum):
    """What a bookie without a past has to do about it."""

    CLEAN = "clean"
    UNCHECKED = "unchecked"
    GATED = "gated"


@dataclass(slots=True)
class Mentions:
    """Where the metadata names a bookie."""

    #: Not closed, and the bookie is in the last ensemble.
    open_ledger_ids: list[LedgerId] = field(default_factory=list)
    #: Closed, and the bookie lacks entries that it should hold.
    lacking_ledger_ids: list[LedgerId] = field(default_factory=list)
    #: Any ledger names it at all.
    is_known: bool = False


@dataclass(slots=True)
class Found:
    """What lies in the directories of a bookie."""

    cookies: dict[str, Cookie | None]
    #: Directories that hold nothing of a bookie.
    empty: set[str]


def check_bookie_id(bookie_id: BookieId) -> None:
    """Raise ``ConfigError`` unless the id is one that every client accepts."""
    if not _BOOKIE_ID.fullmatch(bookie_id) or bookie_id == "readonly":
        raise ConfigError(
            f"bookie id {bookie_id!r} may only have letters, digits, ':', '-', '_' and '.', and "
            "must not be 'readonly'"
        )


def wanted_cookie(options: BookieOptions, bookie_id: BookieId, instance_id: str) -> Cookie:
    """Return what the directories of a bookie have to say."""
    return Cookie(
        bookie_id=bookie_id,
        journal_directories=options.journal_directories,
        ledger_directories=options.ledger_directories,
        instance_id=instance_id,
        index_directories=options.index_directories or None,
    )


async def claim(
    env: Env, options: BookieOptions, store: MetadataStore, bookie_id: BookieId, instance_id: str
) -> None:
    """Check that the directories are this bookie's in this cluster, and stamp new ones.

    Raises:
        CookieError: they are not.
        DirectoryLockedError: another bookie runs on one of them.
    """
    wanted = wanted_cookie(options, bookie_id, instance_id)
    cookies = CookieStore(store)
    held = places.Directories(
        env,
        options.journal_directories,
        options.ledger_directories,
        others=options.index_directories,
    )
    worker = env.threads.start_worker("bookie-identity")
    try:
        # Nobody else may stamp or start while this is decided.
        await run_job(worker, held.prepare)
        stored = await cookies.read(bookie_id)
        found = await run_job(worker, lambda: look(env, held.all))
        if stored is None:
            check_cookies(wanted, None, found.cookies, is_empty=len(found.empty) == len(held.all))
            await run_job(worker, lambda: write_past_note(env, options, Past.UNCHECKED))
            await cookies.write(wanted)
            await run_job(worker, lambda: _stamp(env, held.all, wanted, is_ours=False))
        elif _is_expansion(wanted, stored[0]):
            check_expansion(wanted, stored[0], found, is_allowed=options.allow_storage_expansion)
            # First the directories: a crash in between is found and mended by the next start.
            is_ours = await run_job(worker, lambda: places.is_any_ours(env, held.all))
            await run_job(worker, lambda: _stamp(env, held.all, wanted, is_ours=is_ours))
            await cookies.write(wanted, stored[1])
            _log.warning("took in new ledger directories: %s", ", ".join(held.all))
        else:
            lost = [directory for directory, cookie in found.cookies.items() if cookie is None]
            kept = dict(found.cookies)
            if options.stamp_missing_cookies:
                for directory in lost:
                    del kept[directory]
            check_cookies(wanted, stored[0], kept, is_empty=False)
            if lost:
                is_ours = await run_job(worker, lambda: places.is_any_ours(env, held.all))
                await run_job(
                    worker, lambda: _replace_lost(env, options, lost, wanted, is_ours=is_ours)
                )
    finally:
        await run_job(worker, held.release)
        worker.stop()


def check_expansion(wanted: Cookie, stored: Cookie, found: Found, *, is_allowed: bool) -> None:
    """Allow ledger directories beside those that the bookie had, if they are new and empty.

    Raises:
        CookieError: they are not, or an old directory is not what it was.
    """
    known = {*stored.journal_directories, *stored.ledger_directories}
    fresh = [directory for directory in found.cookies if directory not in known]
    if not is_allowed:
        raise CookieMismatchError(
            f"bookie {wanted.bookie_id} did not have {', '.join(fresh)} before; take it in with "
            "the option allow_storage_expansion, or leave it out"
        )
    for directory, cookie in found.cookies.items():
        # An earlier attempt may have stamped some of them already.
        if cookie is not None and stored.difference(cookie) and wanted.difference(cookie):
            raise CookieMismatchError(
                f"the directory is not of bookie {wanted.bookie_id} in this cluster: "
                f"{wanted.difference(cookie)}; leave it out, or use an empty directory",
                path=directory,
            )
        if cookie is None and directory in known:
            raise CookieMissingError(
                f"a directory of bookie {wanted.bookie_id} has lost its cookie, and perhaps "
                "entries: mount the disk it was on, or start a new bookie under another id",
                path=directory,
            )
        if cookie is None and directory not in found.empty:
            raise CookieMissingError("a directory that is taken in must be empty", path=directory)


async def read_past(env: Env, options: BookieOptions) -> Past:
    """Return the note that a new bookie left for itself."""
    worker = env.threads.start_worker("bookie-identity")
    try:
        return await run_job(worker, lambda: _read_past(env, options))
    finally:
        worker.stop()


async def write_past(env: Env, options: BookieOptions, past: Past) -> None:
    """Replace the note."""
    worker = env.threads.start_worker("bookie-identity")
    try:
        await run_job(worker, lambda: write_past_note(env, options, past))
    finally:
        worker.stop()


async def find_in_metadata(
    ledgers: LedgerManager,
    bookie_id: BookieId,
    lacks: Callable[[LedgerMetadata], Awaitable[bool]],
) -> Mentions:
    """Read all ledgers of the cluster for mentions of a bookie; raises rather than miss one.

    Args:
        ledgers: Of the cluster.
        bookie_id: The bookie.
        lacks: Tells whether it lacks entries of a closed ledger.
    """
    mentions = Mentions()
    batch: list[LedgerId] = []
    async for ledger_id in ledgers.list():
        batch.append(ledger_id)
        if len(batch) == _LOOK_UPS_AT_A_TIME:
            await _find(ledgers, bookie_id, batch, mentions, lacks)
            batch = []
    await _find(ledgers, bookie_id, batch, mentions, lacks)
    return mentions


async def _find(
    ledgers: LedgerManager,
    bookie_id: BookieId,
    batch: list[LedgerId],
    mentions: Mentions,
    lacks: Callable[[LedgerMetadata], Awaitable[bool]],
) -> None:
    async def read(ledger_id: LedgerId) -> None:
        try:
            metadata, _ = await ledgers.read(ledger_id)
        except NoSuchLedgerInMetadataError:
            return
        if not names(metadata, bookie_id):
            return
        mentions.is_known = True
        if not metadata.is_closed and bookie_id in metadata.fragments[-1].ensemble:
            mentions.open_ledger_ids.append(ledger_id)
        elif await lacks(metadata):
            mentions.lacking_ledger_ids.append(ledger_id)

    await asyncio.gather(*map(read, batch))


def _is_expansion(wanted: Cookie, stored: Cookie) -> bool:
    return (
        wanted.bookie_id == stored.bookie_id
        and wanted.instance_id == stored.instance_id
        and wanted.journal_directories == stored.journal_directories
        and stored.index_directories is None
        and set(wanted.ledger_directories) > set(stored.ledger_directories)
    )


# On the worker


def look(env: Env, directories: list[str]) -> Found:
    """Read the cookies; blocks.

    Raises:
        CookieMismatchError: One cannot be read.
    """
    found = Found({}, set())
    for directory in directories:
        data = places.read_cookie_file(env, directory)
        try:
            found.cookies[directory] = Cookie.decode(data) if data is not None else None
        except MetadataFormatError as error:
            raise CookieMismatchError(
                f"the cookie cannot be read ({error}); copy VERSION from another directory of "
                "this bookie",
                path=directory,
            ) from error
        if places.is_empty(env, directory):
            found.empty.add(directory)
    return found


def _stamp(env: Env, directories: list[str], cookie: Cookie, *, is_ours: bool) -> None:
    for directory in directories:
        places.write_cookie_file(env, directory, cookie.encode(), is_ours=is_ours)


def _replace_lost(
    env: Env, options: BookieOptions, lost: list[str], cookie: Cookie, *, is_ours: bool
) -> None:
    """Go on without what was in some directories; what may be missing is found after the start."""
    _log.warning(
        "%s lost what the cookie said of it; what this bookie lacks is copied from others",
        ", ".join(lost),
    )
    write_past_note(env, options, Past.UNCHECKED)
    journals = [places.normal(directory) for directory in options.journal_directories]
    for index, journal in enumerate(journals):
        # They point into journals that are gone.
        name = mark_file_name(index, len(journals))
        for directory in map(places.current, options.ledger_directories if journal in lost else ()):
            if env.disk.exists(f"{directory}/{name}"):
                env.disk.unlink(f"{directory}/{name}")
                env.disk.sync_directory(directory)
    _stamp(env, lost, cookie, is_ours=is_ours)


def _past_path(options: BookieOptions) -> str:
    return f"{places.current(options.ledger_directories[0])}/{_PAST_NAME}"


def _read_past(env: Env, options: BookieOptions) -> Past:
    path = _past_path(options)
    if not env.disk.exists(path):
        return Past.CLEAN
    text = env.disk.read_file(path).decode(errors="replace").strip()
    # A note that cannot be read is taken for the more careful one.
    return Past.GATED if text == Past.GATED.value else Past.UNCHECKED


def write_past_note(env: Env, options: BookieOptions, past: Past) -> None:
    """Leave the note, durably; blocks."""
    path = _past_path(options)
    if past is Past.CLEAN:
        env.disk.unlink(path)
        env.disk.sync_directory(places.current(options.ledger_directories[0]))
    else:
        env.disk.write_file(path, [f"{past.value}\n".encode()])
