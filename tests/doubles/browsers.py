"""Chromium for tests of pages: started once, since that takes seconds, and lent again and again.

Whoever gets one finds it as new: no cookies, nothing stored, an empty log, the size and the theme
that it asked for.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("CI"),
    reason="no chromium with its driver (Debian: chromium chromium-driver)",
)
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
_idle: list[Any] = []


def _started(*, scripts: bool = True) -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service as Driver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    width, height = SIZES["desktop"]
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 f"--window-size={width},{height}"):  # fmt: skip
        options.add_argument(word)
    if not scripts:
        options.add_experimental_option(
            "prefs", {"profile.managed_default_content_settings.javascript": 2}
        )
    return webdriver.Chrome(options=options, service=Driver(DRIVER))


@contextlib.contextmanager
def browser(size: str = "desktop", theme: str = "light", scripts: bool = True) -> Iterator[Any]:
    """Lend a browser for the length of a block; it goes on for the next one if all went well."""
    driver = _idle.pop() if scripts and _idle else _started(scripts=scripts)
    is_well = False
    try:
        _become(driver, size, theme)
        yield driver
        is_well = True
    finally:
        if scripts and is_well:
            driver.get("about:blank")
            _idle.append(driver)
        else:
            driver.quit()


def _become(driver: Any, size: str, theme: str) -> None:
    width, height = SIZES[size]
    is_phone = size == "phone"
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}
    feature = {"name": "prefers-color-scheme", "value": theme}
    for name, parameters in (
        ("Emulation.setDeviceMetricsOverride", metrics),
        ("Emulation.setTouchEmulationEnabled", {"enabled": is_phone}),
        ("Emulation.setEmulatedMedia", {"features": [feature]}),
        ("Network.clearBrowserCookies", {}),
        ("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"}),
    ):
        driver.execute_cdp_cmd(name, parameters)
    driver.get_log("browser")


def picture(driver: Any, size: str) -> bytes:
    """Return a PNG of a page to its end, or of its first six windows."""
    width, window = SIZES[size]
    height = driver.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 6 * window), "scale": 1}
    taken = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    return base64.b64decode(taken["data"])


def quit_browsers() -> None:
    """End those that nobody has."""
    while _idle:
        _idle.pop().quit()


atexit.register(quit_browsers)
