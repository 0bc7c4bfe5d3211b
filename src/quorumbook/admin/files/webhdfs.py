"""Files over HTTP as Hadoop's client speaks it (``webhdfs://`` and ``swebhdfs://``), for Spark.

What Spark's checkpoints and their state stores ask for is answered, and nothing else of WebHDFS:

    GET     GETFILESTATUS GETFILELINKSTATUS LISTSTATUS LISTSTATUS_BATCH OPEN GETHOMEDIRECTORY
            GETSERVERDEFAULTS
    PUT     CREATE MKDIRS RENAME
    DELETE  DELETE

Who asks is found out as for the API: tokens, certificates, an identity provider.  Whatever
``user.name`` says counts for nothing.  Looking takes the role viewer, changing operator.  Hadoop's
client sends a token only if it got it by OAuth 2 (the grant ``client_credentials``), so a token of
ours can be had for itself at ``/webhdfs/token``.

A file is sent to an address that the answer to its first request names; here that is this server
again.  A list has at most 10,000 names; of a larger directory LISTSTATUS_BATCH gives 1,000 at a
time.  Each change is in the audit log.

Answers of JSON have no ``Content-Type``: Hadoop 3.5's client, as Spark 4.3 has it, looks for a
class of its parser of media types that its jar lacks, and looks only if there is one.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import parse_qs, quote, urlencode

from starlette.requests import ClientDisconnect
from starlette.requests import Request as WebRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from quorumbook.admin.access.gate import Denial
from quorumbook.admin.access.roles import Role, Who
from quorumbook.admin.files.document import ANSWERED, PREFIX, TOKEN_PATH
from quorumbook.admin.files.tree import FileInfo, FileTree
from quorumbook.admin.files.uploads import Uploads
from quorumbook.admin.http.app import App, gate_request
from quorumbook.admin.http.problems import ApiError, problem_of
from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait

_log = logger("admin.files")
#: A list takes 2 KB a name while it is made.
_LISTED_MAX = 10_000
_BATCH = 1000
_FORM_BYTES = 16 * 1024
#: After so long, the client asks again.
_TOKEN_S = 3600
_SWEEP_S = 3600.0
_BLOCK_BYTES = 128 << 20
_IO = "java.io.IOException"
_NOT_DONE = b'{"boolean": false}'
#: Status and Java's class of Python's errors; the first that fits.
_ERRORS: tuple[tuple[type[OSError], int, str], ...] = (
    (FileNotFoundError, 404, "java.io.FileNotFoundException"),
    (FileExistsError, 403, "org.apache.hadoop.fs.FileAlreadyExistsException"),
    (NotADirectoryError, 403, "org.apache.hadoop.fs.ParentNotDirectoryException"),
    (IsADirectoryError, 403, _IO),
)


class WebHdfs:
    """Serves the files of one cluster.

    Args:
        app: Who is let in, and at which cluster.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._uploads = Uploads()
        self._sweeping: asyncio.Task[None] | None = None

    def routes(self) -> list[BaseRoute]:
        """Return what it answers."""
        path = f"{PREFIX}{{path:path}}"
        return [
            Route(path, self._answer, methods=["GET", "PUT", "DELETE"]),
            Route(TOKEN_PATH, self._answer, methods=["POST"]),
        ]

    async def close(self) -> None:
        """Stop what runs on its own."""
        if self._sweeping is not None:
            await cancel_and_wait([self._sweeping])

    async def _answer(self, request: WebRequest) -> Response:
        who: Who | None = None
        outcome = "done"
        try:
            if request.method == "POST":
                return self._counted(await self._token(request))
            who = self._app.known(request)
            response = await self._response(request, who)
            if getattr(response, "body", b"") == _NOT_DONE:
                outcome = "not-done"
        except ClientDisconnect:
            response, outcome = Response(status_code=400), "broken-off"
        except OSError as error:
            response, outcome = _of_os_error(error)
        except Exception as error:
            response, outcome = _of_error(error)
        # The first half of a creation changes nothing: it says where the file goes.
        if request.method in ("PUT", "DELETE") and response.status_code != 307:
            self._app.note(request, who, outcome, is_one_of_many=True)
        return self._counted(response)

    def _counted(self, response: Response) -> Response:
        self._app.count_answer(response.status_code)
        return response

    async def _response(self, request: WebRequest, who: Who) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        asked = {name.lower(): value for name, value in request.query_params.items()}
        operation = asked.get("op", "").upper()
        self._app.demand(who, Role.VIEWER if method == "GET" else Role.OPERATOR)
        if who.namespaces:
            raise ApiError(403, "namespace", f"{who.name} is confined to streams")
        if operation not in ANSWERED[method]:
            known = ", ".join(ANSWERED[method])
            raise ApiError(400, "unknown-parameter", f"no {operation!r:.40} here; {known} are")
        service = self._app.service
        tree = FileTree(await service.client(), service.options.quorums)
        path = "/" + request.path_params["path"].strip("/")
        if method == "GET":
            return await _look(tree, path, operation, asked)
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(_sweep(tree))
        if operation == "CREATE":
            return await self._create(tree, path, asked, request)
        if operation == "MKDIRS":
            await tree.make_directories(path)
            return _json({"boolean": True})
        if operation == "RENAME":
            return await _rename(tree, path, asked)
        is_deep = asked.get("recursive") == "true"
        return _json({"boolean": await tree.delete(path, recursive=is_deep)})

    async def _token(self, request: WebRequest) -> Response:
        async with self._app.body(request, _FORM_BYTES) as body:
            given = parse_qs(body.decode("latin-1"))
        token = given.get("client_secret", [""])[0]
        asked = gate_request(request)
        asked = replace(asked, headers=[*asked.headers, ("authorization", f"Bearer {token}")])
        who = self._app.gate.judge(asked)
        if isinstance(who, Denial):
            raise ApiError(who.status, who.code, who.detail)
        return _json({"access_token": token, "expires_in": _TOKEN_S})

    async def _create(
        self, tree: FileTree, path: str, asked: Mapping[str, str], request: WebRequest
    ) -> Response:
        if "data" not in asked:
            query = urlencode([*request.query_params.multi_items(), ("data", "true")])
            # Of the request's address, names with ? or % in them would be cut or read twice.
            place = f"{request.headers['host']}{quote(request.scope['path'])}?{query}"
            there = f"{request.url.scheme}://{place}"
            return Response(status_code=307, headers={"Location": there})
        async with self._uploads.place():
            pieces = self._uploads.pieces(request.stream())
            await tree.write(path, pieces, replaces=asked.get("overwrite") == "true")
        return Response(status_code=201)


