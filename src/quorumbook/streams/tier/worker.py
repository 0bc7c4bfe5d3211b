"""A thread for what blocks on files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from quorumbook.env import Env
from quorumbook.streams.errors import FilesUnavailableError

T = TypeVar("T")


class FileWorker:
    """One thread; its jobs run one after the other."""

    def __init__(self, env: Env) -> None:
        """Start the thread."""
        self._worker = env.threads.start_worker("tier")

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run a job; the future gets its result, or FilesUnavailableError for an OSError."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, OSError):
                error = FilesUnavailableError(f"files are out of reach: {result}")
                error.__cause__ = result
                future.set_exception(error)
            elif isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        self._worker.submit(job, done)
        return future

    def stop(self) -> None:
        """Let submitted jobs finish, and end the thread."""
        self._worker.stop()


def forget(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Want no result of these any more, nor to hear of their failures."""
    for future in futures:
        if not future.cancel() and not future.cancelled():
            future.exception()


async def in_worker(env: Env, job: Callable[[], T]) -> T:
    """Run one job on a thread of its own."""
    worker = FileWorker(env)
    try:
        return await worker.run(job)
    finally:
        worker.stop()
