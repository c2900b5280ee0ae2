"""The site is built without a warning, and no page is wider than the screen of a phone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.house import HERE

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("sphinx"), reason="needs the extra `docs`"),
    pytest.mark.timeout(300),
]
PHONE_PX = 390
#: The elements of an article that reach beyond the screen's right edge, but for those in a box that
#: scrolls. (The theme lets the whole article scroll sideways: nothing is read well so.)
TOO_WIDE = """
const article = document.querySelector("article");
const scrolls = e => e !== article
    && (["auto", "scroll"].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
return [...article.querySelectorAll("*")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e.parentElement))
    .map(e => `${e.tagName} ${e.innerText || ""}`.slice(0, 80));
"""
A_WIDE_HEADING = "document.querySelector('h1').style.width = '500px'"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Build the site; return its folder, and the ended process."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run([*command, "docs", folder], cwd=HERE, capture_output=True, text=True)
    return folder, built


@pytest.fixture
def phone(browser: Any) -> Any:
    """A browser with the screen of a phone."""
    screen = {"width": PHONE_PX, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    return browser


def test_it_is_built_without_a_warning(site):
    _, built = site
    assert built.returncode == 0, built.stderr


def test_no_page_is_wider_than_a_phone(site, phone):
    folder, _ = site
    pages = sorted(folder.rglob("*.html"))
    assert len(pages) > 30
    too_wide = {}
    for page in pages:
        phone.get(page.as_uri())
        assert phone.execute_script("return innerWidth") == PHONE_PX
        if elements := phone.execute_script(TOO_WIDE):
            too_wide[page.relative_to(folder).as_posix()] = elements
    assert not too_wide


def test_the_control_finds_a_wide_element(site, phone):
    folder, _ = site
    phone.get((folder / "index.html").as_uri())
    phone.execute_script(A_WIDE_HEADING)
    assert [text.partition(" ")[0] for text in phone.execute_script(TOO_WIDE)] == ["H1"]
