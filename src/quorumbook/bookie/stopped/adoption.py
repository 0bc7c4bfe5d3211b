"""Taking a stopped bookie of the peer over, and giving it back: who may, and what is whose.

The files are ``storage.adoption``'s.  Here the cluster is asked: that the cookies are of this
cluster and this bookie, that nobody is registered under its id, and what became of ledgers that
the peer's index does not explain:

    gone from the metadata                     it was deleted, and stays so
    there, this bookie in none of its          its entries were left over, and go
    ensembles
    there, and this bookie's                   its part of the index is lost, which is damage;
                                               taken over all the same, its key comes from the
                                               metadata, and unless it is closed it is fenced and
                                               in limbo
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from quorumbook.bookie.membership.identity import look, wanted_cookie
from quorumbook.bookie.options import BookieOptions
from quorumbook.env import Env, Worker, run_job
from quorumbook.errors import (
    CookieMissingError,
    ForeignDirectoryError,
    NoSuchLedgerInMetadataError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.bookies.cookies import CookieStore, check_cookies
from quorumbook.metadata.bookies.registration import BookieRegistration
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.store import MetadataStore
from quorumbook.protocol.digest import master_key
from quorumbook.storage.adoption import give_back as give_back_files
from quorumbook.storage.adoption.adopt import (
    ADOPTED_KIND_KEY,
    AdoptionNote,
    apply,
    demand_not_ours,
    note_path,
    read_note,
    settle,
)
from quorumbook.storage.adoption.survey import PeerPlaces, SurveyDraft, demand_whole, survey
from quorumbook.storage.directories.places import LOCK_NAME, Directories, make_the_peers
from quorumbook.storage.index.files import BUILDING_SUFFIX
from quorumbook.storage.index.peer_parts import DB, SORTED, index_kinds
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.states.state_file import StoredLedger

_LOOK_UPS_AT_A_TIME = 64


class Owner(NamedTuple):
    """Whose directories they are."""

    bookie_id: BookieId
    cluster: str


@dataclass(frozen=True, slots=True)
class AdoptionReport:
    """What was found, and what became of it."""

    bookie_id: BookieId
    cluster: str
    #: ``sorted``, ``db`` or ``none``.
    index: str = ""
    ledgers: int = 0
    fenced: int = 0
    explicit_lacs: int = 0
    entries: int = 0
    entry_logs: int = 0
    journals: int = 0
    journal_entries: int = 0
    deleted_ledgers: int = 0
    ledgers_without_index: int = 0
    damage: list[str] = field(default_factory=list)
    is_done: bool = False


def places_of(options: BookieOptions) -> PeerPlaces:
    """Return where a bookie's files are by its options."""
    return PeerPlaces(
        options.journal_directories,
        options.ledger_directories,
        options.index_directories,
    )


def directories_of(env: Env, options: BookieOptions) -> Directories:
    """Return the directories with their locks."""
    return Directories(
        env,
        options.journal_directories,
        options.ledger_directories,
        others=options.index_directories,
    )


async def adopt(
    env: Env,
    options: BookieOptions,
    store: MetadataStore,
    *,
    scratch: str | None,
    storage: str | None = None,
    without_index: bool = False,
    accept_damage: bool = False,
) -> AdoptionReport:
    """Take the directories over, or only say what would happen.

    Args:
        env: The outside world.
        options: Where the bookie's directories are; a ``bookie_id`` must be the cookie's.
        store: The cluster's metadata.
        scratch: A directory for what a dry run needs; None takes over.
        storage: Whose index to read if there are two: ``sorted`` or ``db``.
        without_index: Do without the peer's index; every open ledger starts fenced and in limbo.
        accept_damage: Take over what is left; ledgers it may concern start in limbo.

    Raises:
        CookieError: The directories are another bookie's, or another cluster's.
        DirectoryLockedError: A bookie runs on them.
        ForeignDirectoryError: They are ours already, or don't fit together.
        StorageError: They are damaged; the message says where.
        MetadataError: The metadata store does not answer.
    """
    directories, places = directories_of(env, options), places_of(options)
    worker = env.threads.start_worker("adoption")
    try:
        await run_job(worker, lambda: _lock(env, directories, is_dry=scratch is not None))
        owner = await _identify(env, worker, options, store, directories.all)
        report = AdoptionReport(*owner)
        note = await run_job(worker, lambda: read_note(env, places))
        if note is None:
            await run_job(worker, lambda: demand_not_ours(env, directories))
            report, note = await _prepare(
                env, worker, places, store, owner,
                index_path=f"{scratch}/index.sqlite" if scratch is not None
                else f"{directories.index_path}{BUILDING_SUFFIX}",
                kind=await run_job(worker, lambda: _kind(env, places, storage, without_index)),
                entry_size_max=options.max_frame_bytes,
                accept_damage=accept_damage or scratch is not None,
            )  # fmt: skip
        elif scratch is not None:
            raise ForeignDirectoryError(
                "an adoption is under way; --apply finishes it", path=note_path(places)
            )
        if scratch is None:
            await run_job(worker, lambda: apply(env, directories, places, note))
            report = replace(report, is_done=True)
        return report
    finally:
        await run_job(worker, directories.release)
        worker.stop()


