"""Two versions of the site side by side: in a real browser a page leads to the other one."""

from __future__ import annotations

import sys

import pytest

from admin.test_admin_console import browser, needs_browser, wait_for
from docs.pages import ROOT
from docs.serving import served

sys.path.insert(0, str(ROOT))
from tools.website import versions

_LINKS = "return [...document.querySelectorAll('.md-version__link')].map(a => a.textContent.trim())"
_CURRENT = "return document.querySelector('.md-version__current').textContent.trim()"


@needs_browser
@pytest.mark.xdist_group("site")
def test_a_page_shows_its_version_and_leads_to_the_others(site, tmp_path):
    for version in ("0.1.0", "0.2.0"):
        versions.placed(site, tmp_path, version)
    with served(tmp_path) as address, browser() as driver:
        driver.get(f"{address}/index.html")
        wait_for(driver, lambda d: d.current_url == f"{address}/0.2.0/index.html")
        driver.get(f"{address}/0.1.0/how-to/turn-on-tls.html")
        wait_for(driver, lambda d: d.execute_script(_CURRENT) == "0.1.0")
        assert driver.execute_script(_LINKS) == ["0.2.0", "0.1.0"]
        driver.execute_script("document.querySelector('.md-version__link').click()")
        wait_for(driver, lambda d: "/0.2.0/" in d.current_url)
        wait_for(driver, lambda d: d.execute_script(_CURRENT) == "0.2.0")
