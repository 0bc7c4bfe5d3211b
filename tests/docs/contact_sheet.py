"""Takes a picture of every page of the site, wide and narrow, light and dark, on one sheet.

    make contact-sheet-docs DIRECTORY=contact-sheet

A picture shows a page to its end, or its first six windows.  What a reader could not see is named,
and ends the command with 1: pages that scroll sideways, pictures that are not there, text that
lies outside its box.
"""

from __future__ import annotations

import html
import json
import os
import sys
from pathlib import Path

from docs.pages import ROOT
from docs.serving import served
from doubles.browsers import browser, picture, quit_browsers

_LOOKS = (("desktop", "light"), ("desktop", "dark"), ("phone", "light"), ("phone", "dark"))
#: What is wrong with a page.
_LOOK = """
const root = document.documentElement, wrong = [];
if (root.scrollWidth > root.clientWidth + 1) wrong.push("is wider than its window");
for (const image of document.images)
  if (!image.naturalWidth) wrong.push(`has no picture ${image.getAttribute("src")}`);
for (const box of document.querySelectorAll("article pre > code, article table, article svg")) {
  let scrolls = false, inner = box;
  for (let each = box; each && each.tagName !== "ARTICLE"; each = each.parentElement)
    scrolls ||= /auto|scroll/.test(getComputedStyle(each).overflowX);
  const {right} = inner.getBoundingClientRect();
  const cut = right > root.clientWidth + 1 || box.scrollWidth > box.clientWidth + 1;
  if (cut && !scrolls && box.clientWidth)
    wrong.push(`cuts off ${box.tagName} ${box.textContent.trim().slice(0, 40)}`);
}
return wrong;
"""


def main(directory: str) -> int:
    """Write the pictures and ``index.html``; return 1 if a page cannot be seen whole."""
    os.makedirs(directory, exist_ok=True)
    site = ROOT / "build" / "site"
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    pages = list(dict.fromkeys(each["location"].partition("#")[0] for each in index["docs"]))
    figures: list[str] = []
    found: list[str] = []
    for size, theme in _LOOKS:
        with served(site) as address, browser(size, theme) as driver:
            for page in pages:
                driver.get(f"{address}/{page or 'index.html'}")
                wrong = driver.execute_script(_LOOK)
                found += (f"{page} ({size}, {theme}) {each}" for each in wrong)
                file = f"{(page or 'index').replace('/', '-')}-{size}-{theme}.png"
                Path(directory, file).write_bytes(picture(driver, size))
                figures.append(
                    f"<figure><img src={html.escape(file)!r} width=420><figcaption>"
                    f"{html.escape(page)} {size} {theme}</figcaption></figure>"
                )
    quit_browsers()
    style = "<style>figure{display:inline-block;vertical-align:top}</style>"
    Path(directory, "index.html").write_text(
        f"<!DOCTYPE html><title>The site</title>{style}{''.join(figures)}", encoding="utf-8"
    )
    print(f"{len(figures)} pictures: {directory}/index.html")
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
