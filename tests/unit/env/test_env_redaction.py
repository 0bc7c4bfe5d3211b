"""No canary gets through; what is not a secret stays readable."""

from __future__ import annotations

import json

import pytest

from quorumbook.env.redaction import redacted, redacted_query

C = "c4nary"


@pytest.mark.parametrize(
    "text",
    [
        f"password={C}",
        f"ledger.password: {C}, and more of it {C}",
        f'client.auth_settings: user "a" password "{C}"',
        f"tls.key_password = '{C} {C}'",
        f"http.token={C},{C}",
        f'{{"masterKey": "{C}", "name": "x"}}',
        f'{{"a": [{{"scram": {{"salt": "{C}", "stored_key": "{C}", "serverKey": "{C}"}}}}]}}',
        f"salt={C}=,stored_key={C}=,server_key={C}=,iterations=4096",
        f'ERROR x: refused {{"password": "{C}"}} of somebody',
        f"zk://me:{C}@zk1:2181/ledgers",
        f"zk://me:{C}/{C}@zk1:2181/ledgers",
        f"Authorization: Bearer {C}{C}",
        f"curl -H 'Authorization: Bearer {C}{C}' http://x/",
        f"a token qb_{C}{C}{C}{C} in a line",
        f"-----BEGIN RSA PRIVATE KEY-----\n{C}\n{C}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{C}",
        f"digest:somebody:{C}=",
        f"sasl.jaas.config=Module required username=a password={C};",
        f"QUORUMBOOK_SOME_SECRET={C}",
        f"aws_access_key_id: {C}",
        f"Set-Cookie: quorumbook_session_1={C}; Path=/",
        json.dumps({"url": f"http://a:{C}@b/", "pairs": [f"password={C}"]}),
    ],
)
def test_no_secret_gets_through(text):
    assert C not in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain text, with a password in mind",
        '{"ledger": 7, "has_password": true, "digest": "crc32c", "monkey": 3}',
        "http.token_file=/etc/quorumbook/tokens.json",
        "tls.key_password_file: /run/secrets/x",
        "zk+long://zk1:2181,zk2:2181/ledgers?session_timeout_s=10",
        "2026-11-25 INFO quorumbook.admin.access.tokens: 3 were read",
        "key=value",
        "[7, 8]",
        "{not json",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redacted(text) == text


def test_json_stays_json_and_keeps_its_other_fields():
    found = json.loads(redacted('{"password": "x", "n": [1, {"tokens": "y", "deep": null}]}'))
    assert found == {"password": "***", "n": [1, {"tokens": "***", "deep": None}]}


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ""),
        ("?", ""),
        ("read_only=true&reason=a%0ab%20c", "?read_only=true&reason=a%0ab%20c"),
        ("?a=1&password=x&b", "?a=1&password=***&b="),
        ("pass%77ord=x", "?password=***"),
        (f"qb_{C * 4}", "?***="),
        (f"next=http%3a%2f%2fu%3A{C}%40h%2F", "?next=http://***%40h/"),
    ],
)
def test_a_query_stays_as_written_unless_it_has_secrets(query, shown):
    assert redacted_query(query) == shown
