"""What commands warn of beside their result: nothing failed, but somebody should do something.

A warning has a code of its own where no error says the same.
"""

from __future__ import annotations

from quorumbook.cli.explained.outside import Explanation

WARNINGS: dict[str, Explanation] = {
    "option-without-effect": Explanation(
        "A configuration file of Apache BookKeeper sets an option that has no effect here.",
        (
            "Remove the line, or look in the configuration page for what does the same.",
            "`quorumbook config show` lists the options with the key that each has in Apache"
            " BookKeeper.",
        ),
    ),
    "bookie-still-runs": Explanation(
        "The bookie's ledgers were moved, and it holds nothing any more, but its process runs.",
        ("Stop the bookie, then give the same command again: it forgets the bookie.",),
    ),
    "bookie-stays-read-only": Explanation(
        "The bookie takes no new ledgers until somebody says so.",
        ("`quorumbook bookie readonly off BOOKIE` has it take new ledgers again.",),
    ),
    "ledger-in-the-way": Explanation(
        "A ledger could not be moved off the bookie, so the bookie cannot go yet.",
        (
            "The message says why. A ledger that is still written moves when it is closed:"
            " `quorumbook ledger recover ID` closes one whose writer died.",
            "Then run the command again: it goes on with what is left.",
        ),
    ),
    "bookie-runs-meanwhile": Explanation(
        "A bookie runs on the directory that is looked through, so files change meanwhile.",
        ("Stop the bookie and run the command again for a result that is certain.",),
    ),
    "unit-failed": Explanation(
        "A part of a Spark job failed; the other parts went on.",
        (
            "The message has the part and its error. When the cause is gone, run the command again"
            " with --resume JOB: it does what is left.",
        ),
    ),
    "copies-differ": Explanation(
        "Two copies of the same records were compared, and they are not the same.",
        (
            "The message names the place. Keep both copies until the cause is known.",
            "`quorumbook spark audit --ledgers IDS` reads every replica, and names the damaged"
            " ones.",
        ),
    ),
    "records-missing": Explanation(
        "Records between two positions are gone; reading went on behind the gap.",
        (
            "If retention or truncation deleted them, nothing is wrong: read from `earliest`.",
            "If entries were lost, `quorumbook stream segments NAME` names their ledger, and"
            " `quorumbook ledger show ID` the bookies that should have them.",
        ),
    ),
    "records-refused": Explanation(
        "The command given with --exec did not end with 0, so its record is delivered once more.",
        (
            "Look at what the command printed.",
            "After --max-deliveries attempts a record goes to the dead letters, if the group has"
            " them.",
        ),
    ),
    "cursor-overrun": Explanation(
        "Records were deleted that a cursor had not passed yet; its reader never gets them.",
        (
            "Delete a cursor that nobody uses: `quorumbook stream cursors NAME --delete CURSOR`.",
            "For readers that are slow, keep records for longer: `quorumbook stream policy NAME`.",
        ),
    ),
    "files-left": Explanation(
        "Segments were deleted whose files in another store could not all be removed.",
        ("Look into the place that the message names, and remove what nobody needs.",),
    ),
}  # fmt: skip
