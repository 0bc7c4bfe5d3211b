"""The machine's clocks, threads and network."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from quorumbook.env.forks import sever_in_children
from quorumbook.env.interfaces import T, Turns, Worker
from quorumbook.env.tls_transport import TlsTransport

#: Connections that wait to be accepted, all of which uvloop accepts in one turn of the loop, and
#: how many asyncio does.
_WAITING_FOR_ACCEPT, _ACCEPTED_IN_A_TURN = 128, 4
#: No process of ours needs more.
_DESCRIPTORS_MAX = 1 << 20
#: A peer that is gone without a word is noticed after idle time plus as many probes.
_KEEPALIVE_IDLE_S, _KEEPALIVE_PROBE_S, _KEEPALIVE_PROBES = 60, 15, 4

#: How long the loop keeps the interpreter from a journal that has written, while work waits for
#: it: that happens some five times a group.  A loop that rests gives it away sooner by itself, and
#: being interrupted cost 7 % of the rate of single reads.
_BUSY_INTERVAL_S = 0.00005


def _keep_alive(connection: socket.socket) -> None:
    """Have the system ask whether the other end is still there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_PROBE_S),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class RealClock:
    """The machine's clocks."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds."""
        return time.monotonic_ns()

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def boot_id(self) -> str:
        """Return what tells one boot of the machine from another."""
        with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                return subprocess.run(  # noqa: S603 - a fixed command
                    command, capture_output=True, check=True, text=True, timeout=5
                ).stdout.strip()
        return ""


class _BusyLoops:
    """How many loops of this process never rest, and so how long threads keep the interpreter."""

    def __init__(self) -> None:
        self._count = 0
        self._usual_interval_s = 0.0

    def change(self, by: int) -> None:
        """One more or one less."""
        if not self._count:
            # Whole microseconds are kept, cut off: half of one more, and it is the same again.
            self._usual_interval_s = sys.getswitchinterval() + 0.5e-6
            sys.setswitchinterval(min(_BUSY_INTERVAL_S, self._usual_interval_s))
        self._count += by
        if not self._count:
            sys.setswitchinterval(self._usual_interval_s)


_busy_loops = _BusyLoops()


#: A loop that is gone has nobody left to tell.
_unless_over = contextlib.suppress(RuntimeError)


class RealWorker:
    """A thread fed by a queue."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[
            tuple[Callable[[], object], Callable[[object], None]] | None
        ] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run ``job`` on the thread, then ``done`` on the loop."""
        self._jobs.put((job, done))  # type: ignore[arg-type]

    def call_on_loop(self, callback: Callable[[], None]) -> None:
        """From inside a job: run a callback on the loop."""
        with _unless_over:
            self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Let submitted jobs finish, then end the thread and wait for it."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            result: object
            try:
                result = job()
            except BaseException as error:  # it is handed to whoever waits
                result = error
            with _unless_over:
                self._loop.call_soon_threadsafe(done, result)
            # Holding the last job would keep its buffers alive while the thread idles.
            del item, job, done, result


class RealThreads:
    """Threads of this process."""

    def start_worker(self, name: str) -> Worker:
        """Start a worker that reports to the running loop."""
        return RealWorker(name)

    def sleep(self, seconds: float) -> None:
        """From inside a job: rest, while the loop and the other workers go on."""
        time.sleep(seconds)

    def loop_is_busy(self, *, is_busy: bool) -> None:
        """From the loop: have workers wait less for the interpreter while it never rests."""
        _busy_loops.change(1 if is_busy else -1)


class RealPrograms:
    """Programs of this machine, without a shell between."""

    def run(self, words: Sequence[str], *, timeout_s: float) -> str:
        """Run a program to its end and return what it printed."""
        try:
            done = subprocess.run(  # noqa: S603 - what the configuration names
                list(words), capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{words[0]} did not end within {timeout_s:g} s") from None
        if done.returncode:
            raise OSError(f"{words[0]} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
        return done.stdout


def raise_descriptor_limit() -> int:
    """Let this process open as many files as it may, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems say "unlimited", and then refuse to be taken at their word.
        for wanted in (hard, _DESCRIPTORS_MAX):
            if wanted != resource.RLIM_INFINITY:
                with contextlib.suppress(OSError, ValueError):
                    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                    break
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, _DESCRIPTORS_MAX)


class RealNetwork:
    """TCP of the running event loop."""

    async def address_of(self, host: str) -> str:
        """Return the first address of a host; errors are OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
        return str(found[0][4][0])

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> asyncio.Server:
        """Accept connections."""
        # asyncio accepts so many in a turn, before the first of them is looked at: each has a
        # descriptor until it is turned away, and a burst of 100 took those of the storage.
        server = await asyncio.get_running_loop().create_server(
            factory, host, port, backlog=_ACCEPTED_IN_A_TURN
        )
        for each in server.sockets:
            # Connections have what the socket has that they came in by.
            _keep_alive(each)
            # Those that wait to be accepted are the kernel's, and take nothing of ours.
            with socket.socket(fileno=os.dup(each.fileno())) as same:
                same.listen(_WAITING_FOR_ACCEPT)
        return server

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection; errors are OSError."""
        made = await asyncio.get_running_loop().create_connection(factory, host, port)
        _keep_alive(made[0].get_extra_info("socket"))
        sever_in_children(made[0])
        return made

    def start_tls(
        self,
        transport: asyncio.Transport,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        done: Callable[[Exception | None], None],
        turns: Turns | None = None,
    ) -> asyncio.Transport:
        """Go on with TLS from the next byte on; returns the transport to use from now on."""
        tls = TlsTransport(
            transport,
            protocol,
            context,
            server_side=server_side,
            server_hostname=server_hostname,
            done=done,
            turns=turns,
        )
        tls.begin()
        return tls
