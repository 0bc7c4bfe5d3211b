"""Where in the tree everything lies, in the peer's layout; pure text.

    <root>/LAYOUT  <root>/INSTANCEID
    <root>/available/<bookie id>  <root>/available/readonly/<bookie id>
    <root>/cookies/<bookie id>
    <root>/idgen/ID-<seq>  <root>/idgen-long/HOB-<n>/ID-<seq>
    <root>/underreplication/...
    <root>/racks                               ours: where bookies stand
    <root>/elections/<name>                    ours: elections of applications
    <root>/files                               ours: files for Hadoop's clients
    <root>/transfer  <root>/transfer-lock      while metadata is being moved here
    ledgers, by the layout's rule:

    flat                 /L<10 digits>
    legacy hierarchical  ten digits cut 2-4-4:        /01/2345/L6789
    long hierarchical    19 digits cut 3-4-4-4-4:     /000/0000/0001/2345/L6789
    hierarchical         legacy below 2147483647, long from there on

Ids are zero-padded decimal (longer ones simply longer in the flat layout); only the path of an
under-replicated ledger is cut from 16 hexadecimal digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from quorumbook.errors import LedgerIdOverflowError, LocalProtocolError
from quorumbook.ids import BookieId, LedgerId

#: The first id of the long layout, and the number of ids that sequential nodes give.
FIRST_LONG_LEDGER_ID = 2**31 - 1
MAX_LEDGER_ID = 2**63 - 1
READ_ONLY_NAME = "readonly"
_TRANSFER_NAME = "transfer"

_FACTORY = "org.apache.bookkeeper.meta.{}LedgerManagerFactory"
_LEGACY_LIMIT = 10**10
_FLAT_LEDGER = re.compile(r"L(\d{10,19})")
_LEAF = re.compile(r"L(\d{4})")
_KEPT_APART = frozenset(
    ("LAYOUT", "INSTANCEID", "idgen", "idgen-long", _TRANSFER_NAME, f"{_TRANSFER_NAME}-lock")
)
_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+")


class LayoutKind(Enum):
    """A rule for ledger paths; the value is the name it has in metadata URIs."""

    FLAT = "flat"
    LEGACY_HIERARCHICAL = "legacyhierarchical"
    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"

    @property
    def factory(self) -> str:
        """The class that the peer knows the rule by, as the LAYOUT node names it."""
        return _FACTORY.format(_FACTORY_NAMES[self])


_FACTORY_NAMES = {
    LayoutKind.FLAT: "Flat",
    LayoutKind.LEGACY_HIERARCHICAL: "LegacyHierarchical",
    LayoutKind.HIERARCHICAL: "Hierarchical",
    LayoutKind.LONG_HIERARCHICAL: "LongHierarchical",
}


@dataclass(frozen=True, slots=True)
class Branch:
    """One family of ledger paths: the digits of each level above the leaf."""

    widths: tuple[int, ...]

    def is_level(self, name: str, depth: int) -> bool:
        """Tell whether a child at this depth belongs to the family."""
        return len(name) == self.widths[depth] and name.isascii() and name.isdigit()

    def leaf_digits(self, name: str) -> str | None:
        """Return the digits that a leaf adds to the id, or None for another node."""
        match = (_LEAF if self.widths else _FLAT_LEDGER).fullmatch(name)
        return match[1] if match else None


_FLAT = Branch(())
_LEGACY = Branch((2, 4))
_LONG = Branch((3, 4, 4, 4))
_BRANCHES = {
    LayoutKind.FLAT: (_FLAT,),
    LayoutKind.LEGACY_HIERARCHICAL: (_LEGACY,),
    LayoutKind.HIERARCHICAL: (_LEGACY, _LONG),
    LayoutKind.LONG_HIERARCHICAL: (_LONG,),
}

_OWNERS = (
    (_FLAT, LayoutKind.FLAT),
    (_LEGACY, LayoutKind.HIERARCHICAL),
    (_LONG, LayoutKind.LONG_HIERARCHICAL),
)


@dataclass(frozen=True, slots=True)
class TreePaths:
    """Paths below a cluster's root."""

    root: str

    @property
    def layout(self) -> str:
        """The node that says which rule ledger paths follow."""
        return f"{self.root}/LAYOUT"

    @property
    def instance_id(self) -> str:
        """The node that tells this cluster from any other."""
        return f"{self.root}/INSTANCEID"

    @property
    def available(self) -> str:
        """The parent of the writable bookies."""
        return f"{self.root}/available"

    @property
    def read_only(self) -> str:
        """The parent of the read-only bookies."""
        return f"{self.root}/available/{READ_ONLY_NAME}"

    @property
    def cookies(self) -> str:
        """The parent of the cookies."""
        return f"{self.root}/cookies"

    @property
    def idgen(self) -> str:
        """The parent whose counter gives ledger ids; it must never be deleted."""
        return f"{self.root}/idgen"

    @property
    def idgen_long(self) -> str:
        """The parent of the counters of long ledger ids; its existence is the switch to them."""
        return f"{self.root}/idgen-long"

    @property
    def underreplication(self) -> str:
        """The parent of all about ledgers that lack copies."""
        return f"{self.root}/underreplication"

    @property
    def underreplicated_ledgers(self) -> str:
        """The parent of the marks of ledgers that lack copies."""
        return f"{self.underreplication}/ledgers"

    @property
    def underreplicated_locks(self) -> str:
        """The parent of the locks of those who copy ledgers."""
        return f"{self.underreplication}/locks"

    @property
    def auditor_election(self) -> str:
        """The parent of the votes of those who would be auditor; its data names who is."""
        return f"{self.underreplication}/auditorelection"

    @property
    def racks(self) -> str:
        """The node with the table of racks; the peer has none."""
        return f"{self.root}/racks"

    @property
    def elections(self) -> str:
        """The parent of applications' elections; the peer has none."""
        return f"{self.root}/elections"

    @property
    def files(self) -> str:
        """The parent of files for Hadoop's clients; the peer has none."""
        return f"{self.root}/files"

    @property
    def transfer(self) -> str:
        """The node that says that a move of metadata into this tree has not ended."""
        return f"{self.root}/{_TRANSFER_NAME}"

    @property
    def transfer_lock(self) -> str:
        """The node that whoever moves metadata into this tree holds."""
        return f"{self.root}/{_TRANSFER_NAME}-lock"

    def bookie(self, bookie_id: BookieId, *, read_only: bool) -> str:
        """Return the registration node of a bookie."""
        parent = self.read_only if read_only else self.available
        return f"{parent}/{check_bookie_id(bookie_id)}"

    def cookie(self, bookie_id: BookieId) -> str:
        """Return the node of a bookie's cookie."""
        return f"{self.cookies}/{check_bookie_id(bookie_id)}"

    def high_order_bits(self, number: int) -> str:
        """Return the node that counts the low 32 bits below these high ones."""
        return f"{self.idgen_long}/HOB-{number:010d}"

    def underreplicated(self, ledger_id: LedgerId) -> str:
        """Return the node that marks a ledger as lacking copies."""
        digits = f"{_checked(ledger_id):016x}"
        groups = "/".join(digits[start : start + 4] for start in range(0, 16, 4))
        return f"{self.underreplicated_ledgers}/{groups}/urL{ledger_id:010d}"

    def underreplicated_lock(self, ledger_id: LedgerId) -> str:
        """Return the node that a worker holds while it copies a ledger."""
        return f"{self.underreplicated_locks}/urL{_checked(ledger_id):010d}"

    def ledger(self, kind: LayoutKind, ledger_id: LedgerId) -> str:
        """Return the node of a ledger's metadata."""
        _checked(ledger_id)
        if kind is LayoutKind.FLAT:
            return f"{self.root}/L{ledger_id:010d}"
        if kind is LayoutKind.HIERARCHICAL:
            is_long = ledger_id >= FIRST_LONG_LEDGER_ID
        else:
            is_long = kind is LayoutKind.LONG_HIERARCHICAL
        if not is_long and ledger_id >= _LEGACY_LIMIT:
            raise LedgerIdOverflowError(
                f"ledger {ledger_id} has more digits than the {kind.value} layout holds",
                ledger_id=ledger_id,
            )
        branch, digits = (_LONG, f"{ledger_id:019d}") if is_long else (_LEGACY, f"{ledger_id:010d}")
        parts = []
        start = 0
        for width in branch.widths:
            parts.append(digits[start : start + width])
            start += width
        return f"{self.root}/{'/'.join(parts)}/L{digits[start:]}"


