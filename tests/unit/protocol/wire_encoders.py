"""Writes decoded requests and answers down again."""

from __future__ import annotations

from quorumbook.protocol import answers
from quorumbook.protocol import requests as rq
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3


def encode_v2_request(request: rq.Request) -> bytes:
    match request:
        case rq.AddRun():
            flags = (v2.RECOVERY_ADD if request.is_recovery else 0) | (
                v2.HIGH_PRIORITY if request.is_high_priority else 0
            )
            bodies = [body for _, body in request.run.entries()]
            return b"".join(v2.encode_adds(request.master_key, flags, bodies))
        case rq.Read():
            return v2.encode_read(
                request.ledger_id,
                request.entry_id,
                master_key=request.master_key,
                is_high_priority=request.is_high_priority,
            )
        case rq.BatchRead():
            return v2.encode_batch_read(
                request.ledger_id,
                request.first_entry_id,
                request.request_id,
                request.max_count,
                request.max_size_bytes,
                request.master_key,
                is_high_priority=request.is_high_priority,
            )
        case rq.Auth():
            return v2.encode_auth(request.plugin, request.payload)
    raise AssertionError(request)


def encode_v2_answer(answer: v2.Answer) -> bytes:
    match answer:
        case v2.AddAnswers():
            ids = range(answer.first_entry_id, answer.last_entry_id + 1)
            return v2.encode_add_answers(answer.ledger_id, ids, answer.code)
        case v2.ReadAnswer():
            return v2.encode_read_answer(
                answer.ledger_id, answer.entry_id, answer.code, answer.entry
            )
        case v2.BatchReadAnswer():
            return b"".join(
                v2.encode_batch_read_answer(
                    answer.ledger_id,
                    answer.first_entry_id,
                    answer.request_id,
                    answer.code,
                    answer.data,
                )
            )
        case v2.AuthAnswer():
            return v2.encode_auth(answer.plugin, answer.payload)
    raise AssertionError(answer)


def encode_v3_request(request: rq.Request) -> bytes:
    match request:
        case rq.AddRun():
            assert request.transaction_ids is not None
            return b"".join(
                v3.encode_add(
                    token,
                    request.echo_ledger_id,
                    echo_id,
                    request.master_key,
                    body,
                    is_recovery=request.is_recovery,
                    is_high_priority=request.is_high_priority,
                    is_deferred_sync=request.is_deferred_sync,
                )
                for token, echo_id, (_, body) in zip(
                    request.transaction_ids,
                    request.echo_entry_ids,
                    request.run.entries(),
                    strict=True,
                )
            )
        case rq.Read():
            return v3.encode_read(
                request.token,
                request.ledger_id,
                request.entry_id,
                master_key=request.master_key,
                is_high_priority=request.is_high_priority,
                previous_lac=request.previous_lac,
                timeout_ms=request.timeout_ms,
                is_piggyback=request.is_piggyback,
            )
        case rq.WriteLAC():
            return v3.encode_write_lac(
                request.token,
                request.ledger_id,
                request.lac,
                request.master_key,
                request.packet,
            )
        case rq.ReadLAC():
            return v3.encode_read_lac(request.token, request.ledger_id)
        case rq.ForceLedger():
            return v3.encode_force(request.token, request.ledger_id)
        case rq.ListEntries():
            return v3.encode_list_entries(request.token, request.ledger_id)
        case rq.BookieInfo():
            return v3.encode_bookie_info(request.token, request.requested)
        case rq.Auth():
            return v3.encode_auth(request.token, request.plugin, request.payload)
        case rq.StartTLS():
            return v3.encode_start_tls(request.token)
    raise AssertionError(request)


def encode_v3_response(response: v3.V3Response) -> bytes:
    token, status = response.txn_id, response.status
    ledger_id = response.ledger_id or 0
    operation = response.operation
    if not response.has_details:
        return answers.bare_answer(rq.Unsupported(3, token, operation, status), status)
    match operation:
        case rq.Operation.ADD_ENTRY:
            body = digester(DigestType.DUMMY, b"").seal(
                ledger_id, response.entry_id or 0, 0, 0, b""
            )
            add = v3.encode_add(token, ledger_id, response.entry_id or 0, bytes(20), body)
            (request,) = RequestDecoder().feed(add)
            assert isinstance(request, rq.AddRun)
            return answers.add_answers(request, status)
        case rq.Operation.READ_ENTRY:
            return answers.read_answer(
                rq.Read(3, token, ledger_id, -1),
                status,
                response.body,
                response.max_lac,
                response.entry_id,
                response.lac_update_ms,
            )
        case rq.Operation.WRITE_LAC:
            return answers.write_lac_answer(rq.WriteLAC(token, ledger_id, 0, b"", b""), status)
        case rq.Operation.READ_LAC:
            return answers.read_lac_answer(
                rq.ReadLAC(token, ledger_id), status, response.lac_body, response.last_entry
            )
        case rq.Operation.FORCE_LEDGER:
            return answers.force_answer(rq.ForceLedger(token, ledger_id), status)
        case rq.Operation.GET_BOOKIE_INFO:
            return answers.bookie_info_answer(
                rq.BookieInfo(token, 3), status, response.total_disk_bytes, response.free_disk_bytes
            )
        case rq.Operation.GET_LIST_OF_ENTRIES_OF_LEDGER:
            return answers.list_entries_answer(
                rq.ListEntries(token, ledger_id), status, response.availability
            )
        case rq.Operation.AUTH:
            return answers.auth_answer(
                rq.Auth(3, token, "", b""),
                status,
                response.auth_plugin or "",
                response.auth_payload or b"",
            )
        case rq.Operation.START_TLS:
            return answers.start_tls_answer(rq.StartTLS(token), status)
    raise AssertionError(response)
