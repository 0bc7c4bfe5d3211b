"""Making the directories of a stopped bookie of the peer ours, in steps that a kill cannot undo.

    1. survey       an index of ours is built beside; the peer's files are untouched
    2. cookies      every ``VERSION`` says that the directories are ours, so that the peer does
                    not start any more.  Up to here ``give-back`` takes it back
    3. note         ``quorumbook.adopting`` in the first ledger directory: from here on it only
                    goes forward, and no bookie of ours starts before the end
    4. renames      entry logs whose id another directory has as well get another one
    5. aside        the peer's index goes to ``before-adoption`` beside ``current``
    6. marks        every ledger directory gets the newest mark, as the peer's replay has it
    7. states       the copies of keys, fences and explicit LACs
    8. index        gets its name
    9. replay       of all journals into our entry logs, by the bookie's own start
   10. the note goes

Each step finds what an earlier attempt did and goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from quorumbook.env import Env
from quorumbook.errors import CorruptStateError, DiskFullError, ForeignDirectoryError
from quorumbook.ids import LedgerId
from quorumbook.storage.adoption.survey import PeerPlaces, SurveyDraft
from quorumbook.storage.cache.layers import Caches
from quorumbook.storage.checkpoint.checkpoint import (
    LIMBO_START_ID,
    LIMBO_START_KEY,
    MARK_KEY,
    encode_index_marks,
)
from quorumbook.storage.directories.places import ADOPTING_NAME, Directories, make_ours
from quorumbook.storage.entrylog.format import encode_last_id, entry_log_name
from quorumbook.storage.index.files import index_exists, move_index
from quorumbook.storage.index.peer_parts import index_parts
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.journal.marks import LogMark, mark_file_name, write_mark
from quorumbook.storage.options import StorageOptions
from quorumbook.storage.startup import open_storage
from quorumbook.storage.states.state_file import StateCopies, StoredLedger

#: Meta of the index: whose directories they were, so that they are given back as they came.
ADOPTED_KIND_KEY = "adopted_kind"
ASIDE_NAME = "before-adoption"


@dataclass(slots=True)
class AdoptionNote:
    """What has to be done once the survey is complete."""

    building: str
    marks: list[LogMark]
    renames: list[tuple[str, int, int]] = field(default_factory=list)
    #: What goes aside: from, to.
    aside: list[tuple[str, str]] = field(default_factory=list)
    #: Ledgers of which only the journals tell, and which are gone from the metadata.
    gone: list[LedgerId] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return the content of the note."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return f"{json.dumps(fields)}\n".encode()


def note_path(places: PeerPlaces) -> str:
    """Return where the note lies while an adoption is under way."""
    return f"{places.ledger_files[0]}/{ADOPTING_NAME}"


def read_note(env: Env, places: PeerPlaces) -> AdoptionNote | None:
    """Return what an earlier attempt has left to be done, None if nothing.

    Raises:
        CorruptStateError: The note cannot be read.
    """
    path = note_path(places)
    if not env.disk.exists(path):
        return None
    try:
        fields = json.loads(env.disk.read_file(path))
        return AdoptionNote(
            fields["building"],
            [LogMark(*mark) for mark in fields["marks"]],
            [(directory, old, new) for directory, old, new in fields["renames"]],
            [(source, target) for source, target in fields["aside"]],
            list(fields["gone"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptStateError("the note of the adoption is damaged", path=path) from error


def settle(
    env: Env,
    draft: SurveyDraft,
    kept: Iterable[StoredLedger],
    deleted: Iterable[LedgerId],
    gone: Iterable[LedgerId],
) -> AdoptionNote:
    """Bring into the built index what the metadata said, and close it.  Blocks.

    Args:
        env: The outside world.
        draft: What the survey made.
        kept: States of unexplained ledgers that the metadata knows and this bookie must have.
        deleted: The other unexplained ledgers.
        gone: Ledgers of the journals that the metadata does not know any more.
    """
    index, places, kept = draft.index, draft.places, list(kept)
    reasons = [draft.doubt] if draft.doubt else []
    if draft.kind is None:
        reasons.append("it was taken over without the Java bookie's index")
    limbo: list[StoredLedger] = []
    if draft.damage:
        hit = draft.damaged_ledgers
        reasons.append("it was taken over with damage")
        limbo = [
            state._replace(is_in_limbo=True)
            for state in [*index.ledger_states(), *kept]
            if hit is None or state.ledger_id in hit
        ]
    index.commit(
        states=[*kept, *limbo],
        deleted_ledgers=deleted,
        meta=[
            (MARK_KEY, encode_index_marks(draft.marks)),
            (LIMBO_START_KEY, "; ".join(reasons) or None),
            (ADOPTED_KIND_KEY, draft.kind),
        ],
    )
    index.truncate_wal()
    building = index.path
    index.close()
    return AdoptionNote(
        building, draft.marks, draft.renames, _plan_aside(env, places), sorted(gone)
    )


def _plan_aside(env: Env, places: PeerPlaces) -> list[tuple[str, str]]:
    plan: list[tuple[str, str]] = []
    for directory, files in zip(places.indexes or places.ledgers, places.index_files, strict=True):
        parts = index_parts(env, files)
        number, target = 1, f"{directory}/{ASIDE_NAME}"
        while env.disk.exists(target):
            number += 1
            target = f"{directory}/{ASIDE_NAME}.{number}"
        plan += [(f"{files}/{name}", f"{target}/{name}") for name in parts]
    return plan


def apply(env: Env, directories: Directories, places: PeerPlaces, note: AdoptionNote) -> None:
    """Do what is to be done, from the note on; after a failure, the same once more.  Blocks.

    Raises:
        StorageError: It could not be finished; the note stays.
    """
    path = note_path(places)
    make_ours(env, directories.all)
    if not env.disk.exists(path):
        env.disk.sync_directory(places.ledger_files[0])
        env.disk.write_file(path, [note.encode()])
    _rename(env, note.renames)
    _move_aside(env, note.aside)
    if index_exists(note.building):
        for directory in places.ledger_files:
            for number, mark in enumerate(note.marks):
                name = mark_file_name(number, len(note.marks))
                write_mark(env.disk, directory, mark, name)
        _write_states(env, places, note.building)
        move_index(note.building, directories.index_path)
    _replay(env, directories, note)
    env.disk.unlink(path)
    env.disk.sync_directory(places.ledger_files[0])


def _rename(env: Env, renames: list[tuple[str, int, int]]) -> None:
    for directory, old, new in renames:
        source = f"{directory}/{entry_log_name(old)}"
        if env.disk.exists(source):
            env.disk.replace(source, f"{directory}/{entry_log_name(new)}")
            env.disk.sync_directory(directory)
    newest: dict[str, int] = {}
    for directory, _, new in renames:
        newest[directory] = max(new, newest.get(directory, -1))
    for directory, entry_log_id in newest.items():
        env.disk.write_file(f"{directory}/lastId", [encode_last_id(entry_log_id)])


def _move_aside(env: Env, moves: list[tuple[str, str]]) -> None:
    touched: set[str] = set()
    for source, target in moves:
        if env.disk.exists(source):
            folder = target.rpartition("/")[0]
            env.disk.make_directory(folder)
            env.disk.replace(source, target)
            touched |= {folder, source.rpartition("/")[0]}
    for directory in sorted(touched):
        env.disk.sync_directory(directory)


def _write_states(env: Env, places: PeerPlaces, index_path: str) -> None:
    index = IndexReader(index_path)
    try:
        states = list(index.ledger_states())
        if index.meta(LIMBO_START_KEY) is not None:
            states.append(StoredLedger(LIMBO_START_ID, b"", is_in_limbo=True))
    finally:
        index.close()
    StateCopies(env, places.ledger_files).write([], [], lambda: states)


def _replay(env: Env, directories: Directories, note: AdoptionNote) -> None:
    """Replay every journal."""
    options = StorageOptions()
    opened = open_storage(
        env, directories, Caches(read_cache_size_bytes=options.read_cache_size_bytes), options
    )
    try:
        opened.visible.delete(note.gone)
        checkpoint = opened.visible.checkpoint(opened.marks)
        opened.checkpointer.run(checkpoint)
        opened.visible.settle(checkpoint)
        if opened.pending is not None:
            raise DiskFullError("no space to replay the journals", path=directories.ledgers[0])
        opened.entry_logs.close()
        opened.index.truncate_wal()
    finally:
        opened.loop_index.close()
        opened.index.close()


def demand_not_ours(env: Env, directories: Directories) -> None:
    """Refuse directories that a bookie of ours keeps already.

    Raises:
        ForeignDirectoryError: They are.
    """
    if index_exists(directories.index_path):
        raise ForeignDirectoryError(
            "a bookie of ours keeps these directories already; `quorumbook bookie run` starts it",
            path=directories.index_path,
        )
