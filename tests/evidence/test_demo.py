"""The demo is the README's first command: it must keep its word, and leave nothing behind."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.process import Process, all_of
from support.servers.server import find_binary, free_port
from support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "superfetch-demo:"


class Demo(Process):
    """One run of the demo, and whatever it started."""

    def __init__(self, log: Path, *options: str) -> None:
        # The command `celery` reads the latter two: neither the workers nor the page may use them.
        elsewhere = dict.fromkeys(("BROKER_URL", "RESULT_BACKEND"), "redis://127.0.0.1:1/0")
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **elsewhere}
        words = [sys.executable, "-m", "examples.demo", *options]
        super().__init__(words, log=log, env=env, cwd=ROOT, title="the demo")

    def summary(self) -> dict[str, int]:
        """The rows of the summary table."""
        rows = re.findall(r"^[│|]\s*([a-z ]+?)\s*[│|]\s*(\d+)\s*[│|]", self.log(), re.MULTILINE)
        return {name: int(number) for name, number in rows}

    def close(self) -> None:
        for process in all_of(self):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        super().close()


@pytest.fixture
def demo(keep: Callable[[Any], Any], tmp_path: Path) -> Callable[..., Demo]:
    """`demo("--url", url)`: started, not waited for."""
    numbers = itertools.count()
    return lambda *options: keep(Demo(tmp_path / f"demo-{next(numbers)}.log", *options))


@pytest.fixture
def embedded(demo: Callable[..., Demo]) -> Callable[..., Demo]:
    """A demo with a server of its own, where there is a program for one."""
    find_binary()
    return demo


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        ([("a", 2, 1, 2), ("b", 1, 99, None), ("b", 2, 102, 103)], ""),
        ([("a", 1, 98, 99.9), ("a", 2, 102, 103), ("b", 2, 1, 2)], ""),  # died before its ack
        ([("a", 2, 1, 2)], "did not finish: b"),
        ([("a", 2, 1, 2), ("b", 1, 99, None)], "did not finish: b"),
        ([("a", 2, 1, 2), ("b", 2, 1, 2), ("b", 3, 3, 4)], "finished more than once: b"),
        ([("a", 1, 90, 91), ("a", 2, 102, 103), ("b", 2, 1, 2)], "finished more than once: a"),
        ([("a", 2, 1, None), ("a", 3, 2, 3), ("b", 2, 1, 2)], "ran again although"),
        ([("a", 1, 1, None), ("b", 1, 1, None), ("a", 2, 2, 3), ("b", 2, 2, 3)], "more than 1"),
    ],
)
def test_the_books_balance_only_when_the_promise_was_kept(monkeypatch, runs, problem):
    """Worker 1 is killed at 100 s; runs are job, worker, start, end."""
    monkeypatch.syspath_prepend(str(ROOT))
    books = importlib.import_module("examples.demo.books")
    kill = books.Kill(worker=1, at=100.0, concurrency=1)
    lines = [
        books.Run(job, worker, 9, started, 1.0, finished) for job, worker, started, finished in runs
    ]
    problems = books.Balance(("a", "b"), lines, kill).problems()
    assert bool(problems) == bool(problem)
    assert problem in "; ".join(problems)


def check_the_story(run: Demo) -> None:
    """What every reader of the README is to see."""
    assert run.wait_exit(110) == 0, run.log()
    summary = run.summary()
    assert summary["lost"] == 0
    assert summary["killed"] == 1
    assert summary["finished"] == summary["enqueued"] - 1
    assert 0 < summary["run twice"] <= 4
    assert summary["recovered"] >= summary["run twice"]
    assert "was declared dead" in run.log()
    assert "superfetch dead list" in run.log()
    assert "FAILURE, PoisonPill" in run.log()
    assert not all_of(run)


def test_the_demo_loses_nothing_and_leaves_a_server_named_by_url_as_it_was(demo, url, client):
    """On a server of its own it is run as a block of the README, and as the control below."""
    client.rpush("celery", "somebody's job")
    client.set("superfetch:owners:not-ours", "1")
    check_the_story(demo("--url", url))
    assert {key.decode() for key in client.keys("*")} == {"celery", "superfetch:owners:not-ours"}


def test_the_control_stock_transport_strands_jobs_and_the_demo_says_so(embedded):
    run = embedded("--stock")
    assert run.wait_exit(110) == 1, run.log()
    assert run.summary()["lost"] > 0, run.log()
    assert not all_of(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_demo_that_is_interrupted_stops_what_it_started_and_cleans_up(demo, url, client, number):
    run = demo("--url", url)
    run.wait_log("Enqueued", 60)
    assert len(all_of(run)) > 8, "two workers with their pools, beat and the demo"
    run.signal(number)
    assert run.wait_exit(60) == 128 + number
    assert "Traceback" not in run.log()
    assert not all_of(run)
    assert not client.keys("*")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes the children along")
def test_a_demo_that_is_killed_takes_everything_along(embedded):
    run = embedded()
    run.wait_log("Enqueued", 60)
    run.signal(signal.SIGKILL)
    run.wait_exit()
    eventually(lambda: not all_of(run), 10, message="all its processes are gone")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_fleet_with_its_page_runs_until_a_signal_and_leaves_no_process(embedded, number):
    """Its page shows a kill, a poison pill and a scheduled job, and goes with all the others."""
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux takes the children along")
    run = embedded("--page", str(free_port()))
    run.wait_log("The page: ", 60)
    [address] = re.findall(r"The page: (\S+)", run.log())
    with httpx.Client(follow_redirects=True) as browser:
        assert browser.get(address).status_code == 200, "it logs in"
        page = address.partition("?")[0]

        def shown() -> str:
            return browser.get(page).text

        if number == signal.SIGINT:
            eventually(lambda: "its process is gone" in shown(), 60, message="a worker is killed")
            eventually(lambda: "app.poison[" in shown(), 60, message="the pill is in the dead set")
            scheduled = browser.get(f"{page}jobs?state=parked").text
            assert "examples.demo.app.work" in scheduled
        eventually(lambda: len(all_of(run)) > 12, 30, message="workers with their pools, beat, ...")
        members = all_of(run)
        run.signal(number)
        assert run.wait_exit(60) == (-number if number == signal.SIGKILL else 128 + number)
        eventually(lambda: not all_of(run), 10, message="all its processes are gone")
        with pytest.raises(httpx.TransportError):
            browser.get(page)
    eventually(lambda: not any(each.is_running() for each in members), 10)
    assert "Traceback" not in run.log()


def test_the_fleet_has_no_end_to_record_and_none_of_stock_celery(demo):
    for option in ("--stock", "--record=x.json"):
        run = demo("--page", option)
        assert run.wait_exit(60) == 2
        assert "--page has no end" in run.log()


def test_jobs_on_the_demos_queue_are_not_touched_unless_told_so(demo, url, client):
    client.rpush(f"{PREFIX}superfetch-demo", "left from a demo that was killed")
    refused = demo("--url", url)
    assert refused.wait_exit(110) == 1
    assert "holds 1 jobs" in refused.log()
    assert "--clean" in refused.log()
    assert client.keys("*") == [f"{PREFIX}superfetch-demo".encode()]
    cleaned = demo("--url", url, "--clean")
    cleaned.wait_log("Starting 2 workers", 60)
    assert client.llen(f"{PREFIX}superfetch-demo") == 0


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("redis://127.0.0.1:1/0", "the server cannot be used"),
        ("amqp://localhost", "is not a redis:// or rediss:// URL"),
        ("redis://localhost:many/0", "the URL cannot be read"),
    ],
)
def test_a_wrong_url_is_told_in_one_line(demo, url, cause):
    run = demo("--url", url)
    assert run.wait_exit(110) == 1
    assert cause in run.log()
    assert "Traceback" not in run.log()
