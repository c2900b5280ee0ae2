"""`celery superfetch top` at a real terminal, with real workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_superfetch.cli.screen import KEYS, State, render
from support.waiting import eventually
from support.workers.cli import superfetch_command
from support.workers.terminal import Terminal
from support.workers.worker import process_env

QUICK = {"heartbeat_interval": 1, "owner_ttl": 5, "reap_interval": 1, "strike_limit": 1}
LAST_LINE = "d dead set R reap up, down scroll ? help q quit"


@pytest.fixture
def top(env: Callable[..., dict[str, str]]) -> Iterator[Callable[..., Terminal]]:
    """`top(url=...)`: it runs, at 80x24."""
    opened: list[Terminal] = []

    def start(*args: str, **settings: Any) -> Terminal:
        argv = superfetch_command("top", "--interval", "0.3", *args)
        opened.append(Terminal(argv, process_env(env(options=QUICK, **settings))))
        return opened[-1]

    yield start
    for one in opened:
        one.__exit__()


def test_it_shows_a_death_and_a_dead_job_goes_back_by_keys(
    top: Callable[..., Terminal], worker: Any, shop: Any, db: Any, ledger: Any
) -> None:
    first = worker(name="first", options=QUICK)
    terminal = top()
    terminal.shows("first@", "running", "celery", LAST_LINE)
    # A server that is slow for a moment stands before it.
    verdicts = "All is well", "Warning", "Critical"
    terminal.until(lambda shown: shown[0].startswith(verdicts), what="the verdict first")
    shop.kill_child.delay("poison")
    terminal.shows("Dead set: 1 job of")

    terminal.press("d")
    terminal.shows("> ", "shop.kill_child", "pool child lost")
    terminal.press("\r")
    terminal.shows("History, the oldest first:", "('poison',)")
    terminal.press("\x1b")
    terminal.shows("The dead set, the newest of 1 job first")
    terminal.press("rn")
    terminal.press("r")
    terminal.shows("back on its queue? [y/N]")
    assert ledger.runs() == {"poison": 1}, "nothing is done before y"
    first.term()  # it stays on its queue from here on
    first.wait_exit()
    terminal.press("y")
    terminal.shows("Put back on celery: shop.kill_child[", "the newest of 0 jobs")
    assert db.waiting("celery") == ["poison"]
    assert not db.dead()
    terminal.press("q")
    terminal.shows("celery: 1 job, no live worker consumes it")

    second = worker(name="second", queues=["other"], options=QUICK)
    terminal.shows("second@")
    second.kill9_all()
    second.wait_gone()
    terminal.shows("is dead (its process is gone)")
    terminal.press("R")
    terminal.shows("Reap once, now? [y/N]")
    assert db.stat("owners_reaped") == 0
    terminal.press("y")
    terminal.shows("Reaped lately: 1", "Last deaths:")
    assert db.stat("owners_reaped") == 1


def test_resized_and_without_a_server_it_goes_on(
    top: Callable[..., Terminal], fresh_server: Any
) -> None:
    server = fresh_server(appendonly=True)
    terminal = top(url=server.url())
    terminal.shows("No owners are registered", LAST_LINE)
    for columns, lines in ((140, 40), (80, 24), (50, 12)):
        terminal.resize(columns, lines)
        terminal.until(lambda shown, at=lines: len(shown) == at and shown[-1].endswith("quit"))
    terminal.resize(80, 24)
    server.stop()
    shown = terminal.shows("The server has not answered for", "and is asked again")
    assert shown[0].startswith("The server has not answered")
    terminal.press("d")
    terminal.shows("Not done:")
    server.start()
    terminal.until(lambda shown: "The server has not" not in shown[0])


@pytest.mark.parametrize("how", ["q", "Ctrl-C", "TERM"])
def test_the_terminal_is_as_before(top: Callable[..., Terminal], url: str, how: str) -> None:
    terminal = top()
    terminal.shows(LAST_LINE)
    assert not terminal.restored()
    assert terminal.settings() != terminal.settings_before, "the control: keys without Enter"
    if how == "TERM":
        os.kill(terminal.pid, signal.SIGTERM)
    else:
        terminal.press({"q": "q", "Ctrl-C": "\x03"}[how])
    assert terminal.wait_exit() == (128 + signal.SIGTERM if how == "TERM" else 0)
    assert terminal.settings() == terminal.settings_before
    eventually(terminal.restored)


def test_into_a_pipe_it_prints_the_status(cli: Callable[..., Any]) -> None:
    once = cli("top", "--once").out
    assert "No owners are registered" in once
    assert "\x1b" not in once
    assert cli("top", "--once", "--json").json()["owners"] == []


@pytest.mark.parametrize("view", KEYS)
def test_each_view_fits_any_terminal(view: str) -> None:
    for size in ((80, 24), (40, 5), (200, 60)):
        shown = render(None, State(view=view, said="Put back", error="gone", silent=3), size)
        lines = shown.plain.split("\n")
        assert len(lines) == size[1]
        assert max(map(len, lines)) <= size[0]
