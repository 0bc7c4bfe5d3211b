"""What no class of the exception tree stands for: command lines, the operating system, children.

An error of a command line has the name of click's class as its code; one of the operating system
goes by its number.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from quorumbook.errors import QuorumbookError


class Explanation(NamedTuple):
    """What happened, what to do next, and the class that Python raises if it is one of ours."""

    happened: str
    advice: tuple[str, ...]
    kind: type[QuorumbookError] | None = None


#: What no class of ours stands for.
OUTSIDE: dict[str, Explanation] = {
    "usage": Explanation(
        "The command line cannot be understood, or two parts of it contradict each other.",
        ("Add --help to the command: it lists what can be given, with an example.",),
    ),
    "no-such-option": Explanation(
        "The command has no option of this name.",
        (
            "Add --help to the command: it lists its options.",
            "An option belongs to one command; the common ones may also stand before it:"
            " `quorumbook --metadata URI ledger ls`.",
        ),
    ),
    "missing-parameter": Explanation(
        "The command needs an argument or an option that was not given.",
        ("Add --help to the command: its first line shows what it needs.",),
    ),
    "bad-parameter": Explanation(
        "An argument or an option has a value that cannot be used.",
        (
            "The message names it, and says what is expected.",
            "Sizes are written as `64K` or `1.5G`, durations as `500ms` or `7d`, times as"
            " `2026-11-22T14:00` or `-1h`.",
        ),
    ),
    "file-not-found": Explanation(
        "A file or directory does not exist.",
        ("The message names it. Relative names begin in the directory where you are.",),
    ),
    "permission-denied": Explanation(
        "The operating system does not let this user do that.",
        (
            "Look at the owner and the mode of what the message names: `ls -l`.",
            "A bookie's directories belong to the user that runs the bookie. Ports below 1024 are"
            " for root.",
        ),
    ),
    "file-exists": Explanation(
        "There is a file or directory of this name already.",
        ("Give another name, or remove what is there.",),
    ),
    "wrong-kind-of-file": Explanation(
        "A directory was given where a file is needed, or a file where a directory is needed.",
        ("Correct the name.",),
    ),
    "directory-not-empty": Explanation(
        "The directory holds something, and only an empty one can be used.",
        ("Give another directory, or move what it holds.",),
    ),
    "read-only-file-system": Explanation(
        "The file system is mounted read-only, so nothing can be written to it.",
        (
            "Mount it for writing. Linux mounts a failing disk read-only by itself:"
            " look at `dmesg`.",
        ),
    ),
    "no-space": Explanation(
        "No space is left on the file system, or the user's quota is used up.",
        (
            "`df -h` and `df -i` show what is left. Free space, then run the command again.",
            "For the disks of a bookie see `quorumbook help disk-full`.",
        ),
    ),
    "disk-failed": Explanation(
        "The disk could not read or write.",
        (
            "Look at `dmesg`. If the disk is broken, replace it.",
            "`quorumbook disk fsck --data-dir DIR` shows what a stopped bookie has lost.",
        ),
    ),
    "address-in-use": Explanation(
        "Another process listens on this port.",
        (
            "Give another port with --port, or stop the other process:"
            " `ss -ltnp` shows which one it is.",
        ),
    ),
    "address-not-available": Explanation(
        "This host does not have the address on which the command should listen.",
        (
            "`ip address` shows the addresses of this host; 0.0.0.0 means all of them.",
            "If clients reach the host by an address that the host does not have (behind NAT, say),"
            " listen on an address of the host, and give the other one with --advertised-address.",
        ),
    ),
    "connection-refused": Explanation(
        "The host is there, but no process listens on this port.",
        ("Check the address and the port, and start what should listen there.",),
    ),
    "connection-reset": Explanation(
        "The other side ended the connection.",
        ("Run the command again. If it happens again, look into the log of the other side.",),
    ),
    "host-unreachable": Explanation(
        "No route leads to the host, or it does not answer.",
        ("Check the address, the host, and firewalls on the way.",),
    ),
    "unknown-host": Explanation(
        "The name of a host cannot be resolved to an address.",
        ("Check the spelling: `getent hosts NAME` asks as the command does.",),
    ),
    "timed-out": Explanation(
        "The other side did not answer in time.",
        ("Run the command again. `quorumbook status` says whether the cluster is healthy.",),
    ),
    "too-many-files": Explanation(
        "The process, or the whole machine, has as many open files and connections as it may have.",
        ("Raise the limit with `ulimit -n`, or LimitNOFILE in a systemd unit.",),
    ),
    "out-of-memory": Explanation(
        "The machine, or the limit of its container, has no memory left for this.",
        ("Free memory, raise the limit, or write and read in smaller portions.",),
    ),
    "storage": Explanation(
        "A file or a directory of a bookie cannot be used; the message names it.",
        (
            "Look at its owner and mode, at `df -h`, and for errors of the disk at `dmesg`.",
            "`quorumbook disk fsck --data-dir DIR` looks through a stopped bookie's files.",
        ),
    ),
    "child-failed": Explanation(
        "A process that the command started ended, or could not start.",
        ("The message has the last line of its log, and ends with the code of that.",),
    ),
    "spark-failed": Explanation(
        "Spark could not carry the job out; the message has the line of it that says why.",
        (
            "Run the command again with -v: the trace has all that Spark said.",
            "`quorumbook spark audit --help` says how Spark is found, and which master it uses.",
        ),
    ),
    "lake-conflict": Explanation(
        "Somebody else changed the table of the lake at the same moment.",
        ("Run the command again.",),
    ),
    "difference-found": Explanation(
        "What was read is not what was written, or something of it is missing.",
        (
            "Add -v and run the command again. If it says so again, keep the directories and logs"
            " of the bookies and report a bug.",
        ),
    ),
    "failed": Explanation(
        "The command could not do what it was asked to do; the message says why.",
        ("`quorumbook status` says whether the cluster is healthy, and `-v` shows a trace.",),
    ),
    "operating-system": Explanation(
        "The operating system refused something; the message has its own words.",
        ("Run the command again with -v: the trace shows where it happened.",),
    ),
    "interrupted": Explanation(
        "The command was ended with Ctrl-C.",
        ("What it had acknowledged is stored. Run the command again to do the rest.",),
    ),
}  # fmt: skip

BY_NUMBER = {
    number: code
    for code, numbers in {
        "file-not-found": (errno.ENOENT,),
        "permission-denied": (errno.EACCES, errno.EPERM),
        "file-exists": (errno.EEXIST,),
        "wrong-kind-of-file": (errno.EISDIR, errno.ENOTDIR),
        "directory-not-empty": (errno.ENOTEMPTY,),
        "read-only-file-system": (errno.EROFS,),
        "no-space": (errno.ENOSPC, errno.EDQUOT),
        "disk-failed": (errno.EIO,),
        "address-in-use": (errno.EADDRINUSE,),
        "address-not-available": (errno.EADDRNOTAVAIL,),
        "connection-refused": (errno.ECONNREFUSED,),
        "connection-reset": (errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE),
        "host-unreachable": (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN),
        "timed-out": (errno.ETIMEDOUT,),
        "too-many-files": (errno.EMFILE, errno.ENFILE),
        "out-of-memory": (errno.ENOMEM,),
    }.items()
    for number in numbers
}
