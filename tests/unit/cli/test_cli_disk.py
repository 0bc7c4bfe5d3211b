"""`quorumbook disk`: what it finds on a stopped bookie, what it mends, and that it only looks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from faults import damage as catalogue
from quorumbook.bookie.server import Bookie
from quorumbook.cli import errors as cli_errors
from quorumbook.cli.main import root
from quorumbook.env import Env
from quorumbook.errors import CookieError


def run(*words: str, place: Path) -> Result:
    where = [
        "--set", f"storage.journal_directories={place}/journal",
        "--set", f"storage.ledger_directories={place}/ledgers0,{place}/ledgers1",
    ]  # fmt: skip
    return CliRunner().invoke(root, ["disk", *words, *where], standalone_mode=False)


def rows(result: Result) -> Any:
    assert result.exception is None, result.output
    return json.loads(result.stdout)


def prints(place: Path) -> dict[str, str]:
    """Return a fingerprint of every file."""
    files = (path for path in place.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def images(tmp_path_factory: Any) -> Any:
    """Both images of the catalogue; the cluster is gone, as it may be when files are looked at."""
    place = tmp_path_factory.mktemp("images")

    async def make() -> None:
        async with catalogue.prepared(place):
            pass

    asyncio.run(make())
    return place


@pytest.fixture(params=catalogue.IMAGES)
def bookie(request: Any, images: Path, tmp_path: Path) -> Path:
    shutil.copytree(images / request.param, tmp_path / "bookie")
    return tmp_path / "bookie"


def file_of(place: Path, pattern: str) -> Path:
    return sorted(place.rglob(pattern))[0]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_a_whole_bookie_has_nothing_wrong_and_nothing_is_changed(bookie: Path) -> None:
    before = prints(bookie)
    for words in (["fsck"], ["journal"], ["log"], ["log", "0"], ["index"], ["rebuild-index"]):
        result = run(*words, "-o", "json", place=bookie)
        assert result.exit_code == 0, result.output
        found = rows(result)
        if words == ["fsck"]:
            assert [one for one in found if one["severity"] != "harmless"] == []
    assert prints(bookie) == before


def test_lists_say_what_is_there(images: Path) -> None:
    killed, stopped = images / "killed", images / "stopped"
    journals = rows(run("journal", "-o", "json", place=killed))
    assert sum(journal["entries"] for journal in journals) > 100
    assert journals[-1]["fences"] == 2
    ledgers = rows(run("index", "-o", "json", place=stopped))
    assert [one["ledger_id"] for one in ledgers] == list(catalogue.LEDGERS)
    assert [one["fenced"] for one in ledgers].count(True) == 2
    assert [one["entries"] for one in ledgers] == [
        len(catalogue.ids_of(ledger_id)) for ledger_id in catalogue.LEDGERS
    ]
    runs = rows(run("index", "1", "-o", "json", place=stopped))
    logs = rows(run("log", "-o", "json", place=stopped))
    assert {one["entry_log"] for one in runs} <= {one["entry_log"] for one in logs}
    (listed, *_) = rows(run("log", logs[0]["entry_log"], "-o", "json", place=stopped))
    assert (listed["position"], listed["state"]) == (1024, "good")
    planned = rows(run("rebuild-index", "-o", "json", place=stopped))
    assert planned["ledgers"] == len(catalogue.LEDGERS)


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("0.log", "entry log"),
        ("index.sqlite", "index"),
        ("VERSION", "cookie"),
        ("lastMark", "mark"),
    ],
)
def test_damage_is_named_with_its_place_its_meaning_and_what_to_do(
    images: Path, tmp_path: Path, pattern: str, kind: str
) -> None:
    place = tmp_path / "bookie"
    shutil.copytree(images / "stopped", place)
    if kind == "entry log":
        (first, *_) = rows(run("index", "0", "-o", "json", place=place))
        log = f"{first['entry_log']}.log"
        flip(file_of(place, log), first["position"] + 60)
    else:
        file_of(place, pattern).write_bytes(b"garbage" * 1000)
    before = prints(place)
    result = run("fsck", "-o", "json", place=place)
    found = [one for one in rows(result) if one["kind"] == kind]
    assert found, result.output
    assert found[0]["severity"] != "harmless"
    assert all(found[0][name] for name in ("path", "problem", "meaning", "remedy"))
    assert result.return_value == cli_errors.FOUND
    text = run("fsck", place=place)
    assert "it means: " in text.stdout
    assert "do: " in text.stdout
    assert prints(place) == before


def test_an_index_that_is_lost_is_rebuilt(images: Path, tmp_path: Path) -> None:
    place = tmp_path / "bookie"
    shutil.copytree(images / "stopped", place)
    path = file_of(place, "index.sqlite")
    path.write_bytes(b"garbage" * 1000)
    assert run("fsck", place=place).return_value == cli_errors.FOUND
    result = run("rebuild-index", "--repair", "-o", "json", place=place)
    assert rows(result)["is_index_rebuilt"]
    ledgers = rows(run("index", "-o", "json", place=place))
    assert [one["entries"] for one in ledgers] == [
        len(catalogue.ids_of(ledger_id)) for ledger_id in catalogue.LEDGERS
    ]
    assert not run("fsck", place=place).return_value


async def test_a_bookie_that_runs_is_not_repaired(images: Path, tmp_path: Path) -> None:
    from quorumbook.bookie.stopped.repair import repair
    from quorumbook.env import RealDisk
    from quorumbook.errors import DirectoryLockedError

    place = tmp_path / "bookie"
    shutil.copytree(images / "stopped", place)
    release = RealDisk().lock(f"{place}/journal/quorumbook.lock")
    try:
        with pytest.raises(DirectoryLockedError):
            repair(Env(), catalogue.options_in(place), str(tmp_path))
    finally:
        release()


@pytest.mark.timeout(600)
async def test_what_a_start_refuses_starts_after_fsck_and_nothing_is_silently_wrong(
    tmp_path: Path,
) -> None:
    """Repair in the place of emptying the directories, over the catalogue of damage."""
    refused = 0
    async with catalogue.prepared(tmp_path) as (place, store):
        for seed in range(60):
            shutil.rmtree(place / "bookie", ignore_errors=True)
            shutil.copytree(place / catalogue.IMAGES[seed % 2], place / "bookie")
            case = catalogue.Case(seed, "", "")
            if catalogue.damage(place / "bookie", random.Random(seed)) is not None:
                options = catalogue.options_in(place / "bookie")
                bookie = Bookie(Env(), options, store)
                try:
                    await bookie.start()
                    await bookie.stop()
                except Exception:
                    refused += 1
                    await asyncio.to_thread(run, "fsck", "--repair", place=place / "bookie")
                    bookie = Bookie(Env(), options, store)
                    try:
                        await bookie.start()
                    except CookieError:
                        # Whose directory it is nobody but the operator can tell.
                        continue
                    # One case, without a command around it.
                    unread = await catalogue._check(case, bookie)
                    await catalogue._repair(case, bookie, unread)
                    await bookie.stop()
                assert case.problems == [], seed
    assert refused
