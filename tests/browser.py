"""Pages in a real browser: headless Chromium, with what it logs and whom it asks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """A driver; skips the test where there is no Chromium or no driver for it."""
    pytest.importorskip("selenium", reason="pages are tested in a browser: pip install selenium")
    binary, server = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or server is None:
        pytest.skip("pages are tested in Chromium: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for switch in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1200,900"),
        *("no-first-run", "disable-background-networking", "disable-component-update"),
    ):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(server))
    try:
        yield driver
    finally:
        driver.quit()


def opened(driver: Any, address: str | Path) -> list[str]:
    """Open a page and return all that went wrong: console messages, and requests to anyone else."""
    target = address.resolve().as_uri() if isinstance(address, Path) else address
    driver.get_log("browser"), driver.get_log("performance")  # what came before
    driver.get(target)
    return problems(driver, target)


def problems(driver: Any, target: str) -> list[str]:
    # Two frames: what is drawn later than the page is loaded has been drawn.
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    told = [entry["message"] for entry in driver.get_log("browser")]
    own = urlsplit(target)
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked = urlsplit(message["params"]["request"]["url"])
            inside = asked.scheme in ("data", "blob") or (asked.scheme, asked.netloc) == (
                own.scheme,
                own.netloc,
            )
            if not inside or (own.scheme == "file" and asked.scheme == "file" and asked.path != own.path):
                told.append(f"asked for {asked.geturl()}")
    return told


def has_ink(driver: Any, selector: str) -> bool:
    """Is there anything drawn on every canvas that is matched?"""
    return driver.execute_script(
        """
        const all = [...document.querySelectorAll(arguments[0])];
        return all.length > 0 && all.every((canvas) => {
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
            copy.drawImage(canvas, 0, 0);
            const pixels = copy.getImageData(0, 0, canvas.width, canvas.height).data;
            return pixels.some((value, i) => i % 4 === 3 && value > 0);
        });
        """,
        selector,
    )


def overflow(driver: Any, width: int) -> int:
    """Pixels by which the page is wider than a screen of that width."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True},
    )
    wide = driver.execute_script("return document.documentElement.scrollWidth")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    return wide - width
