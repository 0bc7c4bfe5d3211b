"""What the parts of the console's pages make of values."""

from __future__ import annotations

import re

import jinja2
import pytest

from quorumbook.admin.facts.words import at, lasting, since, sized


@pytest.fixture(scope="module")
def parts():
    """The macros, with what pages give them."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("quorumbook.admin.console"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"sized": sized, "at": at, "lasting": lasting}
    environment.globals |= {"since": since, "base": ""}
    return environment.get_template("parts.html").module


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("damaged_ledgers", 1234, "damaged ledgers 1,234"),
        ("done_bytes", 3_400_000, "done 3.4 MB"),
        ("finished_at_ms", 940_000, "finished 1 min ago"),
        ("since_ms", None, "since \N{EN DASH}"),
        ("next_in_s", 86384.91, "next in 23 h"),
        ("runtime_ns", 1_500_000_000, "runtime 1.500 s"),
        ("is_running", False, "is running no"),
        ("reasons", ["operator: drained", "<b>"], "reasons operator: drained; &lt;b&gt;"),
        ("reasons", [], "reasons \N{EN DASH}"),
        ("by", {"a": "<"}, 'by {"a": "\\u003c"}'),
        ("why", "<i>", "why &lt;i&gt;"),
    ],
)
def test_a_fact_is_shown_by_its_unit(parts, name, value, shown):
    assert text(parts.facts({name: value}, 1_000_000)) == shown
