"""Cookies: text as the peer writes it, and what may be concluded from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quorumbook.errors import (
    CookieMismatchError,
    CookieMissingError,
    LocalProtocolError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.metadata import nodes
from quorumbook.metadata.bookies.cookies import Cookie, CookieStore, CookieVerdict, check_cookies
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.store import Create

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "cookies.json").read_text())
UUID = "b0a4c1f6-0000-4000-8000-000000000001"
COOKIES = [
    Cookie("192.0.2.1:3181", ("/data/journal",), ("/data/ledgers",), UUID),
    Cookie("bookie-0.example.com:3181", ("/j1", "/j2"), ("/l1", "/l2"), UUID, ("/i1", "/i2")),
    Cookie("custom_id", ("/j",), ("/l",)),
    Cookie("192.0.2.1:3181", ("/j",), ("/l",)),
]
COOKIE = COOKIES[0]
JOURNAL, LEDGERS = "/data/journal", "/data/ledgers"


@pytest.mark.parametrize(
    ("cookie", "vector"),
    list(zip(COOKIES, GOLDEN["cookies"], strict=False)),
    ids=lambda value: None,
)
def test_r25_the_cookies_text_is_the_peers(cookie, vector):
    data = bytes.fromhex(vector["hex"])
    assert data == vector["utf8"].encode()
    assert cookie.encode() == data
    assert Cookie.decode(data) == cookie


def test_the_peers_unreadable_cookie_is_refused():
    # Version 5 over three plain lines: the peer writes it and cannot read it.
    assert "java_parse_back" in GOLDEN["cookies"][4]
    with pytest.raises(MetadataFormatError, match="cannot be understood"):
        Cookie.decode(GOLDEN["cookies"][4]["utf8"].encode())


@pytest.mark.parametrize("vector", GOLDEN["older_layouts_read"], ids=["plain", "text", "line"])
def test_older_cookies_are_read_and_written_as_version_5(vector):
    cookie = Cookie.decode(vector["utf8"].encode())
    assert cookie.bookie_id == "192.0.2.1:3181"
    assert (cookie.journal_directories, cookie.ledger_directories) == (("/j",), ("/l",))
    text = cookie.encode().decode()
    if cookie.layout_version == 3:
        assert text == GOLDEN["cookies"][3]["utf8"]
    else:
        assert text == vector["reserialized_by_java"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "5\n",
        "x\n",
        '6\nbookieHost: "a"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\n',
        "2\na\n/j\n1\t/l\n",
        "3\na\n/j\n",
        '5\nbookieHost: "a"\njournalDir: "/j"\n',
        '5\nbookieHost: "a"\njournalDir: "/j"\nledgerDirs: "2\\t/l"\n',
        '5\nbookieHost: "a"\njournalDir: "/j"\nledgerDirs: "/l"\n',
        '5\nbookieHost: "a"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\nunknown: 1\n',
        '5\nbookieHost: "a',
    ],
)
def test_a_damaged_cookie_is_a_typed_error(text):
    with pytest.raises(MetadataFormatError):
        Cookie.decode(text.encode())


def test_a_cookie_that_is_no_text_is_a_typed_error():
    with pytest.raises(MetadataFormatError):
        Cookie.decode(b"5\n\xff\xfe")


def test_directories_may_have_any_names():
    cookie = Cookie("b:1", ('/a "b"',), ("/ä\\n", "/t\tb".replace("\t", " ")), UUID)
    assert Cookie.decode(cookie.encode()) == cookie
    assert cookie.encode().isascii()


# What is the same


@pytest.mark.parametrize(
    "other",
    [
        COOKIE,
        replace(COOKIE, index_directories=("/data/ledgers",)),
        replace(COOKIE, layout_version=4),
        replace(COOKIE, layout_version=3, instance_id=None),
    ],
)
def test_s79_cookies_that_mean_the_same_do_not_differ(other):
    assert COOKIE.difference(other) is None
    assert other.difference(COOKIE) is None


def test_s79_the_order_of_ledger_and_index_directories_means_nothing():
    cookie = COOKIES[1]
    turned = replace(cookie, ledger_directories=("/l2", "/l1"), index_directories=("/i2", "/i1"))
    assert cookie.difference(turned) is None


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(COOKIE, bookie_id="192.0.2.1:31810"), "bookie id"),
        (replace(COOKIE, bookie_id="custom_id"), "bookie id"),
        (replace(COOKIE, journal_directories=("/data/journal2",)), "journal directories"),
        (replace(COOKIE, journal_directories=("/data/journal", "/j2")), "journal directories"),
        (replace(COOKIE, ledger_directories=("/data/ledger",)), "ledger directories"),
        (replace(COOKIE, ledger_directories=("/data/ledgers", "/l2")), "ledger directories"),
        (replace(COOKIE, ledger_directories=()), "ledger directories"),
        (replace(COOKIE, index_directories=("/data/index",)), "index directories"),
        (replace(COOKIE, instance_id=UUID[:-1] + "2"), "cluster"),
        (replace(COOKIE, instance_id=None), "cluster"),
    ],
)
def test_s79_cookies_that_mean_something_else_differ(other, says):
    assert says in COOKIE.difference(other)
    assert says in other.difference(COOKIE)


def test_s79_the_order_of_journal_directories_counts():
    cookie = COOKIES[1]
    turned = replace(cookie, journal_directories=("/j2", "/j1"))
    assert "journal" in cookie.difference(turned)


# What a bookie does (R25)


def test_r25_a_bookie_that_nothing_knows_is_new():
    stored = {JOURNAL: None, LEDGERS: None}
    assert check_cookies(COOKIE, None, stored, is_empty=True) is CookieVerdict.NEW


def test_r25_data_without_any_cookie_is_refused():
    stored = {JOURNAL: None, LEDGERS: None}
    with pytest.raises(CookieMissingError, match="hold data but no cookie"):
        check_cookies(COOKIE, None, stored, is_empty=False)


@pytest.mark.parametrize("ledgers", [None, COOKIE])
@pytest.mark.parametrize("is_empty", [False, True])
def test_r25_s78_cookies_on_disk_that_the_store_does_not_know_are_refused(ledgers, is_empty):
    stored = {JOURNAL: COOKIE, LEDGERS: ledgers}
    with pytest.raises(CookieMissingError, match="another cluster, or the cookie was deleted"):
        check_cookies(COOKIE, None, stored, is_empty=is_empty)


def test_r25_a_bookie_whose_cookies_all_agree_starts():
    stored = {JOURNAL: COOKIE, LEDGERS: COOKIE}
    for is_empty in (False, True):
        verdict = check_cookies(COOKIE, COOKIE, stored, is_empty=is_empty)
        assert verdict is CookieVerdict.KNOWN


@pytest.mark.parametrize(
    ("stored", "missing"),
    [
        ({JOURNAL: None, LEDGERS: COOKIE}, JOURNAL),
        ({JOURNAL: COOKIE, LEDGERS: None}, LEDGERS),
        ({JOURNAL: None, LEDGERS: None}, f"{JOURNAL}, {LEDGERS}"),
    ],
)
@pytest.mark.parametrize("is_empty", [False, True])
def test_r25_s78_an_empty_directory_of_a_known_bookie_is_refused(stored, missing, is_empty):
    with pytest.raises(CookieMissingError, match="known to the cluster") as caught:
        check_cookies(COOKIE, COOKIE, stored, is_empty=is_empty)
    assert missing in str(caught.value)


def test_r25_a_cookie_that_differs_is_refused_wherever_it_is():
    other = replace(COOKIE, instance_id="another")
    with pytest.raises(CookieMismatchError, match=LEDGERS):
        check_cookies(COOKIE, COOKIE, {JOURNAL: COOKIE, LEDGERS: other}, is_empty=False)
    with pytest.raises(CookieMismatchError, match="metadata store"):
        check_cookies(COOKIE, other, {JOURNAL: COOKIE, LEDGERS: COOKIE}, is_empty=False)
    with pytest.raises(CookieMismatchError):
        check_cookies(COOKIE, None, {JOURNAL: other, LEDGERS: None}, is_empty=False)
    with pytest.raises(CookieMismatchError):
        check_cookies(COOKIE, other, {JOURNAL: None, LEDGERS: None}, is_empty=True)


@pytest.mark.parametrize(
    ("other", "option"),
    [
        (replace(COOKIE, bookie_id="a b:1"), "with --set 'bookie.bookie_id=a b:1' starts"),
        (
            replace(COOKIE, journal_directories=("/j1", "/j2")),
            "with --set storage.journal_directories=/j1,/j2 starts",
        ),
        (
            replace(COOKIE, ledger_directories=("/l1", "/l2")),
            "with --set storage.ledger_directories=/l1,/l2 starts",
        ),
        (
            replace(COOKIE, index_directories=("/i",)),
            "with --set storage.index_directories=/i starts",
        ),
        (replace(COOKIE, instance_id="another"), "with the --metadata URI of cluster another s"),
    ],
)
def test_r25_a_cookie_that_differs_is_refused_with_the_options_it_was_made_with(other, option):
    with pytest.raises(CookieMismatchError) as caught:
        check_cookies(COOKIE, other, {JOURNAL: COOKIE, LEDGERS: COOKIE}, is_empty=False)
    assert option in str(caught.value)


# In the store


@pytest.fixture
async def cookies(store):
    await init_cluster(store)
    return CookieStore(store)


async def test_s78_a_bookie_without_a_cookie_positively_has_none(cookies):
    assert await cookies.read("192.0.2.1:3181") is None
    assert await cookies.list() == []


async def test_r25_a_new_cookie_never_replaces_another(cookies, store):
    assert await cookies.write(COOKIE) == 0
    with pytest.raises(NodeExistsError, match=COOKIE.bookie_id):
        await cookies.write(replace(COOKIE, journal_directories=("/other",)))
    assert (await cookies.read(COOKIE.bookie_id))[0] == COOKIE
    node = await store.get(f"/ledgers/cookies/{COOKIE.bookie_id}")
    assert node.data == COOKIE.encode()
    assert not node.is_ephemeral
    assert node.version == 0


async def test_a_first_cookie_whose_answer_was_lost_is_the_bookies_own(cookies, store, monkeypatch):
    monkeypatch.setattr(nodes, "_RETRY_S", 0.0)

    def lose_one(theirs=None):
        async def lose(operations):
            monkeypatch.setattr(store, "multi", multi)
            await multi(operations if theirs is None else [Create(operations[0].path, theirs)])
            raise MetadataUnavailableError("nobody answers")

        monkeypatch.setattr(store, "multi", lose)

    async def create(path, data=b"", **_):
        await store.multi([Create(path, data)])

    multi = store.multi
    await store.create("/ledgers/cookies")
    monkeypatch.setattr(store, "create", create)
    lose_one()
    assert await cookies.write(COOKIE) == 0
    assert (await cookies.read(COOKIE.bookie_id))[0] == COOKIE
    await cookies.delete(COOKIE.bookie_id)
    lose_one(replace(COOKIE, journal_directories=("/other",)).encode())
    with pytest.raises(NodeExistsError, match=COOKIE.bookie_id):
        await cookies.write(COOKIE)


async def test_a_cookie_is_changed_by_version(cookies):
    await cookies.write(COOKIE)
    _, first = await cookies.read(COOKIE.bookie_id)
    changed = replace(COOKIE, journal_directories=("/other",))
    assert await cookies.write(changed, first) == 1
    with pytest.raises(MetadataVersionConflict):
        await cookies.write(COOKIE, first)
    assert await cookies.read(COOKIE.bookie_id) == (changed, first.next)
    assert first.next.version == 1


async def test_a_deleted_cookie_is_gone(cookies):
    await cookies.write(COOKIE)
    await cookies.write(COOKIES[2])
    assert await cookies.list() == sorted([COOKIE.bookie_id, "custom_id"])
    await cookies.delete(COOKIE.bookie_id)
    assert await cookies.read(COOKIE.bookie_id) is None
    with pytest.raises(NoSuchNodeError):
        await cookies.delete(COOKIE.bookie_id)


async def test_a_damaged_cookie_in_the_store_is_not_taken_for_none(cookies, store):
    await cookies.write(COOKIE)
    await store.set(f"/ledgers/cookies/{COOKIE.bookie_id}", b"")
    with pytest.raises(MetadataFormatError):
        await cookies.read(COOKIE.bookie_id)


async def test_a_cookie_of_a_bad_bookie_id_is_refused(cookies):
    with pytest.raises(LocalProtocolError):
        await cookies.read("a/b")
