"""The paths of files as the OpenAPI document shows them; ``webhdfs`` answers."""

from __future__ import annotations

from quorumbook.admin.access.roles import Role
from quorumbook.admin.http.endpoint import ApiOperation
from quorumbook.admin.http.fields import ID_MAX, Field

PREFIX = "/webhdfs/v1"
TOKEN_PATH = "/webhdfs/token"  # noqa: S105 - a path
#: What is answered, by verb; the first is the document's example.
ANSWERED = {
    "GET": ("LISTSTATUS", "LISTSTATUS_BATCH", "GETFILESTATUS", "GETFILELINKSTATUS", "OPEN",
            "GETHOMEDIRECTORY", "GETSERVERDEFAULTS"),
    "PUT": ("MKDIRS", "CREATE", "RENAME"),
    "DELETE": ("DELETE",),
}  # fmt: skip
_PATH = f"{PREFIX}/{{path:path}}"
_NAMES = {"path": Field("string", "Directories and a name.", example="checkpoints")}
_ERROR = ("RemoteException", "application/json")


def _op(verb: str) -> Field:
    choices = ANSWERED[verb]
    return Field("string", "What to do.", is_required=True, choices=choices, example=choices[0])


OPERATIONS = (
    ApiOperation(
        "GET", _PATH, Role.VIEWER,
        "Look at files as WebHDFS has it: read one, or list a directory of up to 10,000 names, or "
        "of any number in parts of 1,000.",
        query={
            "op": _op("GET"),
            "startAfter": Field("string", "LISTSTATUS_BATCH: only later names."),
            "offset": Field("integer", "OPEN: the first byte.", minimum=0, maximum=ID_MAX),
            "length": Field("integer", "OPEN: at most so many bytes.", minimum=0, maximum=ID_MAX),
        },
        names=_NAMES, error=_ERROR,
    ),
    ApiOperation(
        "PUT", _PATH, Role.OPERATOR,
        "Make a directory, write a file, or rename one, as WebHDFS has it.",
        query={
            "op": _op("PUT"),
            "overwrite": Field("boolean", "CREATE: a file that is there is replaced."),
            "data": Field("boolean", "CREATE: the body is the file."),
            "destination": Field("string", "RENAME: the new name."),
            "renameoptions": Field("string", "RENAME: whether it may replace a file.",
                                   choices=("NONE", "OVERWRITE")),
        },
        also={
            201: "CREATE: the file is there.",
            307: "CREATE without data: send the file to the address in Location.",
        },
        names=_NAMES, error=_ERROR,
    ),
    ApiOperation(
        "DELETE", _PATH, Role.OPERATOR, "Delete a file or a directory, as WebHDFS has it.",
        query={
            "op": _op("DELETE"),
            "recursive": Field("boolean", "With all that is in the directory."),
        },
        names=_NAMES, error=_ERROR,
    ),
    ApiOperation(
        "POST", TOKEN_PATH, Role.VIEWER,
        "Hand a token back as OAuth 2 has it (client_credentials), for Hadoop's client.",
        body={"client_secret": Field("string", "The token.", is_required=True)},
        body_type="application/x-www-form-urlencoded", error=_ERROR,
    ),
)  # fmt: skip
