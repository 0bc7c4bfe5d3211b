"""Takes a picture of every page of the site, wide and narrow, light and dark, on one sheet.

    make contact-sheet-docs DIRECTORY=contact-sheet

Pages are grouped as the navigation groups them; a page that scrolls sideways is named.
"""

from __future__ import annotations

import html
import json
import os
import sys
from pathlib import Path

from admin.test_admin_console import browser
from docs.pages import ROOT

_LOOKS = (("desktop", "light"), ("phone", "dark"))
#: How far what a page holds is wider than the page.
_OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


def main(directory: str) -> None:
    """Write the pictures and ``index.html``."""
    os.makedirs(directory, exist_ok=True)
    site = ROOT / "build" / "site"
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    pages = list(dict.fromkeys(each["location"].partition("#")[0] for each in index["docs"]))
    figures: list[str] = []
    too_wide: list[str] = []
    for size, theme in _LOOKS:
        with browser(size, theme) as driver:
            for page in pages:
                driver.get((site / (page or "index.html")).as_uri())
                if driver.execute_script(_OVERFLOW) > 1:
                    too_wide.append(f"{page} ({size})")
                file = f"{(page or 'index').replace('/', '-')}-{size}-{theme}.png"
                driver.save_screenshot(os.path.join(directory, file))
                figures.append(
                    f"<figure><img src={html.escape(file)!r} width=420><figcaption>"
                    f"{html.escape(page)} {size} {theme}</figcaption></figure>"
                )
    style = "<style>figure{display:inline-block}</style>"
    Path(directory, "index.html").write_text(
        f"<!DOCTYPE html><title>The site</title>{style}{''.join(figures)}", encoding="utf-8"
    )
    print(f"{len(figures)} pictures: {directory}/index.html")
    if too_wide:
        print("wider than their window:", *too_wide, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1])
