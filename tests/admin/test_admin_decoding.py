"""Records by their stream's schema: over HTTP, in the console, and hostile ones within bounds."""

from __future__ import annotations

import asyncio
import base64
import json
import threading

import pytest

pytest.importorskip("fastavro", reason="pip install 'quorumbook[schema]'")
from google.protobuf import descriptor_pb2

from admin.conftest import problem
from admin.test_admin_console import browser, console_on, needs_browser, wait_for
from quorumbook.admin.access.roles import ANYBODY
from quorumbook.admin.facts import decoding
from quorumbook.admin.http.endpoint import Ask
from quorumbook.streams import (
    Decoder,
    Position,
    Record,
    Schema,
    SchemaKind,
    StreamSchemas,
    version_headers,
)
from quorumbook.streams.format.schemas import Compatibility
from quorumbook.testing import LocalCluster

F = descriptor_pb2.FieldDescriptorProto
BIG = 2**63 - 1


def avro(*fields: tuple[str, object]) -> Schema:
    found = [{"name": name, "type": kind, "default": None} if kind == NULLABLE
             else {"name": name, "type": kind} for name, kind in fields]  # fmt: skip
    return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": found}))


NULLABLE = ["null", "string"]
ORDER = avro(("id", "long"), ("price", "double"), ("raw", "bytes"))


def protobuf() -> Schema:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="M")
    for name, number, kind in ("flight", 1, F.TYPE_STRING), ("delay", 2, F.TYPE_INT64):
        message.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    text = base64.b64encode(files.SerializeToString()).decode()
    return Schema(SchemaKind.PROTOBUF, text, "t.M")


def order(number: int, price: float = 0.5, raw: bytes = b"\xff") -> bytes:
    return Decoder(StreamSchemas("s", Compatibility.NONE, (ORDER,))).encode(
        {"id": number, "price": price, "raw": raw}
    )


def record(payload: bytes) -> Record:
    return Record(Position(1, 0, 0), 0, 0, payload, None, 0)


SCHEMAS = StreamSchemas("s", Compatibility.NONE, (ORDER,))


async def filled(service, name: str, schema: Schema | None, *payloads: bytes):
    """Make a stream with a schema and these records."""
    namespace = await service.streams.namespace("/streams", bind=True)
    await namespace.create_stream(name)
    stream = namespace.stream(name)
    if schema is not None:
        await stream.set_schema(schema)
    async with stream.writer() as writer:
        await writer.append_batch(list(payloads))
    return stream


# Over HTTP -------------------------------------------------------------------------------


async def test_records_are_their_fields_and_bad_ones_say_why_beside_their_bytes(api):
    await filled(api.service, "s", ORDER, order(BIG), b"\x80", order(1, float("nan")))
    answer = await api.http.get("/api/v2/streams/s/records", params={"decode": "schema"})
    found = answer.json(parse_float=str)
    good, bad, odd = found["records"]
    assert good["decoded"] == {"id": BIG, "price": "0.5", "raw": "/w=="}
    assert not {"text", "base64", "decode_error"} & good.keys()
    assert bad["base64"] == "gA=="
    assert bad["decode_error"]
    assert "decoded" not in bad
    assert odd["decoded"]["price"] == "NaN"
    assert (found["next"], answer.headers["content-type"]) == ("seq:3", "application/json")


async def events(api, name: str):
    """Follow a stream without httpx, whose transport hands nothing out before the end."""
    endpoint = next(each for each in api.app.endpoints if each.path.endswith("/tail"))
    query = {"namespace": "/streams", "partition": None, "from": "earliest",
             "last_event_id": None, "decode": "schema"}  # fmt: skip
    return (await endpoint.handle(Ask(api.service, ANYBODY, {"name": name}, query, {}))).events


async def test_followed_records_are_decoded_also_by_a_version_that_comes_later(api):
    stream = await filled(api.service, "s", ORDER, order(1))
    rows: list[dict] = []
    async for event in await events(api, "s"):
        if not event:
            continue
        rows.append(json.loads(event["data"])["decoded"])
        if len(rows) == 2:
            break
        await stream.set_schema(
            avro(("id", "long"), ("price", "double"), ("raw", "bytes"), ("note", NULLABLE))
        )
        payload = (await stream.decoder()).encode(
            {"id": 2, "price": 1.0, "raw": b"", "note": "new"}
        )
        async with stream.writer() as writer:
            await writer.append(payload, headers=version_headers(2))
    assert [row["id"] for row in rows] == [1, 2]
    assert rows[1]["note"] == "new"


async def test_a_stream_without_a_schema_says_so(api):
    await filled(api.service, "s", None, b"x")
    for path in "records", "tail":
        answer = await api.http.get(f"/api/v2/streams/s/{path}", params={"decode": "schema"})
        assert "no schema" in problem(answer, 404, "schema-not-found")
    answer = await api.http.get("/api/v2/streams/s/records", params={"decode": "json"})
    problem(answer, 400, "bad-parameter")


# Bounds ----------------------------------------------------------------------------------


