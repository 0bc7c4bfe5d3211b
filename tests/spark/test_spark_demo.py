"""``quorumbook spark demo``: the picture, and the whole story with few flights."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from doubles.spark import need_spark
from quorumbook.spark.demo.picture import heatmap


def test_the_picture_has_a_row_for_each_carrier_the_worst_first() -> None:
    means = {("AA", 6): (100, 3.0), ("EV", 6): (100, 30.0), ("EV", 7): (5, 99.0)}
    svg = ET.fromstring(heatmap(means, {"EV": "Express & Jet"}, "205 <departures>"))
    texts = [element.text for element in svg.iter() if element.tag.endswith("text")]
    assert texts.index("Express & Jet") < texts.index("AA")
    assert "205 <departures>" in texts
    # Five flights say nothing.
    assert ("30" in texts, "99" in texts) == (True, False)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark")
def test_the_demo_tells_its_whole_story(tmp_path: Path) -> None:
    need_spark()
    words = ["spark", "demo", "--events", "3000", "--to", str(tmp_path / "out"), "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "quorumbook", *words],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stderr
    for sentence in (
        r"Bookie \S+ was killed", r"Executor process \d+ was killed", "3,000 flights were appended",
        "no ledger names it any more", r"3,000 flights are a table", r"segments became Parquet",
        r"found no damage", r"latest carriers: \w\w [\d.]+ min", r"1 dead letter is in the stream",
        "Expecting value", r"by Polars, the mean of 3,000 flights",
    ):  # fmt: skip
        assert re.search(sentence, said), (sentence, said)
    rows = json.loads(done.stdout)
    assert {"carrier", "6"} <= set().union(*rows)
    assert ET.parse(tmp_path / "out" / "delays.svg").getroot().tag.endswith("svg")