def _lock(env: Env, directories: Directories, *, is_dry: bool) -> None:
    if not is_dry:
        directories.prepare(is_moving=True)
        return
    for directory in directories.all:
        path = f"{directory}/{LOCK_NAME}"
        if env.disk.exists(path):
            env.disk.lock(path)()


async def _identify(
    env: Env,
    worker: Worker,
    options: BookieOptions,
    store: MetadataStore,
    directories: Sequence[str],
) -> Owner:
    """See whose directories these are, and that nobody serves them."""
    instance_id = await read_instance_id(store)
    found = await run_job(worker, lambda: look(env, list(directories)))
    cookies = [cookie for cookie in found.cookies.values() if cookie is not None]
    if not cookies:
        raise CookieMissingError(
            "no bookie has left its cookie here; name the directories of a bookie with --conf FILE",
            path=", ".join(directories),
        )
    bookie_id = options.bookie_id or cookies[0].bookie_id
    registered = await CookieStore(store).read(bookie_id)
    wanted = wanted_cookie(options, bookie_id, instance_id)
    check_cookies(wanted, registered[0] if registered else None, found.cookies, is_empty=False)
    writable, read_only = await BookieRegistration(store).bookies()
    if bookie_id in {*writable, *read_only}:
        raise ForeignDirectoryError(
            f"bookie {bookie_id} is registered: stop it first; the registration of one that was "
            "killed ends by itself within its session's timeout"
        )
    return Owner(bookie_id, instance_id)


def _kind(env: Env, places: PeerPlaces, storage: str | None, without_index: bool) -> str | None:
    """Decide whose index is read."""
    if without_index:
        return None
    kinds = index_kinds(env, places.index_files)
    if not kinds and storage != DB:
        # A bookie that never came to a checkpoint: everything is in its journals.
        return SORTED
    if len(kinds) == 1 and storage in (None, *kinds):
        return kinds[0]
    if storage in kinds:
        return storage
    raise ForeignDirectoryError(
        f"index found: {' and '.join(kinds) or 'none'}, wanted: {storage or 'one of them'}; say "
        "with --storage which one the bookie used last, or do --without-index"
    )


async def _prepare(
    env: Env,
    worker: Worker,
    places: PeerPlaces,
    store: MetadataStore,
    owner: Owner,
    *,
    index_path: str,
    kind: str | None,
    entry_size_max: int,
    accept_damage: bool,
) -> tuple[AdoptionReport, AdoptionNote]:
    draft = await run_job(
        worker,
        lambda: survey(env, places, index_path, kind=kind, entry_size_max=entry_size_max),
    )
    try:
        ledgers = LedgerManager(store)
        known = await _known(ledgers, [*draft.unexplained, *draft.journaled])
        kept = _kept(draft, known, owner.bookie_id)
        if not accept_damage:
            demand_whole(draft)
        deleted = set(draft.unexplained) - {state.ledger_id for state in kept}
        gone = set(draft.journaled) - known.keys()
        report = AdoptionReport(
            *owner,
            index=draft.kind or "none",
            ledgers=draft.known + len(kept),
            fenced=draft.fenced + sum(state.is_fenced for state in kept),
            explicit_lacs=draft.explicit_lacs,
            entries=draft.entries.total() - sum(draft.entries[one] for one in deleted),
            entry_logs=draft.entry_logs,
            journals=draft.journal_files,
            journal_entries=draft.journal_entries,
            deleted_ledgers=len(deleted | gone),
            ledgers_without_index=len(kept),
            damage=draft.damage,
        )
        return report, await run_job(worker, lambda: settle(env, draft, kept, deleted, gone))
    finally:
        draft.index.close()


async def _known(
    ledgers: LedgerManager, ledger_ids: Sequence[LedgerId]
) -> dict[LedgerId, LedgerMetadata]:
    """Return the metadata of those that exist; raises rather than take one for deleted."""
    found: dict[LedgerId, LedgerMetadata] = {}

    async def read(ledger_id: LedgerId) -> None:
        try:
            found[ledger_id], _ = await ledgers.read(ledger_id)
        except NoSuchLedgerInMetadataError:
            return

    for start in range(0, len(ledger_ids), _LOOK_UPS_AT_A_TIME):
        await asyncio.gather(*map(read, ledger_ids[start : start + _LOOK_UPS_AT_A_TIME]))
    return found


