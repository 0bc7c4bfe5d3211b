"""DIGEST-MD5: the example of RFC 2831, and what is refused of a server."""

from __future__ import annotations

import re

import pytest

from quorumbook.errors import MetadataUnauthorizedError
from quorumbook.metadata.zookeeper import sasl
from quorumbook.metadata.zookeeper.sasl import DigestMd5

# RFC 2831, section 4.
CHALLENGE = (
    b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",'
    b"algorithm=md5-sess,charset=utf-8"
)
RESPONSE = "d388dad90d4bbd760a152321f2143af7"
RSPAUTH = b"rspauth=ea40f60335c427b5527b84dbabcdfffd"


@pytest.fixture
def exchange(monkeypatch):
    monkeypatch.setattr(sasl, "_DIGEST_URI", "imap/elwood.innosoft.com")
    return DigestMd5("chris", "secret", "OA6MHXh6VqTrRk")


def test_the_example_of_the_rfc_is_answered_as_it_says(exchange):
    answer = exchange.respond(CHALLENGE).decode()
    assert dict(re.findall(r'([\w-]+)=(?:"(?=[^,]*"))?([^",]+)', answer)) == {
        "username": "chris", "realm": "elwood.innosoft.com", "nonce": "OA6MG9tEQGm2hh",
        "cnonce": "OA6MHXh6VqTrRk", "nc": "00000001", "qop": "auth",
        "digest-uri": "imap/elwood.innosoft.com", "response": RESPONSE, "charset": "utf-8",
    }  # fmt: skip
    exchange.verify(RSPAUTH)


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b"rspauth=",
        b"rspauth=" + RESPONSE.encode(),
        RSPAUTH[:-1] + b"c",
        RSPAUTH + b"," + RSPAUTH,
        CHALLENGE,
        b"rspauth=\xff",
    ],
)
def test_a_server_that_does_not_prove_that_it_knows_the_password_is_refused(exchange, last):
    exchange.respond(CHALLENGE)
    with pytest.raises(MetadataUnauthorizedError, match="does not prove"):
        exchange.verify(last)


def test_a_proof_before_the_challenge_is_refused(exchange):
    with pytest.raises(MetadataUnauthorizedError, match="does not prove"):
        exchange.verify(b"rspauth=")


def test_what_was_recorded_of_a_server_proves_nothing_to_the_next_exchange(exchange):
    exchange.respond(CHALLENGE)
    exchange.verify(RSPAUTH)
    later = DigestMd5("chris", "secret", "another")
    later.respond(CHALLENGE)
    with pytest.raises(MetadataUnauthorizedError, match="does not prove"):
        later.verify(RSPAUTH)


@pytest.mark.parametrize(
    ("challenge", "says"),
    [
        (b"", "none of DIGEST-MD5"),
        (b"\xff\xfe", "none of DIGEST-MD5"),
        (b'nonce="a"', "none of DIGEST-MD5"),
        (b"algorithm=md5-sess", "none of DIGEST-MD5"),
        (b'nonce="a",nonce="b",algorithm=md5-sess', "none of DIGEST-MD5"),
        (b'nonce="a,algorithm=md5-sess', "none of DIGEST-MD5"),
        (b'nonce="a",algorithm=md5', "none of DIGEST-MD5"),
        (b'nonce="' + b"a" * 3000 + b'",algorithm=md5-sess', "none of DIGEST-MD5"),
        (b'nonce="a",algorithm=md5-sess,qop="auth-int,auth-conf"', "more than authentication"),
    ],
)
def test_a_challenge_that_cannot_be_answered_is_refused(exchange, challenge, says):
    with pytest.raises(MetadataUnauthorizedError, match=says):
        exchange.respond(challenge)


def test_quotes_and_backslashes_in_a_name_are_escaped():
    exchange = DigestMd5('a"b\\c', "x", "n")
    answer = exchange.respond(b'nonce="o\\"o", algorithm=md5-sess')
    assert answer.startswith(rb'username="a\"b\\c",realm="",nonce="o\"o",')
    assert b"charset" not in answer


def test_letters_beyond_latin_1_need_a_server_with_utf_8():
    with pytest.raises(MetadataUnauthorizedError, match="no such letters") as caught:
        DigestMd5("me", "p€ss", "n").respond(b'nonce="o",algorithm=md5-sess')
    assert "€" not in str(caught.value)
    DigestMd5("me", "p€ss", "n").respond(b'nonce="o",algorithm=md5-sess,charset=utf-8')
