"""Files in a cluster: names that change in one step, contents byte for byte, nothing left over."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from urllib.parse import quote

import httpx
import pytest

import quorumbook
from doubles.clusters import STORES, local_cluster_here
from quorumbook.admin.access.gate import Gate
from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.files.document import PREFIX
from quorumbook.admin.files.tree import ENTRY_BYTES, INLINE_BYTES, Content, FileTree
from quorumbook.admin.files.webhdfs import WebHdfs
from quorumbook.admin.http.app import App
from quorumbook.admin.http.service import Service, ServiceOptions
from quorumbook.admin.options import AdminOptions
from quorumbook.admin.server import AdminServer
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.errors import MetadataFateUnknownError
from quorumbook.testing import LocalCluster

LARGE = bytes(range(256)) * 40


cluster = local_cluster_here(STORES)


@pytest.fixture
async def client(cluster: LocalCluster):
    async with quorumbook.connect(cluster.metadata_uri) as bk:
        yield bk


@pytest.fixture
def tree(client: BookKeeper) -> FileTree:
    return FileTree(client, (1, 1, 1))


async def in_pieces(data: bytes, piece_bytes: int = 70_000):
    for at in range(0, len(data), piece_bytes):
        yield data[at : at + piece_bytes]


async def write(tree: FileTree, path: str, data: bytes, *, replaces: bool = False) -> None:
    await tree.write(path, in_pieces(data), replaces=replaces)


async def read(tree: FileTree, path: str, first: int = 0, count: int | None = None) -> bytes:
    info = await tree.info(path)
    return b"".join([piece async for piece in tree.read(info, first, count)])


async def ledgers(client: BookKeeper) -> list[int]:
    return [each async for each in client.list_ledger_ids()]


async def names(tree: FileTree, path: str) -> list[str]:
    return [each.name for each in (await tree.listing(path))[0]]


async def nameless(client: BookKeeper) -> list[str]:
    store = client_store(client)
    return await store.children(f"{store.ledgers_root}/files/nameless")


@pytest.mark.parametrize(
    "size",
    [0, 1, INLINE_BYTES, INLINE_BYTES + 1, ENTRY_BYTES, 4 * ENTRY_BYTES, 9 * ENTRY_BYTES + 5],
)
async def test_a_file_comes_back_byte_for_byte_and_in_any_range(tree, client, size):
    data = (LARGE * (size // len(LARGE) + 1))[:size]
    await write(tree, "/a/b c%/é", data)
    info = await tree.info("/a/b c%/é")
    assert info.content.length == size
    assert await names(tree, "/a/b c%") == ["é"]
    assert await read(tree, "/a/b c%/é") == data
    for first, count in (
        (0, 1), (size // 2, 3), (ENTRY_BYTES - 1, 2), (max(size - 1, 0), 9), (size, 1), (3, size),
    ):  # fmt: skip
        assert await read(tree, "/a/b c%/é", first, count) == data[first : first + count]
    assert len(await ledgers(client)) == (size > INLINE_BYTES)


async def test_of_several_at_once_one_has_the_name_and_nothing_is_left_of_the_others(tree, client):
    contents = [bytes([number]) * (INLINE_BYTES + 1) for number in range(6)]
    results = await asyncio.gather(
        *(write(tree, "/new/name", each) for each in contents), return_exceptions=True
    )
    (won,) = [number for number, each in enumerate(results) if each is None]
    assert {type(each) for each in results if each is not None} == {FileExistsError}
    assert await read(tree, "/new/name") == contents[won]
    assert len(await ledgers(client)) == 1
    assert await nameless(client) == []


async def test_of_several_renames_one_has_the_name_and_the_others_keep_theirs(tree, client):
    for number in range(6):
        await write(tree, f"/d/.{number}.tmp", bytes([number]) * (INLINE_BYTES + number))
    results = await asyncio.gather(
        *(tree.rename(f"/d/.{number}.tmp", "/d/0", replaces=False) for number in range(6)),
        return_exceptions=True,
    )
    (won,) = [number for number, each in enumerate(results) if each is None]
    assert {type(each) for each in results if each is not None} == {FileExistsError}
    assert await read(tree, "/d/0") == bytes([won]) * (INLINE_BYTES + won)
    left = [f".{number}.tmp" for number in range(6) if number != won]
    assert await names(tree, "/d") == [*left, "0"]


async def test_a_rename_may_replace_a_file_whose_ledger_goes(tree, client):
    await write(tree, "/d/old", LARGE)
    (old,) = await ledgers(client)
    await write(tree, "/d/new", LARGE[::-1])
    await tree.rename("/d/new", "/d/old", replaces=True)
    assert await read(tree, "/d/old") == LARGE[::-1]
    assert await names(tree, "/d") == ["old"]
    assert old not in await ledgers(client)
    await write(tree, "/d/old", b"small", replaces=True)
    assert (await read(tree, "/d/old"), await ledgers(client)) == (b"small", [])
    assert await nameless(client) == []


async def test_of_several_that_replace_a_file_at_once_nothing_is_left_over(tree, client):
    for number in range(6):
        await write(tree, f"/d/{number}", bytes([number]) * (INLINE_BYTES + 1))
    await asyncio.gather(*(tree.rename(f"/d/{n}", "/d/0", replaces=True) for n in range(1, 6)))
    assert await names(tree, "/d") == ["0"]
    assert len(set(await read(tree, "/d/0"))) == 1
    assert (len(await ledgers(client)), await nameless(client)) == (1, [])


async def test_what_was_replaced_since_it_was_looked_at_is_not_replaced_unseen(tree, client):
    await write(tree, "/d/0", LARGE)
    seen = await tree._check_free("/d/0", replaces=True)  # between two steps of a change
    await write(tree, "/d/0", LARGE[::-1], replaces=True)
    # As above: the second half of that change.
    assert not await tree._put("/d/0", Content("token", 1, b"x"), seen, [])
    assert await read(tree, "/d/0") == LARGE[::-1]


async def test_what_is_not_there_or_of_another_kind_is_refused(tree):
    await write(tree, "/d/file", b"x")
    for wrong, what in (
        (tree.info("/none"), FileNotFoundError),
        (tree.rename("/none", "/d/x", replaces=False), FileNotFoundError),
        (tree.rename("/d/file", "/none/x", replaces=False), FileNotFoundError),
        (tree.rename("/d", "/e", replaces=False), IsADirectoryError),
        (tree.rename("/d/file", "/d", replaces=True), FileExistsError),
        (write(tree, "/d", b"", replaces=True), FileExistsError),
        (write(tree, "/", b"", replaces=True), FileExistsError),
        (write(tree, "/d/file/below", b""), FileExistsError),
        (tree.make_directories("/d/file"), FileExistsError),
        (write(tree, "/d/..", b""), OSError),
        (write(tree, "/d/" + "n" * 256, b""), OSError),
        (write(tree, "/d" * 101, b""), OSError),
    ):
        with pytest.raises(what):
            await wrong
    with pytest.raises(OSError, match="not empty") as caught:
        await tree.delete("/d", recursive=False)
    assert caught.value.errno == errno.ENOTEMPTY
    assert (await names(tree, "/"), await names(tree, "/d")) == (["d"], ["file"])


async def test_a_directory_goes_with_all_that_is_in_it(tree, client):
    for path in ("/d/a", "/d/e/f/b", "/d/e/c", "/kept"):
        await write(tree, path, LARGE)
    assert await tree.delete("/d", recursive=True)
    assert not await tree.delete("/d", recursive=True)
    assert await names(tree, "/") == ["kept"]
    assert len(await ledgers(client)) == 1
    assert await nameless(client) == []


class Killed(BaseException):
    """The server ends here."""


@pytest.mark.parametrize("step", ["create_ledger", "change", "delete"])
async def test_what_a_killed_server_leaves_is_deleted_later(tree, client, monkeypatch, step):
    await write(tree, "/d/kept", LARGE)

    async def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        # A process that ends cleans nothing up.
        patch.setattr(tree, "_forget", killed)
        if step == "create_ledger":
            patch.setattr(tree, "_append", killed)
        if step == "change":
            patch.setattr(tree, "_name", killed)
        with pytest.raises(Killed):
            if step == "delete":
                await tree.delete("/d/kept", recursive=False)
            else:
                await write(tree, "/d/new", LARGE)
    assert len(await nameless(client)) == 1
    assert await tree.sweep() == []  # somebody may be about to name it
    assert len(await tree.sweep(older_than_s=-1)) == 1
    assert await nameless(client) == []
    assert await names(tree, "/d") == ([] if step == "delete" else ["kept"])
    assert len(await ledgers(client)) == (step != "delete")


async def test_a_writer_that_was_given_up_names_nothing(tree, client):
    async def slow():
        yield LARGE * 200
        assert len(await tree.sweep(older_than_s=-1)) == 1
        yield b"more"

    with pytest.raises((OSError, quorumbook.QuorumbookError)):
        await tree.write("/d/new", slow(), replaces=False)
    assert (await ledgers(client), await nameless(client)) == ([], [])
    with contextlib.suppress(FileNotFoundError):
        assert await names(tree, "/d") == []


async def test_a_writer_that_is_being_given_up_names_nothing(tree, client, monkeypatch):
    has_begun, is_given_up = asyncio.Event(), asyncio.Event()
    delete = tree._delete_nameless  # the moment between its decision and what it does

    async def slow():
        yield LARGE * 200
        has_begun.set()
        await is_given_up.wait()

    writing = asyncio.create_task(tree.write("/d/new", slow(), replaces=False))
    await has_begun.wait()

    async def delete_behind_the_writer(ledger_id):
        if not is_given_up.is_set():
            is_given_up.set()
            await asyncio.wait([writing])
        await delete(ledger_id)

    monkeypatch.setattr(tree, "_delete_nameless", delete_behind_the_writer)
    assert len(await tree.sweep(older_than_s=-1)) == 1
    with pytest.raises(OSError, match="again and again"):
        await writing
    assert (await names(tree, "/d"), await ledgers(client)) == ([], [])


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_step_whose_answer_is_lost_is_done_once(tree, client, monkeypatch, is_done):
    store = client_store(client)
    multi, lost = type(store).multi, []

    async def losing(self, operations):
        if not lost:
            lost.append(operations)
            if is_done:
                await multi(self, operations)
            raise MetadataFateUnknownError("the answer is lost")
        return await multi(self, operations)

    monkeypatch.setattr(type(store), "multi", losing)
    await write(tree, "/d/.tmp", LARGE)
    lost.clear()
    await tree.rename("/d/.tmp", "/d/0", replaces=False)
    assert (await names(tree, "/d"), await read(tree, "/d/0")) == (["0"], LARGE)
    lost.clear()
    await tree.delete("/d/0", recursive=False)
    assert await names(tree, "/d") == []
    await tree.sweep(older_than_s=-1)
    assert (await ledgers(client), await nameless(client)) == ([], [])


# Over HTTP ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def webhdfs(cluster: LocalCluster, token_file: str = ""):
    uri = cluster.metadata_uri
    service = Service(
        ServiceOptions(
            metadata_uri=uri, connect=lambda: quorumbook.connect(uri), token_file=token_file,
            quorums=(1, 1, 1),
        )
    )  # fmt: skip
    app = App(service, Gate(service.tokens), [])
    files = WebHdfs(app)
    transport = httpx.ASGITransport(app.starlette(files.routes()), raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url=f"http://127.0.0.1:8085{PREFIX}", timeout=60
    ) as http:
        try:
            yield http, app
        finally:
            await files.close()
            await service.close()


@pytest.fixture
async def http():
    async with LocalCluster(bookies=1) as cluster, webhdfs(cluster) as (client, _):
        yield client


async def put(http: httpx.AsyncClient, path: str, data: bytes, **more: str) -> httpx.Response:
    sent = await http.put(path, params={"op": "CREATE", **more})
    if sent.status_code != 307:
        return sent
    return await http.put(sent.headers["location"], content=data)


def refusal(answer: httpx.Response, status: int) -> str:
    """Return the class of Java's that stands in an answer, and check its form."""
    assert answer.status_code == status, answer.text
    assert "content-type" not in answer.headers
    told = answer.json()["RemoteException"]
    assert told.keys() == {"exception", "javaClassName", "message"}
    assert told["javaClassName"].endswith(f".{told['exception']}")
    return told["exception"]


