"""The commands of docs/http-api.md do what the page says, as printed but for the port."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from quorumbook.testing import LocalCluster
from surfaces.conftest import CommandLine

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")


def test_the_first_commands_of_the_page_run_as_printed(tmp_path):
    commands = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
    assert commands.count("curl") == 3
    with LocalCluster(bookies=3) as cluster:
        quorumbook = CommandLine(cluster.metadata_uri, str(tmp_path))
        with quorumbook.running("admin", "run", "--port", 0, "-o", "jsonl") as process:
            url = json.loads(process.stdout.readline())["url"]
            script = commands.replace("http://127.0.0.1:8085", url).replace("curl ", "curl -sf ")
            done = subprocess.run(
                ["bash", "-e", "-c", script], capture_output=True, check=True, timeout=60
            )
    answers = [json.loads(each) for each in re.findall(rb"\{.*?\}(?=\{\"|$)", done.stdout)]
    assert answers[0] == {"name": "orders"}
    assert answers[-1]["records"][0]["text"] == "hello"


def test_the_problem_on_the_page_is_one_that_is_answered():
    shown = re.search(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1]
    assert json.loads(shown).keys() == {"type", "title", "status", "detail", "code"}
