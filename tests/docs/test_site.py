"""The built site, looked at in a real browser, wide and narrow: nothing is cut off.

`SUPERFETCH_SCREENS=folder` keeps a picture of each page, as it was seen.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import chromium
from support.house import HERE

#: Who looks: the width of the window, and the colours that the system prefers.
LOOKS = [(1400, "light"), (390, "dark")]
PAGES = sorted(page.relative_to(HERE / "docs") for page in HERE.glob("docs/**/*.md"))
SCREENS = os.environ.get("SUPERFETCH_SCREENS")

#: What is wrong with the page that is open, a line for each. `wide` is the window's width.
CHECK = """
const wide = arguments[0], wrong = [];
const name = e => `${e.tagName.toLowerCase()}.${e.className} ` +
    JSON.stringify((e.textContent || e.src || '').trim().slice(0, 60));
const styles = e => getComputedStyle(e);
const root = document.documentElement;
if (root.scrollWidth > root.clientWidth)
  wrong.push(`the page scrolls sideways: ${root.scrollWidth}`);
for (const e of document.querySelectorAll('body *')) {
  const s = styles(e);
  const hides = ['hidden', 'clip'].includes(s.overflowX) && e.clientWidth > 1;
  if (hides && e.scrollWidth > e.clientWidth + 1) wrong.push('clipped: ' + name(e));
}
const scrolls = e => e && e !== document.body && e !== root &&
    (['auto', 'scroll'].includes(styles(e).overflowX) || scrolls(e.parentElement));
const article = document.querySelector('article') || document.body;
const right = Math.min(article.getBoundingClientRect().right, wide) + 1;
for (const e of article.querySelectorAll('table, pre, img, svg')) {
  if (e.getBoundingClientRect().right > right && !scrolls(e)) wrong.push('too wide: ' + name(e));
}
for (const e of article.querySelectorAll('.table-wrapper')) {
  if (wide >= 1400 && e.scrollWidth > e.clientWidth + 1)
    wrong.push(`its last column is out of sight (${e.scrollWidth} px): ` + name(e));
}
for (const e of document.images) {
  if (!e.complete || !e.naturalWidth) wrong.push('not loaded: ' + e.src);
  if (e.getBoundingClientRect().width > wide) wrong.push('wider than the window: ' + e.src);
}
const light = c => {
  const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
};
const [ink, paper] = [light(styles(article).color), light(styles(document.body).backgroundColor)];
if (Math.max(ink / paper, paper / ink) < 4.5) wrong.push('too little contrast');
const dark = matchMedia('(prefers-color-scheme: dark)').matches;
if (dark !== paper < ink) wrong.push('it does not take the colours that are preferred');
return wrong;
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built site; a warning fails."""
    if not importlib.util.find_spec("sphinx"):
        pytest.skip("Sphinx is not installed: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, "docs", str(folder)], cwd=HERE, capture_output=True, text=True, timeout=250
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path / "profile") as started:
        started.execute_cdp_cmd("Network.enable", {})
        started.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
        yield started


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def at() -> Iterator[Any]:
    """`at(folder)`: the address at which it is served."""
    served: list[http.server.ThreadingHTTPServer] = []

    def serve(folder: Path) -> str:
        handler = functools.partial(Quiet, directory=str(folder))
        served.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=served[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{served[-1].server_port}/"

    yield serve
    for server in served:
        server.shutdown()
        server.server_close()


def look(browser: Any, wide: int, colours: str, url: str) -> list[str]:
    """What is wrong with a page."""
    metrics = {"width": wide, "height": 900, "deviceScaleFactor": 1, "mobile": wide < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    preferred = [{"name": "prefers-color-scheme", "value": colours}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})
    browser.get(url)
    said = [entry["message"] for entry in browser.get_log("browser")]
    return browser.execute_script(CHECK, wide) + [m for m in said if "favicon" not in m]


@pytest.mark.timeout(400)
def test_nothing_on_any_page_is_cut_off(site: Path, browser: Any, at: Any) -> None:
    url, wrong = at(site), []
    for wide, colours in LOOKS:
        for page in PAGES:
            found = look(browser, wide, colours, f"{url}{page.with_suffix('.html')}")
            wrong += [f"{page} at {wide} px, {colours}: {what}" for what in found]
            if SCREENS:
                Path(SCREENS).mkdir(parents=True, exist_ok=True)
                name = f"{str(page.with_suffix('')).replace('/', '-')}-{wide}.png"
                browser.save_screenshot(str(Path(SCREENS) / name))
    assert not wrong, "\n".join(wrong)


def test_control_what_is_cut_off_is_found(browser: Any, at: Any, tmp_path: Path) -> None:
    page = tmp_path / "site" / "page.html"
    page.parent.mkdir()
    table = "<table><tr><td style='min-width:3000px'>wide</table>"
    look_at = functools.partial(look, browser, 390, "light", at(page.parent) + page.name)
    head = "<!doctype html><meta name=viewport content='width=device-width'>"
    head += "<style>body { background: #fff; color: #000 }</style>"
    for body, why in {
        f"<article>{table}</article>": "too wide: table",
        f"<article><div style='overflow:hidden'>{table}</div></article>": "clipped: div",
        f"<div>{table}</div>": "scrolls sideways",
        "<img src=nowhere.png>": "not loaded",
        "<script>nobody.knows()</script>": "ReferenceError",
        "<article style='color:#ddd'>pale</article>": "too little contrast",
    }.items():
        page.write_text(head + body)
        assert why in "\n".join(look_at()), body
    page.write_text(f"{head}<article><div style='overflow-x:auto'>{table}</div></article>")
    assert look_at() == []
