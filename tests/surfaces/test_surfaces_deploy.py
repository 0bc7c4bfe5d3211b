"""``quorumbook deploy export`` writes the files that the wheel holds."""

from __future__ import annotations

from pathlib import Path

from quorumbook.cli.main import main

ROOT = Path(__file__).parents[2]


def test_all_files_are_written_as_they_are(tmp_path, capsys):
    target = tmp_path / "deploy"
    assert main(["deploy", "export", str(target)]) == 0
    files = {path.relative_to(ROOT / "deploy") for path in (ROOT / "deploy").rglob("*.*")}
    assert Path("monitoring/board.json") in files
    for file in files:
        assert (target / file).read_bytes() == (ROOT / "deploy" / file).read_bytes()
    assert "quorumbook-bookie.service" in capsys.readouterr().out


def test_a_directory_in_use_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["deploy", "export", str(tmp_path)]) == 2
    assert "is not empty; name a new directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
