"""Few large segments in the place of many small ones, in one step of the metadata.

plan         which segments become one, and what that does to numbers; pure
entry_moves  an entry as it is in another segment, of this cluster or another; pure
merging      copies entries, and changes the metadata

Records keep their order, sequence and transaction ids, times, keys and headers.  Positions cannot
all be kept, since numbers have no gaps: the merged segment has the number of the last one it is
made of, and the segments before move up to it.  So what lies behind keeps its position, and what
is merged, or lies before, gets a later one.  Nothing is merged that a cursor has not passed, and
readers that are under way go on by sequence ids.
"""

from quorumbook.streams.compaction.merging import Compaction, MergeStep, kept_ledgers
from quorumbook.streams.compaction.plan import Merge, Rules

__all__ = ["Compaction", "Merge", "MergeStep", "Rules", "kept_ledgers"]
