"""Files over HTTP as Hadoop's client speaks it (``webhdfs://`` and ``swebhdfs://``), for Spark.

What Spark's checkpoints and their state stores ask for is answered, and nothing else of WebHDFS:

    GET     GETFILESTATUS GETFILELINKSTATUS LISTSTATUS OPEN GETHOMEDIRECTORY GETSERVERDEFAULTS
    PUT     CREATE MKDIRS RENAME
    DELETE  DELETE

Who asks is found out as for the API: tokens, certificates, an identity provider.  Whatever
``user.name`` says counts for nothing.  Looking takes the role viewer, changing operator.  Hadoop's
client sends a token only if it got it by OAuth 2 (the grant ``client_credentials``), so a token of
ours can be had for itself at ``/webhdfs/token``.

A file is sent to an address that the answer to its first request names; here that is this server
again.  Answers of JSON have no ``Content-Type``: Hadoop 3.5's client, as Spark 4.3 has it, looks
for a class of its parser of media types that its jar lacks, and looks only if there is one.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect
from starlette.requests import Request as WebRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from quorumbook.admin.access.gate import Denial
from quorumbook.admin.access.roles import Role
from quorumbook.admin.files.tree import FileInfo, FileTree
from quorumbook.admin.http.app import App, gate_request
from quorumbook.admin.http.problems import ApiError, problem_of
from quorumbook.env import logger, patience
from quorumbook.env.tasks import cancel_and_wait

PREFIX = "/webhdfs/v1"
_TOKEN_PATH = "/webhdfs/token"  # noqa: S105 - a path
_log = logger("admin.files")
#: Each holds some MiB of what it writes.
_UPLOADS_AT_ONCE = 16
_PIECE_S = 30.0
_FORM_BYTES = 16 * 1024
#: After so long, the client asks again.
_TOKEN_S = 3600
_SWEEP_S = 3600.0
_BLOCK_BYTES = 128 << 20
_IO = "java.io.IOException"
#: Status and Java's class of Python's errors; the first that fits.
_ERRORS: tuple[tuple[type[OSError], int, str], ...] = (
    (FileNotFoundError, 404, "java.io.FileNotFoundException"),
    (FileExistsError, 403, "org.apache.hadoop.fs.FileAlreadyExistsException"),
    (NotADirectoryError, 403, "org.apache.hadoop.fs.ParentNotDirectoryException"),
    (IsADirectoryError, 403, _IO),
)
_OPERATIONS = {
    "GET": ("GETFILESTATUS", "GETFILELINKSTATUS", "LISTSTATUS", "OPEN", "GETHOMEDIRECTORY",
            "GETSERVERDEFAULTS"),
    "PUT": ("CREATE", "MKDIRS", "RENAME"),
    "DELETE": ("DELETE",),
}  # fmt: skip


class WebHdfs:
    """Serves the files of one cluster.

    Args:
        app: Who is let in, and at which cluster.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._uploads = asyncio.Semaphore(_UPLOADS_AT_ONCE)
        self._sweeping: asyncio.Task[None] | None = None

    def routes(self) -> list[BaseRoute]:
        """Return what it answers."""
        path = f"{PREFIX}{{path:path}}"
        return [
            Route(path, self._answer, methods=["GET", "PUT", "DELETE"]),
            Route(_TOKEN_PATH, self._answer, methods=["POST"]),
        ]

    async def close(self) -> None:
        """Stop what runs on its own."""
        if self._sweeping is not None:
            await cancel_and_wait([self._sweeping])

    async def _answer(self, request: WebRequest) -> Response:
        try:
            response = await self._response(request)
        except ClientDisconnect:
            response = Response(status_code=400)
        except OSError as error:
            response = _of_os_error(error)
        except Exception as error:
            response = _of_error(error)
        self._app.count_answer(response.status_code)
        return response

    async def _response(self, request: WebRequest) -> Response:
        if request.method == "POST":
            return await self._token(request)
        method = "GET" if request.method == "HEAD" else request.method
        asked = {name.lower(): value for name, value in request.query_params.items()}
        operation = asked.get("op", "").upper()
        who = self._app.known(request)
        self._app.demand(who, Role.VIEWER if method == "GET" else Role.OPERATOR)
        if who.namespaces:
            raise ApiError(403, "namespace", f"{who.name} is confined to streams")
        if operation not in _OPERATIONS[method]:
            known = ", ".join(_OPERATIONS[method])
            raise ApiError(400, "unknown-parameter", f"no {operation!r:.40} here; {known} are")
        service = self._app.service
        tree = FileTree(await service.client(), service.options.quorums)
        path = "/" + request.path_params["path"].strip("/")
        if method == "GET":
            return await self._look(tree, path, operation, asked)
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

    async def _look(
        self, tree: FileTree, path: str, operation: str, asked: Mapping[str, str]
    ) -> Response:
        if operation == "GETHOMEDIRECTORY":
            return _json({"Path": "/"})
        if operation == "GETSERVERDEFAULTS":
            return _json({"FsServerDefaults": _DEFAULTS})
        if operation == "LISTSTATUS":
            rows = [_status(info) for info in await tree.listing(path)]
            return _json({"FileStatuses": {"FileStatus": rows}})
        info = await tree.info(path)
        if operation == "OPEN":
            return _opened(tree, path, info, asked)
        return _json({"FileStatus": _status(info)})

    async def _create(
        self, tree: FileTree, path: str, asked: Mapping[str, str], request: WebRequest
    ) -> Response:
        if "data" not in asked:
            there = request.url.include_query_params(data="true")
            return Response(status_code=307, headers={"Location": str(there)})
        async with self._uploads:
            pieces = _pieces(request)
            await tree.write(path, pieces, replaces=asked.get("overwrite") == "true")
        return Response(status_code=201)


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


async def _pieces(request: WebRequest) -> AsyncIterator[bytes]:
    stream = aiter(request.stream())
    while True:
        try:
            async with patience.timeout(_PIECE_S):
                piece = await anext(stream, None)
        except TimeoutError:
            raise ApiError(
                408, "body-timeout", f"nothing of the file came for {_PIECE_S:.0f} s"
            ) from None
        if piece is None:
            return
        yield piece


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


def _of_os_error(error: OSError) -> Response:
    for kind, status, java in _ERRORS:
        if isinstance(error, kind):
            return _exception(status, java, f"{error.filename}: {error.strerror}")
    java = _IO
    if error.errno == errno.ENOTEMPTY:
        java = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"
    return _exception(403, java, f"{error.filename}: {error.strerror}")


def _of_error(error: Exception) -> Response:
    problem = problem_of(error)
    if problem is None:
        _log.error("a request for a file failed", exc_info=error)
        return _exception(500, _IO, "an error of ours; the server's log has its trace")
    is_denied = problem.status in (401, 403)
    java = "org.apache.hadoop.security.AccessControlException" if is_denied else _IO
    return _exception(problem.status, java, problem.detail)


def _exception(status: int, java: str, message: str) -> Response:
    row = {"exception": java.rpartition(".")[2], "javaClassName": java, "message": message}
    return _json({"RemoteException": row}, status)
