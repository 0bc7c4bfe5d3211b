"""Which bookies are lost, and when the ledgers are to be looked through for them: a pure machine.

    LostBookies(registered, now_ns, *, delay_s, settle_s, interval_s)
        .on_registered(registered, now_ns)       the registrations changed
        .delay_s = s                             the delay changed
        .want_audit(now_ns, ignore_delay=False)  an operator asked
        .next_audit_ns() -> int                  when to look through all ledgers
        .begin_audit(now_ns)
        .look(bookie_ids, now_ns) -> lost ones   for each ledger, the bookies that it names
        .end_audit(now_ns)  .abort_audit()

What counts is what the ledgers' metadata names and who is registered, not which events were seen:
a bookie that died before there was an auditor is as lost as one that dies under its eyes.  A
bookie is lost when it is named, is not registered, and has been away for the delay.  For a moment
after the auditor began nobody is: what ended its predecessor may have ended the sessions of
bookies too, which register again.  A bookie that comes back is not lost any more, also in the
middle of an audit.
"""

from __future__ import annotations

from collections.abc import Collection

from quorumbook.ids import BookieId

_SECOND = 1_000_000_000


class LostBookies:
    """The bookies that are away, of one auditor's term.

    Args:
        registered: Writable and read-only bookies.
        now_ns: When the term began.
        delay_s: How long a bookie may be away.
        settle_s: How long after the beginning of the term nobody is lost yet.
        interval_s: Longest time between two audits; 0: only when there is reason for one.
    """

    def __init__(
        self,
        registered: frozenset[BookieId],
        now_ns: int,
        *,
        delay_s: float,
        settle_s: float,
        interval_s: float,
    ) -> None:
        self.delay_s = delay_s
        self._interval_ns = int(interval_s * _SECOND)
        self._registered = registered
        self._began_ns = now_ns
        self._settled_ns = now_ns + int(settle_s * _SECOND)
        #: Since when bookies are away that are named, or were registered in this term.
        self._away: dict[BookieId, int] = {}
        #: Those of them that an audit has marked all ledgers of.
        self._audited: set[BookieId] = set()
        #: When an audit was asked for, and whether it ignores the delay.
        self._wanted: tuple[int, bool] | None = (self._settled_ns, False)
        self._ended_ns: int | None = None
        #: Of the audit under way: what asked for it, its beginning, the bookies away that ledgers
        #: name, and those that were there, or not lost yet, for some ledger.
        self._answered: tuple[int, bool] | None = None
        self._begin_ns = now_ns
        self._named: set[BookieId] = set()
        self._spared: set[BookieId] = set()

    def on_registered(self, registered: frozenset[BookieId], now_ns: int) -> None:
        """Take note of who is registered now."""
        for bookie_id in self._registered - registered:
            self._away[bookie_id] = now_ns
            # In the middle of an audit it was still there for the ledgers before.
            self._spared.add(bookie_id)
        for bookie_id in self._away.keys() & registered:
            del self._away[bookie_id]
        self._audited -= registered
        self._registered = registered

    def want_audit(self, now_ns: int, *, ignore_delay: bool = False) -> None:
        """Have an audit at once; ignoring the delay, whoever is away is lost in it."""
        if self._wanted is not None:
            ignore_delay = ignore_delay or self._wanted[1]
        self._wanted = (now_ns, ignore_delay)

    @property
    def waiting(self) -> frozenset[BookieId]:
        """The bookies that are away but not looked for yet; they may still come back."""
        return frozenset(self._away.keys() - self._audited)

    def next_audit_ns(self) -> int | None:
        """Return when ledgers are to be looked through next; None: not before something happens."""
        due = [self._lost_ns(bookie_id) for bookie_id in self._away.keys() - self._audited]
        if self._wanted is not None:
            due.append(self._wanted[0])
        if self._interval_ns and self._ended_ns is not None:
            due.append(self._ended_ns + self._interval_ns)
        return min(due, default=None)

    def begin_audit(self, now_ns: int) -> None:
        """All ledgers are about to be looked at."""
        self._answered, self._wanted = self._wanted, None
        self._begin_ns = now_ns
        self._named.clear()
        self._spared.clear()

    def look(self, bookie_ids: Collection[BookieId], now_ns: int) -> frozenset[BookieId]:
        """Return which of the bookies that a ledger names are lost."""
        away = [bookie_id for bookie_id in bookie_ids if bookie_id not in self._registered]
        if not away:
            return frozenset()
        # Gone before anybody looked: before this term began, as far as we can tell.
        since_ns = self._began_ns if self._ended_ns is None else self._begin_ns
        for bookie_id in away:
            self._away.setdefault(bookie_id, since_ns)
        lost = frozenset(bookie_id for bookie_id in away if self._is_lost(bookie_id, now_ns))
        self._named.update(away)
        self._spared.update(lost.symmetric_difference(away))
        return lost

    def end_audit(self, now_ns: int) -> None:
        """All ledgers were looked at; those of lost bookies are marked."""
        self._ended_ns, self._answered = now_ns, None
        for bookie_id in self._away.keys() - self._spared:
            if bookie_id in self._named:
                self._audited.add(bookie_id)
            else:
                del self._away[bookie_id]  # no ledger needs it
        self._audited &= self._away.keys()

    def abort_audit(self) -> None:
        """It did not get to the end, and is due as it was before."""
        answered, self._answered = self._answered, None
        if answered is not None:
            self.want_audit(answered[0], ignore_delay=answered[1])

    def _lost_ns(self, bookie_id: BookieId) -> int:
        return max(self._away[bookie_id] + int(max(self.delay_s, 0) * _SECOND), self._settled_ns)

    def _is_lost(self, bookie_id: BookieId, now_ns: int) -> bool:
        is_urgent = self._answered is not None and self._answered[1]
        return is_urgent or self._lost_ns(bookie_id) <= now_ns