async def _look(tree: FileTree, path: str, operation: str, asked: Mapping[str, str]) -> Response:
    if operation == "GETHOMEDIRECTORY":
        return _json({"Path": "/"})
    if operation == "GETSERVERDEFAULTS":
        return _json({"FsServerDefaults": _DEFAULTS})
    if operation == "LISTSTATUS":
        found, left = await tree.listing(path, limit=_LISTED_MAX)
        if left:
            raise OSError(
                errno.E2BIG,
                f"has {len(found) + left:,} names, and a list {_LISTED_MAX:,}: ask with "
                "op=LISTSTATUS_BATCH, as FileSystem.listStatusIterator does",
                path,
            )
        return _json({"FileStatuses": {"FileStatus": [_status(info) for info in found]}})
    if operation == "LISTSTATUS_BATCH":
        found, left = await tree.listing(path, after=asked.get("startafter", ""), limit=_BATCH)
        part = {"FileStatuses": {"FileStatus": [_status(info) for info in found]}}
        return _json({"DirectoryListing": {"partialListing": part, "remainingEntries": left}})
    info = await tree.info(path)
    if operation == "OPEN":
        return _opened(tree, path, info, asked)
    return _json({"FileStatus": _status(info)})


async def _rename(tree: FileTree, path: str, asked: Mapping[str, str]) -> Response:
    target = "/" + asked.get("destination", "").strip("/")
    options = asked.get("renameoptions")
    try:
        await tree.rename(path, target, replaces="OVERWRITE" in (options or "").split(","))
    except (FileNotFoundError, FileExistsError):
        if options is not None:
            raise
        return _json({"boolean": False})  # as the older of Hadoop's two renames has it
    return Response() if options is not None else _json({"boolean": True})


