"""Time of the web page's views with a large database, and what many browsers cost Redis.

    python benchmarks/page.py [--waiting 100000] [--in-flight 10000] [--dead 10000] [--json]

celery_superfetch alone is measured. On a server of its own, one queue has almost all waiting jobs,
and 100 owners have the jobs in flight. `celery superfetch web` runs in a process of its own. Each
view is requested after its cached answer has expired (``read``), and again at once (``cached``):
the median and the maximum from request to answer, and the longest script and other command by the
server's slow log: so long a worker had to wait. Then 1 and 20 browsers request one view as often as
they can; counted are the answers, and the scripts and commands that the page sends per second.

Distorted by: other processes on the machine (all times). Takes: about five minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare import machine  # (it puts the tests on the path)
from dead_set import fill as kill

from support.servers.server import Server
from support.visitors import Page
from support.workers.bench import Bench, elsewhere, payload
from support.workers.worker import app_env

RESULT = Path(__file__).resolve().parent / "results" / "page.json"
OWNERS = 100
QUEUES = 20
BATCH = 1000
MAIN = "queue-0"
#: A cached answer is kept for a second, or four times the duration of its reading.
CACHED_S, CACHED_SHARE = 1.2, 4.5
#: ms within which the page promises each view.
PROMISE_MS = 300.0
ROUNDS = 7
BROWSERS = (1, 20)
POLL_S = 5.0
VIEWS = {
    "overview": "",
    "jobs": "jobs",
    "jobs of a task, running": "jobs?state=running&task=shop.note",
    "jobs, longest run first": "jobs?sort=run_time",
    "jobs with strikes": "jobs?state=struck",
    "a job in flight": "jobs/f7-7",
    "a waiting job, deep in its queue": f"jobs/w{BATCH * 50}",
    "no such job": "jobs/nowhere",
    "queues": "queues",
    "a queue": f"queues?name={MAIN}",
    "workers": "workers",
    "a worker": "workers/{owner}",
    "recurring tasks": "recurring",
    "dead jobs": "dead",
    "dead jobs of a task": "dead?task=shop.add",
    "a dead job": "dead/id-7",
    "charts": "charts",
    "server": "server",
}


def fill(bench: Bench, args: argparse.Namespace) -> str:
    """Fill the database; return the id of one owner."""
    keys, lists = bench.keys, [f"queue-{number}" for number in range(QUEUES)]
    owners = []
    for number in range(OWNERS):
        process = elsewhere(f"host-{number // 10}", number + 1)
        owner = bench.owner(process, lists=lists, node=f"celery@w{number}")
        owners.append(owner.owner)
        count = args.in_flight // OWNERS
        bench.give(owner.owner, MAIN, [payload(f"f{number}-{at}", MAIN) for at in range(count)])
    for first in range(0, args.waiting, BATCH):
        jobs = [payload(f"w{first + at}", MAIN) for at in range(BATCH)]
        bench.client.lpush(keys.queue(MAIN), *jobs)
    for name in lists[1:]:
        bench.client.lpush(keys.queue(name), payload(f"w-{name}", name))
    kill(bench, args.dead, 1000)
    return str(owners[0])


def times(browser: Any, view: str, is_read: bool) -> list[float]:
    """Request a view several times; return ms from request to answer. ``is_read``: after a pause in
    which the cached answer expires."""
    found = [0.0]
    for _ in range(ROUNDS):
        if is_read:
            time.sleep(max(CACHED_S, CACHED_SHARE * found[-1] / 1000))
        begun = time.perf_counter()
        answer = browser.get(view)
        found.append((time.perf_counter() - begun) * 1000)
        assert answer.status_code in (200, 404), answer.text
    return found[1:]


def longest_ms(client: Any, act: Callable[[], Any]) -> tuple[float, float]:
    """Return the longest script and other command (ms) that the server ran during ``act``."""
    client.config_set("slowlog-log-slower-than", 200)  # us
    client.config_set("slowlog-max-len", 10_000)
    client.slowlog_reset()
    act()
    client.config_set("slowlog-log-slower-than", -1)
    longest = [0.0, 0.0]
    for entry in client.slowlog_get(10_000):
        at = not entry["command"].upper().startswith((b"EVAL", b"FCALL"))
        longest[at] = max(longest[at], entry["duration"] / 1000)
    return longest[0], longest[1]


def polled(page: Page, client: Any, view: str, browsers: int) -> tuple[float, float, float]:
    """Request a view from several browsers for ``POLL_S`` seconds. Return answers, scripts and all
    commands per second."""
    until, answers = time.monotonic() + POLL_S, list[int]()

    def ask() -> None:
        with page.browser() as browser:
            while time.monotonic() < until:
                answer = browser.get(view)
                assert answer.status_code in (200, 503), answer.text  # 503: it asks to come again
                answers.append(answer.status_code)

    before = _calls(client)
    threads = [threading.Thread(target=ask) for _ in range(browsers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    scripts, commands = (
        (after - first) / POLL_S for after, first in zip(_calls(client), before, strict=True)
    )
    return answers.count(200) / POLL_S, scripts, commands


def _calls(client: Any) -> tuple[int, int]:
    """Return how many scripts, and how many commands from clients or scripts, have run."""
    stats = client.info("commandstats")
    scripts = sum(
        row["calls"]
        for name, row in stats.items()
        if name.startswith(("cmdstat_eval", "cmdstat_f"))
    )
    return scripts, sum(row["calls"] for row in stats.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--waiting", type=int, default=100_000, help="jobs that wait (100,000)")
    parser.add_argument("--in-flight", type=int, default=10_000, help="jobs in flight (10,000)")
    parser.add_argument("--dead", type=int, default=10_000, help="jobs in the dead set (10,000)")
    parser.add_argument("--json", nargs="?", type=Path, const=RESULT, help=f"({RESULT.name})")
    args = parser.parse_args()
    views: dict[str, dict[str, float]] = {}
    load: dict[str, dict[str, float]] = {}
    with Server() as server, tempfile.TemporaryDirectory() as directory:
        bench = Bench(server.client(), dead_limit=args.dead)
        owner = fill(bench, args)
        env = {**app_env(server.url(), ledger_url=""), "CELERY_BROKER_URL": server.url()}
        with Page(env, Path(directory), token=None).wait_ready() as page:
            with page.browser() as browser:
                for name, pattern in VIEWS.items():
                    view, read = pattern.format(owner=owner), list[float]()
                    script, command = longest_ms(
                        bench.client,
                        lambda view=view, read=read: read.extend(times(browser, view, True)),
                    )
                    cached = times(browser, view, False)
                    views[name] = {
                        "read_ms": statistics.median(read),
                        "longest_read_ms": max(read),
                        "cached_ms": statistics.median(cached),
                        "longest_script_ms": script,
                        "longest_command_ms": command,
                    }
                    row = "".join(f"{value:>10.1f}" for value in views[name].values())
                    print(f"{name:36}{row} ms", flush=True)
            for name in ("overview", "jobs", "a queue"):
                for count in BROWSERS:
                    answers, scripts, commands = polled(page, bench.client, VIEWS[name], count)
                    title = f"{name}, {count} browsers"
                    load[title] = {"answers": answers, "scripts": scripts, "commands": commands}
                    print(
                        f"{title:36}" + "".join(f"{value:>10.1f}" for value in load[title].values())
                    )
    slow = [name for name, row in views.items() if row["longest_read_ms"] > PROMISE_MS]
    if slow:
        print(f"More than {PROMISE_MS:g} ms: {', '.join(slow)}")
    if args.json:
        found = {"machine": machine(), "views": views, "browsers": load}
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
