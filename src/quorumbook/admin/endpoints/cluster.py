"""The cluster as a whole: its health, recovery, metadata, jobs, changes, tokens."""

from __future__ import annotations

import asyncio

from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.facts.nodes import node_row
from quorumbook.admin.facts.verdict import judge
from quorumbook.admin.http.endpoint import Ask, Endpoint
from quorumbook.admin.http.fields import Field
from quorumbook.admin.http.problems import ApiError, problem_of
from quorumbook.admin.http.service import Service, own_files
from quorumbook.client.context import client_store
from quorumbook.env import patience
from quorumbook.errors import QuorumbookError
from quorumbook.metadata.recovery.quarantine import Quarantine
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.recovery.switches import PeriodicCheck

_CHECKS = {
    "ledgers": PeriodicCheck.ALL_LEDGERS,
    "replicas": PeriodicCheck.REPLICAS,
    "placement": PeriodicCheck.PLACEMENT,
}
_JOB = {"id": Field("integer", "The job's id.", minimum=1, maximum=2**31, example=1)}
_DAY_S = 86_400
#: So long a cluster may take to say how it is, beside others.
_VERDICT_S = 5.0


async def cluster(ask: Ask) -> dict[str, object]:
    """Return the verdict and what it is made of."""
    facts = await ask.facts(fresh=ask.query.get("fresh", False))
    judgement = judge(facts)
    return {
        "status": judgement.level.name.lower(),
        "reasons": [reason.row() for reason in judgement.reasons],
        **facts.row(),
        "bookies": [bookie.row() for bookie in facts.bookies],
    }


async def clusters(ask: Ask) -> dict[str, object]:
    """Return the server's clusters with the verdict on each, of those that somebody may see."""
    seen = [each for each in ask.service.neighbours if ask.who.at(each.options.cluster) is not None]
    return {"clusters": list(await asyncio.gather(*(_cluster_row(ask, each) for each in seen)))}


async def _cluster_row(ask: Ask, service: Service) -> dict[str, object]:
    row: dict[str, object] = {
        "name": service.options.cluster or None,
        "path": service.options.base or "/",
        "metadata": service.shown_uri,
        "is_here": service is ask.service,
    }
    try:
        async with patience.timeout(_VERDICT_S):
            judgement = judge(await service.facts(takes_old=ask.is_page))
    except (TimeoutError, QuorumbookError, ApiError) as error:
        problem = problem_of(error)
        return {**row, "status": "unknown", "reasons": [problem.detail if problem else ""]}
    reasons = [reason.text for reason in judgement.reasons]
    return {**row, "status": judgement.level.name.lower(), "reasons": reasons}


async def recovery(ask: Ask) -> dict[str, object]:
    """Return how auto-recovery stands."""
    facts = await ask.facts()
    queue = UnderreplicationQueue(client_store(await ask.service.client()))
    try:
        return {
            "enabled": await queue.is_enabled(),
            "auditor": facts.auditor,
            "lost_bookie_delay_s": await queue.lost_bookie_delay_s(),
            "underreplicated_ledgers": facts.underreplicated,
            "quarantined_ledgers": len(facts.quarantined),
            **{
                f"checked_{name}_at_ms": await queue.checked_at_ms(check)
                for name, check in _CHECKS.items()
            },
        }
    finally:
        queue.close()


async def underreplicated(ask: Ask) -> dict[str, object]:
    """Return the queue of under-replicated ledgers, and why each is still there."""
    store = client_store(await ask.service.client())
    queue, failures = UnderreplicationQueue(store), Quarantine(store)
    rows: list[dict[str, object]] = []
    is_more = False
    try:
        async for mark in queue.list([]):
            if len(rows) == ask.query["limit"]:
                is_more = True
                break
            failure = await failures.read(mark.ledger_id)
            rows.append(
                {
                    "ledger_id": mark.ledger_id,
                    "missing_on": list(mark.replicas),
                    "marked_at_ms": mark.ctime_ms,
                    "worker": await queue.worker_of(mark.ledger_id),
                    "attempts": failure.attempts if failure else 0,
                    "retry_at_ms": failure.retry_at_ms if failure else None,
                    "quarantined": failure is not None and failure.is_quarantined,
                    "reason": failure.reason if failure else None,
                }
            )
    finally:
        queue.close()
    return {"ledgers": rows, "has_more": is_more}


