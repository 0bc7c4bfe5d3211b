"""What a process tells its allocator, seen by what the allocator does in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from quorumbook.cli.call import Call
from quorumbook.env import allocator

glibc = pytest.mark.skipif(
    # Whether there is such a library.
    allocator._function("mallinfo2") is None,
    reason="there is no glibc here, and nothing to tell",
)
MB = 1024 * 1024
_HEAD = f"""
import ctypes
from quorumbook.env import allocator

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks used free top".split()]

def info():
    function = allocator._function("mallinfo2")
    function.restype = Info
    return function()

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

MB = {MB}
"""


def told(text: str, **environment: str) -> str:
    """Run a program in an environment; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", _HEAD + text],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


_OF_ITS_OWN = """
allocator.keep_freed_memory()
before = info().hblkhd
for size in (3 * MB, 5 * MB):
    # What was freed does not raise the limit.
    for _ in range(3):
        one = bytes(size)
        print(info().hblkhd - before > size, end=" ")
        del one
"""


@glibc
def test_large_buffers_go_back_one_by_one_and_others_stay_in_the_heap():
    assert told(_OF_ITS_OWN) == "False False False True True True"


@glibc
@pytest.mark.parametrize(
    "environment",
    [
        {"MALLOC_MMAP_THRESHOLD_": "16777216"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=16777216"},
    ],
)
def test_what_the_environment_says_of_the_allocator_counts(environment: dict[str, str]):
    assert told(_OF_ITS_OWN, **environment) == "False False False False False False"


@glibc
def test_what_lies_free_below_a_block_in_use_goes_back():
    text = """
many = [bytes([1]) * 100_000 for _ in range(1000)]
kept = many[::20]
del many
before = resident()
allocator.give_back_freed_memory()
print(before - resident() > 80 * MB)
"""
    assert told("allocator.keep_freed_memory()" + text) == "True"


@glibc
def test_giving_back_again_and_again_leaves_nothing_for_the_garbage_collector():
    text = """
import gc
allocator.give_back_freed_memory()
gc.collect()
gc.disable()
for _ in range(3):
    allocator.give_back_freed_memory()
print(gc.collect())
"""
    assert told(text) == "0"


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(allocator, "_function", lambda name: None)
    allocator.keep_freed_memory()
    allocator.give_back_freed_memory()


def test_every_command_that_works_on_a_loop_sets_the_limits(monkeypatch: pytest.MonkeyPatch):
    called: list[str] = []
    monkeypatch.setattr(allocator, "keep_freed_memory", lambda: called.append("kept"))
    call = Call(config_file=None, overrides=(), is_verbose=False)
    call.run(asyncio.sleep(0))
    assert called == ["kept"]


async def test_memory_is_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch):
    twice = asyncio.Event()
    loop = asyncio.get_running_loop()
    calls: list[int] = []

    def given_back() -> None:
        calls.append(1)
        if len(calls) == 2:
            loop.call_soon_threadsafe(twice.set)

    monkeypatch.setattr(allocator, "_GIVE_BACK_EVERY_S", 0.001)
    monkeypatch.setattr(allocator, "give_back_freed_memory", given_back)
    task = asyncio.create_task(allocator.giving_back())
    await twice.wait()
    task.cancel()
