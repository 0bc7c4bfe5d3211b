"""Labels of bookies, and ledgers that are confined to bookies with certain labels.

    in a bookie's registration, property   label.<key>                   <value>
    in a ledger's custom metadata          quorumbook.placement.labels   key=value,key=value

A bookie fits if it carries every label that the ledger asks for.  The peer's programs carry both
along and heed neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from quorumbook.errors import ConfigError
from quorumbook.ids import BookieId

#: Where a ledger's labels stand in its custom metadata.
CUSTOM_KEY = "quorumbook.placement.labels"
_PROPERTY = "label."
_LABEL = re.compile(r"([A-Za-z0-9][A-Za-z0-9_./-]{0,62})=([A-Za-z0-9_./:-]{0,63})")


def parse_labels(texts: Sequence[str], where: str) -> dict[str, str]:
    """Read ``key=value`` texts.

    Args:
        texts: what was written.
        where: the option it stood in, for the message.

    Raises:
        ConfigError: one is no label, or a key has two values.
    """
    labels: dict[str, str] = {}
    for text in texts:
        match = _LABEL.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{where}: {text!r} is not a label; write key=value, of letters, digits and "
                "_ . / : -"
            )
        key, value = match.groups()
        if labels.setdefault(key, value) != value:
            raise ConfigError(f"{where}: {key} is given twice, as {labels[key]} and as {value}")
    return labels


def show_labels(labels: Mapping[str, str]) -> str:
    """Return labels as text that ``parse_labels`` reads, split at commas."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def checked_labels(labels: Mapping[str, str], where: str) -> dict[str, str]:
    """Return labels that were given as a mapping, if each is one.

    Raises:
        ConfigError: one is no label.
    """
    return parse_labels([f"{key}={value}" for key, value in labels.items()], where)


def labels_to_properties(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a bookie's registration."""
    return {f"{_PROPERTY}{key}": value for key, value in labels.items()}


def labels_of_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a bookie by the properties of its registration."""
    return {
        name.removeprefix(_PROPERTY): value
        for name, value in properties.items()
        if name.startswith(_PROPERTY)
    }


def labels_of_ledger(custom_metadata: Mapping[str, bytes]) -> dict[str, str]:
    """Return the labels a ledger is confined to.

    Raises:
        ConfigError: they cannot be understood, so that no bookie may be chosen.
    """
    text = custom_metadata.get(CUSTOM_KEY, b"").decode(errors="replace")
    return parse_labels([part for part in text.split(",") if part], f"custom metadata {CUSTOM_KEY}")


def confined_to(
    bookie_ids: Iterable[BookieId],
    wanted: Mapping[str, str],
    labels: Mapping[BookieId, Mapping[str, str]],
) -> frozenset[BookieId]:
    """Return the bookies that carry all the labels wanted."""
    if not wanted:
        return frozenset(bookie_ids)
    items = wanted.items()
    return frozenset(b for b in bookie_ids if items <= labels.get(b, {}).items())