async def _change_recovery(ask: Ask) -> object:
    queue = UnderreplicationQueue(client_store(await ask.service.client()))
    try:
        if ask.body["enabled"] is not None:
            await (queue.enable() if ask.body["enabled"] else queue.disable())
        if ask.body["lost_bookie_delay_s"] is not None:
            await queue.set_lost_bookie_delay_s(ask.body["lost_bookie_delay_s"])
    finally:
        queue.close()
    ask.service.forget_facts()
    return await recovery(ask)


async def _audit_now(ask: Ask) -> object:
    queue = UnderreplicationQueue(client_store(await ask.service.client()))
    try:
        if not await queue.is_enabled():
            raise ApiError(409, "recovery-disabled", "auto-recovery is switched off; enable it")
        check = ask.body["check"]
        if check is None:
            await queue.ask_for_audit()
        else:
            await queue.ask_for_check(_CHECKS[check])
    finally:
        queue.close()
    return {"triggered": check or "lost-bookies"}


async def node(ask: Ask) -> dict[str, object]:
    """Return a node of the metadata."""
    store = client_store(await ask.service.client())
    path = str(ask.query["path"] or store.ledgers_root)
    found = await node_row(store, path, sees_all=ask.who.may(Role.ADMIN))
    if found is None:
        raise ApiError(
            403, "role",
            f"{path[:200]} is neither below {store.ledgers_root} nor in a namespace of streams; "
            "other nodes take the role admin",
        )  # fmt: skip
    return found


async def _options(ask: Ask) -> object:
    return {"options": dict(ask.service.options.settings)}


async def _jobs(ask: Ask) -> object:
    return {"jobs": [job.row() for job in ask.service.jobs.list()]}


async def _job(ask: Ask) -> object:
    return ask.service.jobs.get(ask.path["id"]).row()


async def _cancel(ask: Ask) -> object:
    return (await ask.service.jobs.cancel(ask.path["id"])).row()


async def _changes(ask: Ask) -> object:
    return {"changes": [change.row() for change in ask.service.audit.recent(ask.query["limit"])]}


def token_file(ask: Ask) -> TokenFile:
    """Return the file of tokens.

    Raises:
        ApiError: The server has none.
    """
    if ask.service.tokens is None:
        raise ApiError(
            409, "no-token-file", "this server has no admin.token_file, so it keeps no tokens"
        )
    return ask.service.tokens


async def _tokens(ask: Ask) -> object:
    return {"tokens": token_rows(ask) or []}


def token_rows(ask: Ask) -> list[dict[str, object]] | None:
    """Return the tokens without their secrets; None: the server keeps none.

    Raises:
        ApiError: Their file cannot be used.
    """
    if ask.service.tokens is None:
        return None
    with own_files("its tokens"):
        return [token.row() for token in ask.service.tokens.tokens()]


async def _add_token(ask: Ask) -> object:
    days = ask.body["days"]
    secret, token = token_file(ask).add(
        ask.body["name"],
        Role.of(ask.body["role"]),
        lifetime_s=None if days is None else days * _DAY_S,
        namespaces=tuple(map(str, ask.body["namespaces"] or ())),
        clusters=tuple(map(str, ask.body["clusters"] or ())),
    )
    return {**token.row(), "token": secret}


async def _revoke_token(ask: Ask) -> object:
    if not token_file(ask).revoke(ask.path["name"]):
        raise ApiError(404, "no-such-token", f"there is no token {ask.path['name'][:80]}")
    return {"name": ask.path["name"], "revoked": True}


