"""What the etcd driver asks of etcd: its messages, and calls that go on to another endpoint.

The client library is grpcio alone, used here and in ``credentials`` only.  Of the packages that
wrap it for etcd, some are not kept up, and those that are know one endpoint, don't resume watches,
and register generated modules in the protobuf pool of the whole process, which two of them cannot
share.  A dozen messages from a table do without all that.

``call`` repeats a request at the next endpoint until its time is over, so every request must be
such that it may arrive twice.  Numbers and names of fields are etcd's (v3 API, etcd 3.4 and up);
what etcd declares as bool or enum is an integer here, which is the same on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf import message_factory

from quorumbook.auth.accounts import Account
from quorumbook.env import patience
from quorumbook.errors import (
    LocalProtocolError,
    MetadataError,
    MetadataUnauthorizedError,
    MetadataUnavailableError,
)
from quorumbook.metadata.etcd.credentials import explain
from quorumbook.protocol.messages import build_pool

_MESSAGES = {
    "ResponseHeader": "o int64 revision 3",
    "KeyValue": "o bytes key 1; o int64 create_revision 2; o int64 mod_revision 3;"
    "o bytes value 5; o int64 lease 6",
    "RangeRequest": "o bytes key 1; o bytes range_end 2; o int64 revision 4; o int32 keys_only 8;"
    "o int32 count_only 9",
    "RangeResponse": "o ResponseHeader header 1; * KeyValue kvs 2; o int64 count 4",
    "PutRequest": "o bytes key 1; o bytes value 2; o int64 lease 3",
    "DeleteRangeRequest": "o bytes key 1; o bytes range_end 2",
    "Compare": "o int32 result 1; o int32 target 2; o bytes key 3; o int64 mod_revision 6",
    "RequestOp": "o RangeRequest request_range 1; o PutRequest request_put 2;"
    "o DeleteRangeRequest request_delete_range 3; o TxnRequest request_txn 4",
    "ResponseOp": "o RangeResponse response_range 1",
    "TxnRequest": "* Compare compare 1; * RequestOp success 2; * RequestOp failure 3",
    "TxnResponse": "o ResponseHeader header 1; o int32 succeeded 2; * ResponseOp responses 3",
    "LeaseGrantRequest": "o int64 TTL 1; o int64 ID 2",
    "LeaseGrantResponse": "o ResponseHeader header 1; o int64 ID 2; o int64 TTL 3",
    "LeaseRevokeRequest": "o int64 ID 1",
    "LeaseRevokeResponse": "o ResponseHeader header 1",
    "LeaseKeepAliveRequest": "o int64 ID 1",
    "LeaseKeepAliveResponse": "o ResponseHeader header 1; o int64 ID 2; o int64 TTL 3",
    "WatchCreateRequest": "o bytes key 1; o bytes range_end 2; o int64 start_revision 3;"
    "* int32 filters 5; o int64 watch_id 7",
    "WatchCancelRequest": "o int64 watch_id 1",
    "WatchRequest": "o WatchCreateRequest create_request 1; o WatchCancelRequest cancel_request 2",
    "Event": "o int32 type 1; o KeyValue kv 2",
    "WatchResponse": "o ResponseHeader header 1; o int64 watch_id 2; o int32 canceled 4;"
    "o int64 compact_revision 5; o string cancel_reason 6; * Event events 11",
    "AuthenticateRequest": "o string name 1; o string password 2",
    "AuthenticateResponse": "o ResponseHeader header 1; o string token 2",
}
_pool = build_pool(_MESSAGES, {})
#: The classes of all messages, by their names.
messages: dict[str, Any] = {
    name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(name)) for name in _MESSAGES
}

#: In ``Compare``: what is compared is the revision of the last change.
TARGET_MOD = 2
#: In ``Event``: the key was deleted.
EVENT_DELETE = 1
#: In ``WatchCreateRequest``: no news of what is written.
FILTER_NO_PUT = 0


class Method(NamedTuple):
    """One call of the API."""

    path: str
    response: str


TXN = Method("/etcdserverpb.KV/Txn", "TxnResponse")
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", "LeaseGrantResponse")
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", "LeaseRevokeResponse")
KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", "LeaseKeepAliveResponse")
WATCH = Method("/etcdserverpb.Watch/Watch", "WatchResponse")
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", "AuthenticateResponse")

#: A member that has lost its leader says so instead of going on with what it knows.
_CALL_METADATA = (("hasleader", "true"),)
_ATTEMPT_TIMEOUT_S = 3.0
_PAUSE_FIRST_S = 0.02
_PAUSE_LAST_S = 0.5
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A host that is gone without a word is noticed on a stream, too.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Stores of one process have nothing to share, least of all a back-off.
    ("grpc.use_local_subchannel_pool", 1),
)
_LOCAL = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
#: What etcd says of a token that it does not know any more, or that is older than its users.
_IS_STALE = re.compile("invalid auth token|auth store is old")
#: What else it says of users, and what to do about it.
_UNAUTHORIZED = {
    "user name is empty": "name a file with the credentials: ?auth_file=FILE at the end of the URI",
    "authentication failed": "see the file that auth_file names",
    "authentication is not enabled": "it would let anybody in; leave auth_file out, or enable it",
    "permission denied": "grant our user's role what begins with quorumbook/",
}
_REFUSED = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)


class CompactedError(MetadataError):
    """etcd has forgotten the revision that was asked for."""


class NoSuchLeaseError(MetadataError):
    """The lease is over."""


class _NoAnswerError(grpc.RpcError):  # type: ignore[misc] # grpc comes without types
    """A stream ended where an answer was due."""


class EtcdClient:
    """Calls to the endpoints of one etcd cluster, from one event loop."""

    def __init__(
        self,
        endpoints: Sequence[str],
        credentials: grpc.ChannelCredentials | None = None,
        login: Account | None = None,
    ) -> None:
        self._name = f"etcd at {','.join(endpoints)}"
        self._endpoints = endpoints
        self._channels = [
            grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)
            for endpoint in endpoints
        ]
        self._current = 0
        self._login = login
        #: What a user who has authenticated shows with each request.
        self._token = ""
        #: What was wrong with each endpoint when it was asked last.
        self._failures: dict[str, str] = {}

    async def call(self, method: Method, request: Any, *, timeout_s: float) -> tuple[Any, bool]:
        """Return the response, and whether earlier attempts may have been carried out as well.

        Raises:
            MetadataUnavailableError: nobody answered in time; it may have happened or not.
            MetadataUnauthorizedError: our user may not do that, or there is no such user.
            LocalProtocolError: the request is too large.
            CompactedError, NoSuchLeaseError: what it names is gone.
        """
        is_repeated = False
        pause_s = _PAUSE_FIRST_S
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        # An endpoint that is silent leaves time for the others.
        attempt_s = min(_ATTEMPT_TIMEOUT_S, timeout_s / len(self._endpoints))
        self._failures.clear()
        while True:
            began = loop.time()
            limit_s = max(min(deadline - began, attempt_s), 0.1)
            try:
                response = await self._attempt(method, request, limit_s)
            except grpc.RpcError as error:
                self._judge(error)
                # For an old token nothing is carried out.
                is_repeated |= not self._is_stale(error)
                self._next(error)
                took_s = loop.time() - began
                if took_s > limit_s + patience.LATE_S:
                    # This process was paused: what it could not hear was no attempt.
                    deadline += took_s
            else:
                return response, is_repeated
            if loop.time() + pause_s >= deadline:
                why = "; ".join(f"{name}: {cause}" for name, cause in self._failures.items())
                raise MetadataUnavailableError(f"no {self._name} answers: {why}")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_LAST_S)

    async def keep_alive(self, lease: int, *, timeout_s: float) -> bool:
        """Extend a lease; False if it is over."""
        request = messages["LeaseKeepAliveRequest"](ID=lease)
        response, _ = await self.call(KEEP_ALIVE, request, timeout_s=timeout_s)
        return bool(response.TTL > 0)

    @contextlib.asynccontextmanager
    async def stream(self, method: Method) -> AsyncIterator[Any]:
        """Open a stream to whichever endpoint is the present one.

        Raises:
            MetadataUnavailableError: it broke, or could not be opened.
        """
        try:
            metadata = await self._metadata(_ATTEMPT_TIMEOUT_S)
            call = self._bind("stream_stream", method)(metadata=metadata)
            try:
                yield call
            finally:
                call.cancel()
        except grpc.RpcError as error:
            self._is_stale(error)
            raise MetadataUnavailableError(f"etcd at {self._next(error)}") from error

    def authenticate_again(self) -> None:
        """Take the news that our token is not known any more."""
        self._token = ""

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels:
            await channel.close()

    async def _attempt(self, method: Method, request: Any, timeout_s: float) -> Any:
        metadata = await self._metadata(timeout_s)
        if method is not KEEP_ALIVE:
            call = self._bind("unary_unary", method)
            return await call(request, timeout=timeout_s, metadata=metadata)
        stream = self._bind("stream_stream", method)(timeout=timeout_s, metadata=metadata)
        try:
            await stream.write(request)
            answer = await stream.read()
            if answer is grpc.aio.EOF:
                raise _NoAnswerError
            return answer
        finally:
            stream.cancel()

    async def _metadata(self, timeout_s: float) -> tuple[tuple[str, str], ...]:
        """Return what goes with a request; authenticates first where a user is given."""
        if self._login is None:
            return _CALL_METADATA
        if not self._token:
            request = messages["AuthenticateRequest"](
                name=self._login.name, password=self._login.secret
            )
            call = self._bind("unary_unary", AUTHENTICATE)
            answer = await call(request, timeout=timeout_s, metadata=_CALL_METADATA)
            self._token = answer.token
        return (*_CALL_METADATA, ("token", self._token))

    def _is_stale(self, error: grpc.RpcError) -> bool:
        """Tell whether only the token was refused, which the next request replaces."""
        is_stale = bool(self._token) and bool(_IS_STALE.search(_details(error)))
        if is_stale:
            self.authenticate_again()
        return is_stale

    def _bind(self, kind: str, method: Method) -> Callable[..., Any]:
        bind: Callable[..., Callable[..., Any]] = getattr(self._channels[self._current], kind)
        return bind(
            method.path,
            request_serializer=_serialize,
            response_deserializer=messages[method.response].FromString,
        )

    def _next(self, error: grpc.RpcError) -> str:
        """Turn to the next endpoint and return what was wrong with this one."""
        endpoint = self._endpoints[self._current]
        self._current = (self._current + 1) % len(self._endpoints)
        cause = explain(_details(error) or str(getattr(error, "code", lambda: error)()))
        self._failures[endpoint] = cause
        return f"{endpoint}: {cause}"

    def _judge(self, error: grpc.RpcError) -> None:
        """Raise what a repetition would not change."""
        code = getattr(error, "code", lambda: None)()
        text = _details(error)
        if self._login is not None and _IS_STALE.search(text):
            return
        for words, fix in _UNAUTHORIZED.items():
            if words in text:
                raise MetadataUnauthorizedError(f"{self._name} refuses: {text}; {fix}") from error
        if code is grpc.StatusCode.OUT_OF_RANGE:
            raise CompactedError(text) from error
        if code is grpc.StatusCode.NOT_FOUND:
            raise NoSuchLeaseError(text) from error
        if code in _LOCAL and ("too large" in text or "too many operations" in text):
            raise LocalProtocolError(f"{self._name}: {text}") from error
        if code in _REFUSED:
            raise MetadataError(f"{self._name} refuses: {text}") from error


def _details(error: grpc.RpcError) -> str:
    return str(getattr(error, "details", lambda: None)() or "")


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
