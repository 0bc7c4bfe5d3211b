"""How many segments a stream has while a query with very many small tasks writes it for long.

    python bench/spark_batches.py --many 100 > docs/reports/spark-batches.md

Each batch has so many tasks with a few rows each, as a stateful query has with Spark's default of
200 shuffle partitions, and is committed as Spark's sink commits it, merging included.  Spark itself
is left out: it would take some 20 s for a batch, and nothing of what is counted here depends on it.
Rows are read back at the end.  A cursor stands still at the first row all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from quorumbook.spark.sink import small_segments
from quorumbook.spark.sink.options import HANDED_BYTES
from quorumbook.streams import Namespace
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import Application, DraftOptions, Identity, Place
from quorumbook.streams.transactions.commit import MAX_SEGMENTS
from quorumbook.testing import LocalCluster

ROWS = 20
WIDTH, POINTS = 50, 40


async def measure(batches: int, tasks: int) -> list[tuple[int, float]]:
    """Return how many segments there are behind each batch, and how long it took."""
    found = []
    options = DraftOptions(handed_bytes=HANDED_BYTES)
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as client:
        address = f"{cluster.metadata_uri}#/batches"
        await Namespace.bind(address)
        async with await Namespace.open(address, client=client) as namespace:
            await namespace.create_stream("s")
            stream = namespace.stream("s")
            place = Place(client, namespace)
            app = Application(place, "query", Identity("q", "r"))
            await app.prepare()
            for batch in range(batches):
                began = time.perf_counter()
                results = []
                for task in range(tasks):
                    attempt = app.attempt(batch, task, 0, options, 1)
                    rows = [b"%d.%d.%d" % (batch, task, row) for row in range(ROWS)]
                    await attempt.append("s", rows)
                    results.append(await attempt.finish())
                done = await app.commit(batch, results)
                await small_segments.merge_where_many(place, done.segments)
                count = await stream_context(stream).nodes.segment_count()
                found.append((count, time.perf_counter() - began))
                if batch == 0:
                    async with stream.reader(tail=False) as reader:
                        await (await stream.cursor("stalled")).commit(await anext(aiter(reader)))
            await check(namespace, batches, tasks)
    return found


async def check(namespace: Namespace, batches: int, tasks: int) -> None:
    """Raise AssertionError unless each row is there once, in order."""
    async with namespace.stream("s").reader(tail=False) as reader:
        count = 0
        async for record in reader:
            rest, row = divmod(count, ROWS)
            batch, task = divmod(rest, tasks)
            assert record.payload == b"%d.%d.%d" % (batch, task, row), (record, count)
            count += 1
    assert count == batches * tasks * ROWS, count


def graph(found: list[tuple[int, float]]) -> str:
    """Return the numbers of segments as text, a line for so many batches."""
    step = max(1, len(found) // POINTS)
    top = max(count for count, _ in found)
    lines = [f"{'batch':>7} {'segments':>9}"]
    for start in range(0, len(found), step):
        highest = max(count for count, _ in found[start : start + step])
        bar = "#" * max(1, round(WIDTH * highest / top))
        lines.append(f"{start:>7} {highest:>9} {bar}")
    return "\n".join(lines)


def main() -> None:
    """Run, and print a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument(
        "--many", type=int, default=small_segments.MANY_SEGMENTS, help="merge above so many"
    )
    args = parser.parse_args()
    small_segments.MANY_SEGMENTS, small_segments.TOO_MANY_SEGMENTS = args.many, 5 * args.many
    small_segments.PAUSE_S *= args.many / 1000
    found = asyncio.run(measure(args.batches, args.tasks))
    seconds = sorted(spent for _, spent in found)
    print(f"""# Segments of a stream that a query writes

`python bench/spark_batches.py --batches {args.batches} --tasks {args.tasks} --many {args.many}`

- each task {ROWS} rows, all of them read back in order: {args.batches * args.tasks * ROWS:,} rows
- merging begins above {args.many:,} segments (1,000 unless told), and looks at no age above five \
times as many; a commit is refused above {MAX_SEGMENTS:,}
- a cursor stands still at the first row
- a batch without Spark: {seconds[len(seconds) // 2] * 1000:.0f} ms (median), \
{seconds[-1]:.1f} s (longest)
- most segments at any time: {max(count for count, _ in found):,}; at the end: {found[-1][0]:,}

The highest number among so many batches:

```text
{graph(found)}
```""")


if __name__ == "__main__":
    main()
