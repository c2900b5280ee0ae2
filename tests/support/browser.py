"""A real browser without a screen: Debian's chromium, if it is here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync"
)
#: As Debian, Ubuntu and GitHub's machines call it.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """selenium's driver of it; what pages log is kept for `get_log("browser")`."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    driver = shutil.which("chromedriver")
    if not (program and driver):
        pytest.skip("no chromium and chromedriver here (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield started
    finally:
        started.quit()
