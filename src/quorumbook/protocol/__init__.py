"""The wire: frames, the v2 and v3 protocols, digests, status codes.

Bytes in, values out, and back; nothing here knows a socket, a clock or a thread.

    status        what a bookie answers, its number in v2 and v3, its exception
    entry_run     consecutive entries as one piece of memory;  run_builder: out of a chunk's adds
    digest        entries, their digests, keys
    frames        cutting a byte stream into frames
    v2, v3        what a client sends and how it reads the answers;  what a bookie receives
    requests      what a bookie is asked, whichever protocol it came in
    request_decoder   bytes of a connection to requests;  answers: encoding what a bookie says
    messages      the peer's protobuf messages, wire and metadata
    availability  which entries a bookie holds, as one answer
"""
