"""Work that takes longer than a request: an id, progress, an estimate, and a way to cancel it.

All of it can be begun again: what is left to do stands in the ledgers' metadata.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from quorumbook.admin.http.problems import ApiError, problem_of
from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait

_log = logger("admin.jobs")
_KEPT = 200
_RUNNING_MAX = 8


@dataclass(slots=True)
class Job:
    """One piece of work."""

    id: int
    #: Such as ``drain``.
    kind: str
    target: str
    who: str
    started_ms: int
    #: ``running``, ``done``, ``failed`` or ``cancelled``.
    state: str = "running"
    done: int = 0
    total: int | None = None
    #: What came of it, or why it failed.
    result: dict[str, object] = field(default_factory=dict)
    detail: str = ""
    ended_ms: int | None = None

    def row(self) -> dict[str, object]:
        """Return it as JSON has it."""
        left_s = None
        if self.state == "running" and self.total and self.done:
            spent_s = time.time() - self.started_ms / 1000
            left_s = round(spent_s * (self.total - self.done) / self.done, 1)
        return {
            "id": self.id,
            "kind": self.kind,
            "target": self.target,
            "who": self.who,
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "left_s": left_s,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "detail": self.detail,
            "result": self.result,
        }


class Jobs:
    """The jobs of one server; they end with it."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._next = 1

    def start(
        self, kind: str, target: str, who: str, work: Callable[[Job], Awaitable[dict[str, object]]]
    ) -> Job:
        """Begin a job.

        Raises:
            ApiError: One of this target runs, or too many run.
        """
        running = [job for job in self._jobs.values() if job.state == "running"]
        if any(job.target == target for job in running):
            raise ApiError(409, "job-running", f"a job is at {target} already; see /api/v2/jobs")
        if len(running) >= _RUNNING_MAX:
            raise ApiError(429, "too-many-jobs", f"{_RUNNING_MAX} jobs run already")
        job = Job(self._next, kind, target, who, int(time.time() * 1000))
        self._next += 1
        self._jobs[job.id] = job
        for old in list(self._jobs.values())[: max(0, len(self._jobs) - _KEPT)]:
            if old.state != "running":
                del self._jobs[old.id]
        self._tasks[job.id] = asyncio.create_task(self._run(job, work))
        return job

    async def _run(self, job: Job, work: Callable[[Job], Awaitable[dict[str, object]]]) -> None:
        try:
            job.result = await work(job)
            job.state = "done"
        except asyncio.CancelledError:
            job.state = "cancelled"
            raise
        except Exception as error:
            job.state = "failed"
            problem = problem_of(error)
            if problem is None:
                _log.exception("job %d (%s %s) failed", job.id, job.kind, job.target)
            job.detail = problem.detail if problem else "an error of ours; the log has its trace"
        finally:
            job.ended_ms = int(time.time() * 1000)
            self._tasks.pop(job.id, None)

    def list(self) -> list[Job]:
        """Return all jobs that are remembered, the latest first."""
        return sorted(self._jobs.values(), key=lambda job: -job.id)

    def get(self, number: int) -> Job:
        """Return a job.

        Raises:
            ApiError: It is not known.
        """
        job = self._jobs.get(number)
        if job is None:
            raise ApiError(404, "no-such-job", f"there is no job {number}, or it is long over")
        return job

    async def cancel(self, number: int) -> Job:
        """Stop a job; what it has done stays done."""
        job = self.get(number)
        task = self._tasks.get(number)
        if task is not None:
            await cancel_and_wait([task])
        return job

    async def close(self) -> None:
        """Stop all."""
        await cancel_and_wait(list(self._tasks.values()))
