"""The fleet that keeps running: workers, beat, load, a kill, a poison pill, and the web page."""

from __future__ import annotations

import itertools
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import redis

from . import app as demo
from .processes import Child, DemoError
from .story import Story

#: Seconds between two looks; waiting jobs beyond which no more are sent.
TICK_S, WAITING_MOST = 0.2, 30

#: Seconds after which a worker is killed, once; between two poison pills; and from one scheduled
#: job to the next, which is due after as many seconds.
KILL_AFTER_S, PILL_EVERY_S, SCHEDULED_EVERY_S = 10.0, 600.0, 120.0

#: Lines of the ledger that are kept, of a fleet that runs for days.
LEDGER_LINES = 1000


class Fleet(Story):
    """The demo's processes, until a signal ends them. ``port``: the page's; if it is in use, the
    page gets a free one."""

    def __init__(
        self, client: redis.Redis, folder: Path, say: Callable[..., None], port: int
    ) -> None:
        super().__init__(client, folder, say)
        self.port = port

    def tell(self) -> NoReturn:
        """Start the fleet and its page, and keep it busy. It ends by an exception alone."""
        self.start_fleet()
        words = ["superfetch", "web", "--allow-changes", "--port", str(free_port(self.port))]
        page = self.start("page", *words)
        self.until("the page is served", lambda: page.logged("Token for other browsers"))
        [address] = re.findall(r"http://\S+", page.log.read_text())[:1]
        self.say(f"The page: {address}", "bold green")
        self.say(
            "This address logs in one browser, once. The page can pause queues, retry jobs, ..."
        )
        url = f"DEMO_URL={demo.URL}"
        self.say(
            f"From a shell: {url} {sys.executable} -m celery -A examples.demo.app superfetch status"
        )
        self.say(f"A worker is killed in {KILL_AFTER_S:g} s. Ctrl-C ends everything.")
        self.keep_busy()

    def progress(self) -> str:
        return f"{len(self.finished())} jobs finished"

    def keep_busy(self) -> NoReturn:
        """Send jobs and poison pills, and kill a worker once."""
        numbers, began = itertools.count(1), time.monotonic()
        pill_at = scheduled_at = began
        kill_at: float | None = began + KILL_AFTER_S
        while True:
            now = time.monotonic()
            self.check()
            if self.waiting() < WAITING_MOST:
                number = next(numbers)
                demo.work.delay(number, 1.0 + number % 5 / 4)
            if now >= scheduled_at:
                demo.work.apply_async((0, 1.0), countdown=SCHEDULED_EVERY_S)
                scheduled_at = now + SCHEDULED_EVERY_S
            if now >= pill_at:
                demo.poison.delay()
                self.say("Enqueued a poison pill: a job that kills the process that runs it.")
                pill_at = now + PILL_EVERY_S
            if kill_at is not None and now >= kill_at:
                self.replace_first()
                kill_at = None
            time.sleep(TICK_S)

    def check(self) -> None:
        """Raise DemoError if a process has ended that should live."""
        for child in self.children:
            child.check()

    def waiting(self) -> int:
        """Return how many jobs wait; it also shortens the ledger."""
        try:
            self.client.ltrim(demo.LEDGER, -LEDGER_LINES, -1)
            length: Any = self.client.llen(self.keys.queue(demo.QUEUE))
        except redis.RedisError as exc:
            raise DemoError(f"the server cannot be used any more: {exc}") from exc
        return int(length)

    def replace_first(self) -> None:
        """Kill the first worker with SIGKILL, and start another one in its place."""
        victim: Child = self.workers[0]
        victim.sigkill()
        victim.end()  # its pool processes
        self.children.remove(victim)
        self.say(
            f"SIGKILL for {victim.title} (pid {victim.pid}): see the overview of the page.", "red"
        )
        self.replace()


def free_port(wanted: int) -> int:
    """Return the port that is wanted if it is free, else another one."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DemoError("no port of 127.0.0.1 is free")
