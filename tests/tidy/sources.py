"""Files of Python as the rules look at them, each read and parsed once for all rules."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def lines_of(path: Path) -> list[str]:
    """Return the lines of a file."""
    return path.read_text(encoding="utf-8").splitlines()


@cache
def tree_of(path: Path) -> ast.Module:
    """Return what a file says to Python."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    gc.freeze()  # else all trees so far are looked through for garbage, over and over
    return tree
