"""Stream names, and where everything about streams lies in the metadata tree.

    <ns>                                     the binding
    <ns>/.policies                           the namespace's policy (ours; the peer skips it)
    <ns>/.identity                           what ledgers say whose they are by (ours)
    <ns>/.orphans/<ledger id>                a ledger that nothing refers to (ours)
    <ns>/.transactions                       who appends in one step (ours; ``transactions.state``)
    <ns>/.elections/<name>                   applications' elections (ours; likewise)
    <ns>/.pipelines/<name>                   what pipelines tell (ours; ``pipeline_nodes``)
    <ns>/<stream>                            free for applications; ours: the stream's policy
    <ns>/<stream>/<default>                  its root, empty
      …/maxtxid                              decimal; 9223372036854775807 when it is sealed
      …/version                              ff ff ff ff
      …/lock/member_<client>_s<session>_<seq>      data: the client id
      …/readLock
      …/ledgers                              decimal: the highest segment number ever used
      …/ledgers/inprogress_<18 digits>       segment metadata, by number
      …/ledgers/logrecs_<18 digits>          the same, completed
      …/allocation                           empty, or a ledger that is not used yet
      …/subscribers/<id>                     a position, in base64
      …/tier/<18 digits>                     ours: a segment's Parquet files
      …/schemas                              ours: what records are decoded by (``format.schemas``)
    <ns>/<stream>/<partitions>               ours: it has partitions (``partition_node``)

``<default>`` is literal.  A client id is URL-encoded in the name of a lock member, as Java does
it.  Segments of old writers are named by transaction ids: ``inprogress_<hex>``,
``logrecs_<18>_<18>`` and ``logrecs_<first>_<last>_<number>_<ledger>_<region>``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote_plus, unquote_plus

from quorumbook.streams.errors import InvalidStreamNameError

POLICY_NAME = ".policies"
#: The ``component`` of ledgers that many processes wrote to appear in one step.
TRANSACTION_COMPONENT = b"transaction"
#: In the custom metadata of a segment that was copied from another cluster: from where, as JSON.
COPY_KEY = "copy_of"
#: In that of one that others were merged into: their ledgers, and which entries they are, as JSON.
MERGED_KEY = "merged"
IDENTITY_NAME = ".identity"
ORPHANS_NAME = ".orphans"
ELECTIONS_NAME = ".elections"
PIPELINES_NAME = ".pipelines"
LAYOUT_VERSION_DATA = b"\xff\xff\xff\xff"
#: Where the number of a lock member cannot be read, it comes last.
_LAST_MEMBER = 2**31 - 1
_ROOT_NAME = "<default>"
_PARTITIONS_NAME = "<partitions>"
_PARTITION = re.compile(r"p(0|[1-9]\d*)")
_IN_PROGRESS = "inprogress_"
_COMPLETED = "logrecs_"
_RESERVED_FIRST = (".", "<")
_FORBIDDEN = re.compile(
    "[<> \u0000-\u001f\u007f-\u009f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"
)
_SESSION = re.compile(r"s(-?\d+)")


def check_stream_name(name: str) -> str:
    """Return the normal form of a name: without a leading slash.

    Raises:
        InvalidStreamNameError: a stream cannot be called that.
    """
    found = name.removeprefix("/")
    if not found:
        raise InvalidStreamNameError("a stream's name must not be empty")
    if found.startswith(_RESERVED_FIRST):
        raise InvalidStreamNameError(f"stream name {name!r}: names in . and < are reserved")
    bad = _FORBIDDEN.search(found)
    if bad:
        raise InvalidStreamNameError(
            f"stream name {name!r} has {bad[0]!r} in it: blanks, <, >, control characters and "
            "characters beyond 16 bits are not possible"
        )
    if any(part in ("", ".", "..") for part in found.split("/")):
        raise InvalidStreamNameError(f"stream name {name!r} has an empty or relative part")
    return found


def is_stream_part(name: str) -> bool:
    """Tell whether a child of the namespace may be (the first part of) a stream's name."""
    return not name.startswith(_RESERVED_FIRST)


