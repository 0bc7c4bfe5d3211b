"""The OpenAPI document of all endpoints, made of their declarations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from quorumbook.admin.http.endpoint import ApiOperation
from quorumbook.admin.http.fields import Field

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def openapi_document(operations: Sequence[ApiOperation], version: str) -> dict[str, object]:
    """Return the document."""
    paths: dict[str, dict[str, object]] = {}
    for each in operations:
        path = _PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quorumbook",
            "version": version,
            "description": "A replicated log store. Errors are RFC 9457 problem objects.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Problem": {
                    "type": "object",
                    "required": ["type", "title", "status", "detail", "code"],
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "code": {"type": "string", "description": "Stable, for programs."},
                    },
                },
                "RemoteException": {
                    "type": "object",
                    "description": "An error as Hadoop's clients know it.",
                    "required": ["RemoteException"],
                    "properties": {
                        "RemoteException": {
                            "type": "object",
                            "required": ["exception", "javaClassName", "message"],
                            "properties": {
                                "exception": {"type": "string"},
                                "javaClassName": {"type": "string"},
                                "message": {"type": "string"},
                            },
                        }
                    },
                },
            },
        },
    }


def _operation(shown: ApiOperation) -> dict[str, object]:
    words = re.findall(r"[A-Za-z0-9]+", shown.path)
    error, media_type = shown.error
    operation: dict[str, object] = {
        "operationId": "_".join([shown.method.lower(), *words]),
        "summary": shown.summary,
        "x-role": shown.role.word,
        **({"x-command": shown.command} if shown.command else {}),
        "parameters": [
            *(
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": field.schema(),
                    **_example(field),
                }
                for name, field in shown.names.items()
            ),
            *(
                {
                    "name": name,
                    "in": "query",
                    "required": field.is_required,
                    "schema": field.schema(),
                    **_example(field),
                }
                for name, field in shown.query.items()
                if name != "password"
            ),
        ],
        "responses": {
            str(shown.status): {"description": "Done."},
            **{str(status): {"description": text} for status, text in shown.also.items()},
            "default": {
                "description": "A problem.",
                "content": {media_type: {"schema": {"$ref": f"#/components/schemas/{error}"}}},
            },
        },
    }
    if shown.body:
        schema = {
            "type": "object",
            "properties": {name: field.schema() for name, field in shown.body.items()},
            "required": [name for name, field in shown.body.items() if field.is_required],
            "additionalProperties": False,
        }
        given = {
            name: field.example for name, field in shown.body.items() if field.example is not None
        }
        content = {"schema": schema, **({"example": given} if given else {})}
        operation["requestBody"] = {"content": {shown.body_type: content}}
    return operation


def _example(field: Field) -> dict[str, object]:
    return {} if field.example is None else {"example": field.example}
