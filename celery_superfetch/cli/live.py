"""``celery superfetch top`` on a terminal: asks, draws, and does what a key is for."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from select import select
from time import monotonic, sleep
from typing import Any

from rich.console import ScreenContext

from ..app.passes import note
from ..operate.overview import overview_of
from .screen import State, render
from .session import Session, know_tasks

LOOK = 0.5  # seconds after which it is looked for answers and another size of the terminal
SLOW = 3.0  # seconds of silence of a server that are said, beside the interval
LISTED = 100  # jobs of the dead set; `dead list` goes on from there

#: What terminals send for the keys that are no letters.
NAMES = {"\x1b[A": "k", "\x1bOA": "k", "\x1b[B": "j", "\x1bOB": "j", "\x1b": "esc"}
NAMES |= {"\r": "s", "\n": "s"}
ONE_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)

BACK = {"dead": "status", "job": "dead", "help": "status"}  # where q and Esc lead to


class Top:
    """One person at one terminal, whose keys are read here. The server is asked by a thread, so
    that no key waits for an answer."""

    def __init__(self, session: Session, interval: float) -> None:
        self.session, self.interval = session, interval
        self.console = session.tables.console
        self.state = State(no_color=self.console.no_color)
        self.overview: dict[str, Any] | None = None
        self._answered = monotonic()
        self._error = ""
        self._terminal = sys.stdin.fileno()
        self._seen: Any = None  # of what it was drawn last
        self.acts: dict[tuple[str, str], Callable[[], None]] = {
            ("status", "d"): self._open,
            ("status", "R"): partial(self._ask, "Reap once, now?", self._reap),
            ("dead", "s"): self._show,
            ("dead", "r"): self._ask_retry,
            ("job", "r"): self._ask_retry,
        }

    def run(self) -> None:
        """Until q, Ctrl-C or a signal that ends it; the terminal is left as it was."""
        _heed_signals()
        logged = logging.Handler(logging.WARNING)  # it is shown, not written across the screen
        logged.emit = lambda record: self._say(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger().addHandler(logged)
        threading.Thread(target=self._keep_asking, name="superfetch-top", daemon=True).start()
        before = termios.tcgetattr(self._terminal)
        try:
            tty.setcbreak(self._terminal)
            with self.console.screen() as screen, suppress(KeyboardInterrupt):
                self._draw(screen)
                while all(map(self.press, self._keys())):
                    self._draw(screen)
        finally:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, before)

    def _keys(self) -> list[str]:
        """What is pressed in a moment; that the terminal is gone ends it as ``q`` does."""
        if not select([self._terminal], [], [], LOOK)[0]:
            return []
        sent = os.read(self._terminal, 1024).decode(errors="replace")
        return ONE_KEY.findall(sent) or ["q"]

    def _draw(self, screen: ScreenContext) -> None:
        state, silent = self.state, monotonic() - self._answered
        slow = silent > self.interval + SLOW
        state.error = self._error or ("It is slow, or hangs." if slow else "")
        state.silent = silent if state.error else 0.0
        columns, lines = os.get_terminal_size(self._terminal)  # rich believes COLUMNS, which stays
        self.console.size = size = columns or 80, lines or 24
        seen = self.overview, replace(state, at={**state.at}), size
        if seen != self._seen:  # a hundred dead jobs take 90 ms
            self._seen = seen
            screen.update(render(self.overview, state, size))

    def _keep_asking(self) -> None:
        while True:
            try:
                self.overview = overview_of(self.session.app, self.session.reaper)
                if self.state.view == "dead" and not self.state.question:
                    self._list()
            except Exception as exc:  # whatever it is, it is said, and the next may be better
                self._error = str(exc)
            else:
                self._error, self._answered = "", monotonic()
            sleep(self.interval)

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
        self.state.said = text

    def _ask(self, question: str, act: Callable[[], None]) -> None:
        self.state.question, self.state.act = question, act

    def _list(self) -> None:
        dead = self.session.dead_set
        self.state.now = self.session.reaper.database.server_time()
        self.state.jobs = [job.as_dict() for job in dead.page(0, LISTED)]
        self.state.size = len(dead)

    def _open(self) -> None:
        self._list()
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
        self._open()
        warning = f". Warning: {done.warning}" if done.warning else ""
        self._say(f"Put back on {done.queue}: {done.task}[{done.task_id or id}]{warning}")

    def _reap(self) -> None:
        know_tasks(self.session.app)
        report = self.session.reaper.reap()
        note(self.session.reaper, report)
        self._say(str(report))


def _heed_signals() -> None:
    """Who ends us has the terminal restored, and who stops us (Ctrl-Z) does not get it half-way."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
