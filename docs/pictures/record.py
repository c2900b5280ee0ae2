"""Makes status.svg and page.png: `superfetch status` and the web page after a worker was killed;
and demo_page.png: the page of `python -m examples.demo --page`.

    python docs/pictures/record.py

It needs the requirements of the tests, chromium, chromedriver, and namespaces for three host names.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text
from selenium import webdriver

from support.hosts import Host
from support.process import Process
from support.servers.server import Server, free_port
from support.waiting import eventually
from support.workers.terminal import Terminal
from support.workers.worker import process_env

HERE = Path(__file__).resolve().parent
COLUMNS = 80
#: Width of the browser's window.
WIDTH = 1180

#: Without web fonts, since a picture that is shown by itself loads none.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)

CELERY = [sys.executable, "-m", "celery", "-A", "shop"]


class Shop:
    """A server, and three workers on separate hosts, one of which is killed."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.server = stack.enter_context(Server(appendonly=True))
        urls = {"BROKER_URL": self.server.url(0), "RESULT_URL": self.server.url(1)}
        path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
        self.env = {**process_env({}), **urls, "PYTHONPATH": path}
        os.environ.update(urls)

    def start(self, name: str, *words: str, ready: str, host: Host | None = None) -> Process:
        log = self.folder / f"{name}.log"
        process = Process(
            [*CELERY, *words], log=log, env=self.env, cwd=self.folder, host=host, title=name
        )
        self.stack.callback(process.close)
        process.wait_log(ready, 60)
        return process

    def play(self) -> None:
        """Return when one worker was killed, and its jobs are back on their queue."""
        from shop import app, charge, remind, scan, send

        self.stack.callback(app.close)
        keys = self.server.client()
        workers = {}
        for name in ("web-a", "web-b", "web-c"):
            words = ["worker", "-l", "INFO", "-c", "2", "-n", "shop@%h", "--without-gossip"]
            workers[name] = self.start(name, *words, ready=" ready.", host=Host(name))
        for result in [scan.delay(upload) for upload in range(2)]:
            result.get(timeout=120, propagate=False)
        eventually(
            lambda: not keys.exists("superfetch:dead:unannounced"), message="callers are notified"
        )
        for number in range(3):
            remind.apply_async((number,), countdown=1800)
        for number in range(30):
            charge.delay(number)
            send.delay(number)
        eventually(lambda: len(keys.keys("superfetch:private:*")) == 3, message="all have work")
        workers["web-c"].host.kill()  # type: ignore[union-attr]
        eventually(lambda: keys.hget("superfetch:stats", "owners_reaped") == b"1", 60)


def draw(terminal: Terminal, title: str, to: Path) -> None:
    """Save the screen of a terminal, with its colours, as SVG."""
    console = Console(record=True, width=COLUMNS, file=StringIO())
    lines = terminal.cells()
    while lines and not "".join(cell.data for cell in lines[-1]).strip():
        lines.pop()
    for line in [*lines, []]:  # the last one is cut off below
        text = Text()
        for cell in line:
            colour = {"default": "", "brown": "yellow"}.get(cell.fg, cell.fg)
            styles = [colour, "bold" * cell.bold, "reverse" * cell.reverse]
            text.append(cell.data, " ".join(filter(None, styles)))
        console.print(text, soft_wrap=True)
    console.save_svg(str(to), title=title, code_format=FORMAT, unique_id=to.stem)


@contextmanager
def browser(profile: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    flags = f"headless no-sandbox disable-gpu no-first-run hide-scrollbars user-data-dir={profile}"
    for flag in flags.split():
        options.add_argument(f"--{flag}")
    service = webdriver.ChromeService(shutil.which("chromedriver") or "chromedriver")
    started = webdriver.Chrome(options, service)
    try:
        yield started
    finally:
        started.quit()


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pictures-")))
        shop = Shop(stack, folder)
        shop.play()
        with Terminal([*CELERY, "superfetch", "status"], shop.env, COLUMNS, 50) as terminal:
            terminal.shows("worker shop@web-c was declared dead", "Counters:")
            assert terminal.wait_exit() == 0
            draw(terminal, "celery -A shop superfetch status", HERE / "status.svg")

        port = free_port()
        shop.start("page", "superfetch", "web", "--port", str(port), ready="http://")
        with browser(folder / "profile") as chrome:
            shoot(chrome, f"http://localhost:{port}/", "shop@web-c was declared dead", "page.png")
            shoot_demo(chrome, folder)


def shoot(chrome: webdriver.Chrome, url: str, text: str, name: str) -> None:
    """Save the whole page at an address, once it has a text."""
    chrome.set_window_size(WIDTH, 900)
    chrome.get(url)
    eventually(
        lambda: text in chrome.find_element("css selector", "body").text,
        60,
        message=f"the page shows {text!r}",
    )
    whole = chrome.execute_script("return document.documentElement.scrollHeight")
    chrome.set_window_size(WIDTH, int(whole) + chrome.get_window_size()["height"] - 900)
    inner = chrome.execute_script("return [innerWidth, innerHeight]")
    chrome.set_window_size(WIDTH * 2 - inner[0], whole * 2 - inner[1])
    chrome.save_screenshot(str(HERE / name))


def shoot_demo(chrome: webdriver.Chrome, folder: Path) -> None:
    """Save the page of the demo after its worker was killed."""
    words = [sys.executable, "-m", "examples.demo", "--page", str(free_port())]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    demo = Process(words, log=folder / "demo.log", env=env, cwd=HERE.parents[1], title="demo")
    try:
        demo.wait_log("in its place", 90)
        [address] = re.findall(r"The page: (\S+)", demo.log())
        shoot(chrome, address, "three@", "demo_page.png")
    finally:
        demo.signal(signal.SIGTERM)
        demo.wait_exit(60)
        demo.close()


if __name__ == "__main__":
    main()