async def test_files_are_written_read_and_listed_as_hadoop_does(http):
    assert (await http.put("/ck", params={"op": "MKDIRS"})).json() == {"boolean": True}
    assert (await put(http, "/ck/.0.tmp", LARGE)).status_code == 201
    assert refusal(await put(http, "/ck/.0.tmp", b""), 403) == "FileAlreadyExistsException"
    rename = {"op": "RENAME", "destination": "/ck/0", "renameoptions": "NONE"}
    assert (await http.put("/ck/.0.tmp", params=rename)).status_code == 200
    assert refusal(await http.put("/ck/.0.tmp", params=rename), 404) == "FileNotFoundException"
    (await put(http, "/ck/.0.tmp", b"again")).raise_for_status()
    assert refusal(await http.put("/ck/.0.tmp", params=rename), 403) == "FileAlreadyExistsException"
    older = {"op": "RENAME", "destination": "/ck/0"}
    assert (await http.put("/ck/.0.tmp", params=older)).json() == {"boolean": False}
    over = {**rename, "renameoptions": "OVERWRITE"}
    assert (await http.put("/ck/.0.tmp", params=over)).status_code == 200
    answer = await http.get("/ck/0", params={"op": "OPEN", "offset": "1", "length": "3"})
    assert (answer.content, answer.headers["content-length"]) == (b"gai", "3")
    listed = await http.get("/ck", params={"op": "LISTSTATUS"})
    assert "content-type" not in listed.headers
    (row,) = listed.json()["FileStatuses"]["FileStatus"]
    assert (row["pathSuffix"], row["type"], row["length"]) == ("0", "FILE", 5)
    status = (await http.get("/ck", params={"op": "GETFILESTATUS"})).json()["FileStatus"]
    assert (status["pathSuffix"], status["type"]) == ("", "DIRECTORY")
    assert status.keys() == row.keys()
    assert refusal(await http.get("/x", params={"op": "OPEN"}), 404) == "FileNotFoundException"
    assert refusal(await http.get("/ck", params={"op": "OPEN"}), 404) == "FileNotFoundException"
    gone = {"op": "DELETE", "recursive": "false"}
    assert refusal(await http.delete("/ck", params=gone), 403) == "PathIsNotEmptyDirectoryException"
    gone["recursive"] = "true"
    assert (await http.delete("/ck", params=gone)).json() == {"boolean": True}
    assert (await http.get("/", params={"op": "LISTSTATUS"})).json() == {
        "FileStatuses": {"FileStatus": []}
    }


