"""Files that pass the page cache by hold the same bytes as any other."""

from __future__ import annotations

import mmap
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quorumbook.env import RealDisk, UncachedFile
from quorumbook.errors import StorageError


def opened(path: Path, **modes: bool) -> UncachedFile:
    file = RealDisk().open(str(path), uncached=True, **modes)
    assert isinstance(file, UncachedFile)
    return file


@pytest.mark.parametrize("offset", [0, 512, 4096, 100])
@pytest.mark.parametrize("sizes", [(512,), (1, 511), (4096, 512), (1 << 20, 3 << 19, 512), (7,)])
def test_what_is_written_is_read_whether_aligned_or_not(
    tmp_path: Path, offset: int, sizes: tuple[int, ...]
) -> None:
    file = opened(tmp_path / "file", create=True)
    buffers = [random.Random(size).randbytes(size) for size in sizes]
    file.write(buffers, offset)
    file.sync()
    expected = bytes(offset) + b"".join(buffers)
    assert (tmp_path / "file").read_bytes() == expected
    assert file.read(offset, len(expected)) == expected[offset:]
    file.close()


def test_aligned_and_other_writes_to_one_file_do_not_hide_each_other(tmp_path: Path) -> None:
    dice = random.Random(7)
    model = bytearray(1 << 20)
    file = opened(tmp_path / "file", create=True)
    file.write([bytes(model)], 0)
    for _ in range(300):
        unit = dice.choice((1, 512))
        offset = dice.randrange(0, (1 << 19) // unit) * unit
        data = dice.randbytes(dice.randrange(1, 200) * unit)
        file.write([data[: len(data) // 2], data[len(data) // 2 :]], offset)
        model[offset : offset + len(data)] = data
        if dice.random() < 0.2:
            file.sync()
        at = dice.randrange(1 << 19)
        size = dice.choice((10, 100_000))
        assert file.read(at, size) == model[at : at + size]
    file.close()


def test_a_large_read_at_the_end_is_short_and_right(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(200_001)
    (tmp_path / "file").write_bytes(data)
    file = opened(tmp_path / "file", read_only=True)
    assert file.read(1000, 300_000) == data[1000:]
    assert file.read(1 << 20, 100_000) == b""
    file.close()


def test_a_file_system_without_direct_writes_serves_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def refusing(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)
    file = opened(tmp_path / "file", create=True)
    file.write([b"x" * 512], 0)
    file.sync()
    assert file.read(0, 600) == b"x" * 512
    file.close()


def test_a_disk_with_larger_sectors_falls_back_without_losing_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(tmp_path / "file", create=True)
    real_pwrite = os.pwrite

    def refusing(fd: int, data: bytes, offset: int) -> int:
        if isinstance(data, memoryview):
            raise OSError(22, "Invalid argument")
        return real_pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", refusing)
    file.write([b"a" * 512, b"b" * 512], 512)
    file.sync()
    assert file.read(512, 2000) == b"a" * 512 + b"b" * 512
    file.close()


def test_an_error_of_the_disk_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(tmp_path / "file", create=True)

    def failing(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(StorageError, match="Input/output error"):
        file.write([b"a" * 512], 0)
    file.close()


def test_many_open_files_share_one_aligned_buffer(tmp_path: Path) -> None:
    """A reader keeps hundreds of entry logs open; a buffer for each would be all its memory."""
    data = random.Random(2).randbytes(300_000)
    files = []
    with pytest.MonkeyPatch.context() as patch:
        made = []
        make = mmap.mmap

        def counted(*what: int) -> mmap.mmap:
            made.append(what)
            return make(*what)

        patch.setattr(mmap, "mmap", counted)
        for number in range(5):
            (tmp_path / f"{number}").write_bytes(data)
            files.append(opened(tmp_path / f"{number}", read_only=True))
            assert files[-1].read(1000, 200_000) == data[1000:201_000]
        assert len(made) <= 1
    for file in files:
        file.close()
    assert opened(tmp_path / "0", read_only=True).read(0, 100_000) == data[:100_000]


def test_threads_that_read_and_write_at_the_same_time_do_not_mix_their_bytes(
    tmp_path: Path,
) -> None:
    def work(number: int) -> None:
        data = random.Random(number).randbytes(3 << 19)
        file = opened(tmp_path / f"{number}", create=True)
        for _ in range(5):
            file.write([data], 0)
            assert file.read(4096, 1 << 20) == data[4096 : 4096 + (1 << 20)]
        file.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