NODE_PATH = Field("string", "Its path; the cluster's root if not given.", max_length=2000)
_LIMIT = Field("integer", "At most this many.", default=100, minimum=1, maximum=1000)
TOKEN_FIELDS = {
    "name": Field("string", "Whom it is for.", is_required=True, max_length=64,
                  example="ci"),
    "role": Field("string", "What it may do.", is_required=True,
                  choices=("viewer", "operator", "admin"), example="viewer"),
    "days": Field("number", "How long it is good for; forever if not given.", minimum=0.001,
                  maximum=36500),
    "namespaces": Field("array", "Namespaces of streams it is confined to; all if not given. With "
                        "any it sees nothing else of the cluster.", max_length=100),
    "clusters": Field("array", "Which of this server's clusters it is confined to; all if not "
                      "given.", max_length=100),
}  # fmt: skip

ENDPOINTS = (
    Endpoint("GET", "/api/v2/clusters", Role.VIEWER,
             "The clusters of this server, where their paths begin, and how they are.", clusters,
             command="quorumbook context ls"),
    Endpoint(
        "GET", "/api/v2/cluster", Role.VIEWER,
        "The cluster's health: one verdict, its reasons, what to do, and the numbers.", cluster,
        query={"fresh": Field("boolean", "Read all ledgers now, not those of the last half "
                              "minute.", default=False)},
        command="quorumbook status -o json",
    ),
    Endpoint("GET", "/api/v2/recovery", Role.VIEWER, "How auto-recovery stands.", recovery,
             command="quorumbook recovery status"),
    Endpoint(
        "PUT", "/api/v2/recovery", Role.OPERATOR, "Switch auto-recovery, or set its delay.",
        _change_recovery,
        body={
            "enabled": Field("boolean", "Whether ledgers are audited and re-replicated.",
                             example=True),
            "lost_bookie_delay_s": Field("integer", "How long a bookie may be away.", minimum=0,
                                         maximum=2**31 - 1),
        },
        command="quorumbook recovery disable",
    ),
    Endpoint(
        "POST", "/api/v2/recovery/audit", Role.OPERATOR,
        "Have the auditor look for lost bookies now, or begin a check.", _audit_now,
        body={"check": Field("string", "Instead, begin this check.", choices=tuple(_CHECKS),
                             example="ledgers")},
        command="quorumbook recovery trigger",
    ),
    Endpoint(
        "GET", "/api/v2/recovery/underreplicated", Role.VIEWER,
        "Ledgers that lack replicas: who works at each, and why it is still there.",
        underreplicated, query={"limit": _LIMIT}, command="quorumbook recovery underreplicated",
    ),
    Endpoint(
        "GET", "/api/v2/metadata", Role.VIEWER,
        "A node of the metadata, and its children. Nodes that are neither the cluster's nor of "
        "streams take the role admin. Values are shown without secrets.", node,
        query={"path": NODE_PATH},
    ),
    Endpoint("GET", "/api/v2/config", Role.VIEWER,
             "Options that are set for this server, without secrets.", _options,
             command="quorumbook config show --changed"),
    Endpoint("GET", "/api/v2/jobs", Role.VIEWER, "Work that goes on, and that is over.", _jobs),
    Endpoint("GET", "/api/v2/jobs/{id}", Role.VIEWER, "One job.", _job, names=_JOB),
    Endpoint("DELETE", "/api/v2/jobs/{id}", Role.OPERATOR,
             "Cancel a job; what it has done stays done.", _cancel, names=_JOB),
    Endpoint("GET", "/api/v2/audit", Role.OPERATOR, "The last changes through this server.",
             _changes, query={"limit": _LIMIT}),
    Endpoint("GET", "/api/v2/tokens", Role.ADMIN, "The tokens, without their secrets.", _tokens,
             command="quorumbook token ls"),
    Endpoint("POST", "/api/v2/tokens", Role.ADMIN,
             "Make a token; the answer is the only place where it can be seen.", _add_token,
             body=TOKEN_FIELDS, status=201, command="quorumbook token add NAME --role ROLE"),
    Endpoint("DELETE", "/api/v2/tokens/{name}", Role.ADMIN, "Revoke a token, at once.",
             _revoke_token, names={"name": Field("string", "Whose.", max_length=64,
                                                      example="ci")},
             command="quorumbook token revoke {name}"),
)  # fmt: skip
