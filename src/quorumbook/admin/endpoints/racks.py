"""Where bookies stand: the table that placement goes by."""

from __future__ import annotations

from quorumbook.admin.access.roles import Role
from quorumbook.admin.facts.bookies import rack_rows
from quorumbook.admin.http.endpoint import Ask, Endpoint
from quorumbook.admin.http.fields import Field
from quorumbook.admin.http.problems import ApiError
from quorumbook.client.context import client_store
from quorumbook.metadata.bookies.racks import RackTable


async def racks(ask: Ask) -> dict[str, object]:
    """Return where bookies stand."""
    return {"racks": await rack_rows(client_store(await ask.service.client()))}


async def _set(ask: Ask) -> object:
    table = RackTable(client_store(await ask.service.client()))
    await table.set({ask.path["name"]: ask.body["location"]})
    ask.service.forget_facts()
    return {"row": ask.path["name"], "location": ask.body["location"]}


async def _remove(ask: Ask) -> object:
    table = RackTable(client_store(await ask.service.client()))
    name = ask.path["name"]
    if name not in await table.read():
        raise ApiError(404, "no-such-row", f"the table of racks has no row {name[:200]}")
    await table.remove([name])
    ask.service.forget_facts()
    return {"row": name, "state": "removed"}


_NAMES = {
    "name": Field("string", "A bookie's id, or a host for all its bookies.", max_length=300,
                  example="10.0.0.7")
}  # fmt: skip
ENDPOINTS = (
    Endpoint("GET", "/api/v2/racks", Role.VIEWER, "In which rack, region or zone bookies stand.",
             racks, command="quorumbook cluster racks ls"),
    Endpoint("PUT", "/api/v2/racks/{name}", Role.OPERATOR,
             "Say where a bookie stands; what is stored already stays where it is.", _set,
             body={"location": Field("string", "Its place, such as /west/r2.", is_required=True,
                                     max_length=300, example="/west/r2")},
             names=_NAMES, command="quorumbook cluster racks set {name}=/west/r2"),
    Endpoint("DELETE", "/api/v2/racks/{name}", Role.OPERATOR, "Take a row out of the table.",
             _remove, names=_NAMES, command="quorumbook cluster racks remove {name}"),
)  # fmt: skip
