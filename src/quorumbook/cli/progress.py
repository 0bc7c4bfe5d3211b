"""A progress bar on a terminal, and nothing anywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(
    title: str, total: int | None, *, is_bytes: bool = False, is_wanted: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show how far work has come; what is yielded takes how much was done since the last call.

    Args:
        title: what is being done.
        total: how much there is to do, if that is known.
        is_bytes: whether it is counted in bytes.
        is_wanted: false where somebody types, or results are printed, on the same terminal.
    """
    if not is_wanted or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn() if is_bytes else MofNCompleteColumn()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
        # Standard output may be a file, and is nothing that a bar may touch.
        redirect_stdout=False,
    )  # fmt: skip
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