@dataclass(frozen=True, slots=True)
class StreamPaths:
    """Paths of one stream."""

    namespace: str
    name: str

    @property
    def stream(self) -> str:
        """The node that carries the stream's policy."""
        return f"{self.namespace}/{self.name}"

    @property
    def root(self) -> str:
        """The parent of all the rest."""
        return f"{self.stream}/{_ROOT_NAME}"

    @property
    def max_txid(self) -> str:
        """The largest transaction id of all completed segments."""
        return f"{self.root}/maxtxid"

    @property
    def version(self) -> str:
        """The version of this layout."""
        return f"{self.root}/version"

    @property
    def lock(self) -> str:
        """The parent of those who want to write."""
        return f"{self.root}/lock"

    @property
    def read_lock(self) -> str:
        """The parent of those who want to read alone."""
        return f"{self.root}/readLock"

    @property
    def segments(self) -> str:
        """The parent of the segments; its data is the highest number ever used."""
        return f"{self.root}/ledgers"

    @property
    def allocation(self) -> str:
        """The node that names a ledger before it is used."""
        return f"{self.root}/allocation"

    @property
    def subscribers(self) -> str:
        """The parent of the subscriptions."""
        return f"{self.root}/subscribers"

    def subscriber(self, subscriber_id: str) -> str:
        """Return the node of a subscription."""
        return f"{self.subscribers}/{subscriber_id}"

    def subscriber_lock(self, subscriber_id: str) -> str:
        """Return the parent of those who want to read for a subscription alone."""
        return f"{self.subscriber(subscriber_id)}/readLock"

    @property
    def tier(self) -> str:
        """The parent of what is known of segments' files."""
        return f"{self.root}/tier"

    def segment_tier(self, number: int) -> str:
        """Return the node that lists a segment's files."""
        return f"{self.tier}/{number:018d}"

    @property
    def schemas(self) -> str:
        """The parent of the versions of the stream's schema."""
        return f"{self.root}/schemas"

    @property
    def partitioned_schemas(self) -> str:
        """The same of a partitioned stream of this name."""
        return f"{self.partitions}/schemas"

    @property
    def partitions(self) -> str:
        """The node that a partitioned stream of this name has."""
        return f"{self.stream}/{_PARTITIONS_NAME}"

    def whole(self) -> StreamPaths | None:
        """Return the paths of the partitioned stream that one of this name may be a part of."""
        above, slash, part = self.name.rpartition("/")
        is_part = slash and _PARTITION.fullmatch(part)
        return StreamPaths(self.namespace, above) if is_part else None

    def segment(self, number: int, *, is_in_progress: bool) -> str:
        """Return the node of a segment."""
        prefix = _IN_PROGRESS if is_in_progress else _COMPLETED
        return f"{self.segments}/{prefix}{number:018d}"


def is_segment_name(name: str) -> bool:
    """Tell whether a child of ``ledgers`` is a segment."""
    return name.startswith((_IN_PROGRESS, _COMPLETED))


def segment_number(name: str) -> int | None:
    """Return the number in a segment's name; None where an old writer left it out."""
    if name.startswith(_IN_PROGRESS):
        digits = name.removeprefix(_IN_PROGRESS)
        # An old one is named by a transaction id in hex, of which 18 decimal digits are unlikely.
        return int(digits) if re.fullmatch(r"\d{18}", digits) else None
    parts = name.removeprefix(_COMPLETED).split("_")
    digits = parts[2] if len(parts) == 5 else parts[0] if len(parts) == 1 else ""
    return int(digits) if re.fullmatch(r"\d+", digits) else None


def in_progress_names(names: list[str]) -> list[str]:
    """Return the names of segments that are in progress, each without what all have in front."""
    return [name.removeprefix(_IN_PROGRESS) for name in names if name.startswith(_IN_PROGRESS)]


def names_for_writer(names: list[str]) -> list[str]:
    """Return the segments that a writer has to know: unfinished, the last finished, unnumbered."""
    numbered = {name: segment_number(name) for name in names if name.startswith(_COMPLETED)}
    last = max((n for n in numbered.values() if n is not None), default=None)
    return [
        name
        for name in names
        if name.startswith(_IN_PROGRESS) or (name in numbered and numbered[name] in (None, last))
    ]


# Lock members ----------------------------------------------------------------------------------


def lock_member_prefix(client_id: str, session_id: int) -> str:
    """Return the name of a lock member without its sequence number."""
    encoded = quote_plus(client_id, safe="*").replace("~", "%7E")
    return f"member_{encoded}_s{session_id:10d}_"


def lock_member_number(name: str) -> int:
    """Return what lock members are ordered by; one that cannot be read comes last."""
    try:
        number = int(name.rpartition("_")[2])
    except ValueError:
        return _LAST_MEMBER
    return min(number, _LAST_MEMBER)


def lock_member_owner(name: str) -> tuple[str, int] | None:
    """Return client id and session of a lock member; None where the name does not tell."""
    parts = name.split("_")
    if len(parts) != 4:
        return None
    session = _SESSION.fullmatch(parts[2].replace(" ", ""))
    return (unquote_plus(parts[1]), int(session[1])) if session else None
