"""What must always be true, each by its name; a violation says which of them it breaks.

Where Vanlightly's TLA+ model of the protocol (github.com/Vanlightly/bookkeeper-tlaplus) states the
same, the name is the one it has there, in this project's spelling:

    NoDivergenceBetweenClientAndMetaData   no_divergence_between_client_and_metadata
    AllAckedEntriesAreReadable             all_acked_entries_are_readable
    AllCommittedEntriesReachAckQuorum      all_committed_entries_reach_ack_quorum
    NoOutOfOrderEntries                    no_out_of_order_entries
    Liveness (LedgerIsClosed)              ledger_is_closed

The numbers I1 to I14 are those of the project's list of invariants; what belongs to none of them
is told of the machinery, M.
"""

from __future__ import annotations

from enum import Enum


class Invariant(Enum):
    """One of them: its number, and what it says."""

    NO_DIVERGENCE_BETWEEN_CLIENT_AND_METADATA = (
        "I1",
        "no acknowledged entry lies behind the end of a closed ledger",
    )
    ALL_ACKED_ENTRIES_ARE_READABLE = (
        "I2",
        "whoever recovers a ledger finds all acknowledged entries",
    )
    NO_OUT_OF_ORDER_ENTRIES = (
        "I2",
        "entries are acknowledged, and shown to a reader, each once and in order",
    )
    ENTRIES_ARE_WHAT_WAS_SENT = "I3", "an entry is what its writer sent, whoever reads it"
    NOTHING_SHOWN_IS_TAKEN_BACK = (
        "I4",
        "what a reader was shown or told as confirmed is so, and stays so",
    )
    WHAT_WAS_FLUSHED_IS_SEEN = (
        "I4",
        "what a writer has flushed is confirmed to whoever asks enough bookies",
    )
    ONE_END = "I5", "all who see a ledger closed see the same end, and it does not move"
    DRIVERS_TELL_WHAT_HAPPENED = "I5", "what a metadata driver says of a write is what happened"
    VALID_ENSEMBLE_SEQUENCE = (
        "I6",
        "no bookie is in an ensemble twice, and fragments change only as they may",
    )
    ALL_COMMITTED_ENTRIES_REACH_ACK_QUORUM = (
        "I7",
        "each entry up to the end has the copies that the metadata speak of",
    )
    MENDED_DISKS_ARE_BELIEVED = (
        "I7",
        "a bookie gives out again what its disk could not give back for a while",
    )
    FENCED_BOOKIES_TAKE_NO_ADDS = (
        "I8",
        "no bookie that has answered a fence takes a writer's add behind it",
    )
    NO_BOOKIE_DENIES_WHAT_IT_ACKED = (
        "I9",
        "no bookie that stands for an entry and acknowledged it says that there is none",
    )
    NO_ENTRY_IS_DENIED = "I9", "no reader is told that there is no entry below the end"
    NO_LIVE_LEDGER_IS_DELETED = "I10", "no ledger goes that nobody deleted"
    WHAT_IS_DELETED_STAYS_SO = "I10", "a bookie has nothing again of a ledger that it has deleted"
    EVERY_CALL_ENDS = "I11", "each call of a client ends when all is well again"
    LEDGER_IS_CLOSED = "I11", "each ledger can be recovered and closed when all is well again"
    NOTHING_IS_HELD = "I12", "bookies and clients hold nothing when nobody asks for anything"
    NO_LEDGER_STAYS_UNDERREPLICATED = (
        "I13",
        "of no ledger it stays written down that it lacks copies when all is well again",
    )
    STREAM_IS_DENSE = "I14", "a reader of a stream gets one sequence id after the other"
    STREAM_HAS_ONE_RECORD_A_PLACE = "I14", "a sequence id is one record, for whoever knows it"
    STREAM_HAS_A_RECORD_ONCE = "I14", "a record is in the stream once, however often it was sent"
    STREAM_KEEPS_ORDER = "I14", "a producer's records are in the order of their numbers"
    STREAM_KEEPS_TRANSACTION_IDS = "I14", "transaction ids never fall, and find their records"
    STREAM_LOSES_NOTHING = "I14", "what was acknowledged is there unless it was truncated"
    EPOCHS_FENCE = "I14", "two writers are never told the same sequence id"
    GROUP_HAS_ONE_RECORD_A_PLACE = "I14", "a place in a partition is one record"
    GROUP_SKIPS_NOTHING = "I14", "a partition is handed out record by record"
    GROUP_LOSES_NOTHING = "I14", "a new member gets all that was not committed"
    GROUP_KEEPS_COMMITS = "I14", "nobody who has lost a partition puts its cursor back"
    BATCH_IS_WHOLE = "I14", "a batch is in all of its streams, with all of its rows, or in none"
    BATCH_IS_THERE_ONCE = "I14", "a batch is there once, from one of those who tried it"
    BATCHES_KEEP_ORDER = "I14", "batches follow each other in every stream"
    BATCHES_ARE_KEPT = "I14", "a batch whose commit was reported is there"
    ACCOUNTS_FIT = "M", "the fields of a state machine fit each other after every event"
    NOTHING_IS_RAISED = "M", "nobody raises what nobody expects"
    BOOKIES_START_AND_STAY = (
        "M",
        "a bookie starts with what crashes left, and ends only when it cannot know its disk",
    )
    READ_ONLY_AS_LONG_AS_WANTED = (
        "M",
        "a bookie takes a writer's adds unless its operator or a full disk is against it",
    )
    SPACE_IS_GIVEN_BACK = "M", "a disk is not filled in vain, and what is deleted frees it"
    NOBODY_IS_WRONG = "M", "who uses the cluster rightly is not told that he is wrong"
    ERRORS_SAY_WHAT_IS_WRONG = "M", "what went wrong is told, by the error that says so"
    LIMITS_ARE_KEPT = "M", "what has a limit stays within it, whoever does not play along"
    NO_BOOKIE_IS_SHUNNED = "M", "a bookie is left alone for a reason only, and not by all alike"
    STRANGERS_HINDER_NOBODY = "M", "who knows no key keeps nobody from writing"
    WHO_IS_BACK_IS_NOT_LOST = "M", "nobody loses his place who is back before he counts as lost"
    BOOKIES_HOLD_THEIR_SHARE = "M", "what workers copy is what the metadata name a bookie for"
    WRITERS_ARE_HEALED = "M", "a ledger that nobody writes any more is healed"

    @property
    def title(self) -> str:
        """Its number and its name."""
        return f"{self.value[0]} {self.name.lower()}"
