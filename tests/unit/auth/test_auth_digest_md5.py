"""DIGEST-MD5: the example of RFC 2831, and what each side refuses of the other."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumbook.auth.digest_md5 import DigestMd5Client, DigestMd5Server
from quorumbook.errors import SecurityError

# RFC 2831, section 4.
SERVICE = "imap/elwood.innosoft.com"
REALM = "elwood.innosoft.com"
CHALLENGE = (
    b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",'
    b"algorithm=md5-sess,charset=utf-8"
)
RESPONSE = "d388dad90d4bbd760a152321f2143af7"
RSPAUTH = b"rspauth=ea40f60335c427b5527b84dbabcdfffd"


@pytest.fixture
def exchange():
    return DigestMd5Client("chris", "secret", SERVICE, "OA6MHXh6VqTrRk")


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
    with pytest.raises(SecurityError, match="does not prove"):
        exchange.verify(last)


def test_a_proof_before_the_challenge_is_refused(exchange):
    with pytest.raises(SecurityError, match="does not prove"):
        exchange.verify(b"rspauth=")


def test_what_was_recorded_of_a_server_proves_nothing_to_the_next_exchange(exchange):
    exchange.respond(CHALLENGE)
    exchange.verify(RSPAUTH)
    later = DigestMd5Client("chris", "secret", SERVICE, "another")
    later.respond(CHALLENGE)
    with pytest.raises(SecurityError, match="does not prove"):
        later.verify(RSPAUTH)


@pytest.mark.parametrize(
    ("challenge", "says"),
    [
        (b"", "not valid DIGEST-MD5"),
        (b"\xff\xfe", "not valid DIGEST-MD5"),
        (b'nonce="a"', "not valid DIGEST-MD5"),
        (b"algorithm=md5-sess", "not valid DIGEST-MD5"),
        (b'nonce="a",nonce="b",algorithm=md5-sess', "not valid DIGEST-MD5"),
        (b'nonce="a,algorithm=md5-sess', "not valid DIGEST-MD5"),
        (b'nonce="a",algorithm=md5', "not valid DIGEST-MD5"),
        (b'nonce="' + b"a" * 3000 + b'",algorithm=md5-sess', "not valid DIGEST-MD5"),
        (b'nonce="a",algorithm=md5-sess,qop="auth-int,auth-conf"', "more than authentication"),
    ],
)
def test_a_challenge_that_cannot_be_answered_is_refused(exchange, challenge, says):
    with pytest.raises(SecurityError, match=says):
        exchange.respond(challenge)


def test_quotes_and_backslashes_in_a_name_are_escaped():
    exchange = DigestMd5Client('a"b\\c', "x", SERVICE, "n")
    answer = exchange.respond(b'nonce="o\\"o", algorithm=md5-sess')
    assert answer.startswith(rb'username="a\"b\\c",realm="",nonce="o\"o",')
    assert b"charset" not in answer


def test_letters_beyond_latin_1_need_a_server_with_utf_8():
    with pytest.raises(SecurityError, match="no such letters") as caught:
        DigestMd5Client("me", "p€ss", SERVICE, "n").respond(b'nonce="o",algorithm=md5-sess')
    assert "€" not in str(caught.value)
    DigestMd5Client("me", "p€ss", SERVICE, "n").respond(
        b'nonce="o",algorithm=md5-sess,charset=utf-8'
    )


def server(**passwords: str) -> DigestMd5Server:
    return DigestMd5Server(SERVICE, REALM, "OA6MG9tEQGm2hh", passwords.get)


def test_a_server_takes_the_example_of_the_rfc_and_proves_what_it_says(exchange):
    assert server().challenge() == CHALLENGE.replace(
        b"algorithm=md5-sess,charset=utf-8", b"charset=utf-8,algorithm=md5-sess"
    )
    assert server(chris="secret").verify(exchange.respond(CHALLENGE)) == ("chris", RSPAUTH)


LETTERS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@given(LETTERS, LETTERS)
def test_both_sides_take_each_other_whatever_the_letters(user, password):
    client = DigestMd5Client(user, password, SERVICE, "c")
    one = server(**{user: password})
    name, proof = one.verify(client.respond(one.challenge()))
    assert name == user
    client.verify(proof)


def response(**changes: str | None) -> bytes:
    """Return a client's answer with words changed or left out; its proof stays as it was."""
    client = DigestMd5Client("chris", "secret", SERVICE, "OA6MHXh6VqTrRk")
    text = client.respond(CHALLENGE).decode()
    for name, value in changes.items():
        word = re.compile(rf"(^|,){name.replace('_', '-')}=(\"[^\"]*\"|[^,]*)")
        assert word.search(text)
        text = word.sub("" if value is None else rf"\1{name.replace('_', '-')}={value}", text)
    return text.encode()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nonce": '"OA6MG9tEQGm2hi"'}, "another nonce"),
        ({"realm": '"elsewhere"'}, "another realm"),
        ({"realm": None}, "another realm"),
        ({"nc": "00000002"}, "another nc"),
        ({"nc": None}, "another nc"),
        ({"qop": "auth-int"}, "another qop"),
        ({"digest_uri": '"imap/another"'}, "another digest-uri"),
        ({"charset": None}, "not valid DIGEST-MD5"),
        ({"username": None}, "not valid DIGEST-MD5"),
        ({"cnonce": None}, "not valid DIGEST-MD5"),
        ({"username": '"root"'}, "wrong name or password"),
        ({"cnonce": '"another"'}, "wrong name or password"),
        ({"response": RESPONSE[:-1] + "8"}, "wrong name or password"),
        ({"response": None}, "wrong name or password"),
        ({"charset": 'utf-8,authzid="root"'}, "another name than its own"),
        ({"charset": 'utf-8,authzid="chris"'}, "wrong name or password"),
        ({"charset": 'utf-8,nonce="OA6MG9tEQGm2hh"'}, "not valid DIGEST-MD5"),
        ({"charset": "utf-8,x=" + "x" * 4096}, "not valid DIGEST-MD5"),
    ],
)
def test_an_answer_that_proves_nothing_is_refused(changes, says):
    with pytest.raises(SecurityError, match=says) as caught:
        server(chris="secret", root="secret").verify(response(**changes))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("payload", [b"", b"\xff", b"=", b",,,,", b'username="', b'"' * 4000])
def test_what_is_no_answer_is_refused(payload):
    with pytest.raises(SecurityError, match="not valid DIGEST-MD5"):
        server(chris="secret").verify(payload)


@pytest.mark.parametrize("user", ["chris", "nobody"])
def test_an_unknown_user_is_told_what_a_wrong_password_is(user):
    client = DigestMd5Client(user, "wrong", SERVICE, "c")
    with pytest.raises(SecurityError, match=r"^wrong name or password$"):
        server(chris="secret").verify(client.respond(CHALLENGE))


@pytest.mark.parametrize("password", ["", "secret"])
def test_nobody_comes_in_who_has_no_password(password):
    client = DigestMd5Client("nobody", password, SERVICE, "c")
    with pytest.raises(SecurityError, match=r"^wrong name or password$"):
        server(chris="secret").verify(client.respond(CHALLENGE))


def test_what_was_recorded_of_a_client_proves_nothing_to_the_next_exchange(exchange):
    recorded = exchange.respond(CHALLENGE)
    later = DigestMd5Server(SERVICE, REALM, "another", {"chris": "secret"}.get)
    with pytest.raises(SecurityError, match="another nonce"):
        later.verify(recorded)
