"""What the checks of ``doctor`` share: how a finding is said.

A check is a ``VerdictReason``, also where nothing is wrong: its code names the check, its level is
the verdict, its text says what was found.
"""

from __future__ import annotations

from quorumbook.admin.facts.verdict import Level, VerdictReason


def fine(code: str, text: str) -> VerdictReason:
    """Return that a check found nothing wrong."""
    return VerdictReason(Level.OK, code, text)


def warned(code: str, text: str, fix: str = "") -> VerdictReason:
    """Return what works, but should be otherwise."""
    return VerdictReason(Level.WARNING, code, text, fix)


def failed(code: str, text: str, fix: str = "") -> VerdictReason:
    """Return what keeps a bookie or a client from working."""
    return VerdictReason(Level.CRITICAL, code, text, fix)