async def test_a_large_directory_is_listed_in_parts(http, monkeypatch):
    names = sorted(["a b?#", "%41", "é", "Z", *map(str, range(8))])
    for name in names:
        (await put(http, f"/d/{quote(name)}", b"x")).raise_for_status()
    monkeypatch.setattr("quorumbook.admin.files.webhdfs._LISTED_MAX", 11)
    monkeypatch.setattr("quorumbook.admin.files.webhdfs._BATCH", 5)
    answer = await http.get("/d", params={"op": "LISTSTATUS"})
    assert refusal(answer, 403) == "IOException"
    told = answer.json()["RemoteException"]["message"]
    assert told.startswith("/d: has 12 names, and a list 11: ask with op=LISTSTATUS_BATCH")
    found: list[str] = []
    counts = []
    while True:
        params = {"op": "LISTSTATUS_BATCH", "startAfter": found[-1] if found else ""}
        listing = (await http.get("/d", params=params)).json()["DirectoryListing"]
        rows = listing["partialListing"]["FileStatuses"]["FileStatus"]
        found += [row["pathSuffix"] for row in rows]
        counts.append((len(rows), listing["remainingEntries"]))
        if not listing["remainingEntries"]:
            break
    assert (found, counts) == (names, [(5, 7), (5, 2), (2, 0)])
    monkeypatch.setattr("quorumbook.admin.files.webhdfs._LISTED_MAX", 12)
    listed = (await http.get("/d", params={"op": "LISTSTATUS"})).json()
    assert [row["pathSuffix"] for row in listed["FileStatuses"]["FileStatus"]] == names


