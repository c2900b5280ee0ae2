"""`celery superfetch status --watch` at a real terminal and into a pipe."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from celery_superfetch.app.reaper import record_pass
from celery_superfetch.store.queues import Queues
from support.workers.bench import payload
from support.workers.cli import superfetch_command
from support.workers.terminal import Terminal
from support.workers.worker import process_env

WATCH = superfetch_command("status", "--watch", "0.3")
VERDICTS = "All is well", "Warning", "Critical"


def test_it_shows_a_death_and_outlives_its_server(worker, env, fresh_server):
    server = fresh_server(appendonly=True)
    first = worker(name="first", url=server.url(), options={"reap_interval": 3600})
    with Terminal(WATCH, process_env(env(url=server.url())), lines=40) as terminal:
        shown = terminal.shows("first@", "running", "Server:")
        assert shown[0].startswith(VERDICTS)
        first.die()
        shown = terminal.shows("is dead (its process is gone)")
        assert shown[0].startswith("Critical: no live worker")
        assert sum("Server:" in line for line in shown) == 1, "the one before is gone"

        server.stop()
        shown = terminal.shows("cannot be reached", "Tried again every 0.3 s.")
        assert shown[0].startswith("the broker (")
        assert "first@" not in " ".join(shown), "nobody takes it for how things are"
        server.start()
        terminal.until(lambda shown: shown[0].startswith(VERDICTS))
        terminal.shows("is dead (its process is gone)")
        terminal.press("\x03")
        assert terminal.wait_exit() == 0


def test_the_verdict_stays_on_a_low_terminal_also_of_a_server_that_hangs(env, fresh_server):
    server = fresh_server()
    stale = {"COLUMNS": "80", "LINES": "24"}  # as readline leaves them to whatever is started
    with Terminal(WATCH, {**process_env(env(url=server.url())), **stale}) as terminal:
        terminal.until(lambda shown: shown[0].startswith(VERDICTS), what="the verdict first")
        terminal.resize(80, 12)
        # A line that is longer than the terminal has two rows.
        terminal.until(
            lambda shown: shown[0].startswith(VERDICTS) and "more line" in " ".join(shown[6:8])
        )
        server.pause()
        shown = terminal.shows("has not answered for 3 s")
        assert shown[0].startswith(VERDICTS)
        server.resume()
        terminal.until(lambda shown: "has not answered" not in " ".join(shown))


@pytest.mark.parametrize("as_json", [False, True])
def test_into_a_pipe_it_prints_one_after_the_other(as_json, env):
    command = [*WATCH, *["--json"] * as_json]
    with subprocess.Popen(
        command, env=process_env(env()), stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        try:
            said = ""
            end = "}\n{\n" if as_json else "\n\nCritical: no live worker"
            while end not in said:
                said += watching.stdout.readline() or pytest.fail(f"it has ended: {said}")
            watching.send_signal(signal.SIGINT)
            watching.stdout.read()
            assert watching.wait(60) == 0
        finally:
            watching.kill()
    assert "\x1b" not in said
    if as_json:
        document, _ = json.JSONDecoder().raw_decode(said)
        assert document["findings"][0]["code"] == "no-worker"


def test_a_status_longer_than_its_terminal_ends_with_the_verdict(bench, env):
    """It had 73 lines on a terminal of 40: the verdict had gone off the screen."""
    for number in range(30):
        name = f"queue-{number}"
        bench.push(name, payload(number, name))
    reaper = bench.reaper()
    record_pass(reaper, reaper.reap())
    Queues(bench.database).add_notes([f"queue-{number}" for number in range(30)])
    status = superfetch_command("status")
    for lines in 24, 200:
        with Terminal(status, process_env(env()), lines=lines) as terminal:
            assert terminal.wait_exit() == 0
            shown = terminal.shows("no live worker is registered", "Server: ")
            [at] = [n for n, text in enumerate(shown) if text.startswith("Critical: no live")]
            server = next(n for n, text in enumerate(shown) if text.startswith("Server: "))
            assert (at > server) == (lines == 24), "it is on the screen once"
    piped = {"env": process_env(env()), "capture_output": True, "text": True, "timeout": 60}
    said = subprocess.run(status, **piped)
    assert said.stdout.count("no live worker is registered") == 1, "a pipe has no screen"