def is_kept_apart(path: str) -> bool:
    """Tell whether a node, by its path below the root, is not moved like the others.

    What a cluster is and its id generators have a form of their own in a move, and nodes that
    only a move makes are never part of one.
    """
    return path.partition("/")[0] in _KEPT_APART


def branches(kind: LayoutKind) -> tuple[Branch, ...]:
    """Return the families of paths a layout has, in ascending order of ids."""
    return _BRANCHES[kind]


def foreign_branches(kind: LayoutKind) -> tuple[tuple[Branch, LayoutKind], ...]:
    """Return the families of paths that a layout does not have, each with one that has it."""
    own = _BRANCHES[kind]
    return tuple(pair for pair in _OWNERS if pair[0] not in own)


def check_bookie_id(bookie_id: BookieId) -> BookieId:
    """Return the id if a bookie may have it, else raise ``LocalProtocolError``."""
    if not _BOOKIE_ID.fullmatch(bookie_id) or bookie_id in (READ_ONLY_NAME, ".", ".."):
        raise LocalProtocolError(
            f"bookie id {bookie_id!r} is not made of letters, digits and :;<=>?@[\\]^_.-, "
            f"or is {READ_ONLY_NAME!r}"
        )
    return bookie_id


def _checked(ledger_id: LedgerId) -> LedgerId:
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise LocalProtocolError(
            f"ledger id {ledger_id} is not between 0 and 2^63 - 1", ledger_id=ledger_id
        )
    return ledger_id
