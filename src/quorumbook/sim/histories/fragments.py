"""How the metadata of one ledger may change from one version to the next (I5, I6).

shape        quorums, digest and password are what they were when the ledger was created
members      each fragment has as many bookies as the ensemble is large, all different
starts       fragments begin at 0, and each later than the one before it; no start goes, and
             none comes but behind the others: entries would change their bookies
older ones   the bookies of a fragment that takes no more entries are exchanged by replication
             workers only
closed       a closed ledger gets no fragment
"""

from __future__ import annotations

from itertools import pairwise

from quorumbook.ledger.metadata import LedgerMetadata


def wrong_shape(metadata: LedgerMetadata) -> str | None:
    """Return what is wrong with one version, whatever came before it."""
    starts = [each.first_entry_id for each in metadata.fragments]
    if starts[:1] != [0] or any(a >= b for a, b in pairwise(starts)):
        return f"fragments begin at {starts}"
    for fragment in metadata.fragments:
        if len(set(fragment.ensemble)) != len(fragment.ensemble):
            return "a bookie is in an ensemble twice"
        if len(fragment.ensemble) != metadata.ensemble_size:
            return f"an ensemble has {len(fragment.ensemble)} bookies"
    return None


def wrong_change(before: LedgerMetadata, after: LedgerMetadata, *, has_workers: bool) -> str | None:
    """Return what is wrong with a change.

    Args:
        before: The version before it.
        after: The version after it.
        has_workers: Whether anybody replicates ledgers, who may exchange bookies.
    """
    if _shape(before) != _shape(after):
        return f"{_shape(before)} became {_shape(after)}"
    old = [each.first_entry_id for each in before.fragments]
    new = [each.first_entry_id for each in after.fragments]
    if new[: len(old)] != old:
        return f"fragments that began at {old} begin at {new}"
    if before.is_closed and new != old:
        return f"a closed ledger got fragments: {old} became {new}"
    for was, now in zip(before.fragments[:-1], after.fragments, strict=False):
        if was != now and not has_workers:
            return f"bookies of the fragment from {was.first_entry_id} on changed, by no worker"
    return None


def _shape(metadata: LedgerMetadata) -> tuple[object, ...]:
    return (
        metadata.ensemble_size,
        metadata.write_quorum_size,
        metadata.ack_quorum_size,
        metadata.digest_type,
        metadata.password,
    )