def _opened(tree: FileTree, path: str, info: FileInfo, asked: Mapping[str, str]) -> Response:
    if info.content is None:
        raise FileNotFoundError(errno.EISDIR, "is a directory", path)
    length = info.content.length
    first = min(_number(asked, "offset", 0), length)
    count = min(_number(asked, "length", length), length - first)
    # With its length, the client knows an answer that was broken off.
    headers = {"Content-Length": str(count)}
    return StreamingResponse(tree.read(info, first, count), headers=headers)


def _number(asked: Mapping[str, str], name: str, usual: int) -> int:
    text = asked.get(name, str(usual))
    if not text.isdecimal() or len(text) > 19:
        raise ApiError(400, "bad-parameter", f"{name} is not a number of bytes")
    return int(text)


async def _sweep(tree: FileTree) -> None:
    """Delete now and then what crashes have left."""
    while True:
        try:
            found = await tree.sweep()
        except Exception as error:
            _log.warning("ledgers that no file has stay for now: %s", error)
        else:
            if found:
                _log.info("deleted %d ledgers that no file has", len(found))
        await asyncio.sleep(_SWEEP_S)


_DEFAULTS = {
    "blockSize": _BLOCK_BYTES, "bytesPerChecksum": 512, "writePacketSize": 65536,
    "replication": 1, "fileBufferSize": 65536, "encryptDataTransfer": False, "trashInterval": 0,
    "checksumType": 2, "defaultStoragePolicyId": 0, "keyProviderUri": "",
}  # fmt: skip


def _status(info: FileInfo) -> dict[str, object]:
    content = info.content
    return {
        "type": "DIRECTORY" if content is None else "FILE",
        "length": 0 if content is None else content.length,
        "permission": "755" if content is None else "644",
        "pathSuffix": info.name, "modificationTime": info.mtime_ms, "accessTime": 0,
        "fileId": info.file_id, "owner": "quorumbook", "group": "quorumbook", "replication": 1,
        "blockSize": 0 if content is None else _BLOCK_BYTES, "childrenNum": 0, "storagePolicy": 0,
    }  # fmt: skip


def _json(row: Mapping[str, object], status: int = 200) -> Response:
    return Response(json.dumps(row).encode(), status_code=status)


def _of_os_error(error: OSError) -> tuple[Response, str]:
    for kind, status, java in _ERRORS:
        if isinstance(error, kind):
            return _exception(status, java, f"{error.filename}: {error.strerror}"), _short(java)
    java = _IO
    if error.errno == errno.ENOTEMPTY:
        java = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"
    return _exception(403, java, f"{error.filename}: {error.strerror}"), _short(java)


def _of_error(error: Exception) -> tuple[Response, str]:
    problem = problem_of(error)
    if problem is None:
        _log.error("a request for a file failed", exc_info=error)
        response = _exception(500, _IO, "an error of ours; the server's log has its trace")
        return response, "internal"
    is_denied = problem.status in (401, 403)
    java = "org.apache.hadoop.security.AccessControlException" if is_denied else _IO
    return _exception(problem.status, java, problem.detail), problem.code


def _short(java: str) -> str:
    return java.rpartition(".")[2]


def _exception(status: int, java: str, message: str) -> Response:
    row = {"exception": _short(java), "javaClassName": java, "message": message}
    return _json({"RemoteException": row}, status)
