"""The OpenAPI document of all endpoints, made of their declarations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from quorumbook.admin.http.endpoint import Endpoint
from quorumbook.admin.http.fields import Field
from quorumbook.admin.http.problems import MEDIA_TYPE

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def openapi_document(endpoints: Sequence[Endpoint], version: str) -> dict[str, object]:
    """Return the document."""
    paths: dict[str, dict[str, object]] = {}
    for endpoint in endpoints:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
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
                }
            },
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, object]:
    words = re.findall(r"[A-Za-z0-9]+", endpoint.path)
    operation: dict[str, object] = {
        "operationId": "_".join([endpoint.method.lower(), *words]),
        "summary": endpoint.summary,
        "x-role": endpoint.role.word,
        **({"x-command": endpoint.command} if endpoint.command else {}),
        "parameters": [
            *(
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": field.schema(),
                    **_example(field),
                }
                for name, field in endpoint.names.items()
            ),
            *(
                {
                    "name": name,
                    "in": "query",
                    "required": field.is_required,
                    "schema": field.schema(),
                    **_example(field),
                }
                for name, field in endpoint.query.items()
                if name != "password"
            ),
        ],
        "responses": {
            str(endpoint.status): {"description": "Done."},
            "default": {
                "description": "A problem.",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if endpoint.body:
        schema = {
            "type": "object",
            "properties": {name: field.schema() for name, field in endpoint.body.items()},
            "required": [name for name, field in endpoint.body.items() if field.is_required],
            "additionalProperties": False,
        }
        given = {
            name: field.example
            for name, field in endpoint.body.items()
            if field.example is not None
        }
        content = {"schema": schema, **({"example": given} if given else {})}
        operation["requestBody"] = {"content": {"application/json": content}}
    return operation


def _example(field: Field) -> dict[str, object]:
    return {} if field.example is None else {"example": field.example}
