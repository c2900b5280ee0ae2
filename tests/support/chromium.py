"""A real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--ignore-certificate-errors"
)
#: As Debian, Ubuntu and GitHub's machines call it.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Debian's chromium without a screen, if it is here; what pages log is kept."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    driver = shutil.which("chromedriver")
    if not (program and driver):
        pytest.skip("no chromium and chromedriver here (Debian: chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield started
    started.quit()
