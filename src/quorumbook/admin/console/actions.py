"""What is done by a form: its role, what has to be typed, and the API's endpoint that does it.

An action is an endpoint of the API, so that a page can do nothing that a program cannot; what a
form adds is the typed confirmation: the name of the bookie, ledger, stream or token that it is
about.  What is about none of them asks for none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorumbook.admin.http.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Input:
    """One field of a form."""

    name: str
    label: str
    #: ``text``, ``select`` or ``hidden``.
    kind: str = "text"
    value: str = ""
    choices: tuple[str, ...] = ()
    placeholder: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a form does."""

    key: str
    label: str
    method: str
    path: str
    #: What it comes to, in a sentence.
    text: str
    #: Which name of the path has to be typed; empty: none.
    confirm: str = ""
    inputs: tuple[Input, ...] = ()
    #: Where the browser goes after it; names of the path in braces.
    then: str = ""
    is_dangerous: bool = False
    #: Fields of the body that are true or false, numbers, or objects by NAME=VALUE.
    kinds: Mapping[str, str] = field(default_factory=dict)


def _bookie(key: str, label: str, text: str, **more: Any) -> Action:
    path = f"/api/v2/bookies/{{bookie}}/{key}"
    return Action(f"bookie-{key}", label, "POST", path, text, confirm="bookie",
                  then="/ui/jobs", is_dangerous=True, **more)  # fmt: skip


_READ_ONLY = "/api/v2/bookies/{bookie}/read-only"
_STREAM = "/api/v2/streams/{name:path}"
ACTIONS: tuple[Action, ...] = (
    Action("read-only-on", "Make read-only", "PUT", _READ_ONLY,
           "The bookie takes no new ledgers until that is taken back; it stays so over restarts.",
           confirm="bookie", then="/ui/bookies/{bookie}", kinds={"read_only": "boolean"},
           inputs=(Input("read_only", "", "hidden", "true"), Input("reason", "Reason"))),
    Action("read-only-off", "Make writable again", "PUT", _READ_ONLY,
           "The bookie takes new ledgers again.", confirm="bookie", then="/ui/bookies/{bookie}",
           kinds={"read_only": "boolean"}, inputs=(Input("read_only", "", "hidden", "false"),)),
    Action("collect", "Collect garbage", "POST", "/api/v2/bookies/{bookie}/gc",
           "Ledgers that were deleted in the cluster leave the bookie's disks now.",
           confirm="bookie",
           then="/ui/bookies/{bookie}"),
    _bookie("drain", "Drain", "Make it read-only, and move everything it holds to others."),
    _bookie("recover", "Recover", "Re-replicate what it held from the other replicas.",
            kinds={"delete_cookie": "boolean"},
            inputs=(Input("delete_cookie", "Forget the bookie after that", "select", "false",
                          ("false", "true")),)),
    _bookie("decommission", "Decommission", "Take it out of the cluster for good."),
    Action("ledger-recover", "Recover and close", "POST", "/api/v2/ledgers/{id}/recover",
           "Fence the writer out and close the ledger. Fencing is permanent.", confirm="id",
           then="/ui/ledgers/{id}", is_dangerous=True),
    Action("ledger-delete", "Delete", "DELETE", "/api/v2/ledgers/{id}",
           "Delete the ledger and all its entries for good.", confirm="id", then="/ui/ledgers",
           is_dangerous=True),
    Action("stream-create", "Create a stream", "POST", "/api/v2/streams",
           "The namespace is made if it is missing.", then="/ui/streams",
           kinds={"partitions": "integer"},
           inputs=(Input("name", "Name"), Input("partitions", "Partitions (none: one stream)"))),
    Action("stream-truncate", "Truncate", "POST", f"{_STREAM}/truncate",
           "Delete the records before a place for good.", confirm="name",
           then="/ui/streams/{name}", is_dangerous=True,
           inputs=(Input("before", "Before", placeholder="seq:1000 or 2026-11-22T14:00"),)),
    Action("stream-policy", "Change the policy", "PUT", f"{_STREAM}/policy",
           "Holds for writers from their next opening on, for retention at once.", confirm="name",
           then="/ui/streams/{name}", kinds={"policy": "pairs"},
           inputs=(Input("policy", "NAME=VALUE, separated by commas",
                         placeholder="retain_time_s=7d"),)),
    Action("stream-delete", "Delete", "DELETE", _STREAM,
           "Delete the stream with all its records for good.", confirm="name",
           then="/ui/streams", is_dangerous=True),
    Action("cursor-reset", "Move a cursor", "PUT", f"{_STREAM}/cursors/{{cursor}}",
           "Make a cursor, or take it elsewhere.", confirm="name", then="/ui/streams/{name}",
           inputs=(Input("cursor", "Cursor"),
                   Input("position", "To", placeholder="earliest, latest, seq:N, a time"))),
    Action("recovery-on", "Switch on", "PUT", "/api/v2/recovery", "Ledgers are audited and "
           "re-replicated again.", then="/ui/recovery", kinds={"enabled": "boolean"},
           inputs=(Input("enabled", "", "hidden", "true"),)),
    Action("recovery-off", "Switch off", "PUT", "/api/v2/recovery",
           "No ledger is audited or re-replicated until it is switched on.", then="/ui/recovery",
           kinds={"enabled": "boolean"}, inputs=(Input("enabled", "", "hidden", "false"),)),
    Action("audit-now", "Look for lost bookies now", "POST", "/api/v2/recovery/audit",
           "The auditor does not wait for the delay.", then="/ui/recovery"),
    Action("job-cancel", "Cancel", "DELETE", "/api/v2/jobs/{id}",
           "What it has done stays done.", then="/ui/jobs"),
    Action("token-revoke", "Revoke", "DELETE", "/api/v2/tokens/{name}",
           "Nobody is let in by it any more.", confirm="name", then="/ui/tokens",
           is_dangerous=True),
)  # fmt: skip
BY_KEY = {action.key: action for action in ACTIONS}


def endpoint_of(action: Action, endpoints: Sequence[Endpoint]) -> Endpoint:
    """Return what carries an action out."""
    return next(e for e in endpoints if (e.method, e.path) == (action.method, action.path))


def body_of(action: Action, form: Mapping[str, str], endpoint: Endpoint) -> dict[str, object]:
    """Return the body that a form stands for; fields that were left empty are not in it."""
    body: dict[str, object] = {}
    for name in endpoint.body:
        text = form.get(name, "").strip()
        if not text:
            continue
        kind = action.kinds.get(name)
        if kind == "boolean":
            body[name] = {"true": True, "false": False}.get(text, text)
        elif kind == "integer":
            body[name] = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
        elif kind == "pairs":
            pairs = (pair.partition("=") for pair in text.split(","))
            body[name] = {key.strip(): value.strip() for key, _, value in pairs}
        else:
            body[name] = text
    return body