async def test_a_record_is_decoded_up_to_64_kb():
    where = decoding.DecodingThread()
    most = order(
        0, raw=bytes(decoding.RECORD_BYTES - len(order(0, raw=bytes(1 << 15))) + (1 << 15))
    )
    assert len(most) == decoding.RECORD_BYTES
    good, bad = await where.decode(SCHEMAS, [record(most), record(most + b"\0")])
    assert (good.reason, bad.text) == (None, None)
    assert "65,536" in bad.reason
    where.close()


async def test_what_makes_an_answer_too_large_is_left_out(monkeypatch):
    where = decoding.DecodingThread()
    (alone,) = await where.decode(SCHEMAS, [record(order(5))])
    monkeypatch.setattr(decoding, "ANSWER_BYTES", 2 * len(alone.text))
    found = await where.decode(SCHEMAS, [record(order(n)) for n in range(4)])
    assert [each.text is not None for each in found] == [True, True, False, False]
    assert "more than" in found[2].reason
    where.close()


async def test_what_an_answer_has_no_time_for_says_so(monkeypatch):
    where = decoding.DecodingThread()
    monkeypatch.setattr(decoding, "ANSWER_S", -1.0)
    (found,) = await where.decode(SCHEMAS, [record(order(5))])
    assert found.text is None
    assert "ask for less" in found.reason
    where.close()


async def test_the_loop_goes_on_while_a_record_is_decoded(monkeypatch):
    went_on = threading.Event()

    def hostile(*_args):
        assert went_on.wait(60)
        return {"id": 1}

    monkeypatch.setattr(Decoder, "value", hostile)
    where = decoding.DecodingThread()
    waiting = asyncio.create_task(where.decode(SCHEMAS, [record(b"x")]))
    await asyncio.sleep(0)
    went_on.set()
    assert json.loads((await waiting)[0].text) == {"id": 1}
    where.close()


# In the console --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def console():
    """A console on streams with schemas of Avro and Protobuf, and one without."""
    delay = b"\x0a\x05LH400\x10\x07"
    with LocalCluster(bookies=3) as cluster, console_on(cluster) as running:
        with running.http() as http:
            http.post("/api/v2/streams", json={"name": "none"})

        async def fill() -> None:
            service = running.service
            await filled(service, "orders", ORDER, order(BIG), b"\x80", order(3))
            await filled(service, "flights", protobuf(), delay, b"\xff\xff")
            await filled(service, "plain", None, b"as it is")

        running.do(fill())
        yield running


def entry_page(console, name: str) -> str:
    """Return the address of the entry that has a stream's records."""

    async def find() -> tuple[int, int]:
        stream = (await console.service.streams.namespace("/streams")).stream(name)
        async with stream.reader(tail=False) as reader:
            first = await anext(aiter(reader))
        return first.ledger_id, first.position.entry

    ledger_id, entry_id = console.do(find())
    return f"/ui/ledgers/{ledger_id}/entries/{entry_id}?view=schema"


def test_an_entry_that_no_schema_tells_of_says_why_and_is_shown_as_it_is(console):
    with console.http() as http:
        found = http.get(entry_page(console, "plain")).text
        assert "stream plain has no schema" in found
        assert "as it is" in found


@needs_browser
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("orders", f'"id": {BIG}', "000000  80"), ("flights", '"flight": "LH400"', "000000  ff ff")],
)
def test_an_entry_is_seen_by_its_schema_and_a_bad_record_with_its_reason(console, name, good, bad):
    from selenium.webdriver.common.by import By

    with browser() as driver:
        path = entry_page(console, name)
        driver.get(console.url + path.partition("?")[0])
        driver.find_element(By.LINK_TEXT, "schema").click()
        wait_for(driver, lambda d: "by its schema" in d.find_element(By.ID, "main").text)
        shown = driver.find_element(By.ID, "main").text
        assert good in shown
        assert "not decoded: " in shown
        assert bad in shown
        ledger_page = path.rpartition("/")[0]
        driver.get(f"{console.url}{ledger_page}?view=schema")
        shown = driver.find_element(By.ID, "main").text
        assert good in shown
        assert bad in shown
        assert driver.get_log("browser") == []


@needs_browser
def test_the_live_tail_shows_fields_with_every_digit_of_their_numbers(console):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    with browser() as driver:
        driver.get(f"{console.url}/ui/tail/orders?from=earliest")
        Select(driver.find_element(By.NAME, "decode")).select_by_value("schema")
        driver.find_element(By.CSS_SELECTOR, "form.search button").click()
        wait_for(driver, lambda d: f'"id":{BIG}' in d.find_element(By.ID, "tail").text)
        assert "not decoded: " in driver.find_element(By.ID, "tail").text
        wait_for(driver, lambda d: d.find_element(By.ID, "told").text == "following")
        with console.http() as http:
            one = {"base64": base64.b64encode(order(BIG - 1)).decode()}
            http.post("/api/v2/streams/orders/records", json={"records": [one]})
        wait_for(driver, lambda d: f'"id":{BIG - 1}' in d.find_element(By.ID, "tail").text)
        assert driver.get_log("browser") == []