def _kept(
    draft: SurveyDraft, known: dict[LedgerId, LedgerMetadata], bookie_id: BookieId
) -> list[StoredLedger]:
    """Return states for the unexplained ledgers that are this bookie's; note the damage."""
    kept: list[StoredLedger] = []
    for ledger_id in draft.unexplained:
        metadata = known.get(ledger_id)
        if metadata is None or not any(
            bookie_id in fragment.ensemble for fragment in metadata.fragments
        ):
            continue
        is_open = not metadata.is_closed
        key = b"" if metadata.password is None else master_key(metadata.password)
        kept.append(StoredLedger(ledger_id, key, is_fenced=is_open, is_in_limbo=is_open))
        if draft.kind is not None:
            draft.damage.append(
                f"ledger {ledger_id}: the metadata knows it and its entries are here, but the "
                "index has lost it"
            )
            if draft.damaged_ledgers is not None:
                draft.damaged_ledgers.add(ledger_id)
    return kept


@dataclass(frozen=True, slots=True)
class ReturnReport:
    """What is given back."""

    bookie_id: BookieId
    cluster: str
    #: ``sorted`` or ``db``.
    index: str
    ledgers: int = 0
    fenced: int = 0
    explicit_lacs: int = 0
    entries: int = 0
    entry_logs: int = 0
    copied_bytes: int = 0
    in_limbo: int = 0
    is_done: bool = False


async def give_back(
    env: Env,
    options: BookieOptions,
    store: MetadataStore,
    *,
    is_applied: bool,
    storage: str | None = None,
) -> ReturnReport:
    """Hand the directories to the peer, or only say what would happen.

    Args:
        env: The outside world.
        options: The bookie's; a ``bookie_id`` must be the cookie's.
        store: The cluster's metadata.
        is_applied: Do it.
        storage: The peer's storage that will run: ``sorted`` or ``db``; None: the one that the
            directories came from, else ``sorted``.

    Raises:
        CookieError: The directories are another bookie's, or another cluster's.
        DirectoryLockedError: A bookie runs on them.
        ForeignDirectoryError: They are not ours, or ledgers in limbo would be denied.
        StorageError: They are damaged; the message says where.
        MetadataError: The metadata store does not answer.
    """
    directories, places = directories_of(env, options), places_of(options)
    worker = env.threads.start_worker("adoption")
    try:
        await run_job(worker, lambda: _lock(env, directories, is_dry=not is_applied))
        found = await _identify(env, worker, options, store, directories.all)
        note = await run_job(worker, lambda: give_back_files.read_note(env, places))
        if note is None and await run_job(
            worker, lambda: give_back_files.is_the_peers_but_for_cookies(env, directories, places)
        ):
            if is_applied:
                await run_job(worker, lambda: make_the_peers(env, directories.all))
            return ReturnReport(found.bookie_id, found.cluster, storage or "", is_done=is_applied)
        if note is None:
            report, note = await _return(
                env, worker, directories, places, store, found, storage, is_applied=is_applied
            )
        else:
            report = ReturnReport(found.bookie_id, found.cluster, storage or "")
        if is_applied:
            assert note is not None
            final = note
            await run_job(worker, lambda: give_back_files.finish(env, directories, places, final))
            report = replace(report, is_done=True)
        return report
    finally:
        await run_job(worker, directories.release)
        worker.stop()


async def _return(
    env: Env,
    worker: Worker,
    directories: Directories,
    places: PeerPlaces,
    store: MetadataStore,
    found: Owner,
    storage: str | None,
    *,
    is_applied: bool,
) -> tuple[ReturnReport, give_back_files.ReturnNote | None]:
    if not env.disk.exists(directories.index_path):
        raise ForeignDirectoryError(
            "there is no index of ours: either a Java bookie keeps these directories, or the index "
            "is lost and `quorumbook bookie run` makes it again",
            path=directories.index_path,
        )
    marks = None
    if is_applied:
        marks = await run_job(worker, lambda: give_back_files.close_storage(env, directories))
    index = await run_job(worker, lambda: IndexReader(directories.index_path))
    try:
        kind = storage or index.meta(ADOPTED_KIND_KEY) or SORTED
        give_back_files.demand_certain(index, kind)
        states = list(index.ledger_states())
        report = ReturnReport(
            *found,
            index=kind,
            ledgers=len(states),
            fenced=sum(state.is_fenced for state in states),
            explicit_lacs=sum(state.explicit_lac is not None for state in states),
            in_limbo=sum(state.is_in_limbo for state in states),
            entry_logs=len(index.entry_logs()),
        )
        if marks is None:
            return report, None
        keyless = [state.ledger_id for state in states if not any(state.master_key)]
        known = await _known(LedgerManager(store), keyless)
        keys = {ledger_id: master_key(known[ledger_id].password or b"") for ledger_id in known}
        moves, returned = await run_job(
            worker, lambda: give_back_files.stage(env, places, index, kind, keys)
        )
        report = replace(
            report, ledgers=returned.ledgers, fenced=returned.fenced,
            entries=returned.entries, copied_bytes=returned.copied_bytes,
        )  # fmt: skip
        return report, give_back_files.ReturnNote(list(marks), moves)
    finally:
        index.close()
