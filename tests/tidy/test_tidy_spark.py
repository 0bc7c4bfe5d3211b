"""The options of the Spark source are documented as they are."""

from __future__ import annotations

import re
from pathlib import Path

from quorumbook.config import Kind
from quorumbook.spark.connection import CONNECTION_OPTIONS
from quorumbook.spark.options import SourceOption
from quorumbook.spark.request.read_options import READ_OPTIONS
from quorumbook.spark.sink.options import WRITE_OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
OPTIONS = tuple(dict.fromkeys((*CONNECTION_OPTIONS, *READ_OPTIONS, *WRITE_OPTIONS)))


def row_of(option: SourceOption) -> str:
    """Return the line that documents an option."""
    default = option.default
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    if option.kind is Kind.SIZE and isinstance(default, int) and default and not default % 2**20:
        shown = f"{default >> 20}M"
    uses = "all" if len(option.uses) == 4 else ", ".join(use.value for use in option.uses)
    kind = option.kind.value + (f", {option.bounds()}" if option.bounds() else "")
    return (
        f"| `{option.name}` | {f'`{shown}`' if shown else ''} | {kind} | {uses} | {option.help} |"
    )


def test_every_option_of_the_spark_source_is_documented_as_it_is():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    missing = [row_of(option) for option in OPTIONS if row_of(option) not in lines]
    assert missing == [], "docs/spark.md lacks:\n" + "\n".join(missing)
    written = {
        line for line in lines if re.match(r"\| `[a-z][a-zA-Z]+` \| .* \| .* \| .* \|", line)
    }
    assert written == {row_of(option) for option in OPTIONS}


def test_options_of_the_spark_source_differ_in_more_than_case():
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)


def test_every_metadata_table_is_documented_with_its_columns():
    from quorumbook.spark.meta.tables import META_COLUMNS

    text = PAGE.read_text(encoding="utf-8")
    for table, columns in META_COLUMNS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `meta:{table}` |"))
        assert row.endswith(f"| {', '.join(f'`{name}`' for name in columns)} |"), table