async def test_changes_of_files_are_in_the_audit_log_and_push_out_no_other(monkeypatch, tmp_path):
    monkeypatch.setattr("quorumbook.admin.access.audit._MANY_KEPT", 9)
    path = str(tmp_path / "tokens.json")
    token = TokenFile(path).add("spark", Role.OPERATOR, lifetime_s=None)[0]
    async with LocalCluster(bookies=1) as cluster, webhdfs(cluster, path) as (http, app):
        audit = app.service.audit
        audit.add(None, "1.2.3.4", "DELETE /somebody", "not-authenticated")
        await put(http, "/a", b"1")
        http.headers["Authorization"] = f"Bearer {token}"
        for number in range(20):
            await put(http, f"/d/{number}", b"1")
        gone = {"op": "DELETE"}
        for answer in (
            await put(http, "/a", b"1"),
            await put(http, "/a", b"2"),
            await http.put("/a", params={"op": "RENAME", "destination": "/b"}),
            await http.put("/a", params={"op": "RENAME", "destination": "/b"}),
            await http.get("/b", params={"op": "OPEN"}),
            await http.put("/d/e", params={"op": "MKDIRS"}),
            await http.put("/d/e", params={"op": "APPEND"}),
            await http.delete("/b", params=gone),
            await http.delete("/b", params=gone),
            await http.delete("/d", params=gone),
        ):
            assert answer.status_code < 500
        kept = [(each.who, each.what, each.outcome) for each in audit.recent(100)]
    v1 = "/webhdfs/v1"
    assert kept == [
        ("spark", f"DELETE {v1}/d?op=DELETE", "PathIsNotEmptyDirectoryException"),
        ("spark", f"DELETE {v1}/b?op=DELETE", "not-done"),
        ("spark", f"DELETE {v1}/b?op=DELETE", "done"),
        ("spark", f"PUT {v1}/d/e?op=APPEND", "unknown-parameter"),
        ("spark", f"PUT {v1}/d/e?op=MKDIRS", "done"),
        ("spark", f"PUT {v1}/a?op=RENAME&destination=%2Fb", "not-done"),
        ("spark", f"PUT {v1}/a?op=RENAME&destination=%2Fb", "done"),
        ("spark", f"PUT {v1}/a?op=CREATE&data=true", "FileAlreadyExistsException"),
        ("spark", f"PUT {v1}/a?op=CREATE&data=true", "done"),
        ("-", f"PUT {v1}/a?op=CREATE", "not-authenticated"),
        ("-", "DELETE /somebody", "not-authenticated"),
    ]


