"""Takes a picture of every page of the console, wide and narrow, light and dark, on one sheet.

    make contact-sheet DIRECTORY=contact-sheet

A picture shows a page to its end, or its first six windows.
The cluster in the pictures has a bookie that is down, ledgers, streams, a cursor and a group.
"""

from __future__ import annotations

import html
import os
import sys
import time
from pathlib import Path

from admin.test_admin_console import addresses, console_on
from doubles.browsers import browser, picture, quit_browsers
from doubles.told_pipelines import told_orders
from quorumbook.admin.console.pages import PAGES
from quorumbook.testing import LocalCluster


def main(directory: str) -> None:
    """Write the pictures and ``index.html``."""
    os.makedirs(directory, exist_ok=True)
    rows: list[str] = []
    with LocalCluster(4, processes=True) as cluster, console_on(cluster) as running:
        with cluster.connect() as client:
            for number in range(30):
                with client.create_ledger(custom_metadata={"team": b"blue"}) as ledger:
                    for leg in range(3):  # the page of an entry shows the second
                        ledger.append(b'{"flight": %d, "leg": %d, "from": "JFK"}' % (number, leg))
        with running.http() as http:
            streams = "/api/v2/streams"
            http.post(streams, json={"name": "orders/eu"})
            batch = {"records": [{"text": f"order {n}", "key": str(n)} for n in range(200)]}
            http.post(f"{streams}/orders/eu/records", json=batch)
            http.put(f"{streams}/orders/eu/cursors/billing", json={"position": "seq:50"})
            http.post(streams, json={"name": "jobs", "partitions": 2})
            http.post(f"{streams}/jobs/records", json=batch)
            http.post(f"{streams}/jobs/groups/work/records", json={"member": "m", "wait_s": 0})
        running.tell(told_orders(int(time.time() * 1000) - 7_200_000))
        lost = cluster.bookie_ids[3]
        cluster.stop(lost)
        with running.http() as http:
            http.post(f"/api/v2/bookies/{lost}/recover", json={})
        paths = addresses(running)
        for size in ("desktop", "phone"):
            for theme in ("light", "dark"):
                with browser(size, theme) as driver:
                    for page, path in zip(PAGES, paths, strict=True):
                        driver.get(running.url + path)
                        time.sleep(0.5)  # charts and tails begin
                        name = page.template.removesuffix(".html")
                        file = f"{name}-{size}-{theme}.png"
                        Path(directory, file).write_bytes(picture(driver, size))
                        rows.append(
                            f"<figure><img src={html.escape(file)!r} width=420><figcaption>"
                            f"{html.escape(path)} {size} {theme}</figcaption></figure>"
                        )
    quit_browsers()
    sheet = "<!DOCTYPE html><title>Console</title><style>figure{display:inline-block}</style>"
    with open(os.path.join(directory, "index.html"), "w", encoding="utf-8") as file_:
        file_.write(sheet + "".join(rows))
    print(f"{len(rows)} pictures: {directory}/index.html")


if __name__ == "__main__":
    main(sys.argv[1])
