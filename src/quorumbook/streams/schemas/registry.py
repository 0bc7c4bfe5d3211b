"""Schemas of a subject in a schema registry that answers as Confluent's does, over HTTP.

    GET /subjects/SUBJECT/versions          [1, 2, 4]
    GET /subjects/SUBJECT/versions/N        {"id": …, "schemaType": …, "schema": …, "references": …}
    GET /schemas/ids/ID?format=serialized   {"schema": …}, of Protobuf a file's descriptor in base64

A registry is asked when its schemas are imported, and never by those who decode records: what was
imported are versions of the stream's schema in the metadata store, so records mean the same to
everybody, also when the registry is away.  What it answers is believed to be of a stranger: its
answers are bounded in bytes, number and time, nothing that it redirects to is followed, and a
schema has to pass all that one from a file has.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorumbook.client.reading.tabular import needs_extra
from quorumbook.env import Env
from quorumbook.errors import ConfigError, ConnectFailedError, RemoteProtocolError
from quorumbook.streams.errors import SchemaConflictError, SchemaNotFoundError
from quorumbook.streams.format.schemas import (
    MAX_TEXT_BYTES,
    MAX_VERSIONS,
    Compatibility,
    Schema,
    SchemaKind,
    StreamSchemas,
)
from quorumbook.streams.schemas.having import HasSchemas

#: A schema in JSON in JSON, each of its characters escaped.
_ANSWER_BYTES_MAX = 8 * MAX_TEXT_BYTES
_TIMEOUT_S = 10.0
#: Of one answer, however often some of it comes.
_ANSWER_S = 30.0
_CHUNK_BYTES = 64 * 1024
#: Files that one Protobuf schema imports, with what they import.
_MAX_FILES = 100
_KINDS = {"AVRO": SchemaKind.AVRO, "JSON": SchemaKind.JSON, "PROTOBUF": SchemaKind.PROTOBUF}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would have the login sent to whom the registry says."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Where a registry is, and how it is asked.

    Raises:
        ConfigError: the address is not one of HTTP, or has a login in it.
    """

    url: str
    #: ``USER:PASSWORD`` of HTTP's basic authentication; empty: none is sent.
    login: str = field(default="", repr=False)
    #: A file with certificates of those who may have signed the registry's; empty: the system's.
    ca_file: str = ""

    def __post_init__(self) -> None:
        """Look at the address."""
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ConfigError(f"{self.url!r} is not the address of a registry, as http://HOST:8081")
        if "@" in parts.netloc:
            raise ConfigError("an address of a registry has no login in it; give a file with it")

    def versions(self, subject: str) -> list[int]:
        """Return the numbers of a subject's versions, ascending; blocks.

        Raises:
            SchemaNotFoundError: there is no such subject.
            ConnectFailedError: the registry does not answer, or refuses.
            RemoteProtocolError: what it answers is none of its answers.
        """
        found = self._get(f"/subjects/{_quoted(subject)}/versions")
        if not isinstance(found, list) or not all(map(_is_number, found)):
            raise RemoteProtocolError(f"{self.url} lists no versions of {subject}: {_short(found)}")
        if len(found) > MAX_VERSIONS:
            raise ConfigError(
                f"subject {subject} has {len(found)} versions; {MAX_VERSIONS} are most"
            )
        return sorted(set(found))

    def schema(
        self, subject: str, version: int, message: str = "", known: Collection[int] = ()
    ) -> Schema | None:
        """Return a version of a subject as a schema that a stream can have; blocks.

        Args:
            subject: Its name.
            version: Its number in the registry.
            message: Of Protobuf, the full name of the message; empty: the first of its file.
            known: The ids of schemas that are not wanted; None is returned of these.

        Raises:
            ConfigError: it is no schema that can be used here; the message says why.
            Others as ``versions`` raises them.
        """
        found = self._version(subject, version)
        if found["id"] in known:
            return None
        kind = _KINDS.get(found.get("schemaType", "AVRO"))
        if kind is None:
            raise ConfigError(
                f"version {version} of subject {subject} is {_short(found['schemaType'])}, and "
                f"none of {', '.join(_KINDS)}"
            )
        if kind is SchemaKind.PROTOBUF:
            text, first = self._descriptor_set(subject, found)
            return Schema(kind, text, message or first, found["id"])
        if found.get("references"):
            raise ConfigError(
                f"version {version} of subject {subject} refers to other subjects, which is "
                "supported of Protobuf alone; register it with their types in it"
            )
        return Schema(kind, found["schema"], "", found["id"])

    def _version(self, subject: str, version: int) -> dict[str, Any]:
        found = self._get(f"/subjects/{_quoted(subject)}/versions/{version}")
        is_one = (
            isinstance(found, dict)
            and _is_number(found.get("id"))
            and isinstance(found.get("schema"), str)
            and isinstance(found.get("schemaType", ""), str)
            and isinstance(found.get("references") or [], list)
        )
        if not is_one:
            raise RemoteProtocolError(
                f"{self.url} answers no version {version} of subject {subject}: {_short(found)}"
            )
        return dict(found)

    def _descriptor_set(self, subject: str, found: Mapping[str, Any]) -> tuple[str, str]:
        """Return a file with all that it imports, in base64, and its first message's full name."""
        with needs_extra("'quorumbook[schema]'"):
            from google.protobuf import descriptor_pb2  # noqa: PLC0415
            from google.protobuf.message import DecodeError  # noqa: PLC0415

        files = descriptor_pb2.FileDescriptorSet()
        known: set[str] = set()

        def add(version: Mapping[str, Any], name: str, depth: int) -> Any:
            if name in known:
                return None
            known.add(name)
            if len(known) > _MAX_FILES or depth > _MAX_FILES:
                raise ConfigError(f"subject {subject} imports more than {_MAX_FILES} files")
            for each in version.get("references") or []:
                add(self._version(*_reference(each)), str(each["name"]), depth + 1)
            file = files.file.add()
            file.ParseFromString(self._serialized(version["id"]))
            file.name = name
            return file

        try:
            main = add(found, f"{subject}.proto", 0)
        except (KeyError, TypeError, ValueError, DecodeError) as error:
            raise RemoteProtocolError(f"{self.url} has no files of {subject}: {error}") from error
        if not main.message_type:
            raise ConfigError(f"the Protobuf schema of subject {subject} has no message")
        first = f"{main.package}.{main.message_type[0].name}".lstrip(".")
        return base64.b64encode(files.SerializeToString(deterministic=True)).decode(), first

    def _serialized(self, registry_id: int) -> bytes:
        found = self._get(f"/schemas/ids/{registry_id}?format=serialized")
        try:
            return base64.b64decode(found["schema"], validate=True)
        except (KeyError, TypeError, binascii.Error) as error:
            raise ValueError(f"schema {registry_id} is {_short(found)}") from error

    def _get(self, path: str) -> Any:
        url = self.url.rstrip("/") + path
        request = urllib.request.Request(url)  # noqa: S310 - looked at when this was made
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if self.login:
            login = base64.b64encode(self.login.encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        handlers: list[Any] = [_NoRedirects]
        if url.startswith("https:"):
            context = ssl.create_default_context(cafile=self.ca_file or None)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                return json.loads(_whole(answer, url))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == http.HTTPStatus.NOT_FOUND:
                    raise SchemaNotFoundError(f"{url} is not there: {_said(error)}") from error
                raise ConnectFailedError(f"{url} answers {error.code}: {_said(error)}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ConnectFailedError(
                f"no answer from {url}: {getattr(error, 'reason', error)}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"what {url} answers is not JSON: {error}") from error


async def import_schemas(
    stream: HasSchemas,
    registry: SchemaRegistry,
    subject: str,
    *,
    message: str = "",
    compatibility: Compatibility | None = None,
) -> StreamSchemas:
    """Add the versions of a subject that a stream's schema does not have yet, in their order.

    It may be repeated, also by several at once: each version is added once.

    Args:
        stream: A stream, partitioned or not.
        registry: Where the subject is.
        subject: Its name, as ``orders-value``.
        message: Of Protobuf, the full name of the message; empty: the first of its file.
        compatibility: The rule from now on; None: as it is, and ``BACKWARD`` at first.

    Returns:
        The schemas as they are now.

    Raises:
        SchemaNotFoundError: there is no such subject, or it has no versions.
        SchemaIncompatibleError: a version breaks the rule; those before it were added.
        ConnectFailedError: the registry does not answer, or refuses.
        RemoteProtocolError: what it answers is none of its answers.
        ConfigError: a version is not usable here.
    """
    numbers = await asyncio.to_thread(registry.versions, subject)
    if not numbers:
        raise SchemaNotFoundError(f"subject {subject} of {registry.url} has no versions")
    known = await _schemas(stream)
    for number in numbers:
        ids = known.by_registry_id if known else {}
        schema = await asyncio.to_thread(registry.schema, subject, number, message, ids)
        while schema is not None and (known is None or schema.registry_id not in ids):
            try:
                last = known.last if known else 0
                known = await stream.set_schema(schema, compatibility=compatibility, expected=last)
                break
            except SchemaConflictError:
                before, known = known, await _schemas(stream)
                if known == before:
                    raise  # nobody else added one
                ids = known.by_registry_id if known else {}
    return await stream.schemas()


async def _schemas(stream: HasSchemas) -> StreamSchemas | None:
    try:
        return await stream.schemas()
    except SchemaNotFoundError:
        return None


def _whole(answer: Any, url: str) -> bytes:
    clock = Env().clock
    end_ns, found = clock.now_ns() + _ANSWER_S * 1_000_000_000, bytearray()
    while chunk := answer.read1(_CHUNK_BYTES):
        found += chunk
        if len(found) > _ANSWER_BYTES_MAX:
            raise RemoteProtocolError(f"{url} answers more than {_ANSWER_BYTES_MAX} bytes")
        if clock.now_ns() > end_ns:
            raise ConnectFailedError(f"{url} has not answered whole after {_ANSWER_S:g} s")
    return bytes(found)


def _said(error: urllib.error.HTTPError) -> str:
    """Return what a registry says of a refusal: {"error_code": 40401, "message": "…"}."""
    text = error.read1(4_096).decode(errors="replace").strip()
    try:
        return _short(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return _short(text or error.reason)


def _short(found: Any) -> str:
    text = found if isinstance(found, str) else json.dumps(found)
    return repr(text[:200])[1:-1]


def _quoted(subject: str) -> str:
    if not subject or subject.strip(".") == "":
        raise ConfigError(f"{subject!r} is not the name of a subject")
    return urllib.parse.quote(subject, safe="")


def _is_number(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and 0 < found < 1 << 31


def _reference(found: Any) -> tuple[str, int]:
    if not isinstance(found["name"], str) or not _is_number(found["version"]):
        raise ValueError(f"a reference is {_short(found)}")
    return str(found["subject"]), int(found["version"])