async def test_what_webhdfs_has_besides_is_refused(http):
    for answer in (
        await http.get("/x", params={"op": "GETCONTENTSUMMARY"}),
        await http.put("/x", params={"op": "DELETE"}),
        await http.get("/x"),
        await put(http, "/x", b"") and await http.get("/x", params={"op": "OPEN", "offset": "-1"}),
    ):
        assert refusal(answer, 400) == "IOException"
    assert (await http.post("/x", params={"op": "APPEND"})).status_code == 405


async def test_roles_and_namespaces_hold_for_files(tmp_path):
    path = str(tmp_path / "tokens.json")
    tokens = TokenFile(path)
    secrets = {role.word: tokens.add(role.word, role, lifetime_s=None)[0] for role in Role}
    confined = tokens.add("eu", Role.ADMIN, lifetime_s=None, namespaces=("/eu",))[0]
    async with LocalCluster(bookies=1) as cluster, webhdfs(cluster, path) as (http, _):

        def of(secret: str) -> None:
            http.headers["Authorization"] = f"Bearer {secret}"

        stranger = await http.get("/", params={"op": "LISTSTATUS", "user.name": "admin"})
        assert refusal(stranger, 401) == "AccessControlException"
        of(secrets["operator"])
        assert (await put(http, "/a", b"1")).status_code == 201
        of(secrets["viewer"])
        assert (await http.get("/a", params={"op": "OPEN"})).content == b"1"
        for params in ({"op": "MKDIRS"}, {"op": "CREATE"}, {"op": "RENAME", "destination": "/b"}):
            answer = await http.put("/a", params=params)
            assert refusal(answer, 403) == "AccessControlException"
        answer = await http.delete("/a", params={"op": "DELETE"})
        assert refusal(answer, 403) == "AccessControlException"
        of(confined)
        answer = await http.get("/a", params={"op": "OPEN"})
        assert refusal(answer, 403) == "AccessControlException"


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_server_has_files_where_they_are_wanted(is_on):
    async with LocalCluster(bookies=1) as cluster:
        uri = cluster.metadata_uri
        service = Service(ServiceOptions(uri, connect=lambda: quorumbook.connect(uri)))
        server = AdminServer(AdminOptions(port=0, files=is_on), service)
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=server.url + PREFIX) as http:
                answer = await http.get("/", params={"op": "LISTSTATUS"})
                assert answer.status_code == (200 if is_on else 404)
        finally:
            await server.stop()


async def test_hadoop_s_client_gets_a_token_by_oauth(tmp_path):
    path = str(tmp_path / "tokens.json")
    token = TokenFile(path).add("spark", Role.OPERATOR, lifetime_s=None)[0]
    async with LocalCluster(bookies=1) as cluster, webhdfs(cluster, path) as (http, _):
        url = "http://127.0.0.1:8085/webhdfs/token"
        form = {"grant_type": "client_credentials", "client_id": "spark", "client_secret": token}
        told = (await http.post(url, data=form)).json()
        assert (told["access_token"], told["expires_in"] > 0) == (token, True)
        for wrong in ({**form, "client_secret": token[:-1]}, {}):
            assert refusal(await http.post(url, data=wrong), 401) == "AccessControlException"
        assert refusal(await http.post(url, data={"client_secret": "x" * 20_000}), 413) == (
            "IOException"
        )
