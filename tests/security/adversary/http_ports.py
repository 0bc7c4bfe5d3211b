"""Attacks on the ports that speak HTTP: a bookie's and the admin server's."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence

from quorumbook.admin.http.endpoint import Endpoint
from quorumbook.admin.server import all_endpoints
from quorumbook.protocol.v3 import client as v3
from security.adversary.prey import Attack, Prey

#: Of a request whose answer ends with the connection.
_LAST = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
#: What nobody may bring about by hiding it in something else.
HIDDEN = (
    b"PUT /api/v1/bookie/state/readonly?read_only=true HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"DELETE /api/v2/streams/kept HTTP/1.1\r\nHost: localhost\r\n\r\n",
)


def http_shapes() -> list[bytes]:
    """Return requests in which one may hide another, or that belong to other protocols."""
    host = b"Host: localhost\r\n"
    get = b"GET / HTTP/1.1\r\n" + host
    shapes = [
        b"Content-Length: %d\r\n\r\n", b"Content-Length: %d\r\nContent-Length: 0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n", b"Content-Length: +%d\r\n\r\n",
        b"Content-Length : %d\r\n\r\n", b"Content-Length: %d, %d\r\n\r\n",
        b"Content-Length: 0x%x\r\n\r\n", b"Content-Length:\r\n %d\r\n\r\n",
        b"X: \x00\r\nContent-Length: %d\r\n\r\n", b"X: a\rContent-Length: %d\r\n\r\n",
        b"X\xff: b\r\nContent-Length: %d\r\n\r\n", b"Content-Length: %d\n\n",
        b"Content-Length: -%d\r\n\r\n", b"Content-Length: " + b"9" * 6000 + b"%d\r\n\r\n",
    ]  # fmt: skip
    hidden = [
        start + host + (shape % ((len(body),) * shape.count(b"%"))) + body
        for start in (b"GET / HTTP/1.1\r\n", b"POST /api/v2/streams HTTP/1.1\r\n",
                      b"GET / HTTP/1.0\r\n", b"PUT / HTTP/0.9\r\n")
        for body in HIDDEN
        for shape in shapes
    ]  # fmt: skip
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    codings = (
        b"chunked",
        b"xchunked",
        b" chunked",
        b"chunked, identity",
        b"identity",
        b"\x0bchunked",
    )
    return [
        *hidden,
        *(get + both + b"0\r\n\r\n" + body for body in HIDDEN),
        *(get + b"Transfer-Encoding: " + coding + b"\r\nContent-Length: %d\r\n\r\n0\r\n\r\n"
          % (5 + len(body)) + body for coding in codings for body in HIDDEN),
        *(get + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" for size in (
            b"ffffffffffffffff", b"-1", b"0x5", b"5;" + b"x" * 20_000, b"")),
        get + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" + b"\x81\xff" + bytes(50),
        get + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAA\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        v3.encode_read(1, 0, 0), b"\x00" * 5000, b"\n" * 9000, b"GET", b"GET /", b"GET / HTTP/1.1",
        *(method + b" " + target + b" HTTP/1.1\r\n" + host + b"\r\n" for method, target in (
            (b"CONNECT", b"localhost:1"), (b"TRACE", b"/"), (b"OPTIONS", b"*"), (b"G\x00T", b"/"),
            (b"GET", b"http://127.0.0.1:1/"), (b"GET", b"//x/../.."), (b"GET", b"/%00%2e%2e/"),
            (b"GET", b"/" + b"a" * 70_000), (b"GET", b"/?" + b"a&" * 15_000),
            (b"A" * 9000, b"/"), (b"GET", b"/\xff\xfe"), (b"GET", b"/api/v2/../../etc/passwd"))),
        b"GET / HTTP/1.1\r\n" + host + b"".join(b"X-%d: y\r\n" % i for i in range(3000)) + b"\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"X: " + b"y" * 40_000,
        b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + host * 2 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: \r\n\r\n", (get + b"\r\n") * 500,
    ]  # fmt: skip


async def hidden_requests(prey: Prey, dice: random.Random) -> None:
    """Smuggling, pipelines, upgrades and other protocols at each port that speaks HTTP."""
    for data in dice.sample(http_shapes(), 60):
        port = dice.choice((prey.http_port, prey.admin_port))
        async with prey.connected(port) as wire:
            if port == prey.admin_port and prey.is_gated:
                await wire.tls(asks=False)
            await wire.send(data)
            came = await wire.taken(0.1)
            if b"HTTP/1.1 5" in came:
                what = f"hidden requests: {data[:300]!r} gets {came[:300]!r}"
                prey.wrong.append(what)
    async with prey.connected(prey.http_port) as wire:
        await wire.send(b"GET /api/v1/bookie/state/readonly" + _LAST)
        state = (await wire.taken(5)).partition(b"\r\n\r\n")[2]
        if json.loads(state)["read_only"] is not False:
            prey.wrong.append(f"hidden requests: the bookie is {state!r}")
    if not prey.is_gated:
        async with prey.connected(prey.admin_port) as wire:
            await wire.send(b"GET /api/v2/streams/kept" + _LAST)
            if b" 200 OK" not in (came := await wire.taken(5)):
                prey.wrong.append(f"hidden requests: the stream is gone: {came!r}")


async def restless_followers(prey: Prey, dice: random.Random) -> None:
    """Follow a stream by events, ask for an answer that takes long, and be gone."""
    if prey.is_gated:
        return
    targets = ("kept/tail", "none/tail", "kept/records?wait_s=30", "kept/tail?from=earliest")
    for _ in range(30):
        async with prey.connected(prey.admin_port) as wire:
            target = dice.choice(targets).encode()
            await wire.send(
                b"GET /api/v2/streams/" + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            await asyncio.sleep(dice.choice((0, 0.01, 0.1)))
            if dice.random() < 0.5:
                wire.reset()


#: Values of JSON that take the most for their bytes, or the longest.
_PIECES = (b"[],", b"{},", b'{"a":1},', b"[[1]],", b"1e9,", b'"\\n",', b'"a",', b"[", b'{"a":')
_SIZES = (1 << 16, 1 << 20, (8 << 20) - 1000, 8 << 20)
_OURS: Sequence[Endpoint] = [each for each in all_endpoints() if each.path.startswith("/api/v2")]


def largest_body(endpoint: Endpoint, dice: random.Random) -> bytes:
    """Return a body of many values in one of an endpoint's fields, or in one that it has not."""
    field = dice.choice([*endpoint.body, "x"])
    piece, size = dice.choice(_PIECES), dice.choice(_SIZES)
    if field in ("records", "entries") and dice.random() < 0.5:
        field += '":[{"json'  # in what may be anything
    begin, end = b'{"%s":[' % field.encode(), b"0]}"
    end += b"]}" * field.count("[")
    return begin + piece * ((size - len(begin) - len(end)) // len(piece)) + end


async def largest_bodies(prey: Prey, dice: random.Random) -> None:
    """Bodies of as many values as they can have, to every endpoint; whole, and broken off."""

    async def send(endpoint: Endpoint, body: bytes, length: int) -> None:
        async with prey.connected(prey.admin_port) as wire:
            if prey.is_gated:
                await wire.tls(asks=False)
            path = re.sub(r"\{id\}|\{entry\}", "0", endpoint.path)
            path = re.sub(r"\{\w+(:path)?\}", "kept", path)
            head = f"{endpoint.method} {path} HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
            head += "Connection: close\r\n\r\n"
            await wire.send(head.encode() + body[:length])
            came = await wire.taken(2 if length == len(body) else 0.1)
            if b"HTTP/1.1 500" in came:
                prey.wrong.append(f"largest bodies: {head[:80]!r} {body[:80]!r} gets {came!r}")

    for endpoint in dice.sample(_OURS, 12):
        body = largest_body(endpoint, dice)
        length = len(body) if dice.random() < 0.8 else dice.randrange(len(body))
        await send(endpoint, body, length)


ATTACKS: tuple[Attack, ...] = (hidden_requests, restless_followers, largest_bodies)
