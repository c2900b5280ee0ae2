"""``celery superfetch top`` on a terminal: asks, draws, and does what a key is for."""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any

from rich.live import Live

from ..app.passes import note
from ..model.arguments import printable
from ..operate.overview import overview_of
from .screen import State, render
from .session import Session, know_tasks

#: Seconds between two looks at whether there is something new to be drawn.
LOOK = 0.25

#: Seconds of silence of a server that are said, beside the interval.
SLOW = 3.0

#: Seconds that the end waits for an answer that is under way.
JOINED_FOR = 1.0

#: Jobs of the dead set that are listed; `dead list` goes on from there.
LISTED = 100

#: What terminals send for the keys that are no letters.
NAMES = {"\x1b[A": "k", "\x1bOA": "k", "\x1b[B": "j", "\x1bOB": "j", "\x1b": "esc"}
NAMES |= {"\r": "s", "\n": "s"}
ONE_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)

#: Where q and Esc lead to.
BACK = {"dead": "status", "job": "dead", "help": "status"}


class Top:
    """One person at one terminal. The server is asked by a thread: no key waits for an answer."""

    def __init__(self, session: Session, interval: float) -> None:
        self.session, self.interval = session, interval
        self.console = session.tables.console
        self.state = State(no_color=self.console.no_color)
        self.overview: dict[str, Any] | None = None
        self.over = threading.Event()
        self._answered = monotonic()
        self._error = ""
        #: There is something new to be drawn; an overview.
        self._news, self._fresh = True, False
        self.acts: dict[tuple[str, str], Callable[[], None]] = {
            ("status", "d"): self._list,
            ("status", "R"): partial(self._ask, "Reap once, now?", self._reap),
            ("dead", "s"): self._show,
            ("dead", "r"): self._ask_retry,
            ("job", "r"): self._ask_retry,
        }

    def run(self) -> None:
        """Until q, Ctrl-C or a signal that ends it."""
        asker = threading.Thread(target=self._keep_asking, name="superfetch-top", daemon=True)
        asker.start()
        try:
            with (
                _said_here(self._say),
                _ended_in_order(),
                _each_key(sys.stdin.fileno()),
                Live(console=self.console, screen=True, auto_refresh=False) as live,
                suppress(KeyboardInterrupt),
            ):
                self._turn(live, sys.stdin.fileno())
        finally:
            self.over.set()
            asker.join(JOINED_FOR)

    def _turn(self, live: Live, fd: int) -> None:
        drawn: Any = None
        while True:
            columns, lines = os.get_terminal_size(fd)  # rich believes COLUMNS, which stays
            size = columns or 80, lines or 24
            if self._fresh and self.state.view == "dead" and not self.state.question:
                self._try(self._list)
            if self._silent() or self._news or self._fresh or size != drawn:
                self._news, self._fresh, drawn = False, False, size
                self.console.size = size
                live.update(render(self.overview, self.state, size), refresh=True)
            if select.select([fd], [], [], LOOK)[0]:
                sent = os.read(fd, 1024).decode(errors="replace")
                # Without any, the terminal is gone.
                if not sent or not all(map(self.press, ONE_KEY.findall(sent))):
                    return
                self._news = True

    def _silent(self) -> bool:
        """Whether the server does not answer, which is noted for who looks."""
        self.state.silent = monotonic() - self._answered
        slow = self.state.silent > self.interval + SLOW
        self.state.error = self._error or ("It is slow, or hangs." if slow else "")
        return bool(self.state.error)

    def _keep_asking(self) -> None:
        while not self.over.is_set():
            try:
                self.overview = overview_of(self.session.app, self.session.reaper)
            except Exception as exc:  # whatever it is, it is said, and the next may be better
                self._error = printable(exc)
            else:
                self._error, self._answered, self._fresh = "", monotonic(), True
            self.over.wait(self.interval)

    # -- what the keys do

    def press(self, key: str) -> bool:
        """Do what a key is for; False: that is to end."""
        state, key = self.state, NAMES.get(key, key)
        state.said = ""
        if state.question:
            state.question = ""
            if key in "yY":
                self._try(state.act)
        elif act := self.acts.get((state.view, key)):
            self._try(act)
        elif key in "jk":
            state.at[state.view] += 1 if key == "j" else -1
        elif key == "?":
            state.view = "help"
        elif key in ("q", "esc"):
            if state.view == "status":
                return key != "q"
            state.view = BACK[state.view]
        return True

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as exc:  # of the server, the app's modules, its result backend
            self._say(f"Not done: {exc}")

    def _say(self, text: str) -> None:
        self.state.said, self._news = text, True

    def _ask(self, question: str, act: Callable[[], None]) -> None:
        self.state.question, self.state.act = question, act

    def _list(self) -> None:
        dead, now = self.session.dead_set, self.session.reaper.database.server_time()
        jobs = [(job.as_dict(), max(0, now - job.died_at) / 1000) for job in dead.page(0, LISTED)]
        self.state.size = len(dead)
        self.state.jobs = [{**job, "age": age} for job, age in jobs]
        self.state.view = "dead"

    def _show(self) -> None:
        if self.state.chosen:
            self.state.view, self.state.at["job"] = "job", 0

    def _ask_retry(self) -> None:
        if job := self.state.chosen:
            name = f"{job['task']}[{job['task_id'] or job['id']}]"
            self._ask(f"Put {name} back on its queue?", partial(self._retry, job["id"]))

    def _retry(self, id: str) -> None:
        know_tasks(self.session.app)
        done = self.session.dead_set.retry(id)
        self._list()
        self._say(f"Put back on {done.queue}: {done.task}[{done.task_id or id}]")
        if done.warning:
            self._say(f"{self.state.said}. Warning: {done.warning}")

    def _reap(self) -> None:
        know_tasks(self.session.app)
        report = self.session.reaper.reap()
        note(self.session.reaper, report)
        self._say(str(report))


@contextmanager
def _each_key(fd: int) -> Iterator[None]:
    """Each key is read at once, and not shown; afterwards all is as before."""
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Who ends us has the terminal restored, and who stops us (Ctrl-Z) does not get it half-way."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    ends: dict[signal.Signals, Any] = {
        signal.SIGTERM: end,
        signal.SIGHUP: end,
        signal.SIGTSTP: signal.SIG_IGN,
    }
    before = {number: signal.signal(number, how) for number, how in ends.items()}
    try:
        yield
    finally:
        for number, how in before.items():
            signal.signal(number, how)


@contextmanager
def _said_here(say: Callable[[str], None]) -> Iterator[None]:
    """What is logged meanwhile is shown, and not written across the screen."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: say(printable(record.getMessage()))  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
