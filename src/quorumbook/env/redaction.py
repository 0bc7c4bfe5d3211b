"""Text without the secrets in it, for people who send it on: JSON, settings, lines of a log.

A value whose name says that it is a secret is hidden to the end of its line, since nobody can
tell where a password ends.  So are logins in addresses, bearer tokens and private keys.  It is a
net, not a proof: what is handed out should not have read secrets to begin with.
"""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qsl, urlencode

from quorumbook.env.shown import HIDDEN

_WORD = (
    r"secret|passw|pwd|passphrase|token|credential|authorization|cookie|verifier|salt|jaas"
    r"|auth[_.\-]?settings|(?:access|api|private|master|stored|server|client|ledger)[_.\- ]?key"
    r"(?![a-z])"
)
_NAMES = re.compile(_WORD, re.IGNORECASE)
#: A name of a file that holds a secret is none.
_FILE = re.compile(r"(?:file|files|path|dir|count|bytes|location)$", re.IGNORECASE)
#: Names of loggers are no names of values.
_PAIR = re.compile(
    rf"""(?<![\w.\-])(?!quorumbook\.[\w.]*:)(["']?(?P<name>[\w.\-]*(?:{_WORD})[\w.\-]*)"""
    r"""["']?[ \t]*(?:=|:(?!//))[ \t]*)"""
    r"""(?P<value>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[^\s"'][^\n]*)""",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"(?<=://)[^\s/@]+(?:/[^\s/@]*)?@")
_BEARER = re.compile(
    r"\bqb_[\w-]{20,}|\b(?:bearer|basic)\s+[\w+/=.~-]{8,}|\beyJ[\w-]+\.[\w-]+\.[\w-]*"
    r"|\b(?:digest|x509):\S+",
    re.IGNORECASE,
)
_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Tell whether a value of this name may not be shown."""
    return _NAMES.search(name) is not None and _FILE.search(name) is None


def redacted(text: str) -> str:
    """Return a text with ``***`` in the place of secrets; JSON stays JSON."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            hidden = redacted_value(value)
            return text if hidden == value else json.dumps(hidden, ensure_ascii=False)
    text = _KEY.sub(HIDDEN, text)
    text = _PAIR.sub(_hide, text)
    return _BEARER.sub(HIDDEN, _LOGIN.sub(f"{HIDDEN}@", text))


def redacted_query(query: str) -> str:
    """Return ``?a=1&password=***`` for the query of an address; names are read as servers do.

    One without secrets stays as it was written.
    """
    query = query.removeprefix("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    shown = [
        (redacted(name), HIDDEN if value and is_secret_name(name) else redacted(value))
        for name, value in pairs
    ]
    if shown == pairs:
        return f"?{query}" if query else ""
    return f"?{urlencode(shown, safe='*/:')}" if shown else ""


def redacted_value(value: object) -> object:
    """Return what JSON holds with ``***`` in the place of secrets."""
    if isinstance(value, dict):
        return {
            name: HIDDEN
            if is_secret_name(str(name)) and each not in (None, "", False, True)
            else redacted_value(each)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [redacted_value(each) for each in value]
    return redacted(value) if isinstance(value, str) else value


def _hide(found: re.Match[str]) -> str:
    if not is_secret_name(found["name"]):
        return found[0]
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    return f"{found[1]}{quote}{HIDDEN}{quote}"
