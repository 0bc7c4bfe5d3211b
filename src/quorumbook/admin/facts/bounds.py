"""Bounds of size and age, by which ledgers and streams are listed alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is None is not asked; a thing of unknown age was not created before anything."""

    min_bytes: int | None = None
    max_bytes: int | None = None
    created_before_ms: int | None = None
    created_after_ms: int | None = None

    def hold(self, size_bytes: int, created_ms: int | None) -> bool:
        """Tell whether something of this size and age is within them."""
        created_ms = -1 if created_ms is None else created_ms
        if self.min_bytes is not None and size_bytes < self.min_bytes:
            return False
        if self.max_bytes is not None and size_bytes > self.max_bytes:
            return False
        if self.created_before_ms is not None and not 0 <= created_ms < self.created_before_ms:
            return False
        return self.created_after_ms is None or created_ms >= self.created_after_ms
