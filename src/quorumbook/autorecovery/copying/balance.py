"""Which ledgers to move so that disks are about equally full: a plan, and nothing but a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.danger import share_of
from quorumbook.ledger.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class BookieDisk:
    """The ledger disks of one bookie together."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class HeldLedger:
    """What a bookie holds of a closed ledger."""

    ledger_id: LedgerId
    bookie_id: BookieId
    size_bytes: int
    #: All that have a place in the ledger, and so can take no other.
    members: frozenset[BookieId]


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a plan."""

    ledger_id: LedgerId
    source: BookieId
    target: BookieId
    size_bytes: int


def pieces_of(metadata: LedgerMetadata, bookie_ids: Collection[BookieId]) -> list[HeldLedger]:
    """Return what each of some bookies holds of a ledger; nothing of one that is not closed."""
    if not metadata.is_closed:
        return []
    members = frozenset(b for fragment in metadata.fragments for b in fragment.ensemble)
    found = []
    for bookie_id in sorted(members & set(bookie_ids)):
        size = round(metadata.length * share_of(metadata, [bookie_id]))
        if size:
            found.append(HeldLedger(metadata.ledger_id, bookie_id, size, members))
    return found


def plan(
    disks: Mapping[BookieId, BookieDisk],
    pieces: Iterable[HeldLedger],
    tolerance: float,
    forbidden: Collection[tuple[LedgerId, BookieId]] = (),
) -> list[Move]:
    """Return moves after which no disk is fuller than the emptiest by more than ``tolerance``.

    The fullest gives to the emptiest, the largest piece that does not turn the two around; a
    ledger moves once.  Where that goes no further the plan ends.

    Args:
        disks: of the bookies that take copies.
        pieces: what they hold.
        tolerance: difference of shares of disks in use, 0 to 1.
        forbidden: ledgers, and who must not get them.
    """
    used = {b: 1 - disk.free_bytes / max(1, disk.total_bytes) for b, disk in disks.items()}
    held: dict[BookieId, list[HeldLedger]] = {b: [] for b in disks}
    for piece in sorted(pieces, key=lambda piece: (-piece.size_bytes, piece.ledger_id)):
        if piece.bookie_id in held:
            held[piece.bookie_id].append(piece)
    moves: list[Move] = []
    done: set[LedgerId] = set()
    while len(used) > 1:
        step = _step(disks, used, held, done, tolerance, forbidden)
        if step is None:
            break
        moves.append(step)
        done.add(step.ledger_id)
        used[step.source] -= step.size_bytes / disks[step.source].total_bytes
        used[step.target] += step.size_bytes / disks[step.target].total_bytes
    return moves


def _step(
    disks: Mapping[BookieId, BookieDisk],
    used: Mapping[BookieId, float],
    held: Mapping[BookieId, list[HeldLedger]],
    done: Collection[LedgerId],
    tolerance: float,
    forbidden: Collection[tuple[LedgerId, BookieId]],
) -> Move | None:
    order = sorted(used, key=lambda b: (used[b], b))
    for target in order:
        for source in reversed(order):
            gap = used[source] - used[target]
            if gap <= tolerance:
                break
            each = 1 / disks[source].total_bytes + 1 / disks[target].total_bytes
            for piece in held[source]:
                if piece.ledger_id in done or target in piece.members:
                    continue
                if piece.size_bytes * each <= gap and (piece.ledger_id, target) not in forbidden:
                    return Move(piece.ledger_id, source, target, piece.size_bytes)
    return None
