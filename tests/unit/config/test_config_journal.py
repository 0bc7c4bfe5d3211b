"""What no configuration may do: acknowledge entries that are on no disk."""

from __future__ import annotations

from quorumbook.config import OPTIONS


def test_s15_s16_no_option_turns_the_journal_or_its_sync_off() -> None:
    journal = {option.name for option in OPTIONS if "journal" in option.name}
    assert journal == {
        "journal_directories",
        "journal_file_size_bytes",
        "journal_group_size_bytes",
    }
    suspicious = ("sync", "fsync", "durable", "write_data")
    assert [o.name for o in OPTIONS if any(word in o.name for word in suspicious)] == []
