"""A ledger's ensembles, a stream's segments, an operation's stages, as rectangles; pure.

Widths are shares of 1000.  A part that would be too narrow to see or hit gets a least width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quorumbook.admin.facts.words import taken

_WIDTH = 1000.0
_LEAST = 12.0
#: A part that is still written has no size yet.
_OPEN = 120.0
_PARTS_SHOWN = 200


def widths(sizes: Sequence[int | None]) -> list[tuple[float, float]]:
    """Return where each part begins, and how wide it is."""
    known = [size for size in sizes if size is not None]
    free = _WIDTH - _OPEN * (len(sizes) - len(known)) - _LEAST * len(known)
    total = sum(known)
    found, at = [], 0.0
    for size in sizes:
        width = _OPEN if size is None else _LEAST + max(free, 0) * size / (total or 1)
        found.append((at, width))
        at += width
    scale = _WIDTH / at if at else 1.0
    return [(begin * scale, width * scale) for begin, width in found]


def ledger_boxes(ledger: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for each bookie, and a box for each fragment it is in."""
    fragments = ledger["fragments"][-_PARTS_SHOWN:]
    bookies = sorted({bookie for each in fragments for bookie in each["ensemble"]})
    sizes = [
        None
        if each["last_entry_id"] is None
        else max(0, each["last_entry_id"] + 1 - each["first_entry_id"])
        for each in fragments
    ]
    boxes = []
    for (begin, width), fragment in zip(widths(sizes), fragments, strict=True):
        last = fragment["last_entry_id"]
        entries = f"entries {fragment['first_entry_id']} to {'…' if last is None else last}"
        for bookie in fragment["ensemble"]:
            is_gone = bookie in fragment["down"]
            boxes.append(
                {
                    "x": begin,
                    "width": max(width - 2, 1),
                    "row": bookies.index(bookie),
                    "kind": "gone" if is_gone else "open" if last is None else "there",
                    "title": f"{bookie}: {entries}{', down' if is_gone else ''}",
                }
            )
    return {"bookies": bookies, "boxes": boxes, "hidden": len(ledger["fragments"]) - len(fragments)}


def segment_boxes(segments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a box for each segment."""
    shown = segments[-_PARTS_SHOWN:]
    sizes = [None if each["records"] is None else int(each["records"]) for each in shown]
    boxes = []
    for (begin, width), segment in zip(widths(sizes), shown, strict=True):
        kind = "progress" if segment["state"] != "completed" else "completed"
        if segment["truncation"] != "active":
            kind = "truncated"
        count = "being written" if segment["records"] is None else f"{segment['records']:,} records"
        boxes.append(
            {
                "x": begin,
                "width": max(width - 2, 1),
                "kind": kind,
                "ledger_id": segment["ledger_id"],
                "title": f"segment {segment['segment']}: {count}, ledger {segment['ledger_id']}",
            }
        )
    return boxes


def stage_boxes(
    stages_ms: Mapping[str, float], took_ms: float, words: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a box for each stage, as wide as its share of the whole."""
    boxes, at = [], 0.0
    for name, took in stages_ms.items():
        width = _WIDTH * took / took_ms if took_ms else 0.0
        title = f"{words.get(name, name)}: {taken(took)}"
        boxes.append({"name": name, "x": at, "width": width, "title": title})
        at += width
    return boxes
